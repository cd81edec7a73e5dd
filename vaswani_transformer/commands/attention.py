"""Draw the attention heads of a model as in figures 3 to 5: pictures (SVG, PNG) and an interactive HTML page.

vaswani attention --model runs/base --source "The dog that barks runs." --output pictures
vaswani attention --model runs/base --source "The dog runs." --output pictures --kind cross --layer 5 --word Hund
"""

import argparse

from ..attention import VIEWS
from ..bounds import Number
from .arguments import add_model, output_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_model(command)
    add("--source", required=True, help="the sentence")
    add("--target", help="translation of the sentence; default: by the model")
    add("--output", type=output_folder, required=True, help="folder for the pictures and the page")
    formats = ("svg", "png")
    add("--format", nargs="+", choices=formats, default=formats, help="of the pictures; default: both")
    add(
        "--dpi",
        type=Number(10, 2_400),
        default=150,
        help="pixels of a PNG per inch; default: 150; for a projector: 450",
    )
    add("--word", help="draw this word only; default in figures 3 and 4: a word that attends to distant words")
    chosen = command.add_argument_group("one drawing, instead of figures 3 to 5")
    chosen.add_argument(
        "--kind",
        choices=tuple(VIEWS),
        help="encoder or decoder: self-attention; cross: encoder-decoder attention of each target word in the step "
        "that writes it; alignment: the same in the step after, in which the decoder reads it; default: encoder",
    )
    chosen.add_argument(
        "--layer",
        type=Number(1, 1_000),
        help="number from 1; default: the layer before the last, as in the paper. But for --kind cross or alignment "
        "without --layer and --heads, the alignment is drawn for the one layer and head that align best",
    )
    chosen.add_argument("--heads", type=Number(1, 1_000), nargs="+", help="numbers from 1; default: all heads")


def run(args: argparse.Namespace) -> None:
    import matplotlib

    from ..attention.alignment import find_alignment_head
    from ..attention.drawing import draw_figures, draw_layer
    from ..attention.maps import collect_attention
    from ..attention.page import build_html
    from ..loading import load_translator
    from ..model.pipeline_vaswani import check_sentence

    for sentence in filter(None, (args.source, args.target)):
        check_sentence(sentence)
    model, tokenizer = load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    word_maps = maps.by_words()
    is_one_drawing = bool(args.kind or args.layer or args.heads)
    if args.layer or args.heads or args.kind in ("encoder", "decoder"):
        layer = None if args.layer is None else args.layer - 1
        heads = None if args.heads is None else sorted({head - 1 for head in args.heads})
        view = {"kind": args.kind or "encoder", "layer": layer, "heads": heads}
    else:
        layer, head = find_alignment_head(model, maps)
        view = {"kind": "alignment", "layer": layer, "heads": [head]}
    # In figures 3 and 4, --word is a source word. The alignment beside them is always drawn for all target words.
    word = args.word if is_one_drawing else None
    paths = []
    with matplotlib.rc_context({"savefig.dpi": args.dpi}):
        if not is_one_drawing:
            paths += draw_figures(word_maps, args.output, word=args.word, formats=args.format)
        paths += draw_layer(word_maps, args.output, **view, word=word, formats=args.format)
    page = args.output / "attention.html"
    if args.word and not is_one_drawing:
        view = {}  # The page opens as figure 3.
    page.write_bytes(build_html(maps, args.source, **view, word=args.word).encode())
    print(*paths, page, sep="\n")
