import argparse

from ..hub.upload import upload_model, upload_space


def run(args: argparse.Namespace) -> None:
    address, names = upload_model(args.model, args.repo_id, private=args.private)
    print(f"{address}\n{', '.join(names)}")
    if args.space:
        address, names = upload_space(args.repo_id)
        print(f"{address}\n{', '.join(names)}")
