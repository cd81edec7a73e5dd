"""What every head looks at in one sentence, drawn as figures 3 to 5 of the paper.

    maps = collect_attention(model, tokenizer, "It is in this spirit that laws were passed.").by_words()
    draw_figures(maps, "figures")
    write_html(maps, "figures/attention.html", "It is in this spirit")

Shapes: L layers, H heads, T queries, S keys. Arguments count layers and heads from 0, titles from 1 as the
paper does ("layer 5 of 6").
"""

from __future__ import annotations

import base64
import colorsys
import html
import json
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Encoder-decoder attention",
}
_SIDES = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("output", "source")}
CONTINUATION = "·"  # shown before a piece that goes on with the word of the piece before it

Words = list[tuple[str, int]]  # the words of a sentence: text, number of tokens
Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention weights of one sentence pair, with the text of every row and column.

    The decoder reads the target moved right by one: its position t holds token t and writes token t + 1. So
    `target_tokens`, what is read, starts with the start token and names rows and columns of `decoder`;
    `output_tokens`, what is written, ends with the end token and names the rows of `cross`: the source words
    that a target word was written from.

    Args:
        source_tokens: S pieces of the source.
        target_tokens: T pieces the decoder reads.
        encoder: encoder self-attention, (L, H, S, S).
        decoder: decoder self-attention, (L, H, T, T).
        cross: encoder-decoder attention, (L, H, T, S).
        output_tokens: T pieces the decoder writes; `target_tokens` when not given.
        words: of "source", "target" and "output", the words as (text, number of tokens); empty when every
            token is a word.

    Raises:
        ValueError: if an array does not fit the tokens.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    output_tokens: list[str] = field(default_factory=list)
    words: dict[str, Words] = field(default_factory=dict)

    def __post_init__(self):
        if not self.output_tokens:
            object.__setattr__(self, "output_tokens", self.target_tokens)
        for kind in KINDS:
            queries, keys, weights = self.view(kind)
            if weights.ndim != 4 or weights.shape[2:] != (len(queries), len(keys)) or 0 in weights.shape:
                raise ValueError(
                    f"{kind} must have the shape (layers, heads, {len(queries)}, {len(keys)}) of its tokens, "
                    f"no axis empty; got {weights.shape}."
                )

    def view(self, kind: str) -> tuple[list[str], list[str], np.ndarray]:
        """Texts of the queries, texts of the keys and weights (L, H, T, S) of one of `KINDS`."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
        queries, keys = (getattr(self, f"{side}_tokens") for side in _SIDES[kind])
        return queries, keys, getattr(self, kind)

    def by_words(self) -> AttentionMaps:
        """The same maps with sub-words merged to words, as the paper draws them.

        A word gets the sum of the weights of its pieces where it is a key and their mean where it is a query:
        rows still sum to 1. Words are runs of letters and digits or runs of other signs, as in tensor2tensor.
        """
        if not self.words:
            return self
        source, target, output = ([length for _, length in self.words[side]] for side in ("source", "target", "output"))
        return AttentionMaps(
            source_tokens=[text for text, _ in self.words["source"]],
            target_tokens=[text for text, _ in self.words["target"]],
            output_tokens=[text for text, _ in self.words["output"]],
            encoder=_merge(self.encoder, source, source),
            decoder=_merge(self.decoder, target, target),
            cross=_merge(self.cross, output, source),
        )


def _merge(weights: np.ndarray, query_lengths: list[int], key_lengths: list[int]) -> np.ndarray:
    """(..., T, S) -> (..., words of T, words of S): sum over the keys of a word, mean over its queries."""
    starts = [np.cumsum([0, *lengths[:-1]]) for lengths in (query_lengths, key_lengths)]
    summed = np.add.reduceat(np.add.reduceat(weights, starts[1], axis=-1), starts[0], axis=-2)
    return summed / np.array(query_lengths, dtype=summed.dtype)[:, None]


# Weights and words of one sentence


def collect_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None
) -> AttentionMaps:
    """Attention weights of all layers for one sentence, by one forward pass without dropout.

    Only eager attention returns its weights: the model is switched to it and back, whatever happens.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: its byte-level tokenizer.
        source: the sentence.
        target: a translation to force through the decoder; the model's own when not given.

    Raises:
        ValueError: if source or target has no tokens, or the model returns no weights.
    """
    inputs = tokenizer(source, return_tensors="pt")
    input_ids = inputs["input_ids"].to(model.device)
    attention_mask = torch.ones_like(input_ids)
    if input_ids.shape[1] == 0:
        raise ValueError("source has no tokens; give a sentence of at least one word.")
    with _eager_evaluation(model), torch.no_grad():
        if target is None:
            decoded = _translate(model, input_ids, attention_mask, tokenizer.eos_token_id)
        else:
            decoded = [model.config.decoder_start_token_id, *tokenizer(text_target=target)["input_ids"]]
        if len(decoded) < 2:
            raise ValueError("target has no tokens; give a sentence of at least one word.")
        outputs = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=torch.tensor([decoded[:-1]], device=model.device),
            output_attentions=True,
            use_cache=False,
            return_dict=True,
        )
    source_pieces, source_words = _pieces_and_words(tokenizer, input_ids[0].tolist())
    target_pieces, target_words = _pieces_and_words(tokenizer, decoded[:-1])
    output_pieces, output_words = _pieces_and_words(tokenizer, decoded[1:])
    return AttentionMaps(
        source_tokens=source_pieces,
        target_tokens=target_pieces,
        output_tokens=output_pieces,
        encoder=_stack(outputs.encoder_attentions),
        decoder=_stack(outputs.decoder_attentions),
        cross=_stack(outputs.cross_attentions),
        words={"source": source_words, "target": target_words, "output": output_words},
    )


def _translate(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, eos_token_id: int | None
) -> list[int]:
    """The model's own translation: start token, tokens, end token unless it stopped at the limit."""
    generated = model.generate(input_ids=input_ids, attention_mask=attention_mask, return_dict_in_generate=False)
    decoded = generated[0].tolist()
    # From 1: the start token may be the end token. What follows the end is padding of shorter hypotheses.
    return decoded[: decoded.index(eos_token_id, 1) + 1] if eos_token_id in decoded[1:] else decoded


