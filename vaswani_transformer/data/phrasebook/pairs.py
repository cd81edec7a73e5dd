"""The built-in corpus: a small grammar that writes English sentences with their German translation.

It needs no download, and a small model can learn all of it, so it is used in demonstrations and tests. A few hundred
words show the differences of the two languages: gender, case and adjective endings, verb order and separable verbs,
negation, questions and subordinate clauses. `lexicon.txt` holds the words, `drawing` chooses the content of a
sentence, and `grammar` writes it in each language.
"""

import hashlib
from collections.abc import Iterator

from .drawing import Dice, draw_sentence

_HELD_OUT_PERCENT = 5  # of all sentences for dev, and as many for test
_MIN_WORDS, _MAX_WORDS = 4, 14  # of an English sentence
_MAX_FAILED_DRAWS = 100_000  # in a row; then there are no more sentences


def generate_pairs(*, split: str, num_pairs: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Draw sentence pairs, each English sentence once.

    The split of a sentence depends on its text alone, so no held-out sentence is ever a training pair. The pairs are
    the same in every process and version of Python, and the first n pairs are the same for each `num_pairs`.

    Args:
        split: "train" (90 % of all sentences), "dev" or "test" (5 % each).
        num_pairs: at least 1.
        seed: other seeds draw other sentences; some may be equal.

    Returns:
        An iterator over (English, German), 4 to 14 English words each, with capitals and punctuation.

    Raises:
        ValueError: if the split has fewer sentences, or is not one of the three.
    """
    dice = Dice(f"phrasebook {seed}")
    seen: set[str] = set()
    failed_draws = 0
    while len(seen) < num_pairs and failed_draws < _MAX_FAILED_DRAWS:
        english, german = draw_sentence(dice)
        failed_draws += 1
        if _MIN_WORDS <= len(english.split()) <= _MAX_WORDS and english not in seen and split_of(english) == split:
            seen.add(english)
            failed_draws = 0
            yield english, german
    if len(seen) < num_pairs:
        raise ValueError(f"the phrasebook has {len(seen)} {split} sentences, fewer than num_pairs={num_pairs}")


def split_of(english: str) -> str:
    """Return the split of a sentence, by a hash of its text."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    return "test" if percent < _HELD_OUT_PERCENT else "dev" if percent < 2 * _HELD_OUT_PERCENT else "train"
