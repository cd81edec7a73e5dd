"""Check that a model still translates as when it was saved: compare it with the example beside its weights.

vaswani check --model runs/base
"""

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", type=Path, required=True, help="model folder or run folder")


def run(args: argparse.Namespace) -> None:
    from ..translation.example import check_example

    print(check_example(args.model))
