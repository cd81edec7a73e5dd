"""Write, read and delete checkpoints. A checkpoint is written whole or not at all, and restores a run bit for bit.

The docstring of runs.py lists the files of a checkpoint.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors.torch import load_model
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..files import blaming, digest_files, find_damage, remove, reset_modes, sync, write_json
from ..loading import find_changed_code, load_tensors
from ..model.generation_vaswani import VaswaniGenerationConfig
from ..runs import (
    COMPLETE,
    PARTIAL_PREFIX,
    PREFIX,
    STATE_FOLDER,
    STOPPED_PREFIX,
    WEIGHTS,
    averageable_checkpoints,
    checkpoint_name,
    find_checkpoints,
    read_digests,
    resumable_checkpoints,
)
from .progress import Progress

STATE_FILE = "state.pt"
STATES_TO_KEEP = 2  # If the last checkpoint is damaged, the run continues from the checkpoint before it.


@dataclass
class Checkpoints:
    """The checkpoints of a run. All processes must call `save` and `load` together. The main process writes."""

    folder: Path  # the folder of the checkpoints
    accelerator: Accelerator
    model: PreTrainedModel  # without Accelerate's wrapper
    tokenizer: PreTrainedTokenizerFast
    progress: Progress  # one of the parts to save; its number of updates is in the name of the checkpoint
    stateful: dict[str, Any]  # the parts to save, by their names in the file; each can return and load a state dict
    keep: int  # the number of checkpoints that the final model averages

    def save(self, *, is_scheduled: bool) -> None:
        """Write a checkpoint of the present state, then delete the checkpoints that are no longer needed.

        Args:
            is_scheduled: False for a checkpoint that is written only because the run stops. It is never
                averaged into the final model.

        Raises:
            OSError: if the checkpoint cannot be written. Other types of errors become an OSError.
        """
        state = {name: part.state_dict() for name, part in self.stateful.items()}
        generators = _find_generators(self.accelerator.device)
        state["random_states"] = gather_object([{name: each.get_rng_state() for name, each in generators.items()}])
        if not self.accelerator.is_main_process:
            return
        partial = self.folder / f"{PARTIAL_PREFIX}{checkpoint_name(self.progress.update, is_scheduled=is_scheduled)}"
        try:
            remove(partial)
            (partial / STATE_FOLDER).mkdir(parents=True)
            torch.save(state, partial / STATE_FOLDER / STATE_FILE)
            self.model.save_pretrained(partial)
            self.tokenizer.save_pretrained(partial)
            finish_checkpoint(partial)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            reason = f"{type(error).__name__}: {error}".removeprefix("OSError: ")
            raise OSError(f"{partial} could not be written: {reason}. The checkpoints before it are intact.") from error
        drop_old_checkpoints(self.folder, keep=self.keep)

    def load(self, checkpoint: Path, *, seed: int, warn: Callable[[str], object]) -> None:
        """Restore the run from an intact `checkpoint`.

        `warn` gets a line if the checkpoint holds another version of the model's code than the installed version,
        and a line if another number of processes wrote the checkpoint: dropout then draws other numbers.
        """
        if change := find_changed_code(checkpoint, self.model):
            warn(f"WARNING: {change}.")
        path = checkpoint / STATE_FOLDER / STATE_FILE
        state = load_tensors(path)
        process_index = self.accelerator.process_index
        with blaming(path):
            for name, part in self.stateful.items():
                part.load_state_dict(state[name])
            states = state["random_states"]
            if is_same_number := len(states) == self.accelerator.num_processes:
                for name, generator in _find_generators(self.accelerator.device).items():
                    generator.set_rng_state(states[process_index][name])
        self.load_weights(checkpoint)
        self.model.generation_config = VaswaniGenerationConfig.from_pretrained(checkpoint)
        if not is_same_number:
            warn(
                f"WARNING: {checkpoint} was written by {len(states)} processes, and this run has "
                f"{self.accelerator.num_processes}: dropout will draw other numbers."
            )
            torch.manual_seed(seed + self.progress.update + process_index)

    def load_weights(self, folder: Path) -> None:
        """Load the weights of the checkpoint or model in `folder`."""
        with blaming(folder / WEIGHTS):
            load_model(self.model, folder / WEIGHTS)


def _find_generators(device: torch.device) -> dict[str, Any]:
    """Return the modules with the random generators from which dropout draws, by the names of their states."""
    return {"cpu": torch} if device.type == "cpu" else {"cpu": torch, "device": torch.get_device_module(device)}


def choose_checkpoint(folder: Path, warn: Callable[[str], object]) -> Path | None:
    """Return the newest intact checkpoint in `folder`, or None if `folder` has no checkpoint.

    If newer checkpoints are damaged, `warn` gets a line about each of them, and `set_aside` renames them.

    Raises:
        ValueError: if all checkpoints are damaged. They keep their names.
    """
    damaged = []
    for path in reversed(find_checkpoints(folder, PREFIX, STOPPED_PREFIX)):
        try:
            fault = find_damage(path, read_digests(path))
        except (OSError, ValueError) as error:
            fault = str(error)
        if not fault:
            for newer in damaged:
                set_aside(newer)
            return path
        warn(f"WARNING: {fault}; trying the checkpoint before it")
        damaged.append(path)
    if damaged:
        raise ValueError(f"none of the checkpoints in {folder} is intact: {fault}. Copy an intact one back.")
    return None


def finish_checkpoint(partial: Path) -> Path:
    """Sync the written files of a checkpoint, mark it as complete, and return the folder under its final name.

    No file or folder may have the final name yet.
    """
    paths = list(partial.rglob("*"))
    reset_modes(partial)
    for path in paths:
        sync(path)
    write_json(partial / COMPLETE, {"files": digest_files(partial, paths)})
    sync(partial)
    final = partial.rename(partial.with_name(partial.name.removeprefix(PARTIAL_PREFIX)))
    sync(final.parent)
    return final


def drop_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Delete all but the last `keep` checkpoints, and the training state of all but the last `STATES_TO_KEEP`.

    At least `STATES_TO_KEEP` checkpoints are kept. A checkpoint that was written at a stop is deleted, unless it is the
    newest one. Partial checkpoints are deleted. `set_aside` renames a checkpoint before it is deleted. So the files
    that a crash leaves are never taken for a whole checkpoint, and the next call deletes them.
    """
    checkpoints = averageable_checkpoints(folder)
    newest = resumable_checkpoints(folder)[-1:]
    stopped = [path for path in find_checkpoints(folder, STOPPED_PREFIX) if path not in newest]
    old = checkpoints[: -max(keep, STATES_TO_KEEP)]
    for path in old + stopped:
        set_aside(path)
    for path in checkpoints[len(old) : -STATES_TO_KEEP]:
        if (path / STATE_FOLDER).exists():
            set_aside(path, STATE_FOLDER)
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        remove(path)


def set_aside(checkpoint: Path, part: str = "") -> None:
    """Rename `checkpoint`, or its subfolder `part`, to `partial-...`.

    Folders with such names are never read. `drop_old_checkpoints` deletes them.
    """
    aside = checkpoint.with_name(f"{PARTIAL_PREFIX}{checkpoint.name}")
    remove(aside)
    (checkpoint / part).rename(aside)
