"""Batches of few shapes: lengths rounded up to buckets, a fixed number of rows in each, as in tensor2tensor.

Compiled graphs, captured steps and plans of attention are made once for each shape; batches cut exactly meet new ones
throughout an epoch. An update then holds pairs of like lengths on both sides, is padded to their buckets, and is filled
up to the rows of these with rows that do not count.
"""

import numpy as np

from .counting_sort import chunks, count_keys, sort_by_key

GRAIN = 4  # tokens; buckets are as far apart, and from 48 tokens on by a sixth of their length
# Rows of a batch are a multiple, so that 2, 4, 8 or 16 parts are equal without further padding.
ROWS = 16


class Buckets:
    """The buckets of a corpus; sources and targets have the same.

    Args:
        source_lengths, target_lengths: tokens of each pair.
        tokens_per_batch: limit on the padded tokens of a side.
    """

    def __init__(self, source_lengths: np.ndarray, target_lengths: np.ndarray, *, tokens_per_batch: int):
        self.tokens_per_batch = tokens_per_batch
        longest = max(int(side.max(initial=1)) for side in (source_lengths, target_lengths))
        edges = [GRAIN]
        while edges[-1] < longest:
            edges.append(edges[-1] + max(GRAIN, edges[-1] // 6 // GRAIN * GRAIN))
        edges[-1] = min(edges[-1], longest)
        self.edges = np.array(edges, dtype=np.int32)
        self._bucket_of_length = np.searchsorted(self.edges, np.arange(longest + 1)).astype(np.int32)

    def round_up(self, length: int) -> int:
        """The width to which sentences of `length` tokens are padded."""
        return int(self.edges[self._bucket_of_length[length]])

    def count_rows(self, width: int) -> int:
        """Rows of a batch whose wider side has `width` tokens."""
        num_rows = max(1, self.tokens_per_batch // width)
        return num_rows if num_rows < ROWS else num_rows // ROWS * ROWS

    def shape_of(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> tuple[int, int, int]:
        """Rows, source width and target width of a batch of pairs of these lengths."""
        source, target = self.round_up(int(source_lengths.max())), self.round_up(int(target_lengths.max()))
        return self.count_rows(max(source, target)), source, target

    def cut(
        self, source_lengths: np.ndarray, target_lengths: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[int]]:
        """Order all pairs by their buckets, and at random within these, and cut them into updates.

        The wider side of two pairs is compared first. Among pairs of one width, those of the longest sources come
        first or last by turns, so that what is left at the end of a bucket finds its like at the start of the next.

        Returns:
            the row numbers in order, and where each update begins.
        """
        num_buckets = len(self.edges)
        of_source = self._bucket_of_length * num_buckets
        keys = np.empty(len(source_lengths), dtype=np.uint16)
        for chunk in chunks(len(keys)):
            keys[chunk] = of_source[source_lengths[chunk]] + self._bucket_of_length[target_lengths[chunk]]
        order = sort_by_key(np.arange(len(keys), dtype=np.int32), keys)
        counts = count_keys(keys)
        ends = counts.cumsum()
        for start, end in zip(ends - counts, ends, strict=True):
            rng.shuffle(order[start:end])

        cells = np.flatnonzero(counts)
        source, target = np.divmod(cells, num_buckets)
        wider = np.maximum(source, target)
        path = np.lexsort((np.where(wider % 2, source - target, target - source), wider))
        order = np.concatenate([order[ends[cell] - counts[cell] : ends[cell]] for cell in cells[path]])
        ends_of_widths = np.bincount(wider, weights=counts[cells]).cumsum().astype(int).tolist()
        starts, start, end = [], 0, 0
        for width, end_of_width in zip(self.edges, ends_of_widths, strict=False):
            num_rows = self.count_rows(int(width))
            if end - start >= num_rows:  # left over from a narrower bucket, which has more rows
                starts.append(start)
                start = end
            end = end_of_width
            while end - start >= num_rows:
                starts.append(start)
                start += num_rows
        return order, starts + [start] * (start < end)
