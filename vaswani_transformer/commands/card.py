import argparse
from pathlib import Path

from ..hub.card import CardText, build_card, read_run, read_scores
from ..runs import CARD_FILE, MODEL_FOLDER
from .arguments import check_output


def run(args: argparse.Namespace) -> None:
    model, output = read_run(args.run_folder).model, args.output
    evaluations = [read_scores(dataset, Path(file)) for dataset, file in args.score]
    facts = {name: getattr(args, name) for name in CardText.__dataclass_fields__}
    card = build_card(args.run_folder, model, evaluations=evaluations, text=CardText(**facts))
    if output is None:
        output = model / CARD_FILE
        if model != args.run_folder / MODEL_FOLDER:
            raise ValueError(f"the newest model of {args.run_folder} is not its final one: name the card by --output.")
        if output.exists():
            raise ValueError(f"{output} exists and may have been edited: remove it, or name it by --output.")
    check_output(output, inputs=[*args.run_folder.glob("*.json*"), *(file for _, file in args.score)])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(card, encoding="utf-8")
    print(output)
