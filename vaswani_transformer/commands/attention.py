import argparse

from .. import loading
from ..attention.drawing import draw_figures, draw_layer
from ..attention.maps import collect_attention
from ..attention.page import build_html
from ..model.pipeline_vaswani import check_sentence


def run(args: argparse.Namespace) -> None:
    for sentence in filter(None, (args.source, args.target)):
        check_sentence(sentence)
    model, tokenizer = loading.load_translator(args.model)
    maps = collect_attention(model, tokenizer, args.source, args.target)
    words, kind = maps.by_words(), args.kind or "encoder"
    if args.kind or args.layer or args.heads:
        layer = None if args.layer is None else args.layer - 1
        heads = None if args.heads is None else sorted({head - 1 for head in args.heads})
        paths = draw_layer(words, args.output, kind=kind, layer=layer, heads=heads, word=args.word)
    else:
        paths = draw_figures(words, args.output, word=args.word)
    page = args.output / "attention.html"
    page.write_bytes(build_html(maps, args.source, kind=kind).encode())
    print("\n".join(map(str, [*paths, page])))
