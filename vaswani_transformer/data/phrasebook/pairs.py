"""The built-in corpus: a small grammar that writes English sentences with their German translation.

    for english, german in generate_pairs("de", split="train", num_pairs=20_000):
        ...

It needs no download, and a small model can learn all of it. Its few hundred words show how the two languages differ:
gender, case and adjective endings, verb order and separable verbs, negation, questions and subordinate clauses.

A sentence is drawn as a meaning (`drawing`) and then said in each language (`english`, `german`) with the words of
`lexicon`. Every English sentence has one translation only: the grammar leaves out what German would have to guess.
"""

import hashlib
from collections.abc import Iterator

from .drawing import Dice, draw_sentence
from .english import say_english
from .german import say_german
from .lexicon import list_words

PHRASEBOOK_LANGUAGE = "de"
PHRASEBOOK_SPLITS = ("train", "dev", "test")

_HELD_OUT_PERCENT = 5  # of all sentences for dev, and as many for test
_MIN_WORDS, _MAX_WORDS = 4, 14  # of an English sentence
# So many draws without a new sentence mean that there is none: in a held-out split, which takes one draw in 20, a new
# sentence turns up within a few hundred draws.
_MAX_FAILED_DRAWS = 100_000


def generate_pairs(target_language: str, *, split: str, num_pairs: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Draw pairs (English, German) of 4 to 14 English words, each English sentence once.

    The sentence alone decides its split, so no seed puts a held-out sentence into the training pairs. The pairs are
    the same in every process and version of Python, and fewer pairs are the beginning of more.

    Args:
        target_language: "de", and no other.
        split: "train" (90 % of all sentences), "dev" or "test" (5 % each).
        num_pairs: at least 1.

    Raises:
        ValueError: at once for an unknown language or split or a number below 1; while iterating, when the
            grammar cannot make that many sentences.
    """
    if target_language != PHRASEBOOK_LANGUAGE:
        raise ValueError(
            f"target_language is {target_language!r}, but the phrasebook translates from English to "
            f"{PHRASEBOOK_LANGUAGE!r}: choose that, or give your own corpus."
        )
    if split not in PHRASEBOOK_SPLITS:
        raise ValueError(f"split is {split!r}, but must be one of {PHRASEBOOK_SPLITS}")
    if num_pairs < 1:
        raise ValueError(f"num_pairs is {num_pairs}, but must be at least 1: ask for the pairs you need")
    return _draw_pairs(split, num_pairs, seed)


def _draw_pairs(split: str, num_pairs: int, seed: int) -> Iterator[tuple[str, str]]:
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
    """The split of a sentence, by a hash of its text."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "test"
    return "dev" if percent < 2 * _HELD_OUT_PERCENT else "train"


def lemmas() -> tuple[tuple[str, str], ...]:
    """The dictionary of the phrasebook: (English, German), once for each word class of an English form."""
    return tuple(list_words())
