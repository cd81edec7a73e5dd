"""The page of `vaswani demo` as Gradio serves it; what it shows is tested in tests/unit/test_demo.py without Gradio."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from vaswani_transformer.hub import demo
from vaswani_transformer.hub.space import GRADIO_VERSION

gradio = pytest.importorskip("gradio", reason='needs Gradio: pip install "vaswani-transformer[demo]"')


@pytest.fixture(scope="module")
def model_page(build_translator):
    texts = ["The law will never be perfect.", "a house, a garden"] * 3
    model, tokenizer = build_translator(texts, d_model=12, num_heads=3, decoder_layers=2)
    model.generation_config.max_length_offset = 3
    return demo.Demo(model, tokenizer)


@pytest.fixture
def page(model_page):
    return demo.build_page(model_page, name="<b>tiny</b>", languages=("<i>en", "de"))


@contextmanager
def serving(page, monkeypatch, host="127.0.0.1"):
    """The address at which the page is served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(page, "block_thread", lambda: None)
    demo.serve(page, host=host, port=port)
    yield f"http://127.0.0.1:{port}"
    page.close()


@pytest.fixture
def served(page, monkeypatch, capsys):
    with serving(page, monkeypatch) as address:
        assert capsys.readouterr().out == f"{address}/  (Ctrl+C ends it)\n"
        yield address


def handler(page, name):
    return next(function for function in page.fns.values() if function.fn.__name__ == name)


def test_the_version_a_space_asks_for_is_the_tested_one():
    assert gradio.__version__ == GRADIO_VERSION


def test_a_sentence_gives_table_choice_and_attention(page, model_page):
    html, answer, chooser, frame = handler(page, "translate").fn("The law", 3)
    assert html == model_page.answer("The law", 3).html
    assert [choice for _, choice in chooser.choices] == [1, 2, 3]
    assert (chooser.value, chooser.visible) == (1, True)
    assert frame == model_page.show_attention(answer, 0)
    assert handler(page, "choose").fn(answer, 2) == model_page.show_attention(answer, 1)


def test_a_click_on_an_example_translates_it(page, model_page):
    english = demo.build_page(model_page, name="tiny", languages=("en", "de"))
    found, hidden = (
        next(block for block in built.blocks.values() if isinstance(block, gradio.Dataset)) for built in (english, page)
    )
    assert (found.visible, hidden.visible) == (True, False)
    [sentence] = found.raw_samples[0]
    text, html, *_ = handler(english, "translate_example").fn([sentence], 2)
    assert (text, html) == (sentence, model_page.answer(sentence, 2).html)


def test_a_refusal_hides_choice_and_attention(page):
    html, _, chooser, frame = handler(page, "translate").fn("", 3)
    assert "write a sentence" in html
    assert (chooser.choices, chooser.visible, frame) == ([], False, "")


def test_the_model_is_asked_one_question_at_a_time(page):
    settings = {(f.concurrency_id, f.concurrency_limit) for f in page.fns.values()}
    assert settings == {("model", 1)}


def ask(address, body=None, content_type="application/json"):
    """Status, headers and text of the answer."""
    request = urllib.request.Request(address, body, {"Content-Type": content_type})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers, refusal.read().decode()


# What a policy may allow without allowing any other server.
HARMLESS = {"'self'", "'none'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/", None, 200), ("/config", None, 200), ("/nowhere", None, 404), ("/gradio_api/upload", b"", 404)],
)
def test_every_answer_tells_the_browser_to_ask_no_other_server(served, path, body, status):
    found, headers, _ = ask(served + path, body)
    assert found == status
    [policy] = headers.get_all("Content-Security-Policy")
    directives = {name: set(sources) for name, *sources in (part.split() for part in policy.split(";"))}
    assert set.union(*directives.values()) <= HARMLESS
    assert directives["default-src"] >= {"'self'"}  # of all that is fetched and has no directive of its own
    assert not directives["script-src"] & {"data:"}
    # These do not fall back on default-src.
    assert directives.keys() >= {"default-src", "base-uri", "form-action"}
    assert directives["base-uri"] | directives["form-action"] == {"'self'"}
    assert directives["object-src"] == {"'none'"}


