"""Batches of sentence pairs of similar length, with about 25,000 source and 25,000 target tokens (section 5.1).

`plan_updates` chooses the pairs of each update of an epoch. `split_update` cuts an update into micro-batches of equal
work. `UpdateStream` reads the micro-batches of one process. All results depend on the arguments alone, so all processes
make the same plan.

Shapes: B pairs of a batch, S tokens of its longest source, T tokens of its longest target.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..model.loss_vaswani import IGNORE_INDEX

# The two sides of a training or development set. Each has two files, such as labels.tokens and labels.offsets.
SIDES = ("input_ids", "labels")
# For each corpus of a set, this file holds the number of pairs, and how many times an epoch contains each pair.
CORPORA_FILE = "corpora.json"
TOKEN_TYPE = np.dtype("<i4")
OFFSET_TYPE = np.dtype("<i8")


def plan_batches(lengths: Sequence[int], *, limit: int) -> Iterator[list[int]]:
    """Yield batches of rows of similar length. A batch is a list of row numbers.

    The longest rows come first, so that a lack of memory shows in the first batch.

    Args:
        lengths: the length of each row, at least 1.
        limit: the largest padded size of a batch, which is its number of rows * the length of its longest row. A row
            that is longer than `limit` is alone in its batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        size = max(1, limit // lengths[order[0]])
        yield order[:size]
        order = order[size:]


class TokenColumn:
    """The token ids of N sentences of one side, memory-mapped.

    Args:
        tokens: the tokens of all stored sentences, one after the other.
        offsets: the index of the first token of each stored sentence, and the end of the last sentence.
        rows: (N,) indices of the stored sentences that belong to the column. An index may occur several times. By
            default the column has all stored sentences.

    Attributes:
        lengths: (N,) the number of tokens of each sentence.
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, rows: np.ndarray | slice = slice(None)):
        self._tokens = tokens
        self._starts = offsets[:-1][rows]
        self.lengths = np.diff(offsets).astype(np.int32)[rows]  # No sentence is too long for int32.

    def pad(self, rows: np.ndarray, *, value: int) -> Tensor:
        """Return the sentences `rows`, filled up with `value` on the right: (B, length of the longest sentence)."""
        # There is no loop over sentences, because a loop would take as long as an update on a GPU.
        lengths = self.lengths[rows, None]
        positions = np.arange(lengths.max())
        is_token = positions < lengths
        padded = np.full(is_token.shape, value, dtype=np.int64)
        padded[is_token] = self._tokens[(self._starts[rows, None] + positions)[is_token]]
        return torch.from_numpy(padded)


@dataclass
class TokenizedPairs:
    """Sentence pairs as token ids. `pairs[rows]` is the batch of the pairs with these row numbers."""

    sources: TokenColumn
    targets: TokenColumn
    pad_token_id: int

    @classmethod
    def load(cls, folder: Path, *, pad_token_id: int) -> "TokenizedPairs":
        """Return the pairs in the files that `vaswani prepare` wrote into `folder`. The files are memory-mapped.

        A corpus of weight n is repeated n times. The repetitions of a pair share the memory of its token ids.

        Raises:
            FileNotFoundError: if a file is missing.
        """
        rows = []
        first = 0
        for num_pairs, weight in json.loads((folder / CORPORA_FILE).read_text()):
            rows += [np.arange(first, first + num_pairs)] * weight
            first += num_pairs
        repeated = np.concatenate(rows) if len(rows) > 1 else slice(None)
        columns = [
            TokenColumn(
                np.asarray(np.memmap(folder / f"{side}.tokens", TOKEN_TYPE, mode="r")),
                np.asarray(np.memmap(folder / f"{side}.offsets", OFFSET_TYPE, mode="r")),
                repeated,
            )
            for side in SIDES
        ]
        return cls(*columns, pad_token_id=pad_token_id)

    def __len__(self) -> int:
        return len(self.sources.lengths)

    def __getitem__(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Return the batch of the pairs `rows`: `input_ids` (B, S), `attention_mask` (B, S) and `labels` (B, T)."""
        rows = np.asarray(rows)
        input_ids = self.sources.pad(rows, value=self.pad_token_id)
        lengths = torch.from_numpy(self.sources.lengths[rows])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": self.targets.pad(rows, value=IGNORE_INDEX),
        }


