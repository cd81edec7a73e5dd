"""`vaswani push`."""

import argparse

from ..hub.upload import upload_model, upload_space
from .arguments import add_command


def add(commands) -> None:
    command = add_command(commands, "push", run)
    command.add_argument("--model", required=True, help="model folder or run folder")
    command.add_argument("--repo_id", required=True, help="OWNER/NAME on the Hugging Face Hub; made where missing")
    command.add_argument("--private", action="store_true", help="a new repository is seen by its owners only")
    text = "upload the page of `vaswani demo` too, as a Space of the same name, private where the model is"
    command.add_argument("--space", action="store_true", help=text)


def run(args: argparse.Namespace) -> None:
    """Upload a model with its tokenizer, code and card to the Hugging Face Hub, and nothing else.

    vaswani push --model runs/base --repo_id me/base --private
    vaswani push --model runs/base --repo_id me/base --space

    The card is README.md beside the weights; a run without one gets what `vaswani card` writes. Log in first, with
    `hf auth login` or HF_TOKEN in the environment. A card or setting that holds a secret or a local path is refused.
    The Space of a private model needs a secret HF_TOKEN that may read the model: add it in the Space's settings.
    """
    address, names = upload_model(args.model, args.repo_id, private=args.private)
    print(f"{address}\n{', '.join(names)}")
    if args.space:
        address, names = upload_space(args.repo_id)
        print(f"{address}\n{', '.join(names)}")
