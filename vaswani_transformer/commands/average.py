"""`vaswani average`."""

import argparse
from pathlib import Path

from ..resuming.files import blaming, read_object
from ..training.checkpoints import average_checkpoints, select_checkpoints
from ..training.run_folder import RECIPE_FILE
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "average", run)
    models = command.add_mutually_exclusive_group(required=True)
    models.add_argument("--run", type=Path, dest="run_folder", help="run folder")
    models.add_argument("--models", type=Path, nargs="+", help="model folders")
    text = "checkpoints of the run to average; as many as its recipe says when not given"
    command.add_argument("--last", type=positive_int, help=text)
    command.add_argument("--output", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    """Average the weights of the last checkpoints of a run (section 6.1).

    vaswani average --run runs/base --last 3 --output runs/base/averaged

    With the recipe's own number that is what training has written to the folder model already.
    """
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