def plan_updates(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    short_first: bool = False,
) -> list[np.ndarray]:
    """Return the row numbers of each update of one epoch. Each pair is in exactly one update.

    As in tensor2tensor, pairs are sorted by the length of their longer side. If these lengths are equal, the length of
    the target decides. If the target lengths are equal, too, the order is random. The sorted pairs are cut where one
    more pair would bring the padded source or target over `tokens_per_batch`. Then the updates are shuffled. All
    processes share each update. So the plan depends neither on their number nor on the accumulation of gradients.

    Args:
        source_lengths, target_lengths: the number of tokens of each pair, `</s>` included.
        tokens_per_batch: the largest B * S and the largest B * T.
        short_first: do not shuffle the updates of epoch 0, so that the shortest pairs come first.

    Raises:
        ValueError: if a single sentence is longer than `tokens_per_batch`.
    """
    longest = np.maximum(source_lengths, target_lengths)
    if longest.max(initial=0) > tokens_per_batch:
        raise ValueError(
            f"a pair has {longest.max()} tokens, more than tokens_per_batch={tokens_per_batch}. Raise "
            f"tokens_per_batch, or prepare the data with a smaller max_length."
        )
    rng = np.random.default_rng([seed, epoch])
    order = np.arange(len(longest), dtype=np.int32)
    rng.shuffle(order)
    order = order[np.lexsort((target_lengths[order], longest[order]))]
    longest = longest[order]
    starts = []
    start = 0
    while start < len(order):
        starts.append(start)
        counts = range(1, min(tokens_per_batch // int(longest[start]), len(order) - start) + 1)
        # Find the largest number of pairs that fits. As `longest` ascends, the last pair of an update is its longest.
        start += bisect_right(counts, tokens_per_batch, key=lambda n: n * int(longest[start + n - 1]))
    updates = [order[start:end] for start, end in pairwise([*starts, len(order)])]
    if epoch or not short_first:
        rng.shuffle(updates)
    return updates


def split_update(
    rows: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, *, num_parts: int
) -> list[np.ndarray]:
    """Cut one update into micro-batches whose numbers of tokens, padding included, are as equal as whole pairs allow.

    The pairs of an update are similar only in the length of their longer side. After they are sorted by target length
    minus source length, neighbours are similar on both sides. So smaller micro-batches need less padding. On Multi30k,
    8 % of the tokens are padding if updates of 25,000 tokens are not cut, 5 % if each is cut into four micro-batches,
    and 3 % if each is cut into eight, as on the eight devices of the paper.

    Args:
        rows: the row numbers of one update.
        source_lengths, target_lengths: the number of tokens of every pair of the corpus.
        num_parts: the number of micro-batches of all processes together. If the update has too few pairs, the last
            micro-batches are empty.

    Returns:
        the row numbers of each micro-batch.
    """
    if num_parts == 1:
        return [rows]
    order = rows[np.argsort(target_lengths[rows] - source_lengths[rows], kind="stable")]
    sides = source_lengths[order].astype(np.int64), target_lengths[order].astype(np.int64)
    low = int(sum(side.sum() for side in sides)) // num_parts
    high = -(-len(rows) // num_parts) * int(sum(side.max() for side in sides))
    # Find the smallest limit for `_cut` with which `num_parts` parts suffice.
    low += bisect_left(range(low, high), True, key=lambda limit: len(_cut(*sides, limit)) <= num_parts)
    parts = np.split(order, _cut(*sides, low)[1:])
    return parts + [rows[:0]] * (num_parts - len(parts))


def _cut(sources: np.ndarray, targets: np.ndarray, limit: int) -> list[int]:
    """Cut pairs into parts and return the index of the first pair of each part.

    Args:
        sources, targets: the number of tokens of each pair.
        limit: the largest number of tokens of a part, with padding and both sides together. A pair with more tokens is
            alone in its part.
    """
    starts = []
    start = 0
    while start < len(sources):
        starts.append(start)
        # The part holds at most this many pairs, because with padding each pair is at least as large as the first one.
        part = slice(start, start + max(1, limit // int(sources[start] + targets[start])))
        longest = np.maximum.accumulate(sources[part]) + np.maximum.accumulate(targets[part])
        padded = longest * np.arange(1, len(longest) + 1)
        start += max(1, int(np.searchsorted(padded, limit, side="right")))
    return starts


class Update(NamedTuple):
    """The micro-batches of one process in one update."""

    micro_batches: list[dict[str, Tensor]]  # `input_ids` (B, S), `attention_mask` (B, S) and `labels` (B, T)
    target_tokens: int  # of all processes together, without padding; the loss is divided by this number
    is_last_of_epoch: bool


class UpdateStream:
    """The endless stream of updates of one process.

    Args:
        epoch: the epoch to start in.
        updates_of_epoch: the number of updates to skip at the start of this epoch.
        num_processes: the number of processes that share an update.
        process_index: the process whose part is read.
        accumulation_steps: the number of micro-batches of each process in an update.
        options: `tokens_per_batch`, `seed` and `short_first` of `plan_updates`.
    """

    def __init__(
        self,
        pairs: TokenizedPairs,
        *,
        epoch: int = 0,
        updates_of_epoch: int = 0,
        num_processes: int = 1,
        process_index: int = 0,
        accumulation_steps: int = 1,
        **options: int,
    ):
        self.pairs = pairs
        self.epoch = epoch
        self.updates_of_epoch = updates_of_epoch
        self.plan = partial(plan_updates, pairs.sources.lengths, pairs.targets.lengths, **options)
        self.num_parts = num_processes * accumulation_steps
        first = process_index * accumulation_steps
        self.own_parts = slice(first, first + accumulation_steps)

    def __iter__(self) -> Iterator[Update]:
        # Planning an epoch of millions of pairs takes seconds. A thread plans the next epoch during the present one, so
        # that no GPU waits for the plan.
        with ThreadPoolExecutor(max_workers=1) as planner:
            plan = self.plan(epoch=self.epoch)[self.updates_of_epoch :]
            for epoch in count(self.epoch + 1):
                next_plan = planner.submit(self.plan, epoch=epoch)
                for rows in plan:
                    yield self._build_update(rows, is_last_of_epoch=rows is plan[-1])
                plan = next_plan.result()

    def _build_update(self, rows: np.ndarray, *, is_last_of_epoch: bool) -> Update:
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        micro_batches = []
        for part in split_update(rows, sources, targets, num_parts=self.num_parts)[self.own_parts]:
            # An empty micro-batch gets a pair without labels, so that its process takes part in the update like all
            # others. The pair changes neither loss nor gradient.
            batch = self.pairs[part if len(part) else rows[:1]]
            if not len(part):
                batch["labels"][:] = IGNORE_INDEX
            micro_batches.append(batch)
        return Update(micro_batches, int(targets[rows].sum()), is_last_of_epoch)
