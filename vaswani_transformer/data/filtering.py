"""Filters of sentence pairs, and counts of the dropped pairs."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..model.pipeline_vaswani import is_blank
from .corpus import Pair

# Longer texts are not sentences. The time to learn a vocabulary from one long word is quadratic in its bytes: 0.1 s for
# this length, hours for 5 MB.
MOST_CHARACTERS = 10_000
# Reasons to drop a pair. "endless": a side is longer than `MOST_CHARACTERS`. "unequal": one side is too long for the
# other. "over max_length": `preparation` drops the pair, because the number of tokens is not known here.
REASONS = ("endless", "empty", "unequal", "duplicate", "over max_length")


def filter_pairs(
    pairs: Iterable[Pair], counts: Counter[str], *, max_length_ratio: float | None = None, seen: set[int] | None = None
) -> Iterator[Pair]:
    """Yield the pairs that pass all filters, unchanged and in order. The paper mentions no filter.

    Pairs with an empty side, or with a side of more than `MOST_CHARACTERS`, never pass.

    Args:
        counts: is updated with each pair. "read" counts all pairs. Each of `REASONS` counts the pairs that are dropped
            for this reason.
        max_length_ratio: the largest ratio of the longer side to the shorter one, in words. By default every ratio
            passes. Moses's cleaning script uses 9.
        seen: digests of earlier pairs. A pair with one of these digests is dropped as a duplicate. The digest of each
            yielded pair is added. By default duplicates pass. Two translations of one source are two different pairs.
    """
    for pair in pairs:
        counts["read"] += 1
        if reason := _reason_to_drop(*pair, max_length_ratio, seen):
            counts[reason] += 1
        else:
            yield pair


def summarise(counts: Mapping[str, int]) -> str:
    """Return how many pairs were read, and how many were dropped for each reason, in words."""
    dropped = [f"{counts[reason]:,} {reason}" for reason in REASONS if counts.get(reason)]
    return f"read {counts['read']:,} pairs, dropped {', '.join(dropped) or 'none'}"


def _reason_to_drop(source: str, target: str, max_length_ratio: float | None, seen: set[int] | None) -> str | None:
    """Return one of `REASONS`, or `None` to keep the pair. White space around a side counts only for "endless"."""
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
        # The length of the source distinguishes ("ab", "c") from ("a", "bc"). The probability that any two of 36M
        # different pairs have the same digest of 64 bits is 36M^2 / 2^65 = 4e-5.
        text = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        if digest in seen:
            return "duplicate"
        seen.add(digest)
    return None
