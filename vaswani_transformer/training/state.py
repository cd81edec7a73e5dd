"""The state of a run: saved with every checkpoint, restored after a stop."""

import contextlib
import math
import pickle
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import accelerate
import torch
from accelerate import Accelerator
from accelerate.utils import OPTIMIZER_NAME, RNG_STATE_NAME
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedTokenizerFast

from ..data.batching import Update
from .checkpoints import (
    PARTIAL_PREFIX,
    STATE_FOLDER,
    WEIGHTS,
    begin_checkpoint,
    checkpoint_name,
    checkpoint_step,
    drop_old_checkpoints,
    finish_checkpoint,
    resumable_checkpoints,
)
from .diagnosis import is_write_error
from .log import Log
from .sharding import gather_model, is_sharded
from .tally import Tally


@dataclass
class Progress:
    """How far a run has come."""

    update: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0  # done of the present epoch
    seconds: float = 0.0  # of training, over all sittings
    best_dev_loss: float = math.inf
    evaluations_without_gain: int = 0
    log_bytes: int = 0  # of the log that belong to what is saved
    num_processes: int = 1

    def count(self, update: Update) -> None:
        """Advance by `update`, which is done."""
        self.update += 1
        self.updates_of_epoch += 1
        if update.is_last_of_epoch:
            self.epoch, self.updates_of_epoch = self.epoch + 1, 0

    def note_evaluation(self, dev_loss: float) -> None:
        """Count an evaluation of the development set."""
        self.evaluations_without_gain += 1
        if dev_loss < self.best_dev_loss:
            self.best_dev_loss, self.evaluations_without_gain = dev_loss, 0

    def state_dict(self) -> dict:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict) -> None:
        for field in fields(self):
            setattr(self, field.name, state[field.name])


