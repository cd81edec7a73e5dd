"""Write the card of a model from its run folder: metadata, use, recipe, cost, scores, limits.

vaswani evaluate --model runs/base --test newstest2014.en newstest2014.de --json newstest2014.json
vaswani card --run runs/base --score "WMT 2014 newstest2014" newstest2014.json --license apache-2.0

You may edit the file before `vaswani push` uploads it. An existing card is replaced only if --output names it.
"""

import argparse
from pathlib import Path

from .arguments import check_output, output_path, take_given


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", type=Path, required=True, dest="run_folder", help="folder of a finished run")
    command.add_argument(
        "--score",
        nargs=2,
        action="append",
        default=[],
        metavar=("DATASET", "FILE"),
        help="name of a test set, and the file that `evaluate --json` wrote; may be repeated",
    )
    command.add_argument("--output", type=output_path, help="file to write; default: RUN/model/README.md")
    facts = command.add_argument_group("facts that are not in the run folder; the card says which are missing")
    facts.add_argument("--data", help="description of the training data")
    facts.add_argument("--dataset", help="Hub id of the training data, such as wmt/wmt14")
    facts.add_argument("--license", help="licence of the weights, in the Hub's terms: apache-2.0, cc-by-4.0, ...")
    facts.add_argument("--hardware", help="description of the devices on which the model was trained")


def run(args: argparse.Namespace) -> None:
    from ..files import write_whole
    from ..hub.card import build_card, read_scores
    from ..runs import CARD_FILE, MODEL_FOLDER, find_model

    evaluations = [read_scores(dataset, Path(file)) for dataset, file in args.score]
    facts = take_given(args, "data", "dataset", "license", "hardware")
    card = build_card(args.run_folder, evaluations=evaluations, **facts)
    model = find_model(args.run_folder)
    output = args.output
    if output is None:
        output = model / CARD_FILE
        if model != args.run_folder / MODEL_FOLDER:
            raise ValueError(
                f"the newest model of {args.run_folder} is a checkpoint, not the final model. To write the card of "
                f"this checkpoint, give --output {output}, where `vaswani push` finds the card."
            )
        if output.exists():
            raise ValueError(f"{output} exists and may have been edited: to replace it, name it by --output.")
    check_output(output, taken=[*args.run_folder.glob("*.json*"), *(file for _, file in args.score)])
    output.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(output) as file:
        file.write(card.encode())
    print(output)
