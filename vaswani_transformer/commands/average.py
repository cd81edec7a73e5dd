import argparse
from pathlib import Path

from ..files import blaming, read_object
from ..training.checkpoints import CHECKPOINTS_FOLDER, average_checkpoints, complete_checkpoints, select_checkpoints
from ..training.run_folder import RECIPE_FILE
from .arguments import check_new_folder


def run(args: argparse.Namespace) -> None:
    check_new_folder(args.output)
    folders = args.models or _find_checkpoints(args.run_folder, args.last)
    average_checkpoints(folders, args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")


def _find_checkpoints(run: Path, last: int | None) -> list[Path]:
    """The `last` checkpoints of a run; if not given, those that the end of training averages."""
    if last is not None:
        return select_checkpoints(run / CHECKPOINTS_FOLDER, last=last)
    path = run / RECIPE_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name the --output of `vaswani train`, or give --models.")
    description = read_object(path)
    with blaming(path):
        return complete_checkpoints(run / CHECKPOINTS_FOLDER)[-int(description["recipe"]["num_averaged_checkpoints"]) :]
