"""Attention maps, their drawings, and the page that shows them."""

import base64
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
import torch

from vaswani_transformer.attention import VIEWS
from vaswani_transformer.attention import maps as attention_maps
from vaswani_transformer.attention.alignment import find_alignment_head
from vaswani_transformer.attention.drawing import draw_attention, draw_figures, draw_layer, save_figure
from vaswani_transformer.attention.maps import AttentionMaps, collect_attention, collect_attention_batch
from vaswani_transformer.attention.page import build_html, head_colours
from vaswani_transformer.attention.words import CONTINUATION, choose_reader, split_words
from vaswani_transformer.conversion.fairseq_dictionary import build_tokenizer

SOURCE = ["The", "law", "will", "<script>alert(1)</script>", "$x$", ".", "</s>"]
TARGET = ["<s>", "Das", "Gesetz", "wird", "&amp;"]
OUTPUT = ["Das", "Gesetz", "wird", "&amp;", "</s>"]
TEXTS = ["The law will never be perfect.", "Das Gesetz wird nie vollkommen sein.", "a house, a garden"] * 3


def random_rows(*shape):
    """Return random attention weights of `shape`. All are positive, and each row sums to 1."""
    weights = np.random.default_rng(0).random(shape) ** 4 + 1e-3
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.fixture
def maps():
    return AttentionMaps(
        source_tokens=SOURCE,
        target_tokens=TARGET,
        output_tokens=OUTPUT,
        encoder=random_rows(3, 4, 7, 7),
        decoder=random_rows(2, 4, 5, 5),
        cross=random_rows(2, 4, 5, 7),
    )


@pytest.fixture
def translator(build_translator):
    return build_translator(TEXTS, vocab_size=300, d_model=12, num_heads=3, encoder_layers=2, decoder_layers=4)


# Maps


def test_merging_sub_words_into_words_sums_over_keys_and_averages_over_queries():
    encoder = random_rows(1, 2, 3, 3)
    maps = AttentionMaps(
        source_tokens=["ho", "·use", "."],
        target_tokens=["<s>"],
        output_tokens=["Haus"],
        encoder=encoder,
        decoder=np.ones((1, 2, 1, 1)),
        cross=random_rows(1, 2, 1, 3),
        words={"source": [("house", 2), (".", 1)], "target": [("<s>", 1)], "output": [("Haus", 1)]},
    )
    merged = maps.by_words()
    assert merged.encoder[0, 1, 0, 0] == pytest.approx(encoder[0, 1, :2, :2].sum() / 2)
    assert merged.cross[0, 0, 0].tolist() == pytest.approx([maps.cross[0, 0, 0, :2].sum(), maps.cross[0, 0, 0, 2]])


# Collecting


def test_a_given_translation_yields_the_weights_of_every_layer(translator):
    maps = collect_attention(*translator, "The law", "Das Gesetz wird")
    source = len(maps.source_tokens)
    target = len(maps.target_tokens)
    assert maps.encoder.shape == (2, 3, source, source)
    assert maps.decoder.shape == (4, 3, target, target)
    assert maps.cross.shape == (4, 3, target, source)
    for kind in ("encoder", "decoder", "cross"):
        np.testing.assert_allclose(maps.view(kind)[2].sum(axis=-1), 1, atol=1e-5)
    assert not np.triu(maps.decoder, 1).any()
    words = maps.by_words()
    assert words.view("decoder")[:2] == (["<s>", "Das", "Gesetz", "wird"],) * 2
    assert words.view("cross")[:2] == (["Das", "Gesetz", "wird", "</s>"], ["The", "law", "</s>"])
    assert words.view("alignment")[:2] == (["<s>", "Das", "Gesetz", "wird"], ["The", "law", "</s>"])


@pytest.mark.parametrize("end", [["</s>", "<pad>", "</s>"], []])
def test_a_translation_ends_with_its_end_token_or_at_its_limit(translator, monkeypatch, end):
    model, tokenizer = translator
    tokens = ["<s>", *tokenizer.tokenize("Das Gesetz"), *end]
    generated = torch.tensor([tokenizer.convert_tokens_to_ids(tokens)])
    monkeypatch.setattr(model, "generate", lambda **kwargs: generated)
    assert collect_attention(model, tokenizer, "The law").by_words().output_tokens == ["Das", "Gesetz", *end[:1]]


