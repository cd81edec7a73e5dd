"""`vaswani card`."""

import argparse
from pathlib import Path

from ..hub.card import CARD_FILE, CardText, build_card, read_scores
from ..loading import MODEL_FOLDER
from .arguments import add_command


def add(commands) -> None:
    command = add_command(commands, "card", run)
    command.add_argument("--run", type=Path, required=True, dest="run_folder", help="folder of a finished run")
    text = "name of a test set, and a file with what `vaswani evaluate` printed for it; may be repeated"
    command.add_argument("--score", nargs=2, action="append", default=[], metavar=("DATASET", "FILE"), help=text)
    command.add_argument("--output", type=Path, help=f"file to write; RUN/{MODEL_FOLDER}/{CARD_FILE} if not given")
    facts = command.add_argument_group("what no run folder knows; the card says so where not given")
    facts.add_argument("--name", default="", help="title; the folder's name if not given")
    facts.add_argument("--data", default="", help="what it was trained on, in words")
    facts.add_argument("--dataset", default="", help="the same as a dataset of the Hub, such as wmt/wmt14")
    facts.add_argument("--license", default="", help="of the weights, as the Hub calls it: apache-2.0, cc-by-4.0, ...")
    facts.add_argument("--license_name", default="", help="what the licence is called, of --license other")
    facts.add_argument("--hardware", default="", help="devices it was trained on, in words")


def run(args: argparse.Namespace) -> None:
    """Write the card of a model from its run folder: metadata, use, recipe, cost, scores, limits.

    vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de > newstest2014.score
    vaswani card --run runs/base --score "WMT 2014 newstest2014" newstest2014.score --license apache-2.0

    The file is Markdown to be read and edited; `vaswani push` uploads it as it then is. One that is there already is
    written over only where --output names it.
    """
    output = args.run_folder / MODEL_FOLDER / CARD_FILE if args.output is None else args.output
    if args.output is None and output.exists():
        raise ValueError(
            f"{output} exists and may have been edited: remove it, or write over it with --output {output}."
        )
    scores = [score for dataset, file in args.score for score in read_scores(dataset, Path(file))]
    facts = {name: getattr(args, name) for name in CardText.__dataclass_fields__}
    card = build_card(args.run_folder, scores=scores, text=CardText(**facts))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(card, encoding="utf-8")
    print(output)
