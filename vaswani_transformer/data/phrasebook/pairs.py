"""The built-in corpus: a small grammar that writes English sentences with their German translation.

    for english, german in generate_pairs(split="train", num_pairs=20_000):
        ...

It needs no download, and a small model can learn all of it, so it serves to demonstrate and to test. Its few hundred
words show the differences of the two languages: gender, case and adjective endings, verb order and separable verbs,
negation, questions and subordinate clauses.

A sentence is drawn as a meaning (`drawing`) and then said in each language (`english`, `german`) with the words of
`lexicon`. Every English sentence has one translation only: the grammar has no sentence with two.
"""

import hashlib
from collections.abc import Iterator

from .drawing import Dice, draw_sentence
from .english import say_english
from .german import say_german

PHRASEBOOK_SPLITS = ("train", "dev", "test")

_HELD_OUT_PERCENT = 5  # of all sentences for dev, and as many for test
_MIN_WORDS, _MAX_WORDS = 4, 14  # of an English sentence
# So many draws without a new sentence mean that the grammar has no more: even a held-out split, which takes one draw in
# 20, finds a new one within a few hundred.
_MAX_FAILED_DRAWS = 100_000


def generate_pairs(*, split: str, num_pairs: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Draw sentence pairs, each English sentence once.

    The split of a sentence depends on its text alone, so no held-out sentence is ever a training pair. The pairs are
    the same in every process and version of Python, and fewer pairs are the beginning of more.

    Args:
        split: "train" (90 % of all sentences), "dev" or "test" (5 % each).
        num_pairs: at least 1.
        seed: other seeds draw other sentences, some of which may be the same.

    Returns:
        An iterator over (English, German), 4 to 14 English words each, with capitals and punctuation.

    Raises:
        ValueError: at once for an unknown split or a number below 1; while iterating, if the grammar cannot
            make that many sentences.
    """
    if split not in PHRASEBOOK_SPLITS:
        raise ValueError(f"split is {split!r}, but must be one of {PHRASEBOOK_SPLITS}")
    if num_pairs < 1:
        raise ValueError(f"num_pairs is {num_pairs}, but must be at least 1: ask for the pairs you need")
    return _draw_pairs(split, num_pairs, seed)


def _draw_pairs(split: str, num_pairs: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the pairs of `generate_pairs`, whose arguments are checked."""
    dice = Dice(f"phrasebook {seed}")
    seen: set[str] = set()
    failed_draws = 0
    while len(seen) < num_pairs:
        sentence = draw_sentence(dice)
        english = say_english(sentence)
        has_good_length = _MIN_WORDS <= english.count(" ") + 1 <= _MAX_WORDS
        if has_good_length and english not in seen and split_of(english) == split:
            seen.add(english)
            failed_draws = 0
            yield english, say_german(sentence)
            continue
        failed_draws += 1
        if failed_draws == _MAX_FAILED_DRAWS:
            raise ValueError(
                f"num_pairs is {num_pairs}, but the phrasebook ran out of new {split} sentences after "
                f"{len(seen)}; ask for at most that many"
            )


def split_of(english: str) -> str:
    """Return the split of a sentence, by a hash of its text."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "test"
    return "dev" if percent < 2 * _HELD_OUT_PERCENT else "train"
