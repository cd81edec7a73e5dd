"""`vaswani attention`."""

import argparse
from pathlib import Path

from .. import loading
from ..attention.drawing import draw_figures, draw_layer
from ..attention.maps import KINDS, AttentionMaps, collect_attention
from ..attention.page import write_html
from ..model.pipeline_vaswani import check_sentence
from .arguments import add_command, positive_int


def add(commands) -> None:
    command = add_command(commands, "attention", run)
    command.add_argument("--model", required=True, help="model folder, run folder or Hub id")
    command.add_argument("--source", required=True, help="the sentence")
    command.add_argument("--target", help="its translation; the model's own when not given")
    command.add_argument("--output", type=Path, required=True, help="folder for the pictures and the page")
    text = "draw this word alone; without the options below the word of figures 3 and 4, one that looks far by default"
    command.add_argument("--word", help=text)
    chosen = command.add_argument_group("one drawing of your choice, instead of figures 3 to 5")
    text = "self-attention of encoder or decoder, or encoder-decoder attention; encoder when not given"
    chosen.add_argument("--kind", choices=tuple(KINDS), help=text)
    text = "from 1; the next to last when not given, as in the paper"
    chosen.add_argument("--layer", type=positive_int, help=text)
    chosen.add_argument("--heads", type=positive_int, nargs="+", help="from 1; all when not given")


def run(args: argparse.Namespace) -> None:
    """Draw what the heads attend to, as in figures 3 to 5: SVG, PNG, and one page to explore.

    vaswani attention --model runs/base --source "The dog that barks runs." --output pictures
    vaswani attention --model runs/base --source "The dog that barks runs." --output pictures \\
        --kind cross --layer 5 --heads 1 3 --word Hund

    `vaswani heads` finds heads that are worth a look.
    """
    for sentence in filter(None, (args.source, args.target)):
        check_sentence(sentence)
    model, tokenizer = loading.load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    words = maps.by_words()
    try:
        if args.kind or args.layer or args.heads:
            view = _choose_view(args, words)
            paths = draw_layer(words, args.output, **view)
        else:
            view = {"word": args.word}
            paths = draw_figures(words, args.output, **view)
    except ImportError as error:  # it says how to install matplotlib
        raise ValueError(str(error)) from error
    paths.append(write_html(maps, args.output / "attention.html", title=args.source, **view))
    print("\n".join(str(path) for path in paths))


def _choose_view(args: argparse.Namespace, maps: AttentionMaps) -> dict:
    """Kind, layer and heads from 0, as `draw_layer` takes them, and the word.

    Raises:
        ValueError: if the model has no such layer or head.
    """
    kind = args.kind or "encoder"
    layers, heads = maps.view(kind)[2].shape[:2]
    for name, given, most in (("layer", [args.layer or 1], layers), ("heads", args.heads or [1], heads)):
        if max(given) > most:
            raise ValueError(f"--{name} of {KINDS[kind].lower()} is 1 to {most} in this model; got {max(given)}.")
    return {
        "kind": kind,
        "layer": None if args.layer is None else args.layer - 1,
        "heads": None if args.heads is None else sorted({head - 1 for head in args.heads}),
        "word": args.word,
    }
