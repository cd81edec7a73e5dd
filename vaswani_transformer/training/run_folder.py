"""The folder of a run: its recipe.json identifies it, it is locked during training, and all processes must see it.

The same command, or a command without a recipe, continues the run in the folder. The number of updates and the patience
may change. The names of the files stand in `runs`.
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..files import claim, lock_folder, read_object, write_json
from ..runs import CHECKPOINTS_FOLDER, LOG_FILE, MODEL_FOLDER, RECIPE_FILE, checkpoint_step
from .checkpoints import choose_checkpoint
from .recipes import OF_DATA, model_defaults

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers")
# These entries of recipe.json identify a run. The other entries are information. The settings in ENDS may change,
# because nothing before the end of a run depends on them.
IDENTITY = ("recipe", "seed", "data", "mixed_precision", "init_from")
ENDS = ("num_updates", "patience")


@contextlib.contextmanager
def open_run(
    accelerator: Accelerator, folder: Path, description: dict, *, warn: Callable[[str], object]
) -> Iterator[Path | None]:
    """Lock the run folder for the duration of the block, and yield the checkpoint to continue from, or None.

    The main process locks and writes. All processes must call it together, and must see the same folder.

    Args:
        description: the contents of recipe.json, see `IDENTITY`.
        warn: a function that gets a line for each damaged checkpoint.

    Raises:
        ValueError: if the folder holds another run or files of the user, if none of its checkpoints is intact, if it
            holds a final model without checkpoints, if another process trains in it, or if the processes find different
            prepared data.
    """
    with contextlib.ExitStack() as stack:
        found = None
        if accelerator.is_main_process:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder))
                found = claim_run(folder, description, warn)
            except (OSError, ValueError) as error:
                found = error  # All processes will raise it, because the others wait for the broadcast.
        (found,) = broadcast_object_list([found])
        if isinstance(found, Exception):
            raise found
        if len(set(gather_object([description["data"]]))) > 1:
            raise ValueError(
                "the processes find different prepared data: all machines must share the folder of the data."
            )
        yield found


def read_settings(folder: Path) -> dict:
    """Return the recipe.json of the run in `folder`, or {} if the file is missing or does not describe a run."""
    path = folder / RECIPE_FILE
    recorded = read_object(path) if path.exists() else {}
    return recorded if recorded.keys() >= set(IDENTITY) else {}


def claim_run(folder: Path, description: dict, warn: Callable[[str], object]) -> Path | None:
    """Write recipe.json in `folder`, or compare it. Return the checkpoint to continue from, or None.

    Raises:
        ValueError: for the reasons that `open_run` names, or if the run has done more updates than are asked for.
    """
    path = folder / RECIPE_FILE
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} is the folder of a model: name the folder of a run, or a new folder.")
    given = description["recipe"]
    free = {name: given[name] for name in (*ENDS, *OF_DATA) if name in given}  # A digest identifies the data.
    recorded = claim(
        path,
        {name: description[name] for name in IDENTITY},
        advice=(
            f"Give the same settings, or name another output folder, with --init_from {folder} to keep the weights. "
            f"Without --recipe, a run goes on with its own settings."
        ),
        defaults={f"recipe.model.{name}": value for name, value in model_defaults().items()},
        owned=(LOG_FILE, CHECKPOINTS_FOLDER, MODEL_FOLDER),
        free=[f"recipe.{name}" for name in free],
    )
    checkpoint = choose_checkpoint(folder / CHECKPOINTS_FOLDER, warn)
    if checkpoint is None and (folder / MODEL_FOLDER).exists():
        raise ValueError(f"{folder} holds a final model but no checkpoint to continue from: name another output.")
    done = checkpoint_step(checkpoint) if checkpoint else 0
    if free["num_updates"] < done:
        raise ValueError(f"{folder} has done {done} updates, and num_updates is {free['num_updates']}.")
    information = recorded if done else description | {"versions": describe_versions()}
    write_json(path, information | {"recipe": recorded["recipe"] | free})
    return checkpoint


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which training depends."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
