"""Average the weights of checkpoints (section 6.1): the last checkpoints of a run, or the checkpoints that you name.

vaswani average --run runs/base --last 3 --output runs/base/averaged
vaswani average --checkpoints runs/base/checkpoints/step-00000300 runs/base/checkpoints/step-00000500 --output averaged
"""

import argparse
from pathlib import Path

from ..bounds import Number
from .arguments import check_new_folder, output_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    averaged = command.add_mutually_exclusive_group(required=True)
    averaged.add_argument("--run", type=Path, dest="run_folder", help="run folder whose last checkpoints are averaged")
    averaged.add_argument(
        "--checkpoints", type=Path, nargs="+", help="or folders to average: checkpoints, models, runs"
    )
    command.add_argument(
        "--last", type=Number(1, 1_000), help="with --run: number of checkpoints; default: as in the recipe"
    )
    command.add_argument("--output", type=output_path, required=True, help="new or empty folder")


def find_fault(args: argparse.Namespace) -> str | None:
    if args.checkpoints and args.last:
        return "--last counts the checkpoints of a --run: leave it out with --checkpoints."
    return None


def run(args: argparse.Namespace) -> None:
    from ..averaging import average_checkpoints
    from ..runs import find_model_folder
    from ..translation.example import keep_example

    check_new_folder(args.output)
    if args.checkpoints:
        folders = list(map(find_model_folder, args.checkpoints))
    else:
        folders = _find_last(args.run_folder, args.last)
    average_checkpoints(folders, args.output)
    keep_example(args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")


def _find_last(run_folder: Path, num_last: int | None) -> list[Path]:
    """Return the last `num_last` checkpoints of a run. If `num_last` is None, the recipe of the run decides how many.

    Raises:
        ValueError: if the run has fewer than `num_last` checkpoints.
    """
    from ..runs import CHECKPOINTS_FOLDER, averageable_checkpoints, read_num_averaged

    number = read_num_averaged(run_folder) if num_last is None else num_last
    found = averageable_checkpoints(run_folder / CHECKPOINTS_FOLDER)
    if num_last is not None and len(found) < num_last:
        raise ValueError(
            f"checkpoints in {run_folder}: {len(found)}, fewer than --last {num_last}: give a smaller number."
        )
    return found[-number:]
