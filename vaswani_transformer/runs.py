"""The folders of prepared data, of a run and of a model: names of their files, and where the newest model is.

run/
    recipe.json             the resolved recipe, seed, fingerprint of the data, device, precision, processes, versions
    log.jsonl               one line per interval of training, one line per evaluation
    lock                    held by the process that trains here
    checkpoints/
        step-00000057/      a model; COMPLETE has the digests of its files, and is written last
            training_state/ optimizer, schedule, random states of every process, place in the data
        stopped-00000064/   a checkpoint that was written at a stop; it is never part of the mean
        partial-.../        a checkpoint that is being written or deleted, or is damaged; it is never read
    model/                  the final model, the mean of the last checkpoints

A model folder has config.json, weights and a tokenizer as transformers writes them. Beside them are its card, its
example (see `translation.example`) and, if its weights are a mean, UPDATE.
"""

import os
import sys
from pathlib import Path

from transformers.utils import GENERATION_CONFIG_NAME

from .files import blaming, find_damage, is_special, read_bytes, read_object

RECIPE_FILE = "recipe.json"  # of a run and of prepared data
PREPARATION_FILE = "preparation.json"  # of prepared data
DEV_FILE = "dev.json"
LOG_FILE = "log.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"

PREFIX = "step-"  # begins the names of checkpoints that are written on schedule
STOPPED_PREFIX = "stopped-"
PARTIAL_PREFIX = "partial-"
COMPLETE = "COMPLETE"
STATE_FOLDER = "training_state"

WEIGHTS = "model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "source.spm")  # A model has one of them. The second is MarianMT's.
SUFFIXES = (".json", ".safetensors", ".spm")  # Translations depend on files with these endings.
CARD_FILE = "README.md"
EXAMPLE_FILE = "example.json"
UPDATE = "UPDATE"  # In the folder of an averaged model: holds the number of updates of its newest checkpoint.


def checkpoint_name(step: int, *, is_scheduled: bool) -> str:
    """Return the name of a complete checkpoint. `PARTIAL_PREFIX` stands before it while the checkpoint is written."""
    return f"{PREFIX if is_scheduled else STOPPED_PREFIX}{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """Return the number of updates before checkpoint `folder` was written."""
    return int(folder.name.rpartition("-")[2])


def find_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Return checkpoints whose names begin with one of `prefixes`, complete or not, oldest first."""
    found = [path for prefix in prefixes for path in folder.glob(f"{prefix}*") if path.name[len(prefix) :].isdecimal()]
    return sorted(found, key=checkpoint_step)


def averageable_checkpoints(folder: Path, *prefixes: str) -> list[Path]:
    """Return complete checkpoints in `folder`, oldest first.

    Without `prefixes`, only scheduled checkpoints are returned: the final model is a mean of these.
    """
    return [path for path in find_checkpoints(folder, *prefixes or [PREFIX]) if (path / COMPLETE).exists()]


def resumable_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints that still hold the state of training, oldest first."""
    found = averageable_checkpoints(folder, PREFIX, STOPPED_PREFIX)
    return [path for path in found if (path / STATE_FOLDER).exists()]


def read_digests(checkpoint: Path) -> dict[str, str]:
    """Return the recorded SHA-256 of each file of `checkpoint`, by the names of the files."""
    path = checkpoint / COMPLETE
    with blaming(path):
        return dict(read_object(path)["files"])


def check_checkpoint(folder: Path) -> None:
    """Raise a ValueError if a file of the model in checkpoint `folder` is missing or damaged."""
    # Files of the training state, whose names have a slash, are not checked: older checkpoints no longer have them.
    digests = {name: digest for name, digest in read_digests(folder).items() if "/" not in name}
    if fault := find_damage(folder, digests):
        raise ValueError(f"{fault}: copy the file back, or remove {folder} to continue without this checkpoint.")


def read_description(run: Path) -> dict:
    """Return the contents of `RECIPE_FILE`.

    Raises:
        FileNotFoundError: if `run` is no run folder.
        ValueError: if the file is damaged.
    """
    path = run / RECIPE_FILE
    if not path.exists():
        raise FileNotFoundError(f"{run} has no {RECIPE_FILE}: name the folder that was --output of `vaswani train`.")
    return read_object(path)


def read_update(model: Path) -> int | None:
    """Return the number of updates of `model`, or of the newest checkpoint in its mean; None if unknown."""
    path = model / UPDATE
    if model.name.startswith((PREFIX, STOPPED_PREFIX)):
        return checkpoint_step(model)
    with blaming(path):
        return int(path.read_text()) if path.is_file() else None


def find_model_folder(path: Path) -> Path:
    """Return `path`, or the folder of the newest model if `path` is a run: its final model, or a newer checkpoint.

    If a checkpoint is used, a line on standard error says so.

    Raises:
        ValueError: if the checkpoint to use is damaged.
    """
    model = path / MODEL_FOLDER
    found = averageable_checkpoints(path / CHECKPOINTS_FOLDER, PREFIX, STOPPED_PREFIX)
    is_finished = (model / "config.json").exists()
    reason = "has no final model yet"
    if (path / "config.json").exists() or not (found or is_finished):
        return path
    if is_finished:
        update = read_update(model)
        if not found or update is None or update >= checkpoint_step(found[-1]):
            return model
        reason = f"was continued after its final model (update {update})"
    check_checkpoint(found[-1])
    if os.environ.get("RANK", "0") == "0":  # Of the processes of a launcher, only the first prints.
        print(f"{path} {reason}: its newest checkpoint is used ({found[-1].name})", file=sys.stderr)
    return found[-1]


def find_model(path: Path) -> Path:
    """Return the folder that `find_model_folder` finds. Check that the model in it has all parts.

    Raises:
        FileNotFoundError: if a run has no model yet, or if a part is missing.
        ValueError: if the checkpoint to use is damaged, or if generation_config.json is damaged. transformers would
            silently ignore a damaged generation_config.json.
    """
    folder = find_model_folder(path)
    needed = (("config.json",), TOKENIZER_FILES, (WEIGHTS, "model.safetensors.index.json"))
    missing = [names[0] for names in needed if not any((folder / name).exists() for name in names)]
    if len(missing) == len(needed) and (path / RECIPE_FILE).exists():
        raise FileNotFoundError(
            f"the run {path} has no checkpoint and no {MODEL_FOLDER}/config.json yet: train until it has one."
        )
    if missing and (folder / "adapter_config.json").exists():
        raise FileNotFoundError(
            f"{folder} holds only an adapter of peft: call merge_and_unload() on the adapted model, and save the "
            f"result with its tokenizer."
        )
    if missing:
        raise FileNotFoundError(
            f"{folder} is not a whole model: {', '.join(missing)} missing. Name a folder written by save_pretrained "
            f"(with its tokenizer), or a run folder."
        )
    for path in filter(is_special, folder.iterdir()):
        read_bytes(path)  # raises an error
    generation_config = folder / GENERATION_CONFIG_NAME
    if generation_config.exists() or generation_config.is_symlink():
        read_object(generation_config)  # raises an error if it is damaged, or a broken link
    return folder
