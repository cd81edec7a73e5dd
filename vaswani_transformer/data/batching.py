"""Batches of about 25,000 source and 25,000 target tokens, of pairs of like length (section 5.1).

B pairs of a batch, S and T its longest source and target in tokens.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

IGNORE_INDEX = -100


class TokenColumn:
    """Token ids of all sentences of one side, read where they lie: memory-mapped, never copied as a whole."""

    def __init__(self, column: pa.ChunkedArray):
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in chunks])
        # int32 holds any sentence, and 4.5M pairs in 36 MB.
        lengths = [np.diff(offsets).astype(np.int32) for offsets in self._offsets]
        self.lengths = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        offsets, row = self._offsets[chunk], index - self._starts[chunk]
        return self._values[chunk][offsets[row] : offsets[row + 1]]

    def pad(self, rows: Sequence[int] | np.ndarray, *, value: int) -> torch.Tensor:
        """Sentences `rows`, filled up with `value` on the right: (B, longest)."""
        padded = np.full((len(rows), int(self.lengths[rows].max())), value, dtype=np.int64)
        for place, row in enumerate(rows):
            padded[place, : self.lengths[row]] = self[row]
        return torch.from_numpy(padded)


class TokenizedPairs(torch.utils.data.Dataset):
    """Pairs of token ids; indexed by the rows of a whole batch.

    Args:
        dataset: columns `input_ids` (source) and `labels` (target), `</s>` included.
        pad_token_id: fills short sources; short targets are filled with -100.
    """

    def __init__(self, dataset: Dataset, *, pad_token_id: int):
        self.sources = TokenColumn(dataset.data.column("input_ids"))
        self.targets = TokenColumn(dataset.data.column("labels"))
        self.pad_token_id = pad_token_id

    @classmethod
    def load(cls, path: Path, *, pad_token_id: int) -> "TokenizedPairs":
        """Map an Arrow file that `prepare` wrote."""
        return cls(Dataset.from_file(str(path)), pad_token_id=pad_token_id)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` (B, S), `labels` (B, T)."""
        input_ids = self.sources.pad(rows, value=self.pad_token_id)
        lengths = torch.from_numpy(self.sources.lengths[rows])
        attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
        labels = self.targets.pad(rows, value=IGNORE_INDEX)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def plan_updates(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
) -> list[np.ndarray]:
    """The batches of one epoch, over all processes together, each pair in exactly one of them.

    Pairs are put in the order of their longer side, as in tensor2tensor, ties at random, and cut where one more
    pair would bring the padded source or the padded target over `tokens_per_batch`. The batches are then shuffled.
    All depends on (seed, epoch) alone, so every process can make the same plan for itself.

    Args:
        source_lengths, target_lengths: tokens of each pair, `</s>` included.
        tokens_per_batch: limit on B * S and on B * T.

    Returns:
        row numbers, an array for each update.

    Raises:
        ValueError: if a single sentence is longer than `tokens_per_batch`.
    """
    longest = np.maximum(source_lengths, target_lengths)
    if len(longest) and longest.max() > tokens_per_batch:
        row = int(longest.argmax())
        raise ValueError(
            f"pair {row} has {longest[row]} tokens, more than tokens_per_batch={tokens_per_batch}. Raise "
            f"tokens_per_batch, or prepare the data with a smaller max_length."
        )
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(longest))
    order = order[np.lexsort((target_lengths[order], longest[order]))]
    batches, start = [], 0
    source_max = target_max = 0
    sides = zip(source_lengths[order].tolist(), target_lengths[order].tolist(), strict=True)
    for end, (source, target) in enumerate(sides):
        source_max, target_max = max(source_max, source), max(target_max, target)
        if max(source_max, target_max) * (end - start + 1) > tokens_per_batch:
            batches.append(order[start:end])
            start, source_max, target_max = end, source, target
    if start < len(order):
        batches.append(order[start:])
    rng.shuffle(batches)
    return batches


def split_update(rows: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """The micro-batches of one update. Every `num_parts`-th pair: each part gets the same mix of lengths."""
    return [rows[part::num_parts] for part in range(num_parts)]
