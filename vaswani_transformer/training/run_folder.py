"""Whose a run folder is: which run it holds, which process is training in it, whether all processes see it."""

import contextlib
import importlib.metadata
import json
import platform
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ..resuming.locks import lock_folder
from .checkpoints import COMPLETE, resumable_checkpoints

RECIPE_FILE = "recipe.json"
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers")
# What makes two runs different runs; the rest of recipe.json is there to be read.
IDENTITY = ("recipe", "seed", "data", "mixed_precision")


@contextlib.contextmanager
def open_run(accelerator: Accelerator, folder: Path, data: Path, description: dict) -> Iterator[list[Path]]:
    """Have the run folder to oneself meanwhile; yields the checkpoints to resume from, oldest first.

    The main process looks, locks and writes; the others must then see the same. All processes must call it together.

    Args:
        data: folder of the prepared data.
        description: of the run, for recipe.json; see `IDENTITY`.

    Raises:
        ValueError: if the folder holds another run, if another process is training in it, or if `folder` or `data`
            are others to one of the processes than to the main process.
    """
    with contextlib.ExitStack() as stack:
        found = None
        if accelerator.is_main_process:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(folder))
                names = [path.name for path in resumable_checkpoints(folder / "checkpoints")]
                recipe = claim_run(folder, description, is_begun=bool(names))
                found = names, recipe, description["data"]
            except (OSError, ValueError) as error:
                found = error  # for all to raise: the others wait
        (found,) = broadcast_object_list([found])
        if isinstance(found, Exception):
            raise found
        names, recipe, fingerprint = found
        checkpoints = [folder / "checkpoints" / name for name in names]
        differing = [] if description["data"] == fingerprint else [str(data)]
        if not _is_run(folder, recipe) or not all((path / COMPLETE).exists() for path in checkpoints):
            differing.append(str(folder))
        if differing:
            raise ValueError(
                f"process {accelerator.process_index} on host {socket.gethostname()} does not find in "
                f"{' and '.join(differing)} what the main process finds there: run and data must lie in folders "
                f"shared by all machines."
            )
        yield checkpoints


def _is_run(folder: Path, recipe: str) -> bool:
    """Whether `folder` holds the run whose recipe.json is `recipe`."""
    path = folder / RECIPE_FILE
    return path.exists() and path.read_text(encoding="utf-8") == recipe


def describe_versions() -> dict[str, str]:
    """Of Python and of the packages whose code made the run; the commit of this one where it is a checkout."""
    root = Path(__file__).parents[2]
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in PACKAGES}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # run from where it lies
        versions["vaswani_transformer"] = importlib.metadata.version("vaswani_transformer")
    if (root / ".git").exists():  # else an installation, perhaps below somebody else's repository
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            command = ["git", "-C", str(root), "rev-parse", "HEAD"]
            versions["commit"] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return versions


def claim_run(folder: Path, description: dict, *, is_begun: bool) -> str:
    """Write down in `folder` which run it holds, or if it `is_begun`, check that it is this one.

    Args:
        description: of this run; `IDENTITY` names what may not change. Versions are added.

    Returns:
        the text of recipe.json.

    Raises:
        ValueError: if the folder belongs to another run, with what differs.
    """
    path = folder / RECIPE_FILE
    if not is_begun or not path.exists():
        path.write_text(json.dumps(description | {"versions": describe_versions()}, indent=2), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    earlier, description = json.loads(text), json.loads(json.dumps(description))
    if not isinstance(earlier, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object. Copy it back, or name another output folder.")
    for name in IDENTITY:
        if earlier.get(name) != description[name]:
            difference = _difference(earlier.get(name), description[name])
            raise ValueError(
                f"{folder} holds a run with another {name}: {difference}. "
                f"Name another output folder, or give the settings it was started with."
            )
    return text


def _difference(earlier: object, now: object) -> str:
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return f"{earlier} there, {now} here"
    names = [name for name in now if earlier.get(name) != now[name]]
    return "; ".join(f"{name} is {earlier.get(name)} there, {now[name]} here" for name in names)
