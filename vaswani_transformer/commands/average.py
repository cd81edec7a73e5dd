import argparse

from ..resuming.files import blaming, read_object
from ..training.checkpoints import average_checkpoints, select_checkpoints
from ..training.run_folder import RECIPE_FILE


def run(args: argparse.Namespace) -> None:
    folders = args.models
    if folders is None:
        last, path = args.last, args.run_folder / RECIPE_FILE
        if last is None:
            if not path.exists():
                raise FileNotFoundError(
                    f"{path} does not exist; name the --output of `vaswani train`, or give --models."
                )
            description = read_object(path)
            with blaming(path):
                last = int(description["recipe"]["num_averaged_checkpoints"])
        folders = select_checkpoints(args.run_folder / "checkpoints", last=last)
    average_checkpoints(folders, args.output)
    print(f"averaged {', '.join(folder.name for folder in folders)} into {args.output}")
