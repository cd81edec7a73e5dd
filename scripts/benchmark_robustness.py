"""Print the BLEU of a model on text as people type it: the same sentences, disturbed in several ways.

python scripts/benchmark_robustness.py --model model_cards/everyday_en_de --source dev.en --target dev.de

Each line of the output is one kind of disturbance. The name of the kind also says what is done to the references. For
emoji, the line also has the share of translations that keep the emoji, and the share of translations with U+FFFD, the
replacement character.
"""

import argparse
import random
import re
from collections.abc import Callable
from pathlib import Path

import sacrebleu

import vaswani_transformer

EMOJI = ["😀", "😂", "❤️", "👍", "🎉", "🙏🏽", "🔥", "😭", "👩\u200d💻", "🇩🇪", "✨", "🚀"]
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
CURLY = str.maketrans({"'": "\u2019", '"': "\u201d"})


def swap_letters(match: re.Match) -> str:
    word = match[0]
    if len(word) < 3 or random.random() >= 0.15:
        return word
    at = random.randrange(len(word) - 1)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


# The kinds of disturbance, each with a function of a sentence. Model cards quote the names.
# `main` translates or scores differently if "three", "the reference", "scored", "split" or "emoji" is in a name.
CHANGES = {
    "clean": lambda text: text,
    "four spaces in front": lambda text: f"    {text}",
    "a tab in front": lambda text: f"\t{text}",
    "a byte order mark in front": lambda text: f"\ufeff{text}",
    "a quotation mark before the sentence and the reference": lambda text: f'"{text}',
    "a bullet before the sentence and the reference": lambda text: f"- {text}",
    "a number before the sentence and the reference": lambda text: f"3. {text}",
    "a carriage return at the end": lambda text: f"{text}\r",
    "double spaces": lambda text: text.replace(" ", "  "),
    "a no-break space": lambda text: text.replace(" ", "\u00a0", 1),
    "a zero-width space": lambda text: text.replace(" ", "\u200b ", 1),
    "a soft hyphen in the first long word": lambda text: re.sub(r"(\w\w)(\w{3})", "\\1\u00ad\\2", text, count=1),
    "curly quotes": lambda text: re.sub(r'"([^"]*)"', "\u201c\\1\u201d", text).translate(CURLY),
    "full-width punctuation": lambda text: re.sub("[.,!?]", lambda mark: mark[0].translate(FULL_WIDTH), text),
    "all characters full-width": lambda text: text.translate(FULL_WIDTH),
    "capitals, scored in lower case": str.upper,
    "title case, scored in lower case": lambda text: re.sub(r"\S+", lambda word: word[0].capitalize(), text),
    "lower case": str.lower,
    "no final period": lambda text: text.removesuffix("."),
    "no final period, nor in the reference": lambda text: text.removesuffix("."),
    "swapped letters in 15 % of the words": lambda text: re.sub(r"\w+", swap_letters, text),
    "an emoji after the sentence and the reference": lambda text: f"{text} {random.choice(EMOJI)}",
    **dict.fromkeys(
        ("three random sentences in a line", "three random sentences in a line, split_sentences"), lambda text: text
    ),
}


def disturb(change: Callable[[str], str], text: str, seed: int) -> str:
    random.seed(seed)
    return change(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="run folder, model folder, or name on the Hub")
    parser.add_argument("--source", required=True, help="sentences, one per line")
    parser.add_argument("--target", required=True, help="their translations, one per line")
    parser.add_argument("--sentences", type=int, default=300, help="sentences to draw; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws; default: %(default)s")
    args = parser.parse_args()
    texts = [Path(side).read_text(encoding="utf-8").rstrip("\n").split("\n") for side in (args.source, args.target)]
    pairs = random.Random(args.seed).sample(list(zip(*texts, strict=True)), args.sentences)
    translate = vaswani_transformer.pipeline("translation", model=args.model, batch_size=64)
    for name, change in CHANGES.items():
        size = 3 if name.startswith("three") else 1
        rows = [map(" ".join, zip(*pairs[at : at + size], strict=True)) for at in range(0, len(pairs), size)]
        sources, references = zip(*rows, strict=True)
        changed_sources, changed_references = (
            [disturb(change, text, seed) for seed, text in enumerate(side, args.seed)] for side in (sources, references)
        )
        found = [output["translation_text"] for output in translate(changed_sources, split_sentences="split" in name)]
        references = changed_references if "the reference" in name else references
        score = sacrebleu.corpus_bleu(found, [references], lowercase="scored" in name).score
        kept = sum(text.split()[-1] in output for text, output in zip(changed_sources, found, strict=True)) / len(found)
        broken = sum("\ufffd" in output for output in found) / len(found)
        emoji_shares = f", kept {kept:.0%}, U+FFFD in {broken:.0%}" if "emoji" in name else ""
        print(f"{name:48} {score:5.1f}{emoji_shares}", flush=True)


if __name__ == "__main__":
    main()
