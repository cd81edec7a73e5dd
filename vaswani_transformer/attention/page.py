"""Build one HTML page with the attention of all layers and heads for a sentence. The page needs no network.

Path("attention.html").write_text(build_html(collect_attention(model, tokenizer, sentence), sentence))
"""

import base64
import colorsys
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

from . import VIEWS
from .maps import SIDES, AttentionMaps, paper_layer

# page.html is a `string.Template`, so dollar signs stand only before placeholders. Its security policy forbids the page
# to load anything.
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
    """Return a page on which the reader chooses the kind of attention, a layer, heads and a word.

    The page shows words, as the paper does. With 6 layers, 8 heads and 30 words on each side, it takes 240 kB.

    Args:
        maps: the attention by tokens, as `collect_attention` returns it.
        title: the title of the page.
        kind: the kind of attention to show first, one of `VIEWS`.
        layer: the index of the layer to show first; by default the layer of figures 3 to 5.
        heads: the indices of the heads to show first; by default the head with the strongest links between words, but
            with `word` all heads.
        word: the query whose attention to show first; by default all words. If it occurs twice, the first is taken.

    Raises:
        ValueError: if `word` is not among the queries.
    """
    words = maps.by_words()
    kinds = [_describe(words, name) for name in VIEWS]
    queries, _, weights = words.view(kind)
    layer = paper_layer(len(weights)) if layer is None else layer
    if heads is None:
        strongest = int(words.word_links(kind, layer).sum(axis=(1, 2)).argmax())
        heads = [strongest] if word is None else range(weights.shape[1])
    place = None if word is None else find_word(word, queries)
    opening = {"kind": list(VIEWS).index(kind), "layer": layer, "heads": list(heads), "word": place}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), data=_to_json(kinds), opening=_to_json(opening)
    )


def find_word(word: str, words: Sequence[str]) -> int:
    """Return the index of the first `word` among `words`. Raise a ValueError if there is none."""
    if word not in words:
        raise ValueError(f"the sentence has no word {word!r} to draw: choose one of {' '.join(words)}")
    return words.index(word)


def head_colours(num_heads: int) -> list[str]:
    """Return a colour #rrggbb for each head, readable on white and on black. `drawing.py` uses the same colours."""
    # Heads with similar hues differ in lightness.
    colours = [colorsys.hls_to_rgb(head / num_heads, 0.42 + 0.16 * (head % 2), 0.7) for head in range(num_heads)]
    return ["#" + "".join(f"{round(channel * 255):02x}" for channel in colour) for colour in colours]


def _describe(maps: AttentionMaps, kind: str) -> dict:
    """Return one kind of attention in the form that the script of the page reads."""
    queries, keys, weights = maps.view(kind)
    as_bytes = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8).tobytes()
    return {
        "name": VIEWS[kind],
        "queries": queries,
        "keys": keys,
        "sides": [side.replace("output", "target that the decoder writes") for side in SIDES[kind]],
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "colours": head_colours(weights.shape[1]),
        "weights": base64.b64encode(as_bytes).decode("ascii"),
    }


def _to_json(value: object) -> str:
    """Return JSON for a script element. A "<" is written as \\u003c, because it could end the element."""
    return json.dumps(value).replace("<", "\\u003c")
