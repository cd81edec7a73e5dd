"""`vaswani average`."""

import argparse
from pathlib import Path

from ..resuming.files import blaming, read_object
from ..training.checkpoints import average_checkpoints, select_checkpoints
from ..training.run_folder import RECIPE_FILE


def run(args: argparse.Namespace) -> None:
    folders = args.models
    if folders is None:
        last = _num_averaged_checkpoints(args.run_folder) if args.last is None else args.last
        folders = select_checkpoints(args.run_folder / "checkpoints", last=last)
    average_checkpoints(folders, args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")


def _num_averaged_checkpoints(run_folder: Path) -> int:
    """What the recipe of a run says."""
    path = run_folder / RECIPE_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name the --output of `vaswani train`, or give --models.")
    recipe = read_object(path)
    with blaming(path):
        return int(recipe["recipe"]["num_averaged_checkpoints"])
