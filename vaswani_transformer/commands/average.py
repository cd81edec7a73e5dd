"""Average the weights of checkpoints (section 6.1): the last checkpoints of a run, or the checkpoints that you name.

vaswani average --run runs/base --last 3 --output runs/base/averaged
vaswani average --checkpoints runs/base/checkpoints/step-00000300 runs/base/checkpoints/step-00000500 --output averaged
"""

import argparse
from pathlib import Path

from ..bounds import Number
from .arguments import new_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    averaged = command.add_mutually_exclusive_group(required=True)
    averaged.add_argument("--run", type=Path, dest="run_folder", help="run folder whose last checkpoints are averaged")
    averaged.add_argument(
        "--checkpoints", type=Path, nargs="+", help="folders to average, instead of --run: checkpoints, models, runs"
    )
    command.add_argument(
        "--last", type=Number(1, 1_000), help="with --run: number of checkpoints; default: as in the recipe"
    )
    command.add_argument("--output", type=new_folder, required=True, help="new or empty folder")


def find_fault(args: argparse.Namespace) -> str | None:
    if args.checkpoints and args.last:
        return "--last counts the checkpoints of a --run: leave it out with --checkpoints."
    return None


def run(args: argparse.Namespace) -> None:
    from ..averaging import average_checkpoints
    from ..files import blaming, write_folder
    from ..runs import CHECKPOINTS_FOLDER, RECIPE_FILE, averageable_checkpoints, find_model_folder, read_description
    from ..translation.example import keep_example

    if args.checkpoints:
        folders = list(map(find_model_folder, args.checkpoints))
    else:
        number = args.last
        if number is None:
            description = read_description(args.run_folder)
            with blaming(args.run_folder / RECIPE_FILE):
                number = int(description["recipe"]["num_averaged_checkpoints"])
        folders = averageable_checkpoints(args.run_folder / CHECKPOINTS_FOLDER)[-number:]
        if args.last and len(folders) < args.last:
            raise ValueError(
                f"checkpoints in {args.run_folder}: {len(folders)}, fewer than --last {args.last}: give a smaller "
                f"number."
            )
    with write_folder(args.output) as output:
        average_checkpoints(folders, output)
        keep_example(output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")
