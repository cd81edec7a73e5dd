"""Batches as in section 5.1 of the paper, for transformers' Seq2SeqTrainer. Their size is measured in tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer

from ..data.batching import plan_updates, split_update


@dataclass(eq=False)
class TokenBatchSampler(Sampler):
    """A `batch_sampler` of a DataLoader. It yields the row numbers of each micro-batch of one process.

    `plan_updates` plans the updates. Each update is cut into parts (micro-batches), one for each process and
    accumulation step. If an update has fewer pairs than parts, pairs are repeated, so that no part is empty.

    Args:
        lengths: the numbers of tokens of the sources and of the targets.
        num_parts: the number of parts of an update, over all processes.
        own_parts: a slice of these parts, the parts of this process.
        tokens_per_batch, seed: see `plan_updates`.
    """

    lengths: tuple[np.ndarray, np.ndarray]
    num_parts: int
    own_parts: slice
    tokens_per_batch: int
    seed: int

    def __post_init__(self) -> None:
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Plan the updates of `epoch`. The next iteration will yield them."""
        self.plan = plan_updates(*self.lengths, tokens_per_batch=self.tokens_per_batch, seed=self.seed, epoch=epoch)

    def __len__(self) -> int:
        return len(self.plan) * (self.own_parts.stop - self.own_parts.start)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.plan:
            parts = split_update(rows, *self.lengths, num_parts=self.num_parts)
            if not all(map(len, parts)):
                parts = np.array_split(np.resize(rows, max(len(rows), self.num_parts)), self.num_parts)
            yield from (part.tolist() for part in parts[self.own_parts])


def load_token_batches(trainer: Trainer, *, tokens_per_batch: int) -> DataLoader:
    """Return a DataLoader with batches as in `vaswani train`.

    To use it, set `trainer.get_train_dataloader = partial(load_token_batches, trainer, tokens_per_batch=...)`. Then the
    Trainer's `per_device_train_batch_size` has no effect. `gradient_accumulation_steps` only sets how many
    micro-batches of an update each process computes.

    Args:
        trainer: a Trainer whose training set is a `datasets.Dataset`.
        tokens_per_batch: the largest number of source tokens, and of target tokens, in an update, padding included,
            over all processes.
    """
    args, accelerator = trainer.args, trainer.accelerator
    steps = args.gradient_accumulation_steps
    data = trainer.train_dataset.select_columns(["input_ids", "labels"])
    table = data.with_format("arrow")[:]
    first = accelerator.process_index * steps
    sampler = TokenBatchSampler(
        tuple(pc.list_value_length(table[name]).to_numpy() for name in data.column_names),
        num_parts=accelerator.num_processes * steps,
        own_parts=slice(first, first + steps),
        tokens_per_batch=tokens_per_batch,
        seed=args.seed if args.data_seed is None else args.data_seed,
    )
    loader = DataLoader(
        data,
        batch_sampler=sampler,
        collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
    )
    # `accelerator.prepare` is not used here. It would wrap the sampler twice, and transformers 5.23 cannot reach the
    # `set_epoch` of a sampler that is wrapped twice. So a run that resumes in a later epoch would read the batches of
    # the first epoch.
    return prepare_data_loader(loader, accelerator.device, num_processes=1, process_index=0, put_on_device=True)
