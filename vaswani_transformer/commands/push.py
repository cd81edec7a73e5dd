import argparse

from ..hub.upload import upload_model


def run(args: argparse.Namespace) -> None:
    address, names = upload_model(args.model, args.repo_id, private=args.private)
    print(f"{address}\n{', '.join(names)}")
