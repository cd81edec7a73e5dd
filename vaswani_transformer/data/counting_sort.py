"""A stable sort of millions of row numbers by small whole keys, in little memory (counting sort)."""

from collections.abc import Iterator

import numpy as np

CHUNK = 2**20  # rows at once, so that temporary arrays are small and stay in the cache


def chunks(num_rows: int) -> Iterator[slice]:
    """All of `num_rows`, some at a time: NumPy takes 8 bytes per row to index or count by numbers of 4 bytes."""
    return (slice(start, start + CHUNK) for start in range(0, num_rows, CHUNK))


def count_keys(keys: np.ndarray) -> np.ndarray:
    """How often each of 0, 1, ..., up to the largest of `keys` comes in `keys`."""
    num_keys = int(keys.max(initial=0)) + 1
    return sum((np.bincount(keys[chunk], minlength=num_keys) for chunk in chunks(len(keys))), np.zeros(num_keys, int))


def sort_by_key(rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """`rows` in ascending order of `keys[rows]`; rows of one key stay in their order.

    Takes 140 MiB for 36M rows of 4 bytes, where `numpy.argsort` takes 550.

    Args:
        rows: (N,), each of 0, ..., N - 1 once.
        keys: (N,), at least 0; fastest with 16 bits, which NumPy sorts by their digits.
    """
    counts = count_keys(keys)
    places = counts.cumsum() - counts  # of the next row of each key
    result = np.empty_like(rows)
    for chunk in chunks(len(rows)):
        chunk_keys = keys[rows[chunk]]
        order = chunk_keys.argsort(kind="stable")
        chunk_rows, counts, start = rows[chunk][order], np.bincount(chunk_keys), 0
        for key in np.flatnonzero(counts):
            place, count = places[key], counts[key]
            result[place : place + count] = chunk_rows[start : start + count]
            places[key] += count
            start += count
    return result