@pytest.mark.parametrize("has_targets", [True, False])
def test_a_batch_gives_the_maps_of_single_sentences(translator, has_targets):
    model, tokenizer = translator
    model.generation_config.max_length_offset = 3
    sources = ["The law", "The law will never be perfect.", "a"]
    targets = ["Das Gesetz wird", "Das", "nie vollkommen"] if has_targets else [None] * 3
    source_ids = tokenizer(sources).input_ids
    target_ids = tokenizer(text_target=targets).input_ids if has_targets else None
    batch = collect_attention_batch(model, tokenizer, source_ids, target_ids)
    for in_batch, source, target in zip(batch, sources, targets, strict=True):
        alone = collect_attention(model, tokenizer, source, target)
        assert in_batch.words == alone.words
        assert in_batch.output_tokens == alone.output_tokens
        for kind in ("encoder", "decoder", "cross"):
            np.testing.assert_allclose(in_batch.view(kind)[2], alone.view(kind)[2], atol=1e-6)


def test_collecting_maps_uses_no_dropout_and_leaves_the_settings_of_the_model_unchanged(translator, monkeypatch):
    model, tokenizer = translator
    expected = collect_attention(model, tokenizer, "The law", "Das Gesetz")
    model.train()
    model.model.encoder.eval()
    actual = collect_attention(model, tokenizer, "The law", "Das Gesetz")
    np.testing.assert_array_equal(actual.cross, expected.cross)
    monkeypatch.setattr(model, "forward", lambda **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collect_attention(model, tokenizer, "The law", "Das Gesetz")
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert not model.model.encoder.layers[0].training


def test_sub_words_that_continue_a_word_carry_the_continuation_mark(translator):
    maps = collect_attention(*translator, "The zebra, gone.", "Das")
    pieces = maps.source_tokens
    # The vocabulary has no token that begins with a space and "z" or "g". So each of the two spaces is a token of its
    # own, shown as ␣.
    assert "".join(pieces).replace(CONTINUATION, "") == "The␣zebra,␣gone.</s>"
    assert sum(not piece.startswith(CONTINUATION) for piece in pieces) == 6
    assert maps.by_words().source_tokens == ["The", "zebra", ",", "gone", ".", "</s>"]


def test_bytes_of_a_split_character_are_shown_as_escapes_and_a_typed_special_token_is_split_like_text(translator):
    maps = collect_attention(*translator, "你 a\t</s> Ärger", "Das")
    assert "".join(maps.source_tokens[:4]).replace(CONTINUATION, "").replace("␣", "") == r"\xe4\xbd\xa0"
    assert maps.by_words().source_tokens == ["你", "a", "</", "s", ">", "Ärger", "</s>"]


def test_sub_words_of_sentencepiece_and_fairseq_are_joined_into_words():
    read = choose_reader(SimpleNamespace(get_vocab=lambda: {"▁ä": 0, "pfel": 1}))
    assert split_words(["▁ä", "pfel", "</s>", "▁b"], [0, 0, 1, 0], read) == (
        ["ä", "·pfel", "</s>", "b"],
        [("äpfel", 2), ("</s>", 1), ("b", 1)],
    )
    read = choose_reader(build_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "the", "ba@@", "rks", "."]))
    assert split_words(["the", "ba@@", "rks", "."], [0] * 4, read) == (
        ["the", "ba", "·rks", "."],
        [("the", 1), ("barks", 2), (".", 1)],
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_sentence_that_is_too_long_or_blank_is_refused_before_the_model_reads_it(translator, side, monkeypatch):
    model, tokenizer = translator
    texts = {"source": "The law", "target": "The law"}
    num_tokens = len(tokenizer("The law").input_ids)
    monkeypatch.setattr(attention_maps, "MOST_TOKENS", num_tokens)
    assert len(collect_attention(model, tokenizer, **texts).source_tokens) == num_tokens
    with pytest.raises(
        ValueError, match=f"sentences of up to {num_tokens} tokens, .* got {num_tokens + 1} tokens: shorten"
    ):
        collect_attention(None, tokenizer, **texts | {side: "The law law"})
    with pytest.raises(ValueError, match="the sentence to draw has no words"):
        collect_attention(None, tokenizer, " ")


# Drawing


def drawn_lines(figure):
    """Return the collections of lines in a figure, without empty ones."""
    return [collection for collection in figure.axes[0].collections if len(collection.get_segments())]


def test_a_line_has_the_colour_of_its_head_and_its_weight_as_opacity():
    from matplotlib.colors import to_hex

    weights = np.array([[[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]] * 4)
    lines = drawn_lines(draw_attention(["a", "b"], ["x", "y", "z"], weights, heads=[3, 1]))
    assert sorted(lines[0].get_colors()[:, 3].tolist()) == [0.25, 0.75, 1.0]
    assert [to_hex(head_lines.get_colors()[0]) for head_lines in lines] == [head_colours(4)[3], head_colours(4)[1]]


def test_a_single_query_can_be_drawn():
    axes = draw_attention(["a", "b"], ["x", "y"], random_rows(2, 2, 2), query_word=1).axes[0]
    assert [len(lines.get_segments()) for lines in drawn_lines(axes.figure)] == [2, 2]
    assert len(axes.patches) == 2 * 2  # Each of 2 heads has a cell for each of 2 keys.
    [top] = axes.child_axes
    labels = {label.get_text(): label for label in top.get_xticklabels()}
    assert labels["a"].get_color() == "#8a8a8a" != labels["b"].get_color()
    assert labels["a"].get_bbox_patch() is None is not labels["b"].get_bbox_patch()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1", "2"]
    with pytest.raises(IndexError):
        draw_attention(["a", "b"], ["x", "y"], random_rows(2, 2, 2), query_word=2)


def test_words_are_black_on_white_in_a_dark_style(tmp_path):
    from matplotlib import image, style

    with style.context("dark_background"):
        figure = draw_attention(["a"], ["x"], np.zeros((1, 1, 1)), title="t")
        pixels = image.imread(save_figure(figure, tmp_path / "a.png"))
    axes = figure.axes[0]
    labels = [*axes.get_xticklabels(), *axes.child_axes[0].get_xticklabels(), *axes.get_legend().get_texts()]
    assert {label.get_color() for label in labels} == {"black"}
    assert (pixels[0, 0] == 1).all()


def test_markup_in_words_and_titles_is_drawn_as_plain_text(tmp_path):
    words = ["$x^2$", "<b>", r"\frac", "a & b"]
    path = save_figure(draw_attention(words, words, random_rows(1, 4, 4), title="$\\bad"), tmp_path / "deep" / "a.svg")
    texts = [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert {"$x^2$", "<b>", r"\frac", "a & b", "$\\bad"} <= set(texts)


def test_the_figures_of_the_paper_are_reproducible(maps, tmp_path):
    first = draw_figures(maps, tmp_path / "first")
    second = draw_figures(maps, tmp_path / "second")
    names = ["figure3", "figure4_full", "figure4_word", "figure5_first", "figure5_second"]
    assert [path.name for path in first] == [f"attention_{name}.{s}" for name in names for s in ("svg", "png")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_figure_3_shows_the_word_with_the_longest_link_in_the_next_to_last_layer(tmp_path):
    words = ["making", "it", "more", "difficult", "!", "</s>"]
    encoder = np.tile(np.eye(6), (3, 2, 1, 1))
    encoder[1, :, 2] = np.eye(6)[5]  # does not count: </s> is a special token
    encoder[1, 1, 0] = np.eye(6)[3]
    encoder[2, 0, 3] = np.eye(6)[0]  # does not count: this is the last layer
    maps = AttentionMaps(words, [], encoder, None, None, [])
    svg = draw_figures(maps, tmp_path)[0].read_text(encoding="utf-8")
    assert 'layer 2 of 3, all heads, from "making"' in svg


def test_figure_5_prefers_heads_whose_links_have_no_fixed_distance(tmp_path):
    words = list("abcdef")
    previous = np.eye(6)[[0, 0, 1, 2, 3, 4]]
    nested = np.eye(6)[[5, 2, 1, 4, 3, 0]]
    uniform = np.full((6, 6), 1 / 6)
    encoder = np.stack([previous, nested, uniform, nested[::-1]])[None]
    maps = AttentionMaps(words, [], encoder, None, None, [])
    first, second = (path for path in draw_figures(maps, tmp_path) if re.search(r"figure5.*svg", path.name))
    assert "layer 1 of 1, head 2" in first.read_text(encoding="utf-8")
    assert "layer 1 of 1, head 4" in second.read_text(encoding="utf-8")
    [of_word] = tmp_path.glob("*figure4_word.svg")
    assert re.search(r"layer 1 of 1, heads \d, \d, from", of_word.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("view", "name", "title"),
    [
        ({}, "encoder_layer2", "Encoder self-attention, layer 2 of 3, all heads"),
        (
            {"kind": "cross", "layer": 1, "heads": [1, 3], "word": "</s>"},
            "cross_layer2_head2_4_word5",
            'Encoder-decoder attention, layer 2 of 2, heads 2, 4, from "&lt;/s&gt;"',
        ),
    ],
)
def test_kind_layer_heads_and_word_of_a_drawing_can_be_chosen(maps, tmp_path, view, name, title):
    paths = draw_layer(maps, tmp_path, **view)
    assert [path.name for path in paths] == [f"attention_{name}.svg", f"attention_{name}.png"]
    assert f">{title}</text>" in paths[0].read_text(encoding="utf-8")


def test_the_format_of_a_picture_and_the_resolution_of_a_png_can_be_chosen(maps, tmp_path):
    widths = []
    for dpi in ("figure", 300):
        with matplotlib.rc_context({"savefig.dpi": dpi}):
            [path] = draw_layer(maps, tmp_path, formats=["png"])
        widths.append(matplotlib.image.imread(path).shape[1])
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)


def test_drawing_a_missing_word_is_refused(maps, tmp_path):
    with pytest.raises(ValueError, match="the sentence has no word 'cat' to draw: choose one of "):
        draw_layer(maps, tmp_path, word="cat")


# The page


class Page(HTMLParser):
    """A parsed page.

    `attributes` lists (tag, name, value) for each attribute. `texts` holds the text of each element under its tag + id,
    such as "scriptdata". `kinds` holds the data of each kind of attention, which the page stores as JSON.
    """

    def __init__(self, page):
        super().__init__()
        self.attributes = []
        self.texts = {}
        self.open = None
        self.feed(page)
        self.kinds = json.loads(self.texts["scriptdata"])

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        self.open = tag + dict(attrs).get("id", "")

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.texts[self.open] = self.texts.get(self.open, "") + data


def test_a_sentence_with_markup_stays_text_on_a_page_that_loads_nothing(maps):
    title = "</title><script>alert('$data')</script>"
    text = build_html(maps, title)
    page = Page(text)
    encoder, _, cross, _ = page.kinds
    assert encoder["keys"] == SOURCE
    assert cross["queries"] == OUTPUT
    assert page.texts["title"] == page.texts["h1"] == title
    assert "script" in page.texts
    assert "alert" not in page.texts["script"]
    assert not [a for a in page.attributes if a[1] in ("src", "href", "action", "data", "srcset")]
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(", text)
    assert "default-src 'none'" in text


def test_the_page_stores_every_weight_to_within_half_an_8_bit_step(maps):
    for kind, data in zip(VIEWS, Page(build_html(maps)).kinds, strict=True):
        expected = maps.view(kind)[2]
        weights = np.frombuffer(base64.b64decode(data["weights"]), dtype=np.uint8).reshape(expected.shape) / 255
        np.testing.assert_allclose(weights, expected, atol=0.5 / 255 + 1e-9)
        assert (data["layers"], data["heads"]) == expected.shape[:2]
        assert data["colours"] == head_colours(4)


@pytest.mark.parametrize(
    ("view", "kind", "layer", "heads"),
    [
        ({}, 0, 1, [2]),
        ({"kind": "cross"}, 2, 0, [1]),
        ({"kind": "alignment", "layer": 1, "heads": [0, 3]}, 3, 1, [0, 3]),
    ],
)
def test_the_page_opens_on_the_head_with_the_strongest_links_or_on_the_requested_heads(maps, view, kind, layer, heads):
    maps.encoder[1, 2, 0, 1] = maps.cross[0, 1, 0, 1] = 3.0
    opening = json.loads(Page(build_html(maps, **view)).texts["scriptopening"])
    assert opening == {"kind": kind, "layer": layer, "heads": heads, "word": None}


def test_the_page_opens_on_a_requested_word_with_all_heads_or_the_requested_ones(maps):
    place = maps.by_words().source_tokens.index("</s>")
    for heads, shown in ((None, [0, 1, 2, 3]), ([2], [2])):
        opening = json.loads(Page(build_html(maps, layer=0, heads=heads, word="</s>")).texts["scriptopening"])
        assert opening == {"kind": 0, "layer": 0, "heads": shown, "word": place}


def test_self_attention_links_join_different_words(maps):
    links = maps.word_links("encoder", 2)
    assert links[3, 0, 1] == maps.encoder[2, 3, 0, 1] ** 2
    assert not links[:, [0, 5, 6], [0, 1, 1]].any()  # no link from a word to itself, or from "." and "</s>"
    assert maps.word_links("cross", 0)[:, 0, 0].all()


def test_the_alignment_head_is_the_first_of_alignment_heads_or_else_the_head_with_most_links(translator):
    model, _ = translator
    cross = np.full((2, 3, 3, 3), 1 / 3)
    cross[1, 2] = [[0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]]
    maps = AttentionMaps(["a", "b", "</s>"], ["<s>", "b", "a"], None, None, cross, ["b", "a", "."])
    assert find_alignment_head(model, maps) == (1, 2)
    model.generation_config.alignment_heads = [[0, 1], [1, 0]]
    assert find_alignment_head(model, maps) == (0, 1)


def test_the_page_shows_words(translator):
    maps = collect_attention(*translator, "The zebra", "Das")
    assert Page(build_html(maps)).kinds[0]["keys"] == ["The", "zebra", "</s>"]
