"""Write training text as people type it: capitals, typing errors, emoji, several sentences in a line.

    pip install opustrainer   # in a separate environment
    python scripts/disturb_text.py FOLDER OUTPUT

The file disturbed_text.json lists corpora, with a number of copies for each corpus. For each corpus, the script reads
FOLDER/CORPUS/train.en and train.de. It disturbs each copy of the text differently, and writes all copies to
OUTPUT/CORPUS/train.en and train.de. The same text and settings give the same bytes. OpusTrainer makes most of the
changes. Most changes are the same in source and target. Typing errors, title case, lower case and curly quotes change
only the source, because a translation should not copy them.
"""

# ruff: noqa: RUF001 - the strings contain quotation marks that look alike, on purpose

import argparse
import json
import random
import re
import unicodedata
from pathlib import Path

from opustrainer.modifiers.merge import MergeModifier
from opustrainer.modifiers.noise import NoiseModifier
from opustrainer.modifiers.punctuation import RemoveEndPunctuationModifier
from opustrainer.modifiers.surface import TitleCaseModifier, UpperCaseModifier
from opustrainer.modifiers.typos import TypoModifier

INVISIBLE = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
SETTINGS = json.loads(Path(__file__).with_name("disturbed_text.json").read_text(encoding="utf-8"))
FACES = [chr(code) for code in range(0x1F600, 0x1F650)]
SIGNS = [
    chr(code)
    for first, end in ((0x1F300, 0x1F600), (0x1F680, 0x1F6D8), (0x1F90C, 0x1FA00))
    for code in range(first, end)
]
# U+FE0F asks for a sign to be shown as an emoji.
OLD_SIGNS = [sign + "\ufe0f" for sign in SETTINGS["old_signs"]]
EMOJI = [FACES, FACES, SIGNS, OLD_SIGNS, SETTINGS["joined_signs"]]


def swap_letters(source: str, target: str) -> tuple[str, str]:
    def swap(match: re.Match) -> str:
        word = match[0]
        if random.random() >= 0.15:
            return word
        at = random.randrange(len(word) - 1)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    return re.sub(r"[^\W\d_]{3,}", swap, source), target


def put_in_front(source: str, target: str) -> tuple[str, str]:
    kind = random.randrange(4)
    if kind == 0 and not set(source + target) & set("\"“”„«»'’‘‚"):
        left, right, german_left, german_right = random.choice(SETTINGS["quotes"])
        if random.random() < 0.3:  # the quotation seems to end in a later line
            return left + source, german_left + target
        return left + source + right, german_left + target + german_right
    number = random.choice([random.randint(1, 20), random.randint(1, 400), random.choice("abcdefABCDEF")])
    front = (
        random.choice(SETTINGS["bullets"])
        if kind == 1
        else random.choice(["{}. ", "{}) ", "({}) ", "{}: "]).format(number)
    )
    return front + source, front + target


def add_emoji(source: str, target: str) -> tuple[str, str]:
    emoji = [random.choice(random.choice(EMOJI)) for _ in range(random.choice([1, 1, 1, 2, 3]))]
    text = random.choice(["", "", " "]).join(emoji)
    space = random.choice(["", " ", " "])
    if random.random() < 0.2:
        return text + space + source, text + space + target
    return source + space + text, target + space + text


def disturb(pairs: list[str], shares: dict[str, float]) -> list[str]:
    """Return the lines of `pairs`, shuffled and disturbed.

    Args:
        pairs: lines with a source, a tab and a target. The list is shuffled in place.
        shares: for each kind of change, the share of lines that get it.
    """
    typos = TypoModifier(1.0)
    title_case = TitleCaseModifier(1.0)
    source_changes = {
        "curly_quotes": lambda source: re.sub(r'"([^"]*)"', r"“\1”", source.replace("'", "’")),
        "typos": typos.apply,
        "title_case": lambda source: next(iter(title_case([source]))),
        "lower_case": str.lower,
    }
    pair_changes = {"swaps": swap_letters, "front": put_in_front, "emoji": add_emoji}
    random.shuffle(pairs)
    lines = []
    merged = MergeModifier(shares["merge"], min_lines=2, max_lines=4)(pairs)
    for line in RemoveEndPunctuationModifier(shares["no_end_mark"])(list(merged)):
        source, target = line.split("\t")
        for name, share in shares.items():
            if name in source_changes and random.random() < share:
                source = source_changes[name](source)
            elif name in pair_changes and random.random() < share:
                source, target = pair_changes[name](source, target)
        lines.append(f"{source}\t{target}")
    lines = list(UpperCaseModifier(shares["upper_case"])(lines))
    return list(NoiseModifier(shares["noise"], max_words=3)(lines))


def read_pairs(folder: Path) -> list[str]:
    sides = [(folder / f"train.{language}").read_text(encoding="utf-8").split("\n") for language in ("en", "de")]
    cleaned = [
        [" ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", line)).split()) for line in side] for side in sides
    ]
    return ["\t".join(pair) for pair in zip(*cleaned, strict=True) if all(pair)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder that holds a folder for each corpus")
    parser.add_argument("output", type=Path, help="folder to write, in which each corpus gets a folder")
    args = parser.parse_args()
    for corpus, copies in SETTINGS["copies"].items():
        random.seed(f"{SETTINGS['seed']} {corpus}")
        pairs = read_pairs(args.folder / corpus)
        lines = [line for _ in range(copies) for line in disturb(pairs, SETTINGS["shares"])]
        folder = args.output / corpus
        folder.mkdir(parents=True, exist_ok=True)
        for language, side in zip(("en", "de"), zip(*(line.split("\t") for line in lines), strict=True), strict=True):
            (folder / f"train.{language}").write_bytes("".join(f"{line}\n" for line in side).encode())
        print(f"{corpus}: {len(lines)} pairs")


if __name__ == "__main__":
    main()
