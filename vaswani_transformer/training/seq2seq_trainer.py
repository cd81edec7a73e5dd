"""The batches of section 5.1 in transformers' Seq2SeqTrainer: by tokens instead of by sentences."""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer

from ..data.batching import plan_updates, split_update


class TokenBatchSampler(Sampler[list[int]]):
    """Row numbers of the micro-batches of one process, a `batch_sampler` of a DataLoader.

    The updates are those of `plan_updates`, each cut into a part for each process and accumulation step. Where an
    update has too few pairs for that, some of them are in two parts: every process must take part.

    Args:
        lengths: tokens of the sources and of the targets.
        tokens_per_batch, seed: see `plan_updates`.
        num_parts: of an update, over all processes.
        own_parts: those of this process.
    """

    def __init__(
        self,
        lengths: tuple[np.ndarray, np.ndarray],
        *,
        tokens_per_batch: int,
        seed: int,
        num_parts: int = 1,
        own_parts: slice = slice(None),
    ):
        self.lengths, self.options = lengths, {"tokens_per_batch": tokens_per_batch, "seed": seed}
        self.num_parts, self.own_parts = num_parts, own_parts
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Read the plan of `epoch` from the next iteration on."""
        self.plan = plan_updates(*self.lengths, **self.options, epoch=epoch)

    def __len__(self) -> int:
        return len(self.plan) * len(range(self.num_parts)[self.own_parts])

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.plan:
            parts = split_update(rows, *self.lengths, num_parts=self.num_parts)
            if not all(map(len, parts)):
                parts = np.array_split(np.resize(rows, max(len(rows), self.num_parts)), self.num_parts)
            for part in parts[self.own_parts]:
                yield part.tolist()


def load_token_batches(trainer: Trainer, *, tokens_per_batch: int) -> DataLoader:
    """Return the training batches of `trainer` for its `get_train_dataloader`: updates of about so many tokens per side.

    They are those of `vaswani train` with the same tokens, seed and data. `per_device_train_batch_size` has no effect;
    `gradient_accumulation_steps` cuts the same update into more parts.
    """
    args, accelerator, data = trainer.args, trainer.accelerator, trainer.train_dataset
    steps, first = args.gradient_accumulation_steps, accelerator.process_index * args.gradient_accumulation_steps
    table = data.with_format("arrow")[:]
    sampler = TokenBatchSampler(
        tuple(pc.list_value_length(table[column]).to_numpy() for column in ("input_ids", "labels")),
        tokens_per_batch=tokens_per_batch,
        seed=args.seed if args.data_seed is None else args.data_seed,
        num_parts=accelerator.num_processes * steps,
        own_parts=slice(first, first + steps),
    )
    columns = [name for name in data.column_names if name in ("input_ids", "attention_mask", "labels")]
    loader = DataLoader(
        data.select_columns(columns),
        batch_sampler=sampler,
        collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
    )
    # With `accelerator.prepare` a run resumed within an epoch would read the first epoch's batches: transformers
    # cannot reach the `set_epoch` of a sampler that is wrapped twice (5.23).
    device = accelerator.device
    return prepare_data_loader(loader, device, num_processes=1, process_index=0, put_on_device=True)
