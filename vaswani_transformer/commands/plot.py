import argparse

from ..training.curves import draw_curves


def run(args: argparse.Namespace) -> None:
    print(draw_curves(args.run_folders, args.output))
