"""The folder of a run: identified by its recipe.json, locked while it is trained in, seen by all processes.

The same command started again goes on from what the folder holds, also with another number of updates or patience:

    run/
        recipe.json         the resolved recipe, seed, fingerprint of the data, precision, processes, versions
        log.jsonl           one line per interval of training, one line per evaluation
        checkpoints/        see `checkpoints`
        model/              the mean of the last checkpoints: the result
        lock                names the process that trains here
"""

import contextlib
import importlib.metadata
import platform
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..files import MODEL_FOLDER, blaming, claim, lock_folder, read_object, write_json
from .checkpoints import CHECKPOINTS_FOLDER, COMPLETE, checkpoint_step, find_intact, set_aside
from .log import LOG_FILE

RECIPE_FILE = "recipe.json"
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers")
# Entries of recipe.json that identify a run; the others inform. Of the recipe, what says where a run ends does not
# count: nothing before the end depends on it.
IDENTITY = ("recipe", "seed", "data", "mixed_precision", "init_from")
ENDS = ("num_updates", "patience")


@contextlib.contextmanager
def open_run(
    accelerator: Accelerator, folder: Path, description: dict, *, warn: Callable[[str], object]
) -> Iterator[Path | None]:
    """Lock the run folder for the duration of the block; yields the checkpoint to go on from, if there is one.

    The main process locks and writes; the others must then see the same. All processes must call it together.

    Args:
        description: of the run, for recipe.json; see `IDENTITY`.
        warn: gets a line for each damaged checkpoint.

    Raises:
        ValueError: if the folder holds another run or files of the user's own, if none of its checkpoints is intact,
            if it holds a final model without checkpoints, if another process is training in it, or if a process does
            not find in `folder` and in the prepared data what the main process finds.
    """
    with contextlib.ExitStack() as stack:
        found = None
        if accelerator.is_main_process:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder))
                checkpoint = claim_run(folder, description, warn)
                recipe = (folder / RECIPE_FILE).read_text(encoding="utf-8")
                found = checkpoint and checkpoint.name, recipe, description["data"]
            except (OSError, ValueError) as error:
                found = error  # for all to raise: the others wait
        (found,) = broadcast_object_list([found])
        if isinstance(found, Exception):
            raise found
        name, recipe, fingerprint = found
        checkpoint, path = name and folder / CHECKPOINTS_FOLDER / name, folder / RECIPE_FILE
        differing = [] if description["data"] == fingerprint else ["the prepared data"]
        sees_run = path.exists() and path.read_text(encoding="utf-8") == recipe
        if not sees_run or (checkpoint and not (checkpoint / COMPLETE).exists()):
            differing.append(str(folder))
        place = f"process {accelerator.process_index} on host {socket.gethostname()}"
        faults = gather_object([f"{place} does not find in {name}" for name in differing])
        if faults:  # of whichever process, all raise: one that went on would wait for the others
            raise ValueError(f"{faults[0]} what the main process finds there: folders must be shared by all machines.")
        yield checkpoint


def claim_run(folder: Path, description: dict, warn: Callable[[str], object]) -> Path | None:
    """Write recipe.json in `folder`, or compare it; return the checkpoint to go on from, if there is one.

    Raises:
        ValueError: as `open_run`, or if fewer updates are asked for than are done.
    """
    path = folder / RECIPE_FILE
    ends = {name: description["recipe"][name] for name in ENDS}
    recorded_ends = {}
    if path.exists():
        recorded = read_object(path)
        with blaming(path):
            recorded_ends = {name: recorded.get("recipe", {}).get(name) for name in ENDS}
    settings = {name: description[name] for name in IDENTITY}
    recorded = claim(
        path,
        settings | {"recipe": settings["recipe"] | recorded_ends},
        advice="Name another output folder, or give the settings it was begun with.",
        owned=(LOG_FILE, CHECKPOINTS_FOLDER, MODEL_FOLDER),
    )
    checkpoint = _choose_checkpoint(folder / CHECKPOINTS_FOLDER, warn)
    if checkpoint is None and (folder / MODEL_FOLDER).exists():
        raise ValueError(f"{folder} holds a final model and no checkpoint to go on from: name another output folder.")
    done = checkpoint_step(checkpoint) if checkpoint else 0
    if ends["num_updates"] < done:
        raise ValueError(f"{folder} has done {done} updates, and num_updates is {ends['num_updates']}.")
    information = recorded if done else description | {"versions": describe_versions()}
    write_json(path, information | {"recipe": recorded["recipe"] | ends})
    return checkpoint


def _choose_checkpoint(folder: Path, warn: Callable[[str], object]) -> Path | None:
    """Return the newest intact checkpoint in `folder`, if there is any; newer ones are damaged, and set aside."""
    checkpoint, faults = find_intact(folder)
    for fault in faults.values():
        warn(f"WARNING: {fault}; the checkpoint before is taken")
    if faults and checkpoint is None:
        raise ValueError(f"none of the checkpoints in {folder} is intact: {fault}. Copy one back that is.")
    for path in faults:
        set_aside(path)
    return checkpoint


def describe_versions() -> dict[str, str]:
    """Return versions of Python and of the packages that train."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
