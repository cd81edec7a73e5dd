import argparse

from ..translation.example import check_example


def run(args: argparse.Namespace) -> None:
    print(check_example(args.model))
