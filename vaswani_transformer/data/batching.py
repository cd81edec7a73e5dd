"""Batches of about 25,000 source and 25,000 target tokens, of pairs of like length (section 5.1).

`plan_updates` chooses the pairs of each update of an epoch, `split_update` cuts an update into micro-batches of equal
work, and `UpdateStream` reads those of one process. The results depend on the arguments alone, so all processes agree.

Shapes: B pairs of a batch, S tokens of its longest source, T tokens of its longest target.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ..model.loss_vaswani import IGNORE_INDEX

SIDES = ("input_ids", "labels")  # stems of the files of a set, with the endings .tokens and .offsets
CORPORA_FILE = "corpora.json"  # for each corpus of a set: number of stored pairs, and their repetitions in an epoch
TOKEN_TYPE, OFFSET_TYPE = np.dtype("<i4"), np.dtype("<i8")


def plan_batches(lengths: Sequence[int], *, limit: int) -> Iterator[list[int]]:
    """Return batches of rows of like length, the longest first, so that lack of memory shows in the first batch.

    Args:
        lengths: of each row, at least 1.
        limit: on the padded size of a batch, number of rows * longest; a longer row is a batch alone.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        count = max(1, limit // lengths[order[0]])
        yield order[:count]
        order = order[count:]


class TokenColumn:
    """The token ids of N sentences of one side, memory-mapped.

    Args:
        tokens: of all stored sentences, one after the other.
        offsets: the index of the first token of each sentence, and the end of the last sentence.
        rows: (N,) indices of stored sentences, which may be repeated; by default all.
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, rows: np.ndarray | slice = slice(None)):
        self._tokens, self._starts = tokens, offsets[:-1][rows]
        self.lengths = np.diff(offsets).astype(np.int32)[rows]  # int32 holds any sentence

    def __len__(self) -> int:
        return len(self.lengths)

    def pad(self, rows: np.ndarray, *, value: int) -> torch.Tensor:
        """Return sentences `rows`, filled up with `value` on the right: (B, longest)."""
        # Without a loop over sentences, which would take as long as an update on a GPU.
        lengths = self.lengths[rows, None]
        places = np.arange(lengths.max())
        is_token = places < lengths
        padded = np.full(is_token.shape, value, dtype=np.int64)
        padded[is_token] = self._tokens[(self._starts[rows, None] + places)[is_token]]
        return torch.from_numpy(padded)


class TokenizedPairs(torch.utils.data.Dataset):
    """Pairs of token ids, indexed by the rows of a whole batch."""

    def __init__(self, sources: TokenColumn, targets: TokenColumn, *, pad_token_id: int):
        self.sources, self.targets, self.pad_token_id = sources, targets, pad_token_id

    @classmethod
    def load(cls, folder: Path, *, pad_token_id: int) -> "TokenizedPairs":
        """Map the files that `prepare` wrote into `folder`; a corpus of weight n is repeated n times.

        The repetitions of a pair share its memory.

        Raises:
            FileNotFoundError: if a file is missing.
        """
        rows, first = [], 0
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
        return len(self.sources)

    def __getitem__(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `attention_mask` (B, S), `labels` (B, T)."""
        rows = np.asarray(rows)
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
    short_first: bool = False,
) -> list[np.ndarray]:
    """Return the row numbers of each update of one epoch, over all processes together, each pair in exactly one.

    Pairs are sorted by their longer side, as in tensor2tensor, then by their target, then at random, and cut where
    one more pair would bring the padded source or target over `tokens_per_batch`. The updates are then shuffled. The
    plan does not depend on the number of processes or on the accumulation of updates.

    Args:
        source_lengths, target_lengths: tokens of each pair, `</s>` included.
        tokens_per_batch: limit on B * S and on B * T.
        short_first: leave the updates of epoch 0 in order, the shortest pairs first.

    Raises:
        ValueError: if a single sentence is longer than `tokens_per_batch`.
    """
    longest = np.maximum(source_lengths, target_lengths)
    if longest.max(initial=0) > tokens_per_batch:
        found = f"a pair has {longest.max()} tokens, more than tokens_per_batch={tokens_per_batch}"
        raise ValueError(f"{found}. Raise that, or prepare the data with a smaller max_length.")
    rng = np.random.default_rng([seed, epoch])
    order = np.arange(len(longest), dtype=np.int32)
    rng.shuffle(order)
    order = order[np.lexsort((target_lengths[order], longest[order]))]
    longest = longest[order]
    starts, start = [], 0
    while start < len(order):
        starts.append(start)
        counts = range(1, min(tokens_per_batch // int(longest[start]), len(order) - start) + 1)
        # The largest number of pairs that fits; `longest` ascends.
        start += bisect_right(counts, tokens_per_batch, key=lambda n: n * int(longest[start + n - 1]))
    updates = [order[start:end] for start, end in pairwise([*starts, len(order)])]
    if epoch or not short_first:
        rng.shuffle(updates)
    return updates


def split_update(
    rows: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, *, num_parts: int
) -> list[np.ndarray]:
    """Cut the rows of one update into micro-batches whose padded tokens are as equal as whole pairs allow.

    The pairs of an update are alike in their longer side only. In the order of target minus source, neighbours are
    alike in both, so finer cuts pad less: on Multi30k 8 % of the tokens of whole updates of 25,000 are padding, 5 % of
    quarters, 3 % of eighths, as on the paper's eight devices.

    Args:
        rows: of one update.
        source_lengths, target_lengths: tokens of every pair of the corpus.
        num_parts: micro-batches of all processes together; the last ones are empty if there are too few pairs.
    """
    if num_parts == 1:
        return [rows]
    order = rows[np.argsort(target_lengths[rows] - source_lengths[rows], kind="stable")]
    sides = source_lengths[order].astype(np.int64), target_lengths[order].astype(np.int64)
    low = int(sum(side.sum() for side in sides)) // num_parts
    high = -(-len(rows) // num_parts) * int(sum(side.max() for side in sides))
    # Find the smallest limit that needs at most `num_parts` parts.
    low += bisect_left(range(low, high), True, key=lambda limit: len(_cut(*sides, limit)) <= num_parts)
    parts = np.split(order, _cut(*sides, low)[1:])
    return parts + [rows[:0]] * (num_parts - len(parts))


def _cut(sources: np.ndarray, targets: np.ndarray, limit: int) -> list[int]:
    """Return the starts of parts of at most `limit` padded tokens, of both sides together, or of one pair."""
    starts, start = [], 0
    while start < len(sources):
        starts.append(start)
        # No more pairs than these can fit, because the longest pair of a part is no shorter than the first.
        part = slice(start, start + max(1, limit // int(sources[start] + targets[start])))
        longest = np.maximum.accumulate(sources[part]) + np.maximum.accumulate(targets[part])
        padded = longest * np.arange(1, len(longest) + 1)
        start += max(1, int(np.searchsorted(padded, limit, side="right")))
    return starts


@dataclass
class Update:
    """The part of one process in one update, and the tokens of the whole update over all processes."""

    micro_batches: list[dict[str, torch.Tensor]]  # `input_ids` (B, S), `attention_mask` (B, S) and `labels` (B, T)
    rows: list[np.ndarray]  # of each micro-batch
    target_tokens: int  # without padding; the loss is divided by them
    is_last_of_epoch: bool

    def pin_memory(self) -> "Update":
        """Pin the memory of the batches; `DataLoader` calls it, so that copies to a GPU are asynchronous."""
        for batch in self.micro_batches:
            for name in batch:
                batch[name] = batch[name].pin_memory()
        return self


class UpdateStream(torch.utils.data.IterableDataset):
    """The endless updates of one process.

    Args:
        tokens_per_batch, seed, short_first: see `plan_updates`.
        epoch, updates_of_epoch: start in this epoch, after this number of its updates.
        num_processes, process_index: whose part to read.
        accumulation_steps: micro-batches of each process in an update.
    """

    def __init__(
        self,
        pairs: TokenizedPairs,
        *,
        tokens_per_batch: int,
        seed: int,
        short_first: bool = False,
        epoch: int = 0,
        updates_of_epoch: int = 0,
        num_processes: int = 1,
        process_index: int = 0,
        accumulation_steps: int = 1,
    ):
        self.pairs, self.epoch, self.updates_of_epoch = pairs, epoch, updates_of_epoch
        options = {"tokens_per_batch": tokens_per_batch, "seed": seed, "short_first": short_first}
        self.plan = partial(plan_updates, pairs.sources.lengths, pairs.targets.lengths, **options)
        self.num_parts = num_processes * accumulation_steps
        first = process_index * accumulation_steps
        self.own_parts = slice(first, first + accumulation_steps)

    def __iter__(self) -> Iterator[Update]:
        epoch, done = self.epoch, self.updates_of_epoch
        # To plan millions of pairs takes seconds, during which a GPU would be idle at the start of each epoch.
        with ThreadPoolExecutor(max_workers=1) as planner:
            plan = self.plan(epoch=epoch)
            while True:
                next_plan = planner.submit(self.plan, epoch=epoch + 1)
                for number in range(done, len(plan)):
                    yield self._build_update(plan[number], is_last_of_epoch=number == len(plan) - 1)
                plan, epoch, done = next_plan.result(), epoch + 1, 0

    def _build_update(self, rows: np.ndarray, *, is_last_of_epoch: bool) -> Update:
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        own_rows = split_update(rows, sources, targets, num_parts=self.num_parts)[self.own_parts]
        return Update(
            micro_batches=[self._build_batch(part, stand_in=rows[:1]) for part in own_rows],
            rows=own_rows,
            target_tokens=int(targets[rows].sum()),
            is_last_of_epoch=is_last_of_epoch,
        )

    def _build_batch(self, rows: np.ndarray, *, stand_in: np.ndarray) -> dict[str, torch.Tensor]:
        """Return the pairs `rows`, or `stand_in` without labels if there are none.

        A pair without labels changes neither loss nor gradient, so a process without pairs can take part in an update.
        """
        batch = self.pairs[rows if len(rows) else stand_in]
        if not len(rows):
            batch["labels"][:] = IGNORE_INDEX
        return batch