@contextmanager
def _eager_evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Eager attention and no dropout inside the block; what was set before after it."""
    implementation = model.config._attn_implementation
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.set_attn_implementation("eager")
        model.eval()
        yield
    finally:
        model.set_attn_implementation(implementation)
        for module, training in modes:
            module.training = training


def _stack(attentions: tuple[torch.Tensor, ...] | None) -> np.ndarray:
    """One (1, H, T, S) tensor a layer -> (L, H, T, S)."""
    if not attentions:
        raise ValueError(
            "the model returned no attention weights; it must support eager attention and output_attentions."
        )
    return torch.cat(tuple(attentions)).float().cpu().numpy()


def _byte_symbols() -> dict[str, int]:
    """GPT-2's printable symbol of every byte -> the byte: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_SYMBOLS = _byte_symbols()


def _pieces_and_words(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> tuple[list[str], Words]:
    """Readable text of every token, and the words they form.

    A piece that begins a word is shown plainly, one that goes on with it after `CONTINUATION`. Special and
    added tokens stand verbatim, each a word of its own.
    """
    tokens = tokenizer.convert_ids_to_tokens(ids)
    is_byte_level = _BYTE_SYMBOLS.keys() <= tokenizer.get_vocab().keys()
    verbatim = [token_id in tokenizer.added_tokens_decoder for token_id in ids]
    pieces: list[str] = []
    words: Words = []
    for is_verbatim, run in groupby(zip(verbatim, tokens, strict=True), key=lambda pair: pair[0]):
        run_tokens = [token for _, token in run]
        if is_verbatim:
            pieces += run_tokens
            words += [(token, 1) for token in run_tokens]
            continue
        for word in _split_words([_token_bytes(token, is_byte_level) for token in run_tokens]):
            first, *rest = (_readable(piece) for piece in word)
            pieces += [first, *(CONTINUATION + piece for piece in rest)]
            words.append((_readable(b"".join(word)), len(word)))
    return pieces, words


def _token_bytes(token: str, is_byte_level: bool) -> bytes:
    """The bytes a token stands for."""
    if is_byte_level:
        return bytes(_BYTE_SYMBOLS[symbol] for symbol in token)
    return token.replace("\u2581", " ").encode()  # SentencePiece writes a space as U+2581


def _split_words(pieces: list[bytes]) -> list[list[bytes]]:
    """Group consecutive pieces by the word that their first byte after spaces belongs to."""
    # By bytes, because a piece may end inside a character. A byte of no character becomes one surrogate.
    text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
    word_of_byte: list[int] = []
    index = 0
    for kind, run in groupby(text, key=_character_class):
        word_of_byte += [index] * len("".join(run).encode("utf-8", errors="surrogateescape"))
        index += kind != "space"  # spaces belong to the word after them
    grouped: dict[int, list[bytes]] = {}
    end = 0
    for piece in pieces:
        end += len(piece)
        first = end - max(1, len(piece.lstrip(b" ")))
        grouped.setdefault(word_of_byte[first], []).append(piece)
    return list(grouped.values())


def _character_class(character: str) -> str:
    """Letters, marks and digits make words, other signs make their own, spaces part them."""
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    return "word" if category[0] in "LMN" or category in ("Cf", "Cs") else "sign"  # Cf: joiners inside words


def _readable(piece: bytes) -> str:
    """Text of some bytes without outer spaces; what is no UTF-8 or cannot be printed is escaped, as \\xNN."""
    text = piece.decode("utf-8", errors="backslashreplace")
    text = text.strip(" ") or "␣" * len(text)
    return "".join(c if c.isprintable() or c in "\u200c\u200d" else c.encode("unicode_escape").decode() for c in text)


# Drawings on paper: matplotlib. All lengths are inches.

_WORD_STEP = 0.26
_LINES_HEIGHT = 1.9
_MARGIN = 0.25
_CELL_HEIGHT = 0.07
_LEGEND_STEP = 0.36
_GAP = 0.08  # between words and lines
_LONGEST_LABEL = 28  # characters
_FAINTEST = 0.01  # lines below this opacity cannot be seen and make half of a file
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Arial Unicode MS")
_TEN_COLOURS = (  # the palette of d3 and matplotlib, which tensor2tensor draws with
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
_INK, _FADED, _HIGHLIGHT = "#000000", "#8a8a8a", "#dcdcdc"


def head_colours(num_heads: int) -> list[str]:
    """One colour a head as #rrggbb, all readable on white and on black."""
    if num_heads <= len(_TEN_COLOURS):
        return list(_TEN_COLOURS[:num_heads])
    colours = []
    for head in range(num_heads):
        # Neighbours in hue differ in lightness too.
        channels = colorsys.hls_to_rgb(head / num_heads, 0.42 + 0.16 * (head % 2), 0.7)
        colours.append("#" + "".join(f"{round(channel * 255):02x}" for channel in channels))
    return colours


def draw_attention(
    queries: Sequence[str],
    keys: Sequence[str],
    weights: np.ndarray,
    *,
    heads: Sequence[int] | None = None,
    query_word: int | None = None,
    title: str | None = None,
) -> Figure:
    """Draw one layer as the paper does: queries above, keys below, opacity is the weight, one colour a head.

    Args:
        queries, keys: T and S words.
        weights: (H, T, S).
        heads: heads to draw, all when not given. A head keeps its colour whichever are drawn.
        query_word: draw the attention of this query alone, and under its keys a cell of each head.

    Returns:
        a figure that belongs to no window; show it in a notebook or pass it to `save_figure`.

    Raises:
        ValueError: if weights, heads or query_word do not fit the words.
        ImportError: if matplotlib is missing.
    """
    _require_matplotlib()
    heads = _check_drawing(queries, keys, weights, heads, query_word)
    colours = head_colours(weights.shape[0])
    font = _font()
    top, bottom = [_shorten(word) for word in queries], [_shorten(word) for word in keys]
    top_height, bottom_height = (max(_width(word, font) for word in words) for words in (top, bottom))
    # From the lower edge up: legend, keys, cells of one query, lines, queries, title.
    y_keys = _MARGIN + 0.35 + bottom_height
    y_low = y_keys + _GAP + (0 if query_word is None else _CELL_HEIGHT * len(heads))
    y_high = y_low + _LINES_HEIGHT
    y_queries = y_high + _GAP
    height = y_queries + top_height + (0 if title is None else 0.4) + _MARGIN
    width = 2 * _MARGIN + max(
        _WORD_STEP * max(len(top), len(bottom)), _LEGEND_STEP * (len(heads) + 1.5), _width(title or "", font)
    )
    x_queries, x_keys = (
        width / 2 + _WORD_STEP * (np.arange(len(words)) - (len(words) - 1) / 2) for words in (top, bottom)
    )

    sheet = _Sheet(width, height, font)
    drawn = list(range(len(top))) if query_word is None else [query_word]
    if query_word is not None:
        sheet.fill_cells(x_keys, y_keys + _GAP / 2, weights[heads, query_word], [colours[h] for h in heads])
        box = (x_queries[query_word] - 0.42 * _WORD_STEP, y_queries - _GAP / 2)
        sheet.fill(*box, 0.84 * _WORD_STEP, _width(top[query_word], font) + _GAP, _HIGHLIGHT)
    # Side by side: lines of several heads between the same words would hide each other.
    for head, aside in zip(heads, _WORD_STEP * _spread(len(heads)), strict=True):
        starts = [(x + aside, y_high) for x in x_queries[drawn]]
        ends = [(x + aside, y_low) for x in x_keys]
        sheet.connect(starts, ends, weights[head, drawn], colours[head])
    for i, word in enumerate(top):
        sheet.write(x_queries[i], y_queries, word, _INK if i in drawn else _FADED, rotation=90)
    for x, word in zip(x_keys, bottom, strict=True):
        sheet.write(x, y_keys, word, _INK, ha="right", rotation=90)
    if title is not None:
        sheet.write(_MARGIN, height - _MARGIN, title, _INK)
    sheet.write_legend({str(head + 1): colours[head] for head in heads})
    return sheet.figure


class _Sheet:
    """A figure of one drawing, measured in inches from its lower left corner."""

    def __init__(self, width: float, height: float, font: FontProperties):
        from matplotlib.figure import Figure

        self.font = font
        self.figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        self.axes.set_axis_off()

    def write(self, x: float, y: float, text: str, ink: str, *, ha: str = "left", rotation: int = 0) -> None:
        """Text as it is: a dollar sign starts no formula. Its anchor holds it in place in any font."""
        place = {"ha": ha, "va": "center", "rotation": rotation, "rotation_mode": "anchor"}
        self.axes.text(x, y, text, color=ink, font=self.font, parse_math=False, usetex=False, **place)

    def fill(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> None:
        """A rectangle from its lower left corner."""
        from matplotlib.patches import Rectangle

        self.axes.add_patch(Rectangle((x, y), width, height, color=colour, alpha=opacity, linewidth=0))

    def fill_cells(self, xs: np.ndarray, y: float, weights: np.ndarray, colours: list[str]) -> None:
        """Above each key a column of cells, one a head from the top, as opaque as its weight (H, S)."""
        for row, colour in enumerate(colours):
            y_row = y + (len(colours) - 1 - row) * _CELL_HEIGHT
            for x, weight in zip(xs, weights[row], strict=True):
                if weight >= _FAINTEST:
                    corner = (x - 0.4 * _WORD_STEP, y_row)
                    self.fill(*corner, 0.8 * _WORD_STEP, _CELL_HEIGHT, colour, min(1.0, float(weight)))

    def connect(self, starts: list[Point], ends: list[Point], weights: np.ndarray, colour: str) -> None:
        """A line from each start to each end, as opaque as its weight (T, S)."""
        from matplotlib.collections import LineCollection
        from matplotlib.colors import to_rgba

        visible = [tuple(pair) for pair in np.argwhere(weights >= _FAINTEST)]
        lines = LineCollection(
            [(starts[t], ends[s]) for t, s in visible],
            colors=[to_rgba(colour, min(1.0, float(weights[t, s]))) for t, s in visible],
            linewidths=1.5,
        )
        self.axes.add_collection(lines, autolim=False)

    def write_legend(self, colours: dict[str, str]) -> None:
        """The heads' names and colours along the lower edge."""
        self.write(_MARGIN, _MARGIN, "head", _FADED)
        for i, (name, colour) in enumerate(colours.items()):
            x = _MARGIN + _LEGEND_STEP * (i + 1.3)
            self.fill(x, _MARGIN - 0.05, 0.1, 0.1, colour)
            self.write(x + 0.12, _MARGIN, name, _FADED)


def _require_matplotlib() -> None:
    """Refuse with the command that helps."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('Drawing needs matplotlib: pip install "vaswani-transformer[plots]"') from error


def _check_drawing(
    queries: Sequence[str],
    keys: Sequence[str],
    weights: np.ndarray,
    heads: Sequence[int] | None,
    query_word: int | None,
) -> list[int]:
    """The heads to draw, if everything fits."""
    if weights.ndim != 3 or weights.shape[1:] != (len(queries), len(keys)) or 0 in weights.shape:
        raise ValueError(
            f"weights must have the shape (heads, {len(queries)}, {len(keys)}) of one layer, no axis empty; "
            f"got {weights.shape}."
        )
    chosen = list(range(weights.shape[0])) if heads is None else list(heads)
    if not chosen or not all(0 <= head < weights.shape[0] for head in chosen):
        raise ValueError(f"heads must be some of 0 to {weights.shape[0] - 1}; got {chosen}.")
    if query_word is not None and not 0 <= query_word < len(queries):
        raise ValueError(f"query_word is an index from 0 to {len(queries) - 1}; got {query_word}.")
    return chosen


def _font() -> FontProperties:
    """Font of all text; fonts for other scripts follow where they are installed."""
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    family = [name for name in _FONTS if name in installed]
    return font_manager.FontProperties(family=family, size=10)


def _width(text: str, font: FontProperties) -> float:
    """Length of a text."""
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a missing one is reported when it is drawn
        return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def _shorten(text: str) -> str:
    """A label that cannot push the picture off the page."""
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _spread(num_heads: int) -> np.ndarray:
    """Where the lines of each head start and end, in parts of a word's width from its middle."""
    return (np.arange(num_heads) - (num_heads - 1) / 2) * min(0.1, 0.5 / num_heads)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as its suffix says, .svg or .png; the same figure always gives the same bytes.

    Text in an SVG stays text, in the reader's font if need be: it can be searched, and any script shows.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"a figure is saved as .svg or .png; got {path.name!r}.")
    _require_matplotlib()
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # matplotlib names the parts of an SVG by random numbers and dates it unless told otherwise.
    with (
        matplotlib.rc_context({"svg.hashsalt": "vaswani", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        if path.suffix == ".svg":
            warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts draw it
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def draw_figures(
    maps: AttentionMaps, folder: str | Path, stem: str = "attention", *, word: str | None = None
) -> list[Path]:
    """Write figures 3, 4 and 5 and the encoder-decoder attention, each as SVG and PNG.

    All show the next to last layer, the paper's layer 5 of 6. Pass `maps.by_words()` to draw words.

        figure3                      all heads, for the word with the strongest long-distance attention
        figure4_full, figure4_word   the two heads that look most sharply from that word elsewhere
        figure5_first, _second       the two heads with the most sharp attention that is not simply a fixed
                                     step, such as "the word before": they may follow the sentence structure
        cross                        all heads, from every target word when it is written to the source

    Heads and word are chosen by squared weights, which count one strong link more than many weak ones, and
    between words only: signs and special tokens, where idle heads look, are left out.

    Args:
        folder: made if missing; files are named `stem`_figure3.svg and so on.
        word: the word of figures 3 and 4, as in `maps.source_tokens`; its first place counts.

    Raises:
        ValueError: if `word` is not in the sentence.
    """
    words = maps.source_tokens
    layers = maps.encoder.shape[0]
    weights = maps.encoder[max(0, layers - 2)]
    links = _word_links(words, weights)
    place = _most_distant(links) if word is None else _find(word, words)
    sharp = _best_two(links[:, place].sum(axis=-1))
    structural = _best_two(_structure_scores(links))
    title = f"Encoder self-attention, layer {max(1, layers - 1)} of {layers}"
    of_word = f'from "{words[place]}"'
    drawings = {
        name: draw_attention(words, words, weights, heads=heads, query_word=query, title=f"{title}, {text}")
        for name, heads, query, text in (
            ("figure3", None, place, f"all heads, {of_word}"),
            ("figure4_full", sharp, None, _name(sharp)),
            ("figure4_word", sharp, place, f"{_name(sharp)}, {of_word}"),
            ("figure5_first", structural[:1], None, _name(structural[:1])),
            ("figure5_second", structural[-1:], None, _name(structural[-1:])),
        )
    }
    queries, keys, cross = maps.view("cross")
    layers = cross.shape[0]
    title = f"Encoder-decoder attention, layer {max(1, layers - 1)} of {layers}, all heads"
    drawings["cross"] = draw_attention(queries, keys, cross[max(0, layers - 2)], title=title)
    return [
        save_figure(figure, Path(folder) / f"{stem}_{name}{suffix}")
        for name, figure in drawings.items()
        for suffix in (".svg", ".png")
    ]


def _name(heads: list[int]) -> str:
    """Heads as a title says them."""
    return ("heads " if len(heads) > 1 else "head ") + " and ".join(str(head + 1) for head in heads)


def _find(word: str, words: list[str]) -> int:
    """First place of a word."""
    if word not in words:
        raise ValueError(f"word {word!r} is not in the sentence; choose one of: {' '.join(words)}")
    return words.index(word)


def _word_links(words: list[str], weights: np.ndarray) -> np.ndarray:
    """Squared weights (H, S, S) between different words; 0 from or to signs and special tokens."""
    is_word = np.array([any(c.isalnum() for c in w) and not re.fullmatch(r"<[^<>]*>", w) for w in words])
    return weights**2 * (is_word[:, None] & is_word[None, :] & ~np.eye(len(words), dtype=bool))


def _most_distant(links: np.ndarray) -> int:
    """The query whose links (H, S, S) reach farthest, summed over heads."""
    places = np.arange(links.shape[-1])
    return int((links * abs(places[:, None] - places[None, :])).sum(axis=(0, 2)).argmax())


def _structure_scores(links: np.ndarray) -> np.ndarray:
    """(H, S, S) -> (H,): strength of the links of a head without those at its favourite fixed step."""
    length = links.shape[-1]
    steps = [links.trace(offset=step, axis1=1, axis2=2) for step in range(1 - length, length)]
    return links.sum(axis=(1, 2)) - np.max(steps, axis=0)


def _best_two(scores: np.ndarray) -> list[int]:
    """Indices of the two largest in ascending order; the first of equals."""
    return sorted(np.argsort(-scores, kind="stable")[:2].tolist())


# The page


def write_html(maps: AttentionMaps, path: str | Path, title: str = "Attention") -> Path:
    """Write all layers and heads as one page that needs no network: choose layer, kind, heads and a word.

    Weights are stored in one byte each, 256 opacities: 6 layers, 8 heads and 30 words a side take 170 kB.
    """
    kinds = []
    for kind, name in KINDS.items():
        queries, keys, weights = maps.view(kind)
        as_bytes = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8).tobytes()
        kinds.append(
            {
                "name": name,
                "queries": queries,
                "keys": keys,
                "sides": [side.replace("output", "target as it is written") for side in _SIDES[kind]],
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "colours": head_colours(weights.shape[1]),
                "weights": base64.b64encode(as_bytes).decode("ascii"),
            }
        )
    # In a script element only "<" can end the data; JSON reads \u003c as the same character.
    data = json.dumps(kinds, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = Template(_PAGE).substitute(title=html.escape(title), data=data)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page.encode())
    return path


# A Template: no other dollar sign may stand in it. The policy line lets the page load nothing at all.
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --line: #8888; --mark: #8884; }
body { background: Canvas; color: CanvasText; font: 16px/1.4 system-ui, sans-serif; margin: 1.5rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; overflow-wrap: anywhere; }
button, select { font: inherit; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 4px; }
select { background: Canvas; padding: 0.15rem 0.3rem; }
:focus-visible { outline: 2px solid Highlight; outline-offset: 1px; }
.controls { display: flex; flex-wrap: wrap; gap: 0.5rem 1.25rem; align-items: center; }
#heads { display: flex; flex-wrap: wrap; gap: 0.3rem; align-items: center; }
#heads button { padding: 0.1rem 0.45rem; }
#heads i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.35em; border-radius: 2px; }
#heads [aria-pressed="false"] { opacity: 0.45; text-decoration: line-through; }
#note { min-height: 2.8em; margin: 0.75rem 0; opacity: 0.85; }
#map { display: grid; grid-template-columns: minmax(0, 1fr) minmax(7rem, 22rem) minmax(0, 1fr);
  position: relative; }
#map h2 { font-size: 0.85rem; font-weight: normal; opacity: 0.75; margin: 0 0.4rem 0.4rem; }
#map h2:first-child { text-align: right; }
#map h2:nth-child(3) { grid-column: 3; }
.words { position: relative; }
.words button { display: block; min-width: min(7rem, 100%); max-width: 100%; height: 1.6rem;
  padding: 0 0.4rem; border-color: transparent; background-origin: border-box; text-align: left;
  white-space: pre; overflow: hidden; text-overflow: ellipsis; cursor: pointer; }
#queries button { margin-left: auto; text-align: right; }
.words .active { background-color: var(--mark); font-weight: 600; }
.words [aria-pressed="true"] { border-color: currentColor; }
canvas { width: 100%; display: block; }
@media (prefers-color-scheme: dark) { canvas, #heads i { filter: brightness(1.4); } }
</style>
</head>
<body>
<h1 dir="auto">$title</h1>
<div class="controls">
<label>Attention <select id="kind"></select></label>
<label>Layer <select id="layer"></select></label>
<div id="heads" role="group" aria-label="Heads"></div>
</div>
<p id="note" aria-live="polite"></p>
<div id="map">
<h2 id="querySide"></h2><h2></h2><h2 id="keySide"></h2>
<div id="queries" class="words"></div>
<canvas id="lines" aria-hidden="true"></canvas>
<div id="keys" class="words"></div>
</div>
<noscript>This page draws with JavaScript; its data is inside the page.</noscript>
<script id="data" type="application/json">$data</script>
<script>
"use strict";
const get = (id) => document.getElementById(id);
const kinds = JSON.parse(get("data").textContent);
for (const kind of kinds) kind.bytes = Uint8Array.from(atob(kind.weights), (c) => c.charCodeAt(0));
const hidden = new Set();
let kind = kinds[0], layer = 0, hovered = null, pinned = null;

const weight = (head, q, k) =>
  kind.bytes[((layer * kind.heads + head) * kind.queries.length + q) * kind.keys.length + k] / 255;
const shownHeads = () => [...Array(kind.heads).keys()].filter((head) => !hidden.has(head));
const active = () => hovered || pinned;
const between = (head, word, other) =>
  word.side === "queries" ? weight(head, word.index, other) : weight(head, other, word.index);

function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
}

function showKind() {
  hovered = pinned = null;
  const former = layer;
  get("layer").replaceChildren();
  for (let i = 0; i < kind.layers; i++) element("option", i + 1 + " of " + kind.layers, get("layer"));
  layer = Math.min(former, kind.layers - 1);
  get("layer").selectedIndex = layer;
  get("querySide").textContent = kind.sides[0] + " (looks at)";
  get("keySide").textContent = kind.sides[1] + " (is looked at)";
  showHeads();
  for (const side of ["queries", "keys"]) {
    get(side).replaceChildren();
    kind[side].forEach((text, index) => addWord(side, text, index));
  }
  draw();
}

function showHeads() {
  const group = get("heads");
  group.replaceChildren();
  for (let head = 0; head < kind.heads; head++) {
    const button = element("button", "", group);
    element("i", "", button).style.background = kind.colours[head];
    button.append(String(head + 1));
    button.setAttribute("aria-label", "head " + (head + 1));
    button.setAttribute("aria-pressed", String(!hidden.has(head)));
    button.onclick = () => {
      hidden.has(head) ? hidden.delete(head) : hidden.add(head);
      button.setAttribute("aria-pressed", String(!hidden.has(head)));
      draw();
    };
  }
  const setAll = (text, hide) => {
    element("button", text, group).onclick = () => {
      for (let head = 0; head < kind.heads; head++) hide ? hidden.add(head) : hidden.delete(head);
      showHeads();
      draw();
    };
  };
  setAll("all", false);
  setAll("none", true);
}

function addWord(side, text, index) {
  const button = element("button", text, get(side));
  const word = { side, index, button };
  button.dir = "auto";
  button.title = text;
  button.setAttribute("aria-pressed", "false");
  const hover = (state) => () => { hovered = state; draw(); };
  button.onmouseenter = button.onfocus = hover(word);
  button.onmouseleave = button.onblur = hover(null);
  button.onclick = () => { pin(pinned && pinned.button === button ? null : word); };
  button.onkeydown = (event) => {
    const same = [...get(side).children], other = [...get(side === "queries" ? "keys" : "queries").children];
    const target = { ArrowUp: same[index - 1], ArrowDown: same[index + 1],
      ArrowLeft: side === "keys" && other[Math.min(index, other.length - 1)],
      ArrowRight: side === "queries" && other[Math.min(index, other.length - 1)] }[event.key];
    if (target) { event.preventDefault(); target.focus(); }
  };
}

function pin(word) {
  if (pinned) pinned.button.setAttribute("aria-pressed", "false");
  pinned = word;
  if (word) word.button.setAttribute("aria-pressed", "true");
  draw();
}

function draw() {
  const heads = shownHeads(), word = active();
  paintWords(heads, word);
  writeNote(heads, word);
  const canvas = get("lines"), context = canvas.getContext("2d");
  const width = canvas.parentElement.children[1].clientWidth || 300;
  const height = Math.max(get("queries").scrollHeight, get("keys").scrollHeight);
  const ratio = Math.min(window.devicePixelRatio || 1, 16000 / height);
  canvas.style.height = height + "px";
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  context.scale(ratio, ratio);
  context.lineWidth = 1.8;
  const middle = (button) => button.offsetTop + button.offsetHeight / 2;
  const left = [...get("queries").children].map(middle), right = [...get("keys").children].map(middle);
  heads.forEach((head, i) => {
    const aside = (i - (heads.length - 1) / 2) * Math.min(2.5, 13 / heads.length);
    context.strokeStyle = kind.colours[head];
    for (let q = 0; q < left.length; q++) for (let k = 0; k < right.length; k++) {
      if (word && word.index !== (word.side === "queries" ? q : k)) continue;
      const opacity = weight(head, q, k);
      if (opacity < 0.01) continue;
      context.globalAlpha = opacity;
      context.beginPath();
      context.moveTo(0, left[q] + aside);
      context.lineTo(width, right[k] + aside);
      context.stroke();
    }
  });
}

function paintWords(heads, word) {
  for (const side of ["queries", "keys"]) [...get(side).children].forEach((button, index) => {
    button.classList.toggle("active", Boolean(word) && word.side === side && word.index === index);
    const stripes = word && word.side !== side ? heads.map((head, i) => {
      const alpha = Math.round(between(head, word, index) * 255).toString(16).padStart(2, "0");
      const stops = [i, i + 1].map((edge) => (100 * edge / heads.length) + "%").join(" ");
      return kind.colours[head] + alpha + " " + stops;
    }) : [];
    const image = "linear-gradient(to right, " + stripes.join(", ") + ")";
    button.style.backgroundImage = stripes.length ? image : "";
  });
}

const quote = (text) => "\\u201c" + text + "\\u201d";

function writeNote(heads, word) {
  if (!word) {
    get("note").textContent = "Hover a word, or move to it with Tab and arrow keys, to see its lines alone; "
      + "click it to keep them.";
    return;
  }
  const others = kind[word.side === "queries" ? "keys" : "queries"].map((text, index) => ({
    text, share: heads.reduce((sum, head) => sum + between(head, word, index), 0) / Math.max(1, heads.length),
  }));
  others.sort((a, b) => b.share - a.share);
  const percent = (other) => quote(other.text) + " " + Math.round(100 * other.share) + " %";
  const list = others.slice(0, 5).map(percent);
  const verb = word.side === "queries" ? " looks at " : " is looked at by ";
  get("note").textContent = quote(kind[word.side][word.index]) + verb + list.join(", ")
    + (others.length > 5 ? ", ..." : "") + " (mean of the heads shown)";
}

for (const one of kinds) element("option", one.name, get("kind"));
layer = Math.max(0, kind.layers - 2);
get("kind").onchange = () => { kind = kinds[get("kind").selectedIndex]; showKind(); };
get("layer").onchange = () => { layer = get("layer").selectedIndex; draw(); };
document.onkeydown = (event) => { if (event.key === "Escape") pin(null); };
window.onresize = draw;
showKind();
</script>
</body>
</html>
"""
