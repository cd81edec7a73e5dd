import argparse
from pathlib import Path

from ..files import MODEL_FOLDER
from ..hub.card import CardText, build_card, read_scores
from ..loading import CARD_FILE
from .arguments import check_output


def run(args: argparse.Namespace) -> None:
    output = args.run_folder / MODEL_FOLDER / CARD_FILE if args.output is None else args.output
    if args.output is None and output.exists():
        raise ValueError(
            f"{output} exists and may have been edited: remove it, or write over it with --output {output}."
        )
    check_output(output, inputs=[*args.run_folder.glob("*.json*"), *(file for _, file in args.score)])
    evaluations = [read_scores(dataset, Path(file)) for dataset, file in args.score]
    facts = {name: getattr(args, name) for name in CardText.__dataclass_fields__}
    card = build_card(args.run_folder, evaluations=evaluations, text=CardText(**facts))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(card, encoding="utf-8")
    print(output)
