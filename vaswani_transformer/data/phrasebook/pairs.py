"""The built-in corpus: a small grammar that writes English sentences with their German translation.

The corpus needs no download, and a small model can learn all of it. So it is used in demonstrations and tests. A few
hundred words show how the two languages differ: gender, case and adjective endings, verb order and separable verbs,
negation, questions and subordinate clauses. `lexicon.txt` holds the words and endings, `drawing` chooses the content of
a sentence, and `grammar` writes it in each language.
"""

import hashlib
from collections.abc import Iterator

from .drawing import Dice, draw_sentence

_HELD_OUT_PERCENT = 5  # dev has this percentage of all sentences, and test has the same percentage.
_MAX_FAILED_DRAWS = 100_000  # After this number of failed draws in a row, no new sentence is expected any more.


def generate_pairs(*, split: str, num_pairs: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield pairs of an English and a German sentence. No English sentence occurs twice.

    The split of a sentence depends on its text alone. So a sentence of dev or test is never a training pair. The pairs
    are the same in every process and version of Python. The first n pairs do not depend on `num_pairs`.

    Args:
        split: "train" (90 % of all sentences), "dev" or "test" (5 % each).
        num_pairs: the number of pairs, at least 1.
        seed: another seed draws another selection of sentences. Some sentences may be in both selections.

    Returns:
        an iterator over (English, German). The English sentences have 4 to 14 words. Both sentences have capitals and
        punctuation.

    Raises:
        ValueError: if the split has fewer than `num_pairs` sentences, or if there is no split of this name.
    """
    if split not in ("train", "dev", "test"):
        raise ValueError(f"the phrasebook has no split {split!r}: choose train, dev or test.")
    dice = Dice(f"phrasebook {seed}")
    seen: set[str] = set()
    failed_draws = 0
    while len(seen) < num_pairs and failed_draws < _MAX_FAILED_DRAWS:
        english, german = draw_sentence(dice)
        failed_draws += 1
        if 4 <= len(english.split()) <= 14 and english not in seen and split_of(english) == split:
            seen.add(english)
            failed_draws = 0
            yield english, german
    if len(seen) < num_pairs:
        raise ValueError(
            f"the phrasebook has {len(seen)} {split} sentences, fewer than num_pairs={num_pairs}: lower num_pairs."
        )


def split_of(english: str) -> str:
    """Return the split of a sentence, which depends on a hash of its text."""
    percent = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    return "test" if percent < _HELD_OUT_PERCENT else "dev" if percent < 2 * _HELD_OUT_PERCENT else "train"