class TrainingState:
    """Saves and restores a run through Accelerate; all processes must call `save` and `load` together.

    A thread of the main process does what takes time, from copies: it writes weights and Adam's averages, syncs the
    files and takes their digests. The next `save` waits for it.

    Args:
        folder: of the checkpoints.
        model: as Accelerate has prepared it, with the optimizer.
        optimizer: without Accelerate's wrapper.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tokenizer: PreTrainedTokenizerFast,
        *,
        schedule: LRScheduler,
        progress: Progress,
        tally: Tally,
    ):
        self.accelerator, self.folder, self.model, self.tokenizer = accelerator, folder, model, tokenizer
        self.optimizer, self.progress = optimizer, progress
        self._writer, self._written = ThreadPoolExecutor(max_workers=1), Future()
        self._written.set_result(None)
        accelerator.register_for_checkpointing(schedule, progress, tally)
        # The checkpoint holds the weights already, as a model like any other.
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: weights.clear())
        accelerator.register_load_state_pre_hook(self._load_weights)

    def save(self, log: Log, *, keep: int, is_scheduled: bool) -> None:
        """Begin to write a checkpoint of this moment, and then to delete those that are no longer needed.

        Args:
            log: of the run; it is on the disk before the checkpoint is.
            keep: checkpoints that the average needs.
            is_scheduled: true if it may be averaged, false if it is written because the run was asked to stop.

        Raises:
            OSError: if it, or the one before, cannot be written; the message names the checkpoint that is intact.
        """
        self.close()
        name = checkpoint_name(self.progress.update, is_scheduled=is_scheduled)
        partial = self.folder / f"{PARTIAL_PREFIX}{name}"
        with self._explain_write_error(partial):
            weights, averages = self._write_small_files(partial, log)
        if self.accelerator.is_main_process:
            self._written = self._writer.submit(self._write, partial, weights, averages, keep)

    def check(self) -> None:
        """Raise the error of the writing thread, if there was one."""
        if self._written.done():
            self.close()

    def close(self) -> None:
        """Wait, in the main process, until the last checkpoint is complete; raises the error of its writing."""
        self._written.result()

    def _write_small_files(self, partial: Path, log: Log) -> tuple[dict, dict]:
        """Write all but weights and Adam's averages, of which the main process gets copies."""
        accelerator = self.accelerator
        if accelerator.is_main_process:
            self.progress.log_bytes = log.sync()
            begin_checkpoint(partial)
        accelerator.wait_for_everyone()
        model = gather_model(accelerator, self.model)
        weights, averages = {}, {}
        if accelerator.is_main_process:
            model.save_pretrained(partial, state_dict={})
            self.tokenizer.save_pretrained(partial)
            tied = model.all_tied_weights_keys
            weights = _copy_to_host({key: value for key, value in model.state_dict().items() if key not in tied})
            if not is_sharded(accelerator):
                averages = _copy_to_host(self.optimizer.state_dict())
            if accelerator.device.type == "cuda":
                torch.cuda.synchronize()
        with contextlib.ExitStack() as stack:
            if not is_sharded(accelerator):  # else each process holds a part, and Accelerate writes it here
                hook = self.optimizer.register_state_dict_post_hook(lambda optimizer, state: {})
                stack.callback(hook.remove)
            accelerator.save_state(str(partial / STATE_FOLDER))
        accelerator.wait_for_everyone()
        return weights, averages

    def _write(self, partial: Path, weights: dict, averages: dict, keep: int) -> None:
        """Complete a checkpoint; the writing thread runs it."""
        with self._explain_write_error(partial):
            save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
            if averages:
                torch.save(averages, partial / STATE_FOLDER / f"{OPTIMIZER_NAME}.bin")
            finish_checkpoint(partial)
        drop_old_checkpoints(self.folder, keep=keep)

    @contextlib.contextmanager
    def _explain_write_error(self, partial: Path) -> Iterator[None]:
        """Remove the unfinished checkpoint where a file of it cannot be written, and say which one is intact."""
        try:
            yield
        except Exception as error:
            if not is_write_error(error):
                raise
            shutil.rmtree(partial, ignore_errors=True)
            before = resumable_checkpoints(self.folder)[-1:]
            intact = f"{before[0]} is intact" if before else "there is none before it"
            raise OSError(
                f"the checkpoint of update {checkpoint_step(partial)} could not be written: {error}. {intact}. "
                f"Mend the cause, for example make room on the disk, and start the same command again."
            ) from error

    def load(self, checkpoint: Path, *, seed: int, change_processes: bool) -> None:
        """Restore the state in `checkpoint`, which is intact.

        Raises:
            ValueError: if another number of processes wrote it and `change_processes` is false, or if it holds
                programs, as a pickle may.
        """
        folder = checkpoint / STATE_FOLDER
        try:
            for path in folder.glob("custom_checkpoint_*.pkl"):
                # Accelerate reads them as pickles that may run anything: refuse those that hold more than values.
                torch.load(path, map_location="cpu", weights_only=True)
            self.accelerator.load_state(str(folder))
            if self.progress.num_processes == self.accelerator.num_processes:
                # Accelerate goes on without the random states if it cannot read them.
                accelerate.utils.load(folder / f"{RNG_STATE_NAME}_{self.accelerator.process_index}.pkl")
        except pickle.UnpicklingError as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"{folder} holds more than values, so it was not written by this package ({reason}). Remove "
                f"{checkpoint} to go on from the one before."
            ) from error
        progress, now = self.progress, self.accelerator.num_processes
        if progress.num_processes == now:
            return
        if not change_processes:
            raise ValueError(
                f"{checkpoint} was written by {progress.num_processes} processes, this is a run of {now}. Start "
                f"{progress.num_processes}, or give --change_processes: no pair is skipped or repeated, but "
                f"dropout will draw other numbers."
            )
        accelerate.utils.set_seed(seed + progress.update, device_specific=True)
        progress.num_processes = now

    def _load_weights(self, models: list[torch.nn.Module], folder: str) -> None:
        """Load the weights beside `folder` into the model, instead of Accelerate."""
        if is_sharded(self.accelerator):
            return
        state = load_file(Path(folder).parent / WEIGHTS)
        mismatch = self.accelerator.unwrap_model(models[0]).load_state_dict(state, strict=False)
        assert not mismatch.unexpected_keys  # missing are the names of tied weights, stored once
        models.clear()


def _copy_to_host(value: object) -> object:
    """`value` with copies of its tensors, which no update changes; from a GPU in pinned memory, without waiting."""
    if isinstance(value, torch.Tensor):
        host = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return host.copy_(value, non_blocking=value.is_cuda)
    if isinstance(value, dict):
        return {key: _copy_to_host(item) for key, item in value.items()}
    return value
