"""Try the page of `vaswani demo` in headless Chromium: type, translate, hover, and hostile text.

    apt-get install chromium chromium-driver
    pip install ".[demo]" selenium
    python scripts/check_demo_page.py --screenshots runs/screenshots

Starts the page on a free port and prints one line per check. Exits with 1 if one of them failed.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

SENTENCE = "The young doctor does not open the red door."
# Sets a variable of the page if any of it is read as markup or as a template.
MARKUP = '<script>alert(1)</script><img src=x onerror="window.hacked=1"> ${window.hacked=1} {{7*7}}'
PATIENCE = 120  # seconds, for a busy machine
SET_TEXT = """
const box = document.querySelector("textarea"), text = JSON.parse(arguments[0]);
Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(box, text);
box.dispatchEvent(new Event("input", {bubbles: true}));
"""


class Page:
    """The page in a browser, and the process that serves it."""

    def __init__(self, driver: webdriver.Chrome, url: str, server: psutil.Process, screenshots: Path):
        self.driver, self.server, self.screenshots = driver, server, screenshots
        driver.get(url)
        self.wait(lambda: driver.find_elements(By.TAG_NAME, "textarea"))

    def wait(self, condition: Callable[[], object]) -> object:
        return WebDriverWait(self.driver, PATIENCE).until(lambda _: condition())

    def write(self, text: str) -> None:
        """Put `text` into the text box, as a paste does."""
        self.driver.switch_to.default_content()
        self.driver.execute_script(
            SET_TEXT, json.dumps(text)
        )  # JSON in JSON: the driver refuses half of a surrogate pair

    def translate(self, text: str) -> None:
        """Write `text`, translate it, and wait for the answer."""
        self.write(text)
        before = self.answer()
        time.sleep(0.3)  # the page sends its own state, which follows the text
        self.driver.find_element(By.XPATH, "//button[normalize-space()='Translate']").click()
        self.wait(lambda: self.answer() and self.answer() != before and not self.is_busy())

    def is_busy(self) -> bool:
        return bool(self.driver.find_elements(By.CSS_SELECTOR, ".generating, .pending"))

    def answer(self) -> str:
        """Return the text of the table, or of the message in its place."""
        return self.text("#translations")

    def text(self, selector: str) -> str:
        return "".join(element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector))

    def rows(self) -> list[list[str]]:
        rows = self.driver.find_elements(By.CSS_SELECTOR, "#translations tbody tr")
        return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in rows]

    def enter_frame(self) -> None:
        """Switch to the page of attention."""
        self.driver.switch_to.default_content()
        self.driver.switch_to.frame(self.wait(lambda: self.driver.find_elements(By.TAG_NAME, "iframe"))[0])
        self.wait(lambda: self.words("queries"))

    def words(self, side: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, f"#{side} button")

    def hover(self, word) -> str:
        """Return the note on `word` while the pointer is over it."""
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", word)
        ActionChains(self.driver).move_to_element(word).perform()
        return self.text("#note")

    def save(self, name: str) -> None:
        """Save a picture of the whole page."""
        self.driver.switch_to.default_content()
        width = self.driver.get_window_size()["width"]
        self.driver.set_window_size(width, 900)
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        self.driver.set_window_size(width, max(900, height + 150))
        self.driver.save_screenshot(str(self.screenshots / f"{name}.png"))

    def is_hacked(self) -> bool:
        return self.driver.execute_script("return window.hacked !== undefined")


def check_address(page: Page) -> str:
    connections = page.server.net_connections()
    listening = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}, listening
    return "only 127.0.0.1 is listened at"


def check_translating(page: Page) -> str:
    page.translate(SENTENCE)
    rows = page.rows()
    assert len(rows) >= 2, rows
    scores = [float(row[2]) for row in rows]
    assert scores == sorted(scores, reverse=True), scores
    for rank, (number, text, _, log_prob, length) in enumerate(rows, start=1):
        assert (int(number), float(log_prob) <= 0, int(length) > 0, bool(text)) == (rank, True, True, True)
    assert "log P / " in page.answer()
    return f"{len(rows)} translations, best: {rows[0]}"


def check_attention(page: Page) -> str:
    page.enter_frame()
    title, kind = page.text("h1"), Select(page.driver.find_element(By.ID, "kind")).first_selected_option.text
    assert (title, kind) == ("What translation 1 was written from", "Encoder-decoder attention"), (title, kind)
    words = page.words("queries")
    page.driver.switch_to.default_content()
    page.save("all_words")
    page.enter_frame()
    notes = [page.hover(word) for word in page.words("queries")[:3]]
    assert len(set(notes)) == 3, notes
    assert all(" looks at " in note for note in notes), notes
    painted = [word for word in page.words("keys") if "gradient" in word.get_attribute("style")]
    assert len(painted) == len(page.words("keys")), len(painted)
    layers = Select(page.driver.find_element(By.ID, "layer"))
    by_layer = []
    for index in (0, len(layers.options) - 1):
        layers.select_by_index(index)
        by_layer.append([page.hover(word) for word in page.words("queries")])
    # All words are compared: heads that are certain may show the same percentage for one word in both layers.
    assert len(layers.options) == 1 or by_layer[0] != by_layer[1], by_layer
    # Compared by the stripes of a word, one per shown head: the mean in the note stays the same if heads are certain.
    by_heads = []
    for _ in range(2):
        page.hover(page.words("queries")[2])
        by_heads.append(page.words("keys")[0].get_attribute("style"))
        page.driver.find_element(By.CSS_SELECTOR, "#heads button").click()
    assert by_heads[0] != by_heads[1], by_heads
    page.save("a_word")
    return f"{len(words)} words; {notes[2]!r}; in the last layer {by_layer[1][2]!r}; without head 1 {by_heads[1]!r}"


def check_choice(page: Page) -> str:
    page.driver.switch_to.default_content()
    page.driver.find_elements(By.CSS_SELECTOR, "input[type=radio]")[1].click()

    def is_shown() -> bool:
        page.enter_frame()
        return page.text("h1") == "What translation 2 was written from"

    page.wait(is_shown)
    return "the frame follows the choice of translation 2"


def check_markup(page: Page) -> str:
    page.translate(MARKUP)
    assert len(page.rows()) >= 2
    assert not page.is_hacked()
    assert not page.driver.find_elements(By.CSS_SELECTOR, "#translations script, #translations img")
    page.enter_frame()
    keys = "".join(word.text for word in page.words("keys"))
    assert "<script>alert(1)</script>" in keys, keys
    assert "${window.hacked=1}{{7*7}}" in keys, keys
    assert not page.is_hacked()
    page.save("markup")
    return f"the words of the frame spell it: {keys[:40]}..."


def check_refusals(page: Page) -> str:
    found = []
    for name, text, expected in (
        ("two_lines", "One sentence.\nAnother.", "one sentence at a time, on one line, and these are 2 lines"),
        ("empty", "", "There is nothing to translate yet"),
        ("megabyte", "a" * 1_000_000, "up to 1,000 characters, and this text has 1,000,000"),
        ("many_tokens", "\u00e4" * 900, "tokens (sub-words), and this one has"),
        ("half_a_pair", "a \ud800 b", "half of a surrogate pair at position 2"),
    ):
        page.translate(text)
        assert expected in page.answer(), page.answer()
        assert not page.rows()
        assert not page.driver.find_elements(By.TAG_NAME, "iframe"), "attention of nothing"
        found.append(name)
    page.save("refusal")
    return ", ".join(found)


def check_odd_text(page: Page) -> str:
    for text in ("a\0b", "\u202eright to left", "</s> <unk> <pad>", "qqqxq zzyzx \U0001f642 \u4f60\u597d"):
        page.translate(text)
        assert page.rows(), page.answer()
        page.enter_frame()
    return "NUL, a right-to-left mark, spelled special tokens and unknown words are translated"


def check_keyboard(page: Page) -> str:
    page.translate(SENTENCE)
    page.driver.switch_to.default_content()
    before = page.answer()
    box = page.driver.find_element(By.TAG_NAME, "textarea")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("The dog runs.", Keys.ENTER)
    page.wait(lambda: page.rows() and page.answer() != before)
    return f"Enter translates: {page.rows()[0]}"


def check_examples(page: Page) -> str:
    page.driver.switch_to.default_content()
    examples = page.driver.find_elements(By.CSS_SELECTOR, "#examples button")
    if not examples:
        return "none: the model does not say that it translates from English or German"
    sentence, before = examples[-1].text, page.answer()
    examples[-1].click()
    page.wait(lambda: page.rows() and page.answer() != before)
    box = page.driver.find_element(By.TAG_NAME, "textarea")
    page.wait(lambda: box.get_attribute("value") == sentence)  # the page fills one part of itself after the other
    return f"a click on {sentence!r} translates it: {page.rows()[0]}"


def check_small_screen(page: Page) -> str:
    page.driver.set_window_size(500, 900)
    widths = page.driver.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    page.save("small_screen")
    page.driver.set_window_size(1280, 900)
    assert widths[0] <= widths[1], f"{widths[0]} pixels wide on a screen of {widths[1]}"
    return f"{widths[0]} pixels wide on a screen of {widths[1]}"


def check_dark(page: Page) -> str:
    """Save a picture in dark mode."""
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
    page.driver.refresh()
    page.wait(lambda: page.driver.find_elements(By.TAG_NAME, "textarea"))
    page.translate(SENTENCE)
    page.enter_frame()
    page.hover(page.words("queries")[1])
    page.save("dark")
    return "dark.png"


def check_network(page: Page) -> str:
    """Check all requests and complaints of the browser since the page was opened; runs last."""
    addresses = set()
    for entry in page.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.add(message["params"]["request"]["url"])
    foreign = {a for a in addresses if urlsplit(a).scheme in ("http", "https") and urlsplit(a).hostname != "127.0.0.1"}
    assert addresses
    assert not foreign, foreign
    complaints = [e["message"] for e in page.driver.get_log("browser") if e["level"] == "SEVERE"]
    assert not complaints, complaints
    return f"{len(addresses)} addresses asked for, all of 127.0.0.1; no errors in the console"


CHECKS = (
    check_address,
    check_translating,
    check_attention,
    check_choice,
    check_markup,
    check_refusals,
    check_odd_text,
    check_keyboard,
    check_examples,
    check_small_screen,
    check_dark,
    check_network,
)


@contextmanager
def serving(options: list[str]):
    """Yield the address of the page, and the process that serves it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vaswani_transformer", "demo", *options, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, f"expected the address of the page, got {line!r}"
        yield address[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextmanager
def browsing():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1280,900", "--force-device-scale-factor=1"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder or run folder; the page's own default if not given")
    parser.add_argument("--screenshots", type=Path, default=Path("runs/screenshots"), help="folder for pictures")
    args = parser.parse_args()
    args.screenshots.mkdir(parents=True, exist_ok=True)
    num_failed = 0
    with serving([] if args.model is None else ["--model", args.model]) as (url, server), browsing() as driver:
        page = Page(driver, url, server, args.screenshots)
        for check in CHECKS:
            name = check.__name__.removeprefix("check_")
            try:
                print(f"ok      {name}: {check(page)}", flush=True)
            except Exception as error:  # of the browser too; the other checks follow
                num_failed += 1
                page.save(f"failed_{name}")
                print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(CHECKS) - num_failed} of {len(CHECKS)} checks passed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
