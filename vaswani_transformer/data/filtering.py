"""Filters for sentence pairs (`filter_pairs`), and counts of the pairs that each of them drops."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .corpus import Pair
from .lines import MOST_LINE_BYTES

# Learning byte-pair encoding from one word takes time that grows with the square of its bytes: 20,000 take 0.3 s, 5 MB
# hours. Spaces in a row are a word too.
MOST_WORD_BYTES = 4_096
LONG_WORD = re.compile(rb"\S{%d}|\s{%d}" % (MOST_WORD_BYTES + 1, MOST_WORD_BYTES + 1))


@dataclass(frozen=True, kw_only=True)
class PairFilter:
    """Settings of `filter_pairs`. The paper mentions no filter; the defaults drop empty and endless sides only.

    A side is endless if it has more than `lines.MOST_LINE_BYTES`, or a word of more than `MOST_WORD_BYTES`: no
    vocabulary could be learned from it. `prepare` drops pairs that are merely long, by their tokens.

    Attributes:
        max_length_ratio: largest ratio of the longer side to the shorter, in words. Moses's cleaning script uses 9.
        drop_duplicates: keep the first of equal pairs. A source with two translations is two pairs.
        drop_identical: drop pairs whose two sides are equal, which are mostly untranslated text.
    """

    max_length_ratio: float | None = None
    drop_duplicates: bool = False
    drop_identical: bool = False


@dataclass
class FilterCounts:
    """Counts of pairs; each pair that was read is in one of the others: `read` = `kept` + the rest."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    endless: int = 0
    ratio: int = 0
    duplicate: int = 0
    identical: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "FilterCounts":
        """Take the counts among those of `preparation.json`."""
        return cls(**{name: counts[name] for name in cls.__dataclass_fields__})

    def summary(self) -> str:
        share = f" ({self.kept / self.read:.2%})" if self.read else ""
        reasons = {
            "with an empty side": self.empty,
            f"with a line over {MOST_LINE_BYTES:,} or a word over {MOST_WORD_BYTES:,} bytes": self.endless,
            "of too unequal length": self.ratio,
            "seen before": self.duplicate,
            "with two identical sides": self.identical,
        }
        dropped = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        return f"read {self.read:,} pairs, kept {self.kept:,}{share}, dropped {', '.join(dropped) or 'none'}"


def filter_pairs(
    pairs: Iterable[Pair], pair_filter: PairFilter, counts: FilterCounts, *, seen: set[int] | None = None
) -> Iterator[Pair]:
    """Yield the pairs that pass, unchanged and in order; `counts` grows as they go by.

    A pair is counted under the first of these that applies: endless side, empty side, identical sides, ratio,
    duplicate. Whitespace around a side is ignored in all but the first.

    Args:
        seen: digests of pairs of other corpora, whose repetitions are duplicates too; those of kept pairs are added.
    """
    seen = set() if seen is None else seen
    for pair in pairs:
        reason = _reason_to_drop(*pair, pair_filter, seen)
        counts.read += 1
        setattr(counts, reason, getattr(counts, reason) + 1)
        if reason == "kept":
            yield pair


def _reason_to_drop(source: str, target: str, pair_filter: PairFilter, seen: set[int]) -> str:
    """Return the field of `FilterCounts` under which a pair is counted, "kept" if it is not dropped."""
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
        digest = _digest(source, target)
        if digest in seen:
            return "duplicate"
        seen.add(digest)
    return "kept"


def _is_endless(text: str) -> bool:
    """Return True if a side is too long, or has a word that is."""
    if 4 * len(text) <= MOST_WORD_BYTES:  # bytes of any text so short are few enough
        return False
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw) > MOST_LINE_BYTES or LONG_WORD.search(raw) is not None


def _digest(source: str, target: str) -> int:
    """Return 64 bits; the length in front tells ("ab", "c") from ("a", "bc").

    The probability that any two of 36M different pairs share a digest, so that one is lost, is 36M^2 / 2^65 = 4e-5.
    """
    text = f"{len(source)} {source}{target}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
