"""`vaswani convert`."""

import argparse
from pathlib import Path

from .. import loading
from ..conversion import fairseq, marian
from .arguments import add_command

IMPORTERS = {"marian": marian.import_model, "fairseq": fairseq.import_model}


def add(commands) -> None:
    command = add_command(commands, "convert", run)
    direction = command.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="source_system", choices=tuple(IMPORTERS), help="the model is theirs")
    direction.add_argument("--to", dest="target_system", choices=("marian",), help="the model is ours")
    command.add_argument(
        "--model",
        required=True,
        help="folder or Hub id; from fairseq, the checkpoint's .pt file with dict.*.txt in the same folder",
    )
    command.add_argument("--output", type=Path, required=True, help="new or empty folder")


def run(args: argparse.Namespace) -> None:
    """Make a model of MarianMT, OPUS-MT or fairseq ours, or one of ours MarianMT's, with its tokenizer.

    vaswani convert --from marian --model Helsinki-NLP/opus-mt-en-de --output models/en_de
    vaswani convert --from fairseq --model wmt16/model.pt --output models/wmt16
    vaswani convert --to marian --model runs/base --output models/marian

    Logits are equal, and so are translations with the same search; where Marian has no field for something of ours
    (layer_norm_eps, the penalty), what differs is printed. Another network than the paper's is refused.
    """
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
