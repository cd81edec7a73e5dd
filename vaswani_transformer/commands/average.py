"""Average the weights of the last checkpoints of a run (section 6.1).

vaswani average --run runs/base --last 3 --output runs/base/averaged
"""

import argparse
from pathlib import Path

from ..bounds import Number
from .arguments import check_new_folder, output_path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", type=Path, dest="run_folder", required=True, help="run folder")
    command.add_argument(
        "--last", type=Number(1, 1_000), help="number of checkpoints to average; default: that of the recipe"
    )
    command.add_argument("--output", type=output_path, required=True, help="new or empty folder")


def run(args: argparse.Namespace) -> None:
    from ..averaging import average_checkpoints
    from ..runs import CHECKPOINTS_FOLDER, complete_checkpoints, read_num_averaged
    from ..translation.example import keep_example

    check_new_folder(args.output)
    last = read_num_averaged(args.run_folder) if args.last is None else args.last
    found = complete_checkpoints(args.run_folder / CHECKPOINTS_FOLDER)
    if args.last is not None and len(found) < last:
        raise ValueError(f"checkpoints in {args.run_folder}: {len(found)}, fewer than --last {last}.")
    folders = found[-last:]
    average_checkpoints(folders, args.output)
    keep_example(args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")
