"""`vaswani convert`."""

import argparse
from pathlib import Path

from .. import loading
from ..conversion import fairseq, marian

IMPORTERS = {"marian": marian.import_model, "fairseq": fairseq.import_model}


def run(args: argparse.Namespace) -> None:
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        raise ValueError(f"{args.output} is not empty: files of another model may not be mixed in. Name a new folder.")
    path = Path(args.model)
    if args.source_system == "marian" and not path.is_dir() and (len(path.parts) != 2 or path.is_absolute()):
        # Not of the form owner/name: the Hub need not be asked, which takes a minute without a network.
        raise FileNotFoundError(f"{args.model} does not exist; name a model folder or a Hub id.")
    if args.source_system is not None:
        print(IMPORTERS[args.source_system](args.model, args.output))
    else:
        model, tokenizer = loading.load_translator(args.model)
        print(marian.export_model(model, tokenizer, args.output))
