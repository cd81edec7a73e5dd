"""The mean of the last checkpoints of a run (section 6.1), its final model; and where its newest model is."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save

from .files import MODEL_FOLDER, RECIPE_FILE, blaming, find_damage, read_object, write_whole

CHECKPOINTS_FOLDER = "checkpoints"  # of a run
WEIGHTS = "model.safetensors"
COMPLETE = "COMPLETE"
UPDATE = "UPDATE"  # of a mean: the update at which its newest checkpoint was written
PREFIX = "step-"
STOPPED_PREFIX = "stopped-"


def checkpoint_step(folder: Path) -> int:
    """Return the number of updates before checkpoint `folder` was written."""
    return int(folder.name.rpartition("-")[2])


def find_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Return checkpoints whose names begin with one of `prefixes`, complete or not, oldest first."""
    found = [path for prefix in prefixes for path in folder.glob(f"{prefix}*") if path.name[len(prefix) :].isdigit()]
    return sorted(found, key=checkpoint_step)


def complete_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Return complete checkpoints in `folder`, oldest first; without `prefixes` those of the final model."""
    return [path for path in find_checkpoints(folder, *prefixes or [PREFIX]) if (path / COMPLETE).exists()]


def read_digests(checkpoint: Path) -> dict[str, str]:
    """Return SHA-256 of the files of `checkpoint`, by their names."""
    path = checkpoint / COMPLETE
    with blaming(path):
        return dict(read_object(path)["files"])


def check_checkpoint(folder: Path) -> None:
    """Raise a ValueError if a file of the model in checkpoint `folder` is damaged."""
    digests = {name: digest for name, digest in read_digests(folder).items() if "/" not in name}  # old ones: no state
    if fault := find_damage(folder, digests):
        raise ValueError(f"{fault}: copy it back, or remove {folder} to do without it.")


def read_num_averaged(run: Path) -> int:
    """Return how many checkpoints the recipe of `run` averages."""
    path = run / RECIPE_FILE
    description = read_object(path)
    with blaming(path):
        return int(description["recipe"]["num_averaged_checkpoints"])


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
        if (folder / COMPLETE).exists():  # other models have no digests
            check_checkpoint(folder)
        weights = load_file(folder / WEIGHTS)
        for name, tensor in weights.items():
            sums[name] = sums.get(name, 0) + tensor.double()
    output.mkdir(parents=True, exist_ok=True)
    for path in folders[-1].iterdir():
        if path.is_file() and path.name not in (WEIGHTS, COMPLETE, "README.md"):
            shutil.copy(path, output / path.name)
    (output / UPDATE).write_text(f"{checkpoint_step(folders[-1])}\n")  # weights with more metadata vary in their bytes
    averaged = {name: (total / len(folders)).to(weights[name].dtype) for name, total in sums.items()}
    with write_whole(output / WEIGHTS) as file:
        file.write(save(averaged, metadata={"format": "pt"}))


def read_update(model: Path) -> int | None:
    """Return the update after which a checkpoint, or the newest one in a mean, was written; None if unknown."""
    path = model / UPDATE
    if model.name.startswith((PREFIX, STOPPED_PREFIX)):
        return checkpoint_step(model)
    with blaming(path):
        return int(path.read_text()) if path.is_file() else None


def find_model_folder(path: Path) -> Path:
    """Return `path`, or the folder of the newest model of a run: the final one, or a newer checkpoint.

    A line on standard error tells of a checkpoint.

    Raises:
        ValueError: if that checkpoint is damaged.
    """
    model, found = path / MODEL_FOLDER, complete_checkpoints(path / CHECKPOINTS_FOLDER, PREFIX, STOPPED_PREFIX)
    is_finished, reason = (model / "config.json").exists(), "has no final model yet"
    if (path / "config.json").exists() or not (found or is_finished):
        return path
    if is_finished:
        update = read_update(model)
        if not found or update is None or update >= checkpoint_step(found[-1]):
            return model
        reason = f"was continued after its final model (update {update})"
    check_checkpoint(found[-1])
    if os.environ.get("RANK", "0") == "0":  # of the processes of a launcher
        print(f"{path} {reason}: its newest checkpoint is used ({found[-1].name})", file=sys.stderr)
    return found[-1]
