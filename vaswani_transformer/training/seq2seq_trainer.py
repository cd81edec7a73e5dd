"""The batches of section 5.1 in transformers' Seq2SeqTrainer: by tokens instead of by sentences."""

from collections.abc import Iterator
from functools import partial

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Sampler
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import has_length, seed_worker

from ..data.batching import plan_updates, split_update
from ..model.engine_vaswani import build_engines


class TokenBatchSampler(Sampler[list[int]]):
    """Row numbers of the micro-batches of one process, a `batch_sampler` of a DataLoader.

    The updates are those of `data.batching.plan_updates`, each cut into a part for each process and accumulation
    step. Where an update has too few pairs for that, some of them are in two parts.

    Args:
        source_lengths, target_lengths, tokens_per_batch, seed: see `plan_updates`.
        num_processes, process_index: whose part to read.
        accumulation_steps: micro-batches of each process in an update.

    Raises:
        ValueError: if a single sentence is longer than `tokens_per_batch`.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        seed: int,
        num_processes: int = 1,
        process_index: int = 0,
        accumulation_steps: int = 1,
    ):
        self.lengths = source_lengths, target_lengths
        self.plan = partial(plan_updates, *self.lengths, tokens_per_batch=tokens_per_batch, seed=seed)
        self.num_parts = num_processes * accumulation_steps
        first = process_index * accumulation_steps
        self.own_parts = slice(first, first + accumulation_steps)
        self.epoch = 0
        self.num_updates = len(self.plan(epoch=0))  # the same in every epoch: chance decides only their order

    def set_epoch(self, epoch: int) -> None:
        """Read the plan of `epoch` from the next iteration on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_updates * (self.own_parts.stop - self.own_parts.start)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.plan(epoch=self.epoch):
            for part in self._split(rows)[self.own_parts]:
                yield part.tolist()

    def _split(self, rows: np.ndarray) -> list[np.ndarray]:
        """`split_update` without empty parts: every process must take part."""
        parts = split_update(rows, *self.lengths, num_parts=self.num_parts)
        if all(map(len, parts)):
            return parts
        return np.array_split(np.resize(rows, max(len(rows), self.num_parts)), self.num_parts)


class TokenBatchSeq2SeqTrainer(Seq2SeqTrainer):
    """transformers' Seq2SeqTrainer with updates of about `tokens_per_batch` source and as many target tokens.

    The updates are those of `vaswani train` with the same tokens, seed and data, without buckets.
    `per_device_train_batch_size` has no effect; `gradient_accumulation_steps` cuts the same update into more parts.
    With `predict_with_generate`, each evaluation translates through one engine where the model can have one.

    Args:
        tokens_per_batch: see `data.batching.plan_updates`.
        args, kwargs: of `Seq2SeqTrainer`; `train_dataset` has the columns `input_ids` and `labels`, and a length.

    Raises:
        ValueError: on training, if `train_dataset` is a stream.
    """

    def __init__(self, *args, tokens_per_batch: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.tokens_per_batch = tokens_per_batch
        self._gen_kwargs = {}  # as `evaluate` and `predict` set it

    def get_train_dataloader(self) -> DataLoader:
        """The loader of the base class, except that each batch belongs to this process alone."""
        args, accelerator = self.args, self.accelerator
        sampler = TokenBatchSampler(
            _measure(self.train_dataset, "input_ids"),
            _measure(self.train_dataset, "labels"),
            tokens_per_batch=self.tokens_per_batch,
            seed=args.seed if args.data_seed is None else args.data_seed,
            num_processes=accelerator.num_processes,
            process_index=accelerator.process_index,
            accumulation_steps=args.gradient_accumulation_steps,
        )
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        # With `accelerator.prepare` a run resumed within an epoch would read the first epoch's batches: transformers
        # cannot reach the `set_epoch` of a sampler that is wrapped twice (5.23).
        return prepare_data_loader(
            loader, accelerator.device, num_processes=1, process_index=0, put_on_device=accelerator.device_placement
        )

    def prediction_step(self, model, inputs, prediction_loss_only, *args, **kwargs):
        # Not before the first step: until then the base class may cast or wrap the model.
        if self.args.predict_with_generate and not prediction_loss_only and "engine" not in self._gen_kwargs:
            [self._gen_kwargs["engine"]] = build_engines([self.model])
        return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self._gen_kwargs.pop("engine", None)  # its memory is for training again


def _measure(dataset: torch.utils.data.Dataset, column: str) -> np.ndarray:
    """Tokens of `column` in each row, (rows,); refuses a stream."""
    if not has_length(dataset):
        raise ValueError(
            f"train_dataset, of type {type(dataset).__name__}, has no length, and batches by tokens are planned from "
            f"the lengths of all its rows: give a datasets.Dataset, loaded without streaming, or train with "
            f"Seq2SeqTrainer, which batches by sentences."
        )
    if isinstance(dataset, datasets.Dataset):
        return pc.list_value_length(dataset.select_columns(column).with_format("arrow")[:][column]).to_numpy()
    return np.array([len(row[column]) for row in dataset])
