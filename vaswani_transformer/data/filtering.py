"""Filters for sentence pairs (`filter_pairs`), and counts of the pairs that each of them drops."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from .corpus import Pair
from .lines import MOST_LINE_BYTES, is_too_long

DUPLICATES_BLOCK = 16_384  # pairs looked up at a time
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

    def __post_init__(self) -> None:
        # `not >=` and not `<`, so that nan is refused too.
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(
                f"max_length_ratio is longer over shorter side and at least 1, or None for no limit, "
                f"got {self.max_length_ratio}"
            )


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
        """The counts among those of `preparation.json`."""
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
    pairs: Iterable[Pair], pair_filter: PairFilter, counts: FilterCounts, *, seen: "DigestSet | None" = None
) -> Iterator[Pair]:
    """The pairs that pass, unchanged and in order; `counts` grows as they go by.

    A pair is counted under the first of these that applies: endless side, empty side, identical sides, ratio,
    duplicate. Whitespace around a side is ignored in all but the first. Duplicates come last so that only pairs which
    are kept are remembered, in a `DigestSet`; they are looked up in blocks, which are read ahead of what is yielded.

    Args:
        seen: pairs of other corpora, whose repetitions are duplicates too; the pairs that are kept are added.
    """
    passing = _acceptable_pairs(pairs, pair_filter, counts)
    if pair_filter.drop_duplicates:
        passing = _without_duplicates(passing, counts, DigestSet() if seen is None else seen)
    for pair in passing:
        counts.kept += 1
        yield pair


def _acceptable_pairs(pairs: Iterable[Pair], pair_filter: PairFilter, counts: FilterCounts) -> Iterator[Pair]:
    """The pairs that pass every filter except that for duplicates."""
    for source, target in pairs:
        counts.read += 1
        reason = _reason_to_drop(source, target, pair_filter)
        if reason is None:
            yield source, target
        else:
            setattr(counts, reason, getattr(counts, reason) + 1)


def _reason_to_drop(source: str, target: str, pair_filter: PairFilter) -> str | None:
    """The field of `FilterCounts` under which a pair is dropped, `None` if it is kept."""
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
    return None


def _is_endless(text: str) -> bool:
    """True if a side is too long, or has a word that is."""
    if 4 * len(text) <= MOST_WORD_BYTES:  # bytes of any text so short are few enough
        return False
    return is_too_long(text) or LONG_WORD.search(text.encode("utf-8", "surrogatepass")) is not None


def _without_duplicates(pairs: Iterator[Pair], counts: FilterCounts, seen: "DigestSet") -> Iterator[Pair]:
    """The first of all equal pairs."""
    while block := list(islice(pairs, DUPLICATES_BLOCK)):
        digests = b"".join(_digest(source.strip(), target.strip()) for source, target in block)
        are_new = seen.add(np.frombuffer(digests, dtype=np.uint64)).tolist()
        counts.duplicate += are_new.count(False)
        yield from (pair for pair, is_new in zip(block, are_new, strict=True) if is_new)


def _digest(source: str, target: str) -> bytes:
    """64 bits; the length in front tells ("ab", "c") from ("a", "bc")."""
    text = f"{len(source)} {source}{target}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


class DigestSet:
    """A set of 64-bit digests that is asked and filled in blocks.

    It takes 8 bytes per digest, and up to 16 while two runs are merged: 0.6 GB for the paper's 36M English-French
    pairs (a Python set takes 80 per digest). The probability that any two of 36M different pairs share a digest, so
    that one is lost, is 36M^2 / 2^65 = 4e-5.

    The digests lie in sorted runs, each more than twice as long as the next: n digests in blocks of b are at most
    log2(n / b) runs.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, digests: np.ndarray) -> np.ndarray:
        """Add `digests` (B,) uint64; returns (B,) bool, true for each that is neither here yet nor earlier in B."""
        candidates, first_places = np.unique(digests, return_index=True)
        is_known = np.zeros(len(candidates), dtype=bool)
        for run in self._runs:
            places = np.searchsorted(run, candidates)
            is_known |= run[np.minimum(places, len(run) - 1)] == candidates
        is_new = np.zeros(len(digests), dtype=bool)
        is_new[first_places[~is_known]] = True
        self._append(candidates[~is_known])
        return is_new

    def _append(self, run: np.ndarray) -> None:
        """Add a sorted run, merged with those before it that are not more than twice as long."""
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # timsort: two sorted halves are merged in linear time
        if len(run):
            self._runs.append(run)
