"""Upload a model with its tokenizer, code and card to the Hugging Face Hub, and nothing else.

vaswani push --model runs/base --repo_id me/base --private
vaswani push --model runs/base --repo_id me/base --dry_run FOLDER

The card is the README.md beside the weights. If a run has none there, the command uploads the card that `vaswani card`
would write. Log in first (`hf auth login`, or HF_TOKEN in the environment).
"""

import argparse

from .arguments import new_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="model folder or run folder")
    command.add_argument("--repo_id", required=True, help="OWNER/NAME on the Hugging Face Hub; created if missing")
    command.add_argument("--private", action="store_true", help="upload only to a private repository, new or existing")
    command.add_argument(
        "--dry_run",
        type=new_folder,
        metavar="FOLDER",
        help="write the files into this new or empty folder, and upload nothing",
    )


def run(args: argparse.Namespace) -> None:
    from ..files import write_folder
    from ..hub.upload import upload_model, write_upload

    if args.dry_run is not None:
        with write_folder(args.dry_run) as output:
            names = write_upload(args.model, output, repo_id=args.repo_id)
        print(*names, sep="\n")
        return
    address, names = upload_model(args.model, args.repo_id, private=args.private)
    print(f"{address}\n{', '.join(names)}")
