import argparse

from .. import loading
from ..attention.drawing import draw_figures, draw_layer
from ..attention.kinds import KINDS
from ..attention.maps import AttentionMaps, collect_attention
from ..attention.page import build_html
from ..model.pipeline_vaswani import check_sentence


def run(args: argparse.Namespace) -> None:
    for sentence in filter(None, (args.source, args.target)):
        check_sentence(sentence)
    model, tokenizer = loading.load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    words = maps.by_words()
    if args.kind or args.layer or args.heads:
        view = _choose_view(args, words)
        paths = draw_layer(words, args.output, **view)
    else:
        view = {"word": args.word}
        paths = draw_figures(words, args.output, **view)
    page = args.output / "attention.html"
    page.write_bytes(build_html(maps, args.source, **view).encode())
    print("\n".join(map(str, [*paths, page])))


def _choose_view(args: argparse.Namespace, maps: AttentionMaps) -> dict:
    """Return kind, layer and heads from 0, as `draw_layer` takes them, and the word.

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
