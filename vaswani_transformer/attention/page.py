"""All layers and heads of one sentence as a single page that needs no network.

Path("attention.html").write_text(build_html(collect_attention(model, tokenizer, sentence), sentence))
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


def build_html(
    maps: AttentionMaps,
    title: str = "Attention",
    *,
    kind: str = "encoder",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    word: str | None = None,
) -> str:
    """Return a page of all layers and heads that needs no network: choose layer, kind, heads and a word.

    The page shows words, as the paper does, and sub-words on request. Weights are stored in one byte each: 6 layers, 8
    heads and 30 words per side take 170 kB, and sub-words, where they differ, as much again.

    Args:
        kind, layer, heads, word: the first view, as in `drawing.draw_layer`. A word that is not in the sentence is
            ignored.

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
    """Return one kind of attention as the page reads it."""
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
    """Return JSON for a script element: only "<" can end it, and JSON reads \\u003c as the same character."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
