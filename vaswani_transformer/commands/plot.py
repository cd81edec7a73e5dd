"""`vaswani plot`."""

import argparse

from ..training.curves import draw_curves


def run(args: argparse.Namespace) -> None:
    try:
        print(draw_curves(args.run_folders, args.output))
    except ImportError as error:  # it says how to install matplotlib
        raise ValueError(str(error)) from error
