"""All layers and heads of one sentence as a single page that needs no network.

write_html(collect_attention(model, tokenizer, sentence), "attention.html", title=sentence)
"""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

from .kinds import KINDS
from .maps import SIDES, AttentionMaps, head_colours, paper_layer

# A `string.Template`: no other dollar sign may stand in it. Its policy line lets the page load nothing at all.
TEMPLATE = Path(__file__).with_name("page.html")


def write_html(
    maps: AttentionMaps,
    path: str | Path,
    title: str = "Attention",
    *,
    kind: str = "encoder",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    word: str | None = None,
) -> Path:
    """Write the page of `build_html` to `path`, whose folder is made where missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build_html(maps, title, kind=kind, layer=layer, heads=heads, word=word).encode())
    return path


def build_html(
    maps: AttentionMaps,
    title: str = "Attention",
    *,
    kind: str = "encoder",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    word: str | None = None,
) -> str:
    """All layers and heads as one page that needs no network: choose layer, kind, heads and a word.

    The page shows words, as the paper does, and sub-words when asked to. Weights are stored in one byte each, 256
    opacities: 6 layers, 8 heads and 30 words a side take 170 kB, and sub-words, where they differ, as much again.

    Args:
        kind, layer, heads, word: what the page opens with, as of `drawing.draw_layer`; any of them can be
            changed there. A word that is not in the sentence opens nothing.

    Raises:
        ValueError: if there is no such `kind`.
    """
    words = maps.by_words()
    kinds = [_describe(words, name) for name in KINDS]
    if any(length > 1 for side in maps.words.values() for _, length in side):
        for description, name in zip(kinds, KINDS, strict=True):
            description["pieces"] = _describe(maps, name)
    queries, _, weights = words.view(kind)
    opening = {
        "kind": list(KINDS).index(kind),
        "layer": paper_layer(weights.shape[0]) if layer is None else layer,
        "hidden": [head for head in range(weights.shape[1]) if heads is not None and head not in heads],
        "word": queries.index(word) if word in queries else None,
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), data=_to_json(kinds), opening=_to_json(opening)
    )


def _describe(maps: AttentionMaps, kind: str) -> dict:
    """One kind of attention as the page reads it."""
    queries, keys, weights = maps.view(kind)
    as_bytes = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8).tobytes()
    return {
        "name": KINDS[kind],
        "queries": queries,
        "keys": keys,
        "sides": [side.replace("output", "target as it is written") for side in SIDES[kind]],
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "colours": head_colours(weights.shape[1]),
        "weights": base64.b64encode(as_bytes).decode("ascii"),
    }


def _to_json(value: object) -> str:
    """JSON that may stand in a script element: only "<" can end it, and JSON reads \\u003c as the same character."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
