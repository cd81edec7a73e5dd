import argparse

from ..averaging import average_checkpoints
from ..runs import CHECKPOINTS_FOLDER, complete_checkpoints, read_num_averaged
from ..translation.example import keep_example
from .arguments import check_new_folder


def run(args: argparse.Namespace) -> None:
    check_new_folder(args.output)
    last = read_num_averaged(args.run_folder) if args.last is None else args.last
    found = complete_checkpoints(args.run_folder / CHECKPOINTS_FOLDER)
    if args.last is not None and len(found) < last:
        raise ValueError(f"checkpoints in {args.run_folder}: {len(found)}, fewer than --last {last}.")
    folders = found[-last:]
    average_checkpoints(folders, args.output)
    keep_example(args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")
