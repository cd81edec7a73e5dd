"""Filters for sentence pairs (`filter_pairs`), and counts of the pairs that each of them drops."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .corpus import Pair
from .lines import MOST_LINE_BYTES

# Learning from one word takes the square of its bytes: 20,000 take 0.3 s, 5 MB hours. Spaces in a row are a word too.
MOST_WORD_BYTES = 4_096
LONG_WORD = re.compile(rb"\S{%d}|\s{%d}" % (MOST_WORD_BYTES + 1, MOST_WORD_BYTES + 1))
REASONS = {  # to drop a pair, and how the summary calls such pairs
    "empty": "with an empty side",
    "endless": f"with a line over {MOST_LINE_BYTES:,} or a word over {MOST_WORD_BYTES:,} bytes",
    "ratio": "of too unequal length",
    "duplicate": "seen before",
    "identical": "with two identical sides",
}


@dataclass(frozen=True, kw_only=True)
class PairFilter:
    """Settings of `filter_pairs`. The paper mentions no filter; the defaults drop empty and endless sides only.

    Attributes:
        max_length_ratio: largest ratio of the longer side to the shorter, in words. Moses's cleaning script uses 9.
        drop_duplicates: keep the first of equal pairs. A source with two translations is two pairs.
        drop_identical: drop pairs whose two sides are equal, which are mostly untranslated text.
    """

    max_length_ratio: float | None = None
    drop_duplicates: bool = False
    drop_identical: bool = False


def filter_pairs(
    pairs: Iterable[Pair], pair_filter: PairFilter, counts: Counter[str], *, seen: set[int] | None = None
) -> Iterator[Pair]:
    """Yield the pairs that pass, unchanged and in order.

    Args:
        counts: grows as they go by: pairs that were `read` and `kept`, and that were dropped for each of `REASONS`.
        seen: digests of pairs of other corpora, whose repetitions are duplicates too; those of kept pairs are added.
    """
    seen = set() if seen is None else seen
    for pair in pairs:
        reason = _reason_to_drop(*pair, pair_filter, seen)
        counts["read"] += 1
        counts[reason or "kept"] += 1
        if reason is None:
            yield pair


def summarise(counts: Mapping[str, int]) -> str:
    """Return the counts of `filter_pairs` in words."""
    share = f" ({counts['kept'] / counts['read']:.2%})" if counts["read"] else ""
    dropped = [f"{counts[reason]:,} {meaning}" for reason, meaning in REASONS.items() if counts[reason]]
    return f"read {counts['read']:,} pairs, kept {counts['kept']:,}{share}, dropped {', '.join(dropped) or 'none'}"


def _reason_to_drop(source: str, target: str, pair_filter: PairFilter, seen: set[int]) -> str | None:
    """Return one of `REASONS`, None for a pair to keep; whitespace around a side counts for "endless" alone."""
    if _is_endless(source) or _is_endless(target):
        return "endless"
    source, target = source.strip(), target.strip()
    if not source or not target:
        return "empty"
    if pair_filter.drop_identical and source == target:
        return "identical"
    if pair_filter.max_length_ratio is not None:
        shorter, longer = sorted(len(side.split()) for side in (source, target))
        if longer > pair_filter.max_length_ratio * shorter:
            return "ratio"
    if pair_filter.drop_duplicates:
        # The length in front tells ("ab", "c") from ("a", "bc"). Any two of 36M pairs share 64 bits with probability
        # 36M^2 / 2^65 = 4e-5.
        text = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        if digest in seen:
            return "duplicate"
        seen.add(digest)
    return None


def _is_endless(text: str) -> bool:
    """Return True if a side has more than `MOST_LINE_BYTES`, or a word more than `MOST_WORD_BYTES`."""
    if 4 * len(text) <= MOST_WORD_BYTES:  # bytes of any text so short are few enough
        return False
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw) > MOST_LINE_BYTES or LONG_WORD.search(raw) is not None
