"""Filters of sentence pairs, and counts of the dropped pairs."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..model.pipeline_vaswani import is_blank
from .corpus import Pair

# Longer texts are not sentences. The time to learn a vocabulary from one word is quadratic in its bytes: 0.1 s for this
# length, hours for 5 MB.
MOST_CHARACTERS = 10_000
REASONS = ("endless", "empty", "unequal", "duplicate", "over max_length")  # the last: in tokens


def filter_pairs(
    pairs: Iterable[Pair], counts: Counter[str], *, max_length_ratio: float | None = None, seen: set[int] | None = None
) -> Iterator[Pair]:
    """Yield the pairs that pass, unchanged and in order; by default all but those with an empty or endless side.

    The paper mentions no filter.

    Args:
        counts: updated with each pair: the number of pairs `read`, and of those dropped for each of `REASONS`.
        max_length_ratio: largest ratio of the longer side to the shorter, in words. Moses's cleaning script uses 9.
        seen: digests of earlier pairs, to drop repetitions; the digests of kept pairs are added. By default repetitions
            are kept. A source with two translations is two pairs.
    """
    for pair in pairs:
        counts["read"] += 1
        if reason := _reason_to_drop(*pair, max_length_ratio, seen):
            counts[reason] += 1
        else:
            yield pair


def summarise(counts: Mapping[str, int]) -> str:
    """Return in words how many pairs were read, and how many dropped for which reason."""
    dropped = [f"{counts[reason]:,} {reason}" for reason in REASONS if counts.get(reason)]
    return f"read {counts['read']:,} pairs, dropped {', '.join(dropped) or 'none'}"


def _reason_to_drop(source: str, target: str, max_length_ratio: float | None, seen: set[int] | None) -> str | None:
    """Return one of `REASONS`, or None to keep the pair; only "endless" counts the whitespace around a side."""
    if max(len(source), len(target)) > MOST_CHARACTERS:
        return "endless"
    source, target = source.strip(), target.strip()
    if is_blank(source) or is_blank(target):
        return "empty"
    if max_length_ratio is not None:
        shorter, longer = sorted(len(side.split()) for side in (source, target))
        if longer > max_length_ratio * shorter:
            return "unequal"
    if seen is not None:
        # The length distinguishes ("ab", "c") from ("a", "bc"). Two of 36M pairs have the same 64 bits with probability
        # 36M^2 / 2^65 = 4e-5.
        text = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        if digest in seen:
            return "duplicate"
        seen.add(digest)
    return None
