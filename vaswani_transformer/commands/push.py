"""Upload a model with its tokenizer, code and card to the Hugging Face Hub, and nothing else.

vaswani push --model runs/base --repo_id me/base --private

The card is README.md beside the weights; for a run without one `vaswani card` writes it. Log in first
(`hf auth login`, or HF_TOKEN in the environment).
"""

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, help="model folder or run folder")
    command.add_argument("--repo_id", required=True, help="OWNER/NAME on the Hugging Face Hub; created if missing")
    command.add_argument("--private", action="store_true", help="a new repository is seen by its owners only")


def run(args: argparse.Namespace) -> None:
    from ..hub.upload import upload_model

    address, names = upload_model(args.model, args.repo_id, private=args.private)
    print(f"{address}\n{', '.join(names)}")
