"""Checkpoints. Each is written whole or not at all, restores a run bit for bit, and is kept as long as it is needed.

The names of their files stand in `runs`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..files import blaming, digest_files, find_damage, sync, write_json
from ..model.generation_vaswani import VaswaniGenerationConfig
from ..runs import (
    COMPLETE,
    PARTIAL_PREFIX,
    PREFIX,
    STATE_FOLDER,
    STOPPED_PREFIX,
    WEIGHTS,
    checkpoint_name,
    complete_checkpoints,
    find_checkpoints,
    read_digests,
    resumable_checkpoints,
)
from .progress import Progress

STATE_FILE = "state.pt"
STATES_TO_KEEP = 2  # If the last checkpoint is damaged, the run continues from the checkpoint before it.


class Checkpoints:
    """The checkpoints of a run. All processes must call `save` and `load` together. The main process writes.

    Args:
        folder: the folder of the checkpoints.
        model: the model without Accelerate's wrapper.
        progress: gives the name of a checkpoint, and is saved with it.
        stateful: other parts to save, by their names in the file. Each has `state_dict` and `load_state_dict`.
        keep: the number of checkpoints that the average needs.
    """

    def __init__(
        self,
        folder: Path,
        accelerator: Accelerator,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        progress: Progress,
        stateful: dict[str, Any],
        keep: int,
    ):
        self.folder = folder
        self.accelerator = accelerator
        self.model = model
        self.tokenizer = tokenizer
        self.progress = progress
        self.stateful = {"progress": progress, **stateful}
        self.keep = keep
        if accelerator.scaler is not None:
            self.stateful["scaler"] = accelerator.scaler

    def save(self, *, is_scheduled: bool) -> None:
        """Write a checkpoint of this moment, then delete the checkpoints that are no longer needed.

        A checkpoint that is not `is_scheduled` is written at a stop, and is never part of the final mean.

        Raises:
            OSError: if the checkpoint cannot be written, whatever error a library raised.
        """
        state = {name: part.state_dict() for name, part in self.stateful.items()}
        state["random_states"] = gather_object([_get_random_states(self.accelerator.device)])
        if not self.accelerator.is_main_process:
            return
        partial = self.folder / f"{PARTIAL_PREFIX}{checkpoint_name(self.progress.update, is_scheduled=is_scheduled)}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
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
        """Restore the state in `checkpoint`, which is intact. Call `warn` if dropout will draw other numbers."""
        path = checkpoint / STATE_FOLDER / STATE_FILE
        state = torch.load(path, map_location="cpu", weights_only=True)  # A pickle could run a program.
        with blaming(path):
            for name, part in self.stateful.items():
                part.load_state_dict(state[name])
        self.load_weights(checkpoint)
        self.model.generation_config = VaswaniGenerationConfig.from_pretrained(checkpoint)
        states = state["random_states"]
        place = self.accelerator.process_index
        if len(states) == self.accelerator.num_processes:
            _set_random_states(self.accelerator.device, states[place])
        else:
            warn(
                f"WARNING: {checkpoint} was written by {len(states)} processes, and this run has "
                f"{self.accelerator.num_processes}: dropout will draw other numbers."
            )
            torch.manual_seed(seed + self.progress.update + place)

    def load_weights(self, folder: Path) -> None:
        """Load the weights of the checkpoint or model in `folder`."""
        mismatch = self.model.load_state_dict(load_file(folder / WEIGHTS), strict=False)
        assert not mismatch.unexpected_keys  # Tied weights are stored once, so their other names are missing.


def _get_random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of the random generators from which dropout draws in this process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_states(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"])


def choose_checkpoint(folder: Path, warn: Callable[[str], object]) -> Path | None:
    """Return the newest intact checkpoint in `folder`, or None if there is none at all.

    Damaged checkpoints that are newer are set aside, and `warn` gets a line for each.

    Raises:
        ValueError: if all checkpoints are damaged. They stay where they are.
    """
    damaged: list[Path] = []
    for path in reversed(find_checkpoints(folder, PREFIX, STOPPED_PREFIX)):
        fault = _find_fault(path)
        if not fault:
            for newer in damaged:
                set_aside(newer)
            return path
        warn(f"WARNING: {fault}; the checkpoint before is used")
        damaged.append(path)
    if damaged:
        raise ValueError(f"none of the checkpoints in {folder} is intact: {fault}. Copy one back that is.")
    return None


def _find_fault(checkpoint: Path) -> str:
    """Return why training cannot continue from `checkpoint`, with the name of a file, or "" if it can."""
    try:
        return find_damage(checkpoint, read_digests(checkpoint))
    except (FileNotFoundError, ValueError) as error:
        return str(error)


def finish_checkpoint(partial: Path) -> Path:
    """Sync a filled folder, mark it as complete, and rename it to its final name, which must be free."""
    paths = list(partial.rglob("*"))
    for path in paths:
        sync(path)
    write_json(partial / COMPLETE, {"files": digest_files(partial, paths)})
    sync(partial)
    final = partial.rename(partial.with_name(partial.name.removeprefix(PARTIAL_PREFIX)))
    sync(final.parent)
    return final


def drop_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Delete all but the last `keep` checkpoints, and the training state of all but the last `STATES_TO_KEEP`.

    Checkpoints of earlier stops and partial checkpoints are deleted, too. A checkpoint is set aside before it is
    deleted, so that half of a checkpoint is never taken for a whole one. The next call deletes the other half.
    """
    checkpoints = complete_checkpoints(folder)
    newest = resumable_checkpoints(folder)[-1:]
    stopped = [path for path in find_checkpoints(folder, STOPPED_PREFIX) if path not in newest]
    old = checkpoints[: -max(keep, STATES_TO_KEEP)]
    for path in old + stopped:
        set_aside(path)
    for path in checkpoints[len(old) : -STATES_TO_KEEP]:
        if (path / STATE_FOLDER).exists():
            set_aside(path, STATE_FOLDER)
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(path)


def set_aside(checkpoint: Path, part: str = "") -> None:
    """Rename `checkpoint`, or a `part` of it, to `partial-...`. Readers skip such folders; a clean-up deletes them."""
    aside = checkpoint.with_name(f"{PARTIAL_PREFIX}{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    (checkpoint / part).rename(aside)
