"""Checkpoints: written whole or not at all, read back to the bit, kept as long as needed; `runs` names their files."""

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
STATES_TO_KEEP = 2  # if the last checkpoint is damaged, the run continues from the one before


class Checkpoints:
    """Saves and restores a run; all processes must call `save` and `load` together, the main process writes.

    Args:
        folder: of the checkpoints.
        model: without Accelerate's wrapper.
        progress: names a checkpoint, and is saved with it.
        stateful: other parts to save, by their names in the file; each has `state_dict` and `load_state_dict`.
        keep: checkpoints that the average needs.
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
        """Write a checkpoint of this moment, then delete those that are no longer needed.

        One that is not `is_scheduled` is written at a stop, and is never part of the final mean.

        Raises:
            OSError: if it cannot be written; for a full disk each library has an error of its own.
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
        """Restore the state in `checkpoint`, which is intact; `warn` if other numbers will be drawn from now on."""
        path = checkpoint / STATE_FOLDER / STATE_FILE
        state = torch.load(path, map_location="cpu", weights_only=True)  # runs no program, as a pickle may
        with blaming(path):
            for name, part in self.stateful.items():
                part.load_state_dict(state[name])
        self.load_weights(checkpoint)
        self.model.generation_config = VaswaniGenerationConfig.from_pretrained(checkpoint)
        states, place = state["random_states"], self.accelerator.process_index
        if len(states) == self.accelerator.num_processes:
            _set_random_states(self.accelerator.device, states[place])
        else:
            warn(f"WARNING: {len(states)} processes wrote {checkpoint}: dropout will draw other numbers than with them")
            torch.manual_seed(seed + self.progress.update + place)

    def load_weights(self, folder: Path) -> None:
        """Load the weights in `folder`, of a checkpoint or of their mean."""
        mismatch = self.model.load_state_dict(load_file(folder / WEIGHTS), strict=False)
        assert not mismatch.unexpected_keys  # missing are the names of tied weights, stored once


def _get_random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of the generators that dropout of this process draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_states(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"])


def choose_checkpoint(folder: Path, warn: Callable[[str], object]) -> Path | None:
    """Return the newest intact checkpoint in `folder`, if there is one; `warn` of newer ones, and set them aside.

    Raises:
        ValueError: if all are damaged; they stay.
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
    """Say why training cannot continue from `checkpoint`, with the name of the file; empty if it can."""
    try:
        return find_damage(checkpoint, read_digests(checkpoint))
    except (FileNotFoundError, ValueError) as error:
        return str(error)


def finish_checkpoint(partial: Path) -> Path:
    """Sync a filled folder, mark it complete last, then rename it into its place, which must be free."""
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

    Delete checkpoints of earlier stops and partial ones, too. A checkpoint is set aside before it is deleted, so a
    half-deleted one never passes for a whole one; the next call deletes the rest of it.
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
    """Rename `checkpoint`, or a `part` of it, to `partial-...`, which readers skip and the next clean-up deletes."""
    aside = checkpoint.with_name(f"{PARTIAL_PREFIX}{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    (checkpoint / part).rename(aside)
