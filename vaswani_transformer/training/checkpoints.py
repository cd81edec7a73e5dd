"""Checkpoints on disk: written whole or not at all, kept as long as needed, averaged (section 6.1).

checkpoints/
    step-00000057/
        model.safetensors, config.json, generation_config.json, tokenizer files    a model like any other
        training_state/         optimizer, schedule, random states of every process, place in the data and the log
        COMPLETE                written last: update and seconds of training
    stopped-00000061/           the same, written because the run was asked to stop: to resume from, not to average
    partial-step-00000064/      being written or deleted, left so by a run that was killed, or damaged; never read
"""

import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"
STATE_FOLDER = "training_state"
COMPLETE = "COMPLETE"
PREFIX = "step-"
STOPPED_PREFIX = "stopped-"
PARTIAL_PREFIX = "partial-"
# Keys of config.json that say how a model was saved, not what its weights mean.
HOUSEKEEPING = {"architectures", "auto_map", "custom_pipelines", "dtype", "transformers_version"}


def checkpoint_step(folder: Path) -> int:
    """Updates done when checkpoint `folder` was written."""
    return int(folder.name.rpartition("-")[2])


def complete_checkpoints(folder: Path, prefix: str = PREFIX) -> list[Path]:
    """Checkpoints in `folder` that were written to the end, oldest first."""
    found = [path for path in folder.glob(f"{prefix}*") if (path / COMPLETE).exists()]
    return sorted(found, key=checkpoint_step)


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints that still hold the state of training, oldest first."""
    found = complete_checkpoints(folder) + complete_checkpoints(folder, STOPPED_PREFIX)
    return sorted((path for path in found if (path / STATE_FOLDER).exists()), key=checkpoint_step)


def checkpoint_name(step: int, *, is_scheduled: bool = True) -> str:
    """Name of the folder of a checkpoint after `step` updates."""
    return f"{PREFIX if is_scheduled else STOPPED_PREFIX}{step:08d}"


def begin_checkpoint(folder: Path, name: str) -> Path:
    """Make the folder to fill; `finish_checkpoint` gives it its `name`."""
    partial = folder / f"{PARTIAL_PREFIX}{name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def finish_checkpoint(partial: Path, *, seconds: float) -> Path:
    """Sync a filled folder, mark it complete last, then rename it into place.

    Args:
        seconds: of training that led to this checkpoint, over all sittings.
    """
    final = partial.with_name(partial.name.removeprefix(PARTIAL_PREFIX))
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    mark = {"update": checkpoint_step(partial), "seconds": seconds}
    (partial / COMPLETE).write_text(json.dumps(mark) + "\n", encoding="utf-8")
    _sync(partial / COMPLETE)
    (final / COMPLETE).unlink(missing_ok=True)  # first: a kill must not leave half of it with its mark
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(final.parent)
    return final


def _sync(path: Path) -> None:
    """Make the disk hold what was written to `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_old_checkpoints(folder: Path, *, keep: int, keep_states: int = 2) -> None:
    """Delete all but the last `keep` checkpoints, and the training state of all but the last `keep_states`.

    Call it when a new checkpoint is complete. Those of earlier stops and what killed runs left behind go too. What is
    to go is set aside first: a half-deleted checkpoint is never taken for a whole one, and goes with the next call.

    Args:
        keep: at least as many as the average needs, and at least one.
    """
    checkpoints = complete_checkpoints(folder)
    newest = resumable_checkpoints(folder)[-1:]
    stopped = [path for path in complete_checkpoints(folder, STOPPED_PREFIX) if path not in newest]
    old = checkpoints[: -max(keep, 1)]
    for path in old + stopped:
        set_aside(path)
    for path in checkpoints[len(old) : -keep_states]:
        if (path / STATE_FOLDER).exists():
            set_aside(path, STATE_FOLDER)
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(path)


def set_aside(checkpoint: Path, part: str = "") -> None:
    """Rename `checkpoint`, or only that `part` of it, to what nobody reads and the next retention deletes."""
    aside = checkpoint.with_name(f"{PARTIAL_PREFIX}{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    (checkpoint / part).rename(aside)


def select_checkpoints(folder: Path, *, last: int, minutes_apart: float = 0.0) -> list[Path]:
    """The `last` checkpoints of a run that are at least `minutes_apart` minutes of training apart, oldest first.

    The paper averages the last 5 (base) or 20 (big), written at 10-minute intervals (section 6.1).

    Raises:
        ValueError: if there are fewer.
    """
    chosen: list[Path] = []
    next_seconds = math.inf
    for path in reversed(complete_checkpoints(folder)):
        seconds = json.loads((path / COMPLETE).read_text(encoding="utf-8"))["seconds"]
        if seconds <= next_seconds and len(chosen) < last:
            chosen.insert(0, path)
            next_seconds = seconds - 60 * minutes_apart
    if len(chosen) < last:
        apart = f" {minutes_apart:g} minutes apart" if minutes_apart else ""
        raise ValueError(f"{folder} holds {len(chosen)} checkpoints{apart}, {last} are asked for. Ask for fewer.")
    return chosen


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write to `output` the model whose weights are the mean of those in `folders` (section 6.1).

    Sums are taken in float64 and cast back once. Everything beside the weights is copied from the last folder.

    Raises:
        FileNotFoundError: if a folder holds no weights.
        ValueError: if there is nothing to average, if the configurations differ, or if weights are not finite.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average; train first, or name folders that hold models.")
    _check_same_config(folders)
    sums, dtypes = {}, {}
    for folder in folders:
        for name, tensor in _read_weights(folder).items():
            if not tensor.isfinite().all():
                raise ValueError(f"{name} in {folder} holds a value that is not finite; leave that checkpoint out.")
            sums[name] = tensor.double() if name not in sums else sums[name] + tensor.double()
            dtypes[name] = tensor.dtype
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE):
            shutil.copy(path, output / path.name)
    averaged = {name: (total / len(folders)).to(dtypes[name]).contiguous() for name, total in sums.items()}
    save_file(averaged, output / WEIGHTS, metadata={"format": "pt"})


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / WEIGHTS
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS}; name folders written by save_pretrained.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); leave that checkpoint out.") from error


def _check_same_config(folders: Sequence[Path]) -> None:
    """Weights may only be averaged where they mean the same: same architecture, same vocabulary."""
    first = folders[0]
    for folder in folders[1:]:
        one, other = (json.loads((path / "config.json").read_text(encoding="utf-8")) for path in (first, folder))
        names = (one.keys() | other.keys()) - HOUSEKEEPING
        differing = sorted(name for name in names if one.get(name) != other.get(name))
        vocabularies = [path / "tokenizer.json" for path in (first, folder)]
        if all(path.exists() for path in vocabularies) and len({path.read_bytes() for path in vocabularies}) > 1:
            differing.append("the tokenizer")
        if differing:
            raise ValueError(
                f"{first} and {folder} are different models: they differ in {', '.join(differing)}. "
                f"Average checkpoints of one run."
            )
