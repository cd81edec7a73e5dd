"""The folder of a run. All processes must see it.

Its recipe.json identifies the run. Training locks the folder. The same command, or a command without a recipe,
continues the run in the folder. The number of updates and the patience may change. The docstring of runs.py lists the
files of the folder.
"""

import contextlib
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..files import check_replaceable, claim, lock_folder, read_object, write_json
from ..runs import (
    CHECKPOINTS_FOLDER,
    LOG_FILE,
    MODEL_FOLDER,
    PREPARATION_FILE,
    RECIPE_FILE,
    checkpoint_step,
)
from .checkpoints import choose_checkpoint
from .recipes import OF_DATA, model_defaults

# The entries of recipe.json that identify a run. The other entries are information.
IDENTITY = ("recipe", "seed", "data", "mixed_precision", "init_from")


@contextlib.contextmanager
def open_run(
    accelerator: Accelerator, folder: Path, description: dict, *, warn: Callable[[str], object]
) -> Iterator[Path | None]:
    """Lock the run folder for the duration of the block, and yield the checkpoint to continue from, if any.

    The main process locks and writes. All processes must call this function together, and must see the same folder.

    Args:
        description: the contents of recipe.json, see `IDENTITY`.
        warn: a function that gets a line for each damaged checkpoint.

    Raises:
        ValueError: for the reasons that `claim_run` names, if another process trains in the folder, or if the processes
            find different prepared data.
    """
    with contextlib.ExitStack() as stack:
        outcome = None
        if accelerator.is_main_process:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder))
                outcome = claim_run(folder, description, warn)
            except (OSError, ValueError) as error:
                outcome = error  # The broadcast below lets all processes raise the error.
        (outcome,) = broadcast_object_list([outcome])
        if isinstance(outcome, Exception):
            raise outcome
        if len(set(gather_object([description["data"]]))) > 1:
            raise ValueError(
                "the processes find different prepared data: all machines must share the folder of the data."
            )
        yield outcome


def read_settings(folder: Path) -> dict:
    """Return the recipe.json of the run in `folder`, or {} if the file is missing or does not describe a run."""
    path = folder / RECIPE_FILE
    recorded = read_object(path) if path.exists() else {}
    return recorded if recorded.keys() >= set(IDENTITY) else {}


def claim_run(folder: Path, description: dict, warn: Callable[[str], object]) -> Path | None:
    """Record `description` as recipe.json of `folder`. Return the checkpoint to continue from, None if there is none.

    If the file exists, its settings must be those of `description`, except `num_updates` and `patience`.

    Raises:
        ValueError: if the folder holds another run, prepared data, a model without checkpoints or files of the user, if
            it has checkpoints but none is intact, if the run has done more updates than `num_updates`, or if the final
            model could not be written.
    """
    path = folder / RECIPE_FILE
    check_replaceable(folder / MODEL_FOLDER)
    if (folder / PREPARATION_FILE).exists():
        raise ValueError(f"{folder} holds prepared data: name another folder for the run.")
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} is the folder of a model: name the folder of a run, or a new folder.")
    given = description["recipe"]
    # These fields are not compared. The first two decide only when a run ends. The fingerprint of the data covers the
    # fields in `OF_DATA`.
    free = {name: given[name] for name in ("num_updates", "patience", *OF_DATA) if name in given}
    recorded = claim(
        path,
        {name: description[name] for name in IDENTITY},
        advice=(
            f"Give the same settings, or name another output folder, with --init_from {folder} to start from the "
            f"weights of this run. Without --recipe, a run continues with its own settings."
        ),
        defaults={f"recipe.model.{name}": value for name, value in model_defaults().items()},
        owned=(LOG_FILE, CHECKPOINTS_FOLDER, MODEL_FOLDER),
        free=[f"recipe.{name}" for name in free],
    )
    checkpoint = choose_checkpoint(folder / CHECKPOINTS_FOLDER, warn)
    if checkpoint is None and (folder / MODEL_FOLDER).exists():
        raise ValueError(f"{folder} holds a final model but no checkpoint to continue from: name another folder.")
    done = checkpoint_step(checkpoint) if checkpoint else 0
    if free["num_updates"] < done:
        raise ValueError(
            f"{folder} has done {done} updates, but num_updates is {free['num_updates']}: give {done} or more."
        )
    packages = ("torch", "transformers", "accelerate", "tokenizers")
    versions = {"python": platform.python_version()} | {name: version(name) for name in packages}
    information = recorded if done else description | {"versions": versions}
    write_json(path, information | {"recipe": recorded["recipe"] | free})
    return checkpoint
