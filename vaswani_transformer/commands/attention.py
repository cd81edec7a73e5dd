"""`vaswani attention`."""

import argparse
from pathlib import Path

from .. import evaluation
from ..attention_drawing import draw_figures
from ..attention_maps import collect_attention
from ..attention_page import write_html
from ..pipeline_vaswani import check_sentence
from .arguments import add_command


def add(commands) -> None:
    command = add_command(commands, "attention", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--source", required=True, help="the sentence")
    command.add_argument("--target", help="its translation; the model's own when not given")
    command.add_argument("--output", type=Path, required=True, help="folder for the pictures and the page")
    command.add_argument("--word", help="the word of figure 3; one that looks far when not given")


def run(args: argparse.Namespace) -> None:
    """Draw what the heads attend to, as in figures 3 to 5: SVG, PNG, and one page to explore.

    vaswani attention --model runs/base --source "The dog that barks runs." --output pictures
    """
    for sentence in filter(None, (args.source, args.target)):
        check_sentence(sentence)
    model, tokenizer = evaluation.load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    try:
        paths = draw_figures(maps.by_words(), args.output, word=args.word)
    except ImportError as error:  # it says how to install matplotlib
        raise ValueError(str(error)) from error
    paths.append(write_html(maps, args.output / "attention.html", title=args.source))
    print("\n".join(str(path) for path in paths))
