"""`vaswani plot`."""

import argparse
from pathlib import Path

from ..training.curves import draw_curves
from .arguments import add_command


def add(commands) -> None:
    command = add_command(commands, "plot", run)
    command.add_argument("--run", type=Path, nargs="+", required=True, dest="run_folders", help="run folders")
    command.add_argument("--output", type=Path, required=True, help="the picture, .svg or .png")


def run(args: argparse.Namespace) -> None:
    """Draw the learning curves of one or several runs: loss, perplexity, BLEU, rate, tokens per second.

    vaswani plot --run runs/base runs/big --output curves.svg

    BLEU is there where the run was told to measure it (`vaswani train --dev_bleu`).
    """
    try:
        print(draw_curves(args.run_folders, args.output))
    except ImportError as error:  # it says how to install matplotlib
        raise ValueError(str(error)) from error
