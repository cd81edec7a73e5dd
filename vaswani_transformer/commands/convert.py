"""Convert a model and its tokenizer from MarianMT, OPUS-MT or fairseq, or to MarianMT.

vaswani convert --from marian --model Helsinki-NLP/opus-mt-en-de --output models/en_de
vaswani convert --from fairseq --model wmt16/model.pt --output models/wmt16
vaswani convert --to marian --model runs/base --output models/marian

The converted model computes the same logits, apart from rounding. With equal search options it finds the same
translations. With --to marian, the command prints what MarianMT computes or searches differently.
"""

import argparse

from .arguments import new_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    direction = command.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="source_system", choices=("marian", "fairseq"), help="system to convert from")
    direction.add_argument("--to", dest="target_system", choices=("marian",), help="system to convert to")
    command.add_argument(
        "--model", required=True, help="folder or Hub id; for fairseq, a .pt file in a folder with its dict.*.txt"
    )
    command.add_argument("--output", type=new_folder, required=True, help="new or empty folder")


def run(args: argparse.Namespace) -> None:
    from ..conversion import fairseq, marian
    from ..files import write_folder
    from ..loading import check_place, load_translator
    from ..translation.example import keep_example

    if args.source_system == "marian":
        check_place(args.model)
    if args.source_system is not None:
        importer = {"marian": marian, "fairseq": fairseq}[args.source_system]
        with write_folder(args.output) as output:
            note = importer.import_model(args.model, output)
            keep_example(output)
    else:
        model, tokenizer = load_translator(args.model)
        with write_folder(args.output) as output:
            note = marian.export_model(model, tokenizer, output)
    print(f"The converted model is in {args.output}. {note}")
