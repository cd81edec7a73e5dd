"""The folder of a run: identified by its recipe.json, locked during training, seen by all processes.

The same command started again, or one without a recipe, continues from what the folder holds, also with another number
of updates or patience. `runs` names its files.
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
# Entries of recipe.json that identify a run; the others inform. The settings that say where a run ends may change:
# nothing before the end depends on them.
IDENTITY = ("recipe", "seed", "data", "mixed_precision", "init_from")
ENDS = ("num_updates", "patience")


@contextlib.contextmanager
def open_run(
    accelerator: Accelerator, folder: Path, description: dict, *, warn: Callable[[str], object]
) -> Iterator[Path | None]:
    """Lock the run folder for the duration of the block; yield the checkpoint to continue from, if there is one.

    The main process locks and writes; the others must then see the same. All processes must call it together.

    Args:
        description: of the run, for recipe.json; see `IDENTITY`.
        warn: gets a line for each damaged checkpoint.

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
                found = error  # all processes raise it: the others wait for the broadcast
        (found,) = broadcast_object_list([found])
        if isinstance(found, Exception):
            raise found
        if len(set(gather_object([description["data"]]))) > 1:
            raise ValueError("not all processes find the same prepared data: all machines must share its folder.")
        yield found


def read_settings(folder: Path) -> dict:
    """Return what recipe.json says of the run in `folder`; nothing if there is no such file, or it describes no run."""
    path = folder / RECIPE_FILE
    recorded = read_object(path) if path.exists() else {}
    return recorded if recorded.keys() >= set(IDENTITY) else {}


def claim_run(folder: Path, description: dict, warn: Callable[[str], object]) -> Path | None:
    """Write recipe.json in `folder`, or compare it; return the checkpoint to continue from, if there is one.

    Raises:
        ValueError: as `open_run`, or if fewer updates are asked for than are done.
    """
    path = folder / RECIPE_FILE
    if (folder / "config.json").exists():
        raise ValueError(f"{folder} is the folder of a model: name that of a run, or a new one.")
    given = description["recipe"]
    free = {name: given[name] for name in (*ENDS, *OF_DATA) if name in given}  # the data have their own digest
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
    """Return versions of Python and of the packages that train."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
