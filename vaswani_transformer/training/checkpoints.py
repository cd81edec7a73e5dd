"""Checkpoints: written whole or not at all, read back to the bit, kept as long as needed, averaged (section 6.1).

checkpoints/
    step-00000057/
        model.safetensors, config.json, generation_config.json, tokenizer files    a model like any other
        training_state/         optimizer, schedule, random states of every process, place in the data and the log
        COMPLETE                written last: the SHA-256 of every other file
    stopped-00000061/           the same, written because the run was asked to stop: to resume from, not to average
    partial-step-00000064/      being written or deleted, left behind by a killed run, or damaged; never read
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..files import blaming, digest_files, find_damage, read_object, write_json, write_whole
from .progress import Progress, Tally

CHECKPOINTS_FOLDER = "checkpoints"  # of a run
WEIGHTS = "model.safetensors"
STATE_FOLDER, STATE_FILE = "training_state", "state.pt"
COMPLETE = "COMPLETE"
PREFIX = "step-"
STOPPED_PREFIX = "stopped-"
PARTIAL_PREFIX = "partial-"
STATES_TO_KEEP = 2  # the run goes on from the checkpoint before the last if the last one is damaged


class Checkpoints:
    """Saves and restores a run; all processes must call `save` and `load` together, the main process writes.

    Args:
        folder: of the checkpoints.
        model: without Accelerate's wrapper, as is `optimizer`.
        keep: checkpoints that the average needs.
    """

    def __init__(
        self,
        folder: Path,
        accelerator: Accelerator,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        optimizer: torch.optim.Optimizer,
        schedule: LRScheduler,
        progress: Progress,
        tally: Tally,
        *,
        keep: int,
    ):
        self.folder, self.accelerator, self.keep = folder, accelerator, keep
        self.model, self.tokenizer, self.progress = model, tokenizer, progress
        self.stateful = {"optimizer": optimizer, "schedule": schedule, "progress": progress, "tally": tally}
        if accelerator.scaler is not None:
            self.stateful["scaler"] = accelerator.scaler

    def save(self, *, is_scheduled: bool) -> None:
        """Write a checkpoint of this moment, then delete those that are no longer needed.

        One that is not `is_scheduled` is written because the run was asked to stop, and is never averaged.

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
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError(f"{partial} could not be written: {error}. The checkpoints before it are intact.") from error
        drop_old_checkpoints(self.folder, keep=self.keep)

    def load(self, checkpoint: Path, *, seed: int, warn: Callable[[str], object]) -> None:
        """Restore the state in `checkpoint`, which is intact; `warn` if other numbers will be drawn from now on."""
        path = checkpoint / STATE_FOLDER / STATE_FILE
        state = torch.load(path, map_location="cpu", weights_only=True)  # runs no program, as a pickle may
        with blaming(path):
            for name, part in self.stateful.items():
                part.load_state_dict(state[name])
        mismatch = self.model.load_state_dict(load_file(checkpoint / WEIGHTS), strict=False)
        assert not mismatch.unexpected_keys  # missing are the names of tied weights, stored once
        states, place = state["random_states"], self.accelerator.process_index
        if len(states) == self.accelerator.num_processes:
            _set_random_states(self.accelerator.device, states[place])
        else:
            warn(f"WARNING: {len(states)} processes wrote {checkpoint}: dropout will draw other numbers than with them")
            torch.manual_seed(seed + self.progress.update + place)


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


def checkpoint_step(folder: Path) -> int:
    """Return the number of updates before checkpoint `folder` was written."""
    return int(folder.name.rpartition("-")[2])


def checkpoint_name(step: int, *, is_scheduled: bool = True) -> str:
    """Return the name of a whole checkpoint; `finish_checkpoint` removes `PARTIAL_PREFIX` in front of it."""
    return f"{PREFIX if is_scheduled else STOPPED_PREFIX}{step:08d}"


def find_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Return checkpoints whose names begin with one of `prefixes`, complete or not, oldest first."""
    found = [path for prefix in prefixes for path in folder.glob(f"{prefix}*") if path.name[len(prefix) :].isdigit()]
    return sorted(found, key=checkpoint_step)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints in `folder` that may be averaged, oldest first."""
    return [path for path in find_checkpoints(folder, PREFIX) if (path / COMPLETE).exists()]


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints that still hold the state of training, oldest first."""
    found = find_checkpoints(folder, PREFIX, STOPPED_PREFIX)
    return [path for path in found if (path / COMPLETE).exists() and (path / STATE_FOLDER).exists()]


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
        warn(f"WARNING: {fault}; the checkpoint before is taken")
        damaged.append(path)
    if damaged:
        raise ValueError(f"none of the checkpoints in {folder} is intact: {fault}. Copy one back that is.")
    return None


def _find_fault(checkpoint: Path) -> str:
    """Say why training cannot go on from `checkpoint`, with the name of the file; empty if it can."""
    try:
        return find_damage(checkpoint, _read_digests(checkpoint))
    except (FileNotFoundError, ValueError) as error:
        return str(error)


def _read_digests(checkpoint: Path) -> dict[str, str]:
    """Return SHA-256 of the files of `checkpoint`, by their names."""
    path = checkpoint / COMPLETE
    with blaming(path):
        return dict(read_object(path)["files"])


def finish_checkpoint(partial: Path) -> Path:
    """Sync a filled folder, mark it complete last, then rename it into its place, which must be free."""
    paths = list(partial.rglob("*"))
    for path in paths:
        _sync(path)
    write_json(partial / COMPLETE, {"files": digest_files(partial, paths)})
    _sync(partial)
    final = partial.rename(partial.with_name(partial.name.removeprefix(PARTIAL_PREFIX)))
    _sync(final.parent)
    return final


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Delete all but the last `keep` checkpoints, and the training state of all but the last `STATES_TO_KEEP`.

    Checkpoints of earlier stops and partial ones go too. A checkpoint is set aside before it is deleted: a half-deleted
    one is never taken for a whole one, and goes with the next call.
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


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write to `output` the model whose weights are the mean of those in `folders`, of one run (section 6.1).

    The paper averages the last 5 (base) or 20 (big) checkpoints, written every ten minutes. Sums are taken in float64
    and cast back once. Everything beside the weights is copied from the last folder, except its card.

    Raises:
        ValueError: if `folders` is empty, or a checkpoint is damaged.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average: train first.")
    sums = {}
    for folder in folders:
        if (folder / COMPLETE).exists():  # other models have no digests, old checkpoints no state
            digests = {name: digest for name, digest in _read_digests(folder).items() if "/" not in name}
            if fault := find_damage(folder, digests):
                raise ValueError(f"{fault}: copy it back, or remove {folder} to average without it.")
        weights = load_file(folder / WEIGHTS)
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double()
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, "README.md"):
            shutil.copy(path, output / path.name)
    averaged = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))
