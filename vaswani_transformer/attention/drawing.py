"""Figures 3 to 5 of the paper for any sentence, drawn with matplotlib. All lengths are in inches.

    maps = collect_attention(model, tokenizer, sentence).by_words()
    draw_figures(maps, "figures")
    draw_layer(maps, "figures", kind="cross", layer=4, heads=[2])

Shapes: L layers, H heads, T queries, S keys. Arguments count layers and heads from 0. Titles and names of files count
them from 1, as the paper does.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from . import VIEWS
from .maps import AttentionMaps, paper_layer
from .page import find_word, head_colours

FORMATS = ("svg", "png")
_WORD_STEP = 0.26
_LEAST_WIDTH = 4.0  # about the width of a title
_LINES_HEIGHT = 1.9
_CELL_HEIGHT = 0.07
_MARGIN = 0.25
_FAINTEST = 0.01  # Lines of lower opacity cannot be seen, but would take half of the file's size.
_FADED, _HIGHLIGHT = "#8a8a8a", "#dcdcdc"
# A dollar sign in a word is plain text, and not the start of a formula. The background is white in every style, so the
# text is black.
_STYLE = {
    "font.size": 10,
    **dict.fromkeys(("axes.titlesize", "axes.labelsize", "xtick.labelsize", "legend.fontsize"), 10),
    **dict.fromkeys(("text.color", "axes.titlecolor", "xtick.labelcolor"), "black"),
    "axes.grid": False,
    "text.parse_math": False,
    "text.usetex": False,
}


@matplotlib.rc_context(_STYLE)
def draw_attention(
    queries: Sequence[str],
    keys: Sequence[str],
    weights: np.ndarray,
    *,
    heads: Sequence[int] | None = None,
    query_word: int | None = None,
    title: str = "",
) -> Figure:
    """Draw one layer as the paper does: queries above, keys below, a colour for each head, the weight as opacity.

    Args:
        queries: T words.
        keys: S words.
        weights: (H, T, S), from 0 to 1.
        heads: the heads to draw, all by default. The colour of a head does not depend on this choice.
        query_word: the index of a query. Only the attention of this query is drawn, as lines and as cells. Above each
            key stands one cell for each head.
        title: a line above the drawing.

    Returns:
        a figure without a window. Show it in a notebook, or pass it to `save_figure`. Its words stand outside of the
        figure, so its own `savefig` needs bbox_inches="tight".
    """
    heads = heads or range(len(weights))
    colours = head_colours(len(weights))
    width = max(_LEAST_WIDTH, _WORD_STEP * max(len(queries), len(keys)))
    depth = 0 if query_word is None else _CELL_HEIGHT * len(heads)
    figure = Figure(figsize=(width, _LINES_HEIGHT + depth), dpi=150, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(-depth, _LINES_HEIGHT), frame_on=False, yticks=[])
    top = axes.secondary_xaxis("top")
    top.spines[:].set_visible(False)
    x_queries, x_keys = (
        width / 2 + _WORD_STEP * (np.arange(len(words)) - (len(words) - 1) / 2) for words in (queries, keys)
    )
    top.set_xticks(x_queries, queries, rotation=90)
    axes.set_xticks(x_keys, keys, rotation=90)
    for axis in (top, axes):
        axis.tick_params(length=0)

    # A `query_word` that is out of range raises an IndexError.
    drawn_queries = range(len(queries)) if query_word is None else [range(len(queries))[query_word]]
    for place, label in enumerate(top.get_xticklabels()):
        if place not in drawn_queries:
            label.set_color(_FADED)
        elif query_word is not None:
            label.set_bbox({"color": _HIGHLIGHT, "pad": 2})
    # Lines of several heads between the same words run side by side. Otherwise they would hide each other.
    shifts = _WORD_STEP * min(0.1, 0.5 / len(heads)) * (np.arange(len(heads)) - (len(heads) - 1) / 2)
    for row, (head, shift) in enumerate(zip(heads, shifts, strict=True)):
        visible = [(t, s) for t, s in np.argwhere(weights[head] >= _FAINTEST).tolist() if t in drawn_queries]
        lines = [((x_queries[t] + shift, _LINES_HEIGHT), (x_keys[s] + shift, 0)) for t, s in visible]
        inks = [(colours[head], min(1.0, weights[head, t, s])) for t, s in visible]
        axes.add_collection(LineCollection(lines, colors=inks, linewidths=1.5, clip_on=False), autolim=False)
        for (_, s), ink in zip(visible, inks, strict=True):
            if query_word is not None:
                corner = (x_keys[s] - 0.4 * _WORD_STEP, -(row + 1) * _CELL_HEIGHT)
                axes.add_patch(Rectangle(corner, 0.8 * _WORD_STEP, _CELL_HEIGHT, color=ink, linewidth=0))
    axes.set_title(title, loc="left")
    axes.set_xlabel("the words above attend to the words below", loc="left", color=_FADED)
    legend = [Patch(color=colours[head], label=f"{head + 1}") for head in heads]
    axes.legend(handles=legend, title="head", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def draw_figures(
    maps: AttentionMaps, folder: str | Path, *, word: str | None = None, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write figures 3, 4 and 5 in each of the `formats`; return the paths.

    All figures show the layer before the last, which is layer 5 of 6 in the paper. Pass `maps.by_words()` to draw
    words instead of sub-words.

        figure3                      all heads, for the word with the strongest attention to words far away
        figure4_full, figure4_word   the two heads with the strongest attention from that word to other words
        figure5_first, _second       the two heads with the strongest attention, without the attention over the one
                                     distance that each head prefers (such as one word back). These heads may follow
                                     the structure of the sentence.

    Heads and word are chosen by `AttentionMaps.word_links`, which leaves out punctuation and special tokens, because
    heads that have nothing to do attend to punctuation and special tokens.

    Args:
        folder: the folder to write to, which is made if it is missing. The files are named attention_figure3.svg and
            so on.
        word: the word of figures 3 and 4, one of `maps.source_tokens`. If the word occurs twice, the first one is
            drawn.

    Raises:
        ValueError: if `word` is not in the sentence.
    """
    words = maps.source_tokens
    layer = paper_layer(len(maps.encoder))
    links = maps.word_links("encoder", layer)
    places = np.arange(len(words))
    reach = (links * abs(places[:, None] - places)).sum(axis=(0, 2))
    place = int(reach.argmax()) if word is None else find_word(word, words)
    sharp_heads = _best_two(links[:, place].sum(axis=-1))
    structural_heads = _best_two(_structure_scores(links))
    views = {
        "figure3": (None, place),
        "figure4_full": (sharp_heads, None),
        "figure4_word": (sharp_heads, place),
        "figure5_first": (structural_heads[:1], None),
        "figure5_second": (structural_heads[-1:], None),
    }
    paths = []
    for name, (heads, query) in views.items():
        paths += _save(maps, folder, name, "encoder", layer, heads, query, formats)
    return paths


