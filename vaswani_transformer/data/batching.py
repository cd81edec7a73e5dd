"""Batches of about 25,000 source and 25,000 target tokens, of pairs of like length (section 5.1).

`plan_updates` says which pairs an epoch's updates hold, `split_update` cuts one update into micro-batches of equal
work, `UpdateStream` reads those of one process. Each depends on its arguments alone, so that all processes agree.

B pairs of a batch, S and T its longest source and target in tokens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from ..model.loss_vaswani import IGNORE_INDEX
from .buckets import Buckets
from .counting_sort import sort_by_key

PART_NAMES = "part-*.arrow"  # files of token ids, in the folder of a set
WEIGHT = b"weight"  # metadata of such a file: how often an epoch holds its pairs


def plan_batches(lengths: Sequence[int], *, limit: int, power: int = 1) -> Iterator[list[int]]:
    """Rows of like length together, the longest first, so that memory runs out at once or never.

    Args:
        lengths: of each row, at least 1.
        limit: on the padded size of a batch, number of rows * longest**power; a row beyond it is a batch of its own.
        power: 1 where tokens count, 2 where the weights of attention do.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        count = max(1, limit // lengths[order[0]] ** power)
        yield order[:count]
        order = order[count:]


class TokenColumn:
    """Token ids of all sentences of one side, memory-mapped, never copied as a whole."""

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

    def pad(self, rows: np.ndarray, *, value: int, width: int | None = None) -> torch.Tensor:
        """Sentences `rows`, filled up with `value` on the right: (B, `width` or longest)."""
        lengths = self.lengths[rows]
        chunk_of_row = np.searchsorted(self._starts, rows, side="right") - 1
        order = chunk_of_row.argsort(kind="stable")
        chunks, starts = np.unique(chunk_of_row[order], return_index=True)
        own_rows = [slice(start, end) for start, end in pairwise([*starts, len(rows)])]
        ends = lengths[order].cumsum()
        own_tokens = [slice(start, end) for start, end in pairwise([0, *ends[starts[1:] - 1], ends[-1]])]
        # No loop over sentences: on a GPU an update lasts no longer than one would take.
        firsts = np.empty(len(rows), dtype=np.int64)  # of each sentence, the place in its chunk
        for chunk, own in zip(chunks, own_rows, strict=True):
            firsts[own] = self._offsets[chunk][rows[order[own]] - self._starts[chunk]]
        places = np.arange(ends[-1]) + np.repeat(firsts - (ends - lengths[order]), lengths[order])
        tokens = np.empty(len(places), dtype=np.int64)
        for chunk, own in zip(chunks, own_tokens, strict=True):
            tokens[own] = self._values[chunk][places[own]]
        width = int(lengths.max()) if width is None else width
        padded = np.full((len(rows), width), value, dtype=np.int64)
        padded[np.arange(width) < lengths[order, None]] = tokens
        return torch.from_numpy(padded[order.argsort()])


class TokenizedPairs(torch.utils.data.Dataset):
    """Pairs of token ids, columns `input_ids` and `labels` of `table`; indexed by the rows of a whole batch."""

    def __init__(self, table: pa.Table, *, pad_token_id: int):
        self.sources = TokenColumn(table["input_ids"])
        self.targets = TokenColumn(table["labels"])
        self.pad_token_id = pad_token_id

    @classmethod
    def load(cls, folder: Path, *, pad_token_id: int) -> "TokenizedPairs":
        """Map the Arrow files that `prepare` wrote into `folder`, each as often as its corpus has weight.

        The repetitions of a part are further rows over the same memory.

        Raises:
            FileNotFoundError: if there is none.
        """
        parts: list[pa.Table] = []
        for path in sorted(folder.glob(PART_NAMES)):
            with pa.memory_map(str(path)) as file:
                part = pa.ipc.open_stream(file).read_all()
            parts += [part] * int((part.schema.metadata or {}).get(WEIGHT, 1))
        if not parts:
            raise FileNotFoundError(
                f"{folder} holds no {PART_NAMES}; run `vaswani prepare` with --output {folder.parent}."
            )
        return cls(pa.concat_tables(parts), pad_token_id=pad_token_id)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` (B, S), `labels` (B, T)."""
        return self.pad(np.asarray(rows))

    def pad(
        self, rows: np.ndarray, *, source_width: int | None = None, target_width: int | None = None
    ) -> dict[str, torch.Tensor]:
        """As `__getitem__`, with S and T given, where they are."""
        input_ids = self.sources.pad(rows, value=self.pad_token_id, width=source_width)
        lengths = torch.from_numpy(self.sources.lengths[rows])
        attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
        labels = self.targets.pad(rows, value=IGNORE_INDEX, width=target_width)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def plan_updates(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    short_first: bool = False,
    bucketed: bool = False,
) -> list[np.ndarray]:
    """The updates of one epoch, over all processes together, each pair in exactly one of them.

    Pairs are sorted by their longer side, as in tensor2tensor, then by their target, then at random, and cut where
    one more pair would bring the padded source or target over `tokens_per_batch`; or else by their buckets, see
    `Buckets.cut`. The updates are then shuffled. The number of processes and the accumulation of an update change
    nothing.

    Args:
        source_lengths, target_lengths: tokens of each pair, `</s>` included.
        tokens_per_batch: limit on B * S and on B * T.
        short_first: leave the updates of epoch 0 in order, the shortest pairs first.
        bucketed: for few shapes, at the price of more padding.

    Returns:
        an array of row numbers for each update.

    Raises:
        ValueError: if a single sentence is longer than `tokens_per_batch`.
    """
    longest = max(side.max(initial=0) for side in (source_lengths, target_lengths))
    if longest > tokens_per_batch:
        row = int(np.maximum(source_lengths, target_lengths).argmax())
        raise ValueError(
            f"pair {row} has {longest} tokens, more than tokens_per_batch={tokens_per_batch}. Raise "
            f"tokens_per_batch, or prepare the data with a smaller max_length."
        )
    rng = np.random.default_rng([seed, epoch])
    lengths = source_lengths, target_lengths
    if bucketed:
        order, starts = Buckets(*lengths, tokens_per_batch=tokens_per_batch).cut(*lengths, rng)
    else:
        order, starts = _fill_updates(*lengths, rng, tokens_per_batch=tokens_per_batch)
    updates = [order[start:end] for start, end in pairwise([*starts, len(order)])]
    if epoch or not short_first:
        rng.shuffle(updates)
    return updates


def _fill_updates(
    source_lengths: np.ndarray, target_lengths: np.ndarray, rng: np.random.Generator, *, tokens_per_batch: int
) -> tuple[np.ndarray, list[int]]:
    """All rows, those of like length together, and the starts of updates that are as large as the limit allows."""
    order = np.arange(len(source_lengths), dtype=np.int32)
    rng.shuffle(order)
    # In 16 bits, which are sorted fastest.
    sources, targets = (side.astype(np.min_scalar_type(tokens_per_batch)) for side in (source_lengths, target_lengths))
    longest = np.maximum(sources, targets)
    for keys in (targets, longest):
        order = sort_by_key(order, keys)
    longest = longest[order]
    starts, start = [], 0
    while start < len(order):
        starts.append(start)
        counts = range(1, min(tokens_per_batch // int(longest[start]), len(order) - start) + 1)
        # The largest number of pairs from `start` on that fits; `longest` ascends.
        start += bisect_right(counts, tokens_per_batch, key=lambda n: n * int(longest[start + n - 1]))
    return order, starts


def split_update(
    rows: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, *, num_parts: int
) -> list[np.ndarray]:
    """Cut one update into micro-batches whose padded tokens are as equal as whole pairs allow.

    The pairs of an update are alike in their longer side only. Sorted by the shorter one, a micro-batch is
    alike in both, so finer cuts pad less: on Multi30k 8 % of the tokens of whole updates of 25,000 are padding,
    5 % of quarters, 3 % of eighths, which is what the paper's eight devices saw.

    Args:
        rows: of one update.
        source_lengths, target_lengths: tokens of every pair of the corpus.
        num_parts: micro-batches of all processes together.

    Returns:
        `num_parts` arrays of row numbers; the last ones are empty if there are too few pairs.
    """
    if num_parts == 1:
        return [rows]
    best = None
    for lengths, others in ((source_lengths, target_lengths), (target_lengths, source_lengths)):
        order = rows[np.argsort(lengths[rows], kind="stable")]
        sides = lengths[order].astype(np.int64), others[order].astype(np.int64)
        low = int(sum(side.sum() for side in sides)) // num_parts
        high = -(-len(rows) // num_parts) * int(sum(side.max() for side in sides))
        if best is not None:
            high = best[0] - 1
            if low > high or _cut(*sides, limit=high, num_parts=num_parts) is None:
                continue  # the other side cuts as well
        fits = partial(_cut, *sides, num_parts=num_parts)
        # The smallest limit that `num_parts` parts can keep.
        low += bisect_left(range(low, high), True, key=lambda limit, fits=fits: fits(limit=limit) is not None)
        best = low, order, fits(limit=low)
    _, order, starts = best
    parts = np.split(order, starts[1:])
    return parts + [rows[:0]] * (num_parts - len(parts))


def _cut(ascending: np.ndarray, others: np.ndarray, *, limit: int, num_parts: int) -> list[int] | None:
    """Starts of parts of at most `limit` padded tokens, of both sides together, or of one pair.

    Returns:
        `None` if there are more than `num_parts`.
    """
    starts, start = [], 0
    while start < len(ascending):
        if len(starts) == num_parts:
            return None
        starts.append(start)
        # No more than these fit: the longest of a part is no shorter than its first pair.
        part = slice(start, start + max(1, limit // int(ascending[start] + others[start])))
        longest = ascending[part] + np.maximum.accumulate(others[part])
        padded = longest * np.arange(1, len(longest) + 1)
        start += max(1, int(np.searchsorted(padded, limit, side="right")))
    return starts


@dataclass
class Update:
    """The part of one process in one update, and the tokens of the whole update over all processes."""

    micro_batches: list[dict[str, torch.Tensor]]  # `input_ids` (B, S), `attention_mask` (B, S) and `labels` (B, T)
    rows: list[np.ndarray]  # of each micro-batch
    target_tokens: int  # without padding; the loss is divided by them
    tokens: int  # source and target, without padding
    padded_tokens: int
    is_last_of_epoch: bool

    def pin_memory(self) -> "Update":
        """Called by `DataLoader`, so that copies to a GPU do not make the host wait."""
        for batch in self.micro_batches:
            for name in batch:
                batch[name] = batch[name].pin_memory()
        return self


class UpdateStream(torch.utils.data.IterableDataset):
    """The updates of one process, without end.

    Args:
        tokens_per_batch, seed, short_first, bucketed: see `plan_updates`.
        epoch, updates_of_epoch: where to begin: so many updates of that epoch are left out.
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
        bucketed: bool = False,
        epoch: int = 0,
        updates_of_epoch: int = 0,
        num_processes: int = 1,
        process_index: int = 0,
        accumulation_steps: int = 1,
    ):
        self.pairs, self.epoch, self.updates_of_epoch = pairs, epoch, updates_of_epoch
        lengths = pairs.sources.lengths, pairs.targets.lengths
        self.buckets = Buckets(*lengths, tokens_per_batch=tokens_per_batch) if bucketed else None
        self.plan = partial(
            plan_updates,
            *lengths,
            tokens_per_batch=tokens_per_batch,
            seed=seed,
            short_first=short_first,
            bucketed=bucketed,
        )
        self.num_parts = num_processes * accumulation_steps
        first = process_index * accumulation_steps
        self.own_parts = slice(first, first + accumulation_steps)

    def __iter__(self) -> Iterator[Update]:
        epoch, done = self.epoch, self.updates_of_epoch
        # A plan of millions of pairs takes seconds, in which a GPU would stand still at the start of each epoch.
        with ThreadPoolExecutor(max_workers=1) as planner:
            plan = self.plan(epoch=epoch)
            while True:
                next_plan = planner.submit(self.plan, epoch=epoch + 1)
                for number in range(done, len(plan)):
                    yield self._build_update(plan[number], is_last_of_epoch=number == len(plan) - 1)
                plan, epoch, done = next_plan.result(), epoch + 1, 0

    def _build_update(self, rows: np.ndarray, *, is_last_of_epoch: bool) -> Update:
        cut = self._cut_exactly if self.buckets is None else self._cut_in_buckets
        own_rows, micro_batches, padded_tokens = cut(rows)
        sources, targets = self.pairs.sources.lengths[rows], self.pairs.targets.lengths[rows]
        return Update(
            micro_batches=micro_batches,
            rows=own_rows,
            target_tokens=int(targets.sum()),
            tokens=int(sources.sum() + targets.sum()),
            padded_tokens=padded_tokens,
            is_last_of_epoch=is_last_of_epoch,
        )

    def _cut_exactly(self, rows: np.ndarray) -> tuple[list[np.ndarray], list[dict[str, torch.Tensor]], int]:
        """Rows and tensors of this process' micro-batches in the update `rows`; padded tokens of all parts."""
        sources, targets = self.pairs.sources.lengths, self.pairs.targets.lengths
        parts = split_update(rows, sources, targets, num_parts=self.num_parts)
        padded = [len(part) * int(sources[part].max() + targets[part].max()) for part in parts if len(part)]
        own_rows = parts[self.own_parts]
        return own_rows, [self._fill_up(part, len(part) or 1, stand_in=rows[0]) for part in own_rows], sum(padded)

    def _cut_in_buckets(self, rows: np.ndarray) -> tuple[list[np.ndarray], list[dict[str, torch.Tensor]], int]:
        """The same with all parts of one shape, which depends on the buckets of the update alone."""
        sources, targets = self.pairs.sources.lengths[rows], self.pairs.targets.lengths[rows]
        num_rows, source_width, target_width = self.buckets.shape_of(sources, targets)
        num_rows = -(-num_rows // self.num_parts)
        parts = range(self.num_parts)[self.own_parts]
        own_rows = [rows[part * num_rows : (part + 1) * num_rows] for part in parts]
        widths = {"source_width": source_width, "target_width": target_width}
        batches = [self._fill_up(part, num_rows, stand_in=rows[0], **widths) for part in own_rows]
        return own_rows, batches, self.num_parts * num_rows * (source_width + target_width)

    def _fill_up(
        self, rows: np.ndarray, num_rows: int, *, stand_in: np.integer, **widths: int
    ) -> dict[str, torch.Tensor]:
        """The pairs `rows`, filled up to `num_rows` with the pair `stand_in` without labels.

        A pair without labels changes neither loss nor gradient, and attention finds tokens in it. A process without
        pairs takes part in an update with it.
        """
        filled = np.full(num_rows, stand_in)
        filled[: len(rows)] = rows
        batch = self.pairs.pad(filled, **widths)
        batch["labels"][len(rows) :] = IGNORE_INDEX
        return batch