def test_nothing_is_counted_shared_or_fetched_from_elsewhere(served, page):
    _, _, text = ask(served)
    assert (page.analytics_enabled, page.share, page.config["footer_links"]) == (False, False, [])
    assert "fonts.googleapis.com" not in text


def test_markup_in_the_names_of_model_and_languages_stays_text(served, page):
    _, _, text = ask(served)
    values = json.dumps([c["props"].get("value") for c in page.config["components"]])
    assert "&lt;b&gt;tiny&lt;/b&gt;" in values
    assert "&lt;i&gt;en to German" in values
    for markup in ("<b>tiny", "<i>en"):
        assert markup not in values
        assert markup not in text


@pytest.mark.parametrize(
    "path",
    [
        *("upload", "process_recording", "component_server", "run/translate"),
        *("call/join", "run/join", "api/join", "call/reset", "join"),
    ],
)
def test_nothing_but_a_question_can_be_posted(served, path):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n1\r\n--x--\r\n'
    status, _, text = ask(f"{served}/gradio_api/{path}", body, "multipart/form-data; boundary=x")
    assert (status, json.loads(text)) == (404, {"detail": "This page takes sentences and nothing else."})


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1", 200), ("LOCALHOST:80", 200), ("[::1]:80", 200), ("evil.com", 400), ("", 400)]
)
@pytest.mark.parametrize("path", ["/", "/config"])
def test_a_page_of_this_machine_answers_to_no_other_name(served, path, host, status):
    connection = http.client.HTTPConnection(urlsplit(served).netloc)
    connection.request("GET", path, headers={"Host": host})
    with connection.getresponse() as answer:
        assert answer.status == status
        assert answer.headers["Content-Security-Policy"]
    connection.close()


def test_a_page_for_the_network_answers_to_any_name(page, monkeypatch):
    with serving(page, monkeypatch, host="0.0.0.0") as address:
        connection = http.client.HTTPConnection(urlsplit(address).netloc)
        connection.request("GET", "/config", headers={"Host": "translate.example.com"})
        with connection.getresponse() as answer:
            assert answer.status == 200
        connection.close()


def question(text, session):
    """The body of a request to translate, as the page sends it."""
    return json.dumps({"data": [text, 1], "fn_index": 0, "session_hash": session}).encode()


def test_a_request_of_the_largest_size_is_taken_and_one_byte_more_is_refused(served):
    largest = question("a" * (demo.MOST_BYTES - len(question("", "s"))), "s")
    assert len(largest) == demo.MOST_BYTES
    status, _, text = ask(f"{served}/gradio_api/queue/join", largest)
    assert (status, list(json.loads(text))) == (200, ["event_id"])
    status, _, text = ask(f"{served}/gradio_api/queue/join", largest + b" ")
    assert status == 413
    assert json.loads(text)["detail"] == "This page takes requests of up to 1,048,576 bytes: shorten the text."


def test_a_long_request_that_does_not_say_its_length_is_refused(served):
    connection = http.client.HTTPConnection(urlsplit(served).netloc)
    chunks = (b" " * 65_536 for _ in range(demo.MOST_BYTES // 65_536 + 1))
    connection.request("POST", "/gradio_api/queue/join", chunks, {"Content-Type": "application/json"})
    with connection.getresponse() as answer:
        assert answer.status == 413
    connection.close()


def test_no_more_sessions_are_remembered_than_the_limit(page, monkeypatch, capsys):
    monkeypatch.setattr(demo, "MOST_SESSIONS", 2)
    with serving(page, monkeypatch) as address:
        for number in range(5):
            assert ask(f"{address}/gradio_api/queue/join", question("a", f"visitor {number}"))[0] == 200
            answer = ask(f"{address}/gradio_api/queue/data?session_hash=visitor%20{number}")[2]
            assert '"msg":"process_completed"' in answer
            assert '"success":true' in answer
    assert list(page.state_holder.session_data)[-2:] == ["visitor 3", "visitor 4"]
    assert len(page.state_holder.session_data) == 2


def test_a_taken_port_is_said(page):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {port}: it is taken"):
            demo.serve(page, host="127.0.0.1", port=port)