def draw_layer(
    maps: AttentionMaps,
    folder: str | Path,
    *,
    kind: str = "encoder",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    word: str | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write the attention of one layer, for all words or for one word, in each of the `formats`; return the paths.

    Args:
        folder: the folder to write to, which is made if it is missing. The names of the files describe the drawing, as
            in attention_cross_layer5_head3.svg.
        kind: one of `VIEWS`.
        layer: the layer before the last by default.
        heads: all heads by default.
        word: only the attention of this query is drawn. If the word occurs twice, the first one is drawn.

    Raises:
        ValueError: if there is no such layer or head, or if `word` is not among the queries.
    """
    queries, _, weights = maps.view(kind)
    layer = paper_layer(len(weights)) if layer is None else layer
    for name, numbers, count in (("layer", [layer], len(weights)), ("head", heads or [], len(weights[0]))):
        for number in numbers:
            if not 0 <= number < count:
                raise ValueError(f"{VIEWS[kind]} has no {name} {number + 1}: choose a number from 1 to {count}.")
    name = f"{kind}_layer{layer + 1}"
    if heads is not None:
        name += "_head" + "_".join(f"{head + 1}" for head in heads)
    place = None if word is None else find_word(word, queries)
    # The file name holds the number of the word, because file names cannot hold all characters of words.
    name = name if place is None else f"{name}_word{place + 1}"
    return _save(maps, folder, name, kind, layer, heads, place, formats)


def _save(
    maps: AttentionMaps,
    folder: str | Path,
    name: str,
    kind: str,
    layer: int,
    heads: Sequence[int] | None,
    place: int | None,
    formats: Sequence[str],
) -> list[Path]:
    """Draw a layer with its title, and write it in each of the `formats`."""
    queries, keys, weights = maps.view(kind)
    numbers = ", ".join(f"{head + 1}" for head in heads or ())
    head_names = f"{'head' if len(heads) == 1 else 'heads'} {numbers}" if heads else "all heads"
    title = f"{VIEWS[kind]}, layer {layer + 1} of {len(weights)}, {head_names}"
    if place is not None:
        title += f', from "{queries[place]}"'
    figure = draw_attention(queries, keys, weights[layer], heads=heads, query_word=place, title=title)
    return [save_figure(figure, Path(folder) / f"attention_{name}.{format}") for format in formats]


def _structure_scores(links: np.ndarray) -> np.ndarray:
    """Return the sum of each head's links, (H,), without the links over the head's favourite distance.

    The favourite distance of a head is the distance between words over which its links have the greatest sum.

    Args:
        links: (H, S, S), from `AttentionMaps.word_links`.
    """
    length = links.shape[-1]
    steps = [links.trace(offset=step, axis1=1, axis2=2) for step in range(1 - length, length)]
    return links.sum(axis=(1, 2)) - np.max(steps, axis=0)


def _best_two(scores: np.ndarray) -> list[int]:
    """Return, in ascending order, the indices of the two largest scores. Of equal scores, the first are taken."""
    return sorted(np.argsort(-scores, kind="stable")[:2].tolist())


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as SVG or PNG, by the suffix of `path`; return `path`. Equal figures give equal bytes.

    matplotlib's `rcParams["savefig.dpi"]` is the number of pixels of a PNG per inch; by default 150.

    Text in an SVG stays text, drawn in a font of the reader's machine. So the text can be searched, and every writing
    system is shown.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # By default matplotlib writes random names and the date into an SVG.
    with matplotlib.rc_context({"svg.hashsalt": "vaswani", "svg.fonttype": "none"}), warnings.catch_warnings():
        if path.suffix == ".svg":
            warnings.filterwarnings("ignore", message="Glyph")  # Fonts on the reader's machine draw the glyphs.
        figure.savefig(path, metadata={"Date": None}, facecolor="auto", bbox_inches="tight", pad_inches=_MARGIN)
    return path
