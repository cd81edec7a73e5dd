"""Checkpoints on disk: written whole or not at all, kept as long as needed, averaged (section 6.1).

checkpoints/
    step-00000057/
        model.safetensors, config.json, generation_config.json, tokenizer files    a model like any other
        training_state/         optimizer, schedule, random states of every process, place in the data and the log
        COMPLETE                written last: the update, and the SHA-256 of every other file
    stopped-00000061/           the same, written because the run was asked to stop: to resume from, not to average
    partial-step-00000064/      being written or deleted, left behind by a killed run, or damaged; never read
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ..files import blaming, digest_files, find_damage, read_object, write_json, write_whole
from ..loading import CARD_FILE

CHECKPOINTS_FOLDER = "checkpoints"  # of a run
WEIGHTS = "model.safetensors"
STATE_FOLDER = "training_state"
COMPLETE = "COMPLETE"
PREFIX = "step-"
STOPPED_PREFIX = "stopped-"
PARTIAL_PREFIX = "partial-"
STATES_TO_KEEP = 2  # the run goes on from the checkpoint before the last if the last one is damaged
# Keys of config.json that say how a model was saved, not what its weights mean.
HOUSEKEEPING = {"architectures", "auto_map", "custom_pipelines", "dtype", "transformers_version"}


def checkpoint_step(folder: Path) -> int:
    """The number of updates before checkpoint `folder` was written."""
    return int(folder.name.rpartition("-")[2])


def find_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Checkpoints in `folder` whose names begin with one of `prefixes`, complete or not, oldest first."""
    found = [path for prefix in prefixes for path in folder.glob(f"{prefix}*") if path.name[len(prefix) :].isdigit()]
    return sorted(found, key=checkpoint_step)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in `folder` that may be averaged, oldest first."""
    return [path for path in find_checkpoints(folder, PREFIX) if (path / COMPLETE).exists()]


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints that still hold the state of training, oldest first."""
    found = find_checkpoints(folder, PREFIX, STOPPED_PREFIX)
    return [path for path in found if (path / COMPLETE).exists() and (path / STATE_FOLDER).exists()]


def find_intact(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest intact checkpoint in `folder`, if there is one, and the fault of each newer one."""
    faults: dict[Path, str] = {}
    for path in reversed(find_checkpoints(folder, PREFIX, STOPPED_PREFIX)):
        fault = _find_fault(path)
        if not fault:
            return path, faults
        faults[path] = fault
    return None, faults


def _find_fault(checkpoint: Path) -> str:
    """The reason why training cannot go on from `checkpoint`, with the name of the file; empty if it can."""
    for name in (COMPLETE, STATE_FOLDER):
        if not (checkpoint / name).exists():
            return f"{checkpoint / name} is missing"
    try:
        return find_damage(checkpoint, _read_digests(checkpoint))
    except ValueError as error:
        return str(error)


def _read_digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of the files of `checkpoint`, by their names."""
    path = checkpoint / COMPLETE
    mark = read_object(path)
    with blaming(path):
        if mark["update"] != checkpoint_step(checkpoint):
            raise ValueError(f"update is {mark['update']}, expected {checkpoint_step(checkpoint)}")
        return dict(mark["files"])


def checkpoint_name(step: int, *, is_scheduled: bool = True) -> str:
    """The name of a whole checkpoint; `finish_checkpoint` removes `PARTIAL_PREFIX` in front of it."""
    return f"{PREFIX if is_scheduled else STOPPED_PREFIX}{step:08d}"


def begin_checkpoint(partial: Path) -> None:
    """Make an empty folder to fill."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def finish_checkpoint(partial: Path) -> Path:
    """Sync a filled folder, mark it complete last, then rename it into its place, which must be free."""
    paths = list(partial.rglob("*"))
    # Weights are hidden from other users by safetensors. The umask, which a thread cannot read without changing it for
    # all threads, has given the folder its mode.
    mode = partial.stat().st_mode & 0o666
    for path in paths:
        if path.is_file():
            path.chmod(mode)
        _sync(path)
    write_json(partial / COMPLETE, {"update": checkpoint_step(partial), "files": digest_files(partial, paths)})
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
    """Delete all but the last checkpoints, and the training state of all but the last `STATES_TO_KEEP`.

    Call it when a new checkpoint is complete. Checkpoints of earlier stops and partial ones go too. A checkpoint is set
    aside before it is deleted: a half-deleted one is never taken for a whole one, and goes with the next call.

    Args:
        keep: as many as the average needs; `STATES_TO_KEEP` stay if that is more.
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


def select_checkpoints(folder: Path, *, last: int) -> list[Path]:
    """The `last` checkpoints of a run, oldest first.

    Raises:
        ValueError: if there are fewer.
    """
    checkpoints = complete_checkpoints(folder)
    if len(checkpoints) < last:
        raise ValueError(f"{folder} holds {len(checkpoints)} checkpoints, {last} are asked for. Ask for fewer.")
    return checkpoints[-last:]


def average_checkpoints(folders: Sequence[Path], output: Path) -> None:
    """Write to `output` the model whose weights are the mean of those in `folders` (section 6.1).

    The paper averages the last 5 (base) or 20 (big) checkpoints, written every ten minutes. Sums are taken in float64
    and cast back once. Everything beside the weights is copied from the last folder, except its card.

    Raises:
        FileNotFoundError: if a folder holds no weights.
        ValueError: if `folders` is empty, a checkpoint is damaged, configurations differ, or weights are not finite.
        OSError: if a file of `output` cannot be written.
    """
    if not folders:
        raise ValueError("there is no checkpoint to average; train first, or name folders that hold models.")
    for folder in folders:
        _refuse_damage(folder)
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
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, CARD_FILE):
            shutil.copy(path, output / path.name)
    averaged = {name: (total / len(folders)).to(dtypes[name]).contiguous() for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))


def _refuse_damage(folder: Path) -> None:
    """Refuse to average a checkpoint with a file that is not as it was written; other models have no digests."""
    if not (folder / COMPLETE).exists():
        return
    digests = _read_digests(folder)  # those of the training state too, which old checkpoints no longer hold
    fault = find_damage(folder, {name: digest for name, digest in digests.items() if "/" not in name})
    if fault:
        raise ValueError(f"{fault}: copy it back, or remove {folder} to average without it.")


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / WEIGHTS
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS}; name folders written by save_pretrained.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); leave that checkpoint out.") from error


def _check_same_config(folders: Sequence[Path]) -> None:
    """Refuse to average models of different architecture or vocabulary."""
    first = folders[0]
    for folder in folders[1:]:
        one, other = (read_object(path / "config.json") for path in (first, folder))
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
