import argparse

from ..files import blaming, read_object
from ..training.checkpoints import CHECKPOINTS_FOLDER, average_checkpoints, complete_checkpoints
from ..training.run_folder import RECIPE_FILE
from ..translation.example import keep_example
from .arguments import check_new_folder


def run(args: argparse.Namespace) -> None:
    check_new_folder(args.output)
    path, last = args.run_folder / RECIPE_FILE, args.last
    if last is None:  # those that the end of training averages
        description = read_object(path)
        with blaming(path):
            last = int(description["recipe"]["num_averaged_checkpoints"])
    found = complete_checkpoints(args.run_folder / CHECKPOINTS_FOLDER)
    if args.last is not None and len(found) < last:
        raise ValueError(f"{args.run_folder} holds {len(found)} checkpoints, {last} are asked for. Ask for fewer.")
    folders = found[-last:]
    average_checkpoints(folders, args.output)
    keep_example(args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")
