import argparse
from pathlib import Path

from .. import loading
from ..conversion import fairseq, marian
from ..translation.example import keep_example
from .arguments import check_new_folder

IMPORTERS = {"marian": marian.import_model, "fairseq": fairseq.import_model}


def run(args: argparse.Namespace) -> None:
    check_new_folder(args.output)
    path = Path(args.model)
    if args.source_system == "marian" and not path.is_dir() and (len(path.parts) != 2 or path.is_absolute()):
        # Not of the form owner/name. Without a network a request to the Hub would take a minute.
        raise FileNotFoundError(f"{args.model} does not exist; name a model folder or a Hub id.")
    if args.source_system is not None:
        print(IMPORTERS[args.source_system](args.model, args.output))
        keep_example(args.output)
    else:
        model, tokenizer = loading.load_translator(args.model)
        print(marian.export_model(model, tokenizer, args.output))
