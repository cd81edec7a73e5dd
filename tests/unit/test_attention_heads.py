"""Attention heads are scored for relations between words. A head is named after the relations with high scores."""

from dataclasses import replace

import numpy as np
import pytest

from vaswani_transformer.attention.heads import FEWEST_PLACES, HeadScore, HeadTally, measure_heads
from vaswani_transformer.attention.maps import MOST_TOKENS, AttentionMaps, collect_attention
from vaswani_transformer.data.phrasebook.pairs import generate_pairs

SOURCE = ["The", "tall", "man", ",", "who", "sees", "the", "dog", "in", "Bonn", ",", "feeds", "the", "cat", ".", "</s>"]
OUTPUT = ["Der", "Mann", ",", "der", "in", "Bonn", "ist", ",", "füttert", "die", "Katze", ".", "</s>"]
TARGET = ["<s>", *OUTPUT[:-1]]
SEPARATORS = {",", ".", "<s>", "</s>"}


def attend_along(links):
    """Return attention (T, S). A row gives 0.9 to its `links` (T, S) and spreads 0.1; without links it spreads all."""
    links = links.astype(float)
    counts = links.sum(axis=1, keepdims=True)
    even = np.full(links.shape, 1 / links.shape[1])
    return np.where(counts > 0, 0.9 * links / np.maximum(counts, 1) + 0.1 * even, even)


def step(length, offset):
    """Return links (length, length) from each word to the word `offset` places later."""
    return np.eye(length, k=offset)


def links_where(queries, keys, is_link):
    """Return links (T, S), True where `is_link(t, s)` is true."""
    return np.array([[is_link(t, s) for s in range(len(keys))] for t in range(len(queries))])


def separators(queries, keys):
    """Return links from all queries to the keys that are separators."""
    return links_where(queries, keys, lambda t, s: keys[s] in SEPARATORS)


def build_maps(encoder=None, cross=None, decoder=None):
    """Return maps of one layer, with a head for each given matrix. By default, one head has evenly spread attention."""
    S, T = len(SOURCE), len(OUTPUT)
    causal = np.tril(1 / np.arange(1, T + 1)[:, None] * np.ones(T))
    encoder = np.stack(encoder or [np.full((S, S), 1 / S)])[None]
    decoder = np.stack(decoder or [causal])[None]
    cross = np.stack(cross or [np.full((T, S), 1 / S)])[None]
    return AttentionMaps(SOURCE, TARGET, encoder, decoder, cross, OUTPUT)


def tally_of(maps, times=FEWEST_PLACES):
    """Return a tally of `maps`, which are added `times` times."""
    tally = HeadTally()
    for _ in range(times):
        tally.add(maps)
    return tally


def first_score(tally, relation, kind):
    """Return the score of `relation` for the first head of the first layer, in the given kind of attention."""
    return next(s for s in tally.scores() if (s.relation, s.kind) == (relation, kind))


# Relations


def assert_named(kind, heads, visible=1):
    """Fail unless each of `heads`, {relation: links}, is named after its relation alone. An equal spread gets no name.

    `visible` (T, T) is 0 where a decoder cannot see.
    """
    even = np.zeros_like(heads["separator"])
    weights = [attend_along(links) * visible for links in (even, *heads.values())]
    maps = build_maps(**{kind: [head / head.sum(axis=1, keepdims=True) for head in weights]})
    named = [score for score in tally_of(maps).scores() if score.kind == kind and score.is_named]
    found = [{score.relation for score in named if score.head == head} for head in range(len(weights))]
    assert found == [set(), *({name} for name in heads)]


def test_each_head_of_the_encoder_is_named_after_its_relation():
    S = len(SOURCE)
    folded = [word.lower() if word not in SEPARATORS else t for t, word in enumerate(SOURCE)]
    heads = {
        "previous word": step(S, -1),
        "next word": step(S, 1),
        "itself": step(S, 0),
        "same word": links_where(SOURCE, SOURCE, lambda t, s: t != s and folded[t] == folded[s]),
        "separator": separators(SOURCE, SOURCE),
        "long distance": links_where(SOURCE, SOURCE, lambda t, s: abs(t - s) > 5 and SOURCE[s] not in SEPARATORS),
    }
    assert_named("encoder", heads)


def test_each_head_of_the_decoder_is_named_after_its_relation():
    T = len(TARGET)
    causal = np.tril(np.ones((T, T), dtype=bool))
    heads = {
        "previous word": step(T, -1),
        "itself": step(T, 0),
        "same word": links_where(TARGET, TARGET, lambda t, s: t > s and TARGET[t].lower() == TARGET[s].lower() != ","),
        "separator": separators(TARGET, TARGET) & causal,
        "long distance": links_where(TARGET, TARGET, lambda t, s: t - s > 5 and TARGET[s] not in SEPARATORS),
    }
    assert_named("decoder", heads, visible=causal)


def test_each_encoder_decoder_head_is_named_after_its_relation():
    T, S = len(OUTPUT), len(SOURCE)
    words = [s for s in range(S) if SOURCE[s] not in SEPARATORS]
    backwards = dict(zip([t for t in range(T) if OUTPUT[t] not in SEPARATORS], reversed(words), strict=False))
    heads = {
        "alignment": links_where(OUTPUT, SOURCE, lambda t, s: backwards.get(t) == s),
        "copy": links_where(OUTPUT, SOURCE, lambda t, s: OUTPUT[t] == SOURCE[s] in ("in", "Bonn")),
        "diagonal": links_where(OUTPUT, SOURCE, lambda t, s: abs(s - t * (S - 1) / (T - 1)) < 1.5),
        "separator": separators(OUTPUT, SOURCE),
    }
    assert_named("cross", heads)


def test_attention_of_all_words_to_one_word_is_no_alignment():
    links = links_where(OUTPUT, SOURCE, lambda t, s: SOURCE[s] == "dog")
    score = first_score(tally_of(build_maps(cross=[attend_along(links)])), "alignment", "cross")
    # An aligned word has the greatest weight in both directions. All nine words give "dog" the same weight, so only the
    # first of them is aligned. But the mean is over all nine words, so the share is a ninth of that weight.
    assert score.share == pytest.approx((0.9 + 0.1 / len(SOURCE)) / 9)


# Shares of attention, compared with those of evenly spread attention


def test_the_fields_of_a_score_follow_their_definitions():
    encoder = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]])[None, None]
    ones = np.ones((1, 1, 1, 1))
    maps = AttentionMaps(["a", "b", "c"], ["<s>"], encoder, ones, encoder[:, :, :1], ["</s>"])
    score = first_score(tally_of(maps, times=3), "previous word", "encoder")
    assert (score.share, score.uniform, score.places) == (pytest.approx(0.7), pytest.approx(1 / 3), 6)
    assert score.score == pytest.approx((0.7 - 1 / 3) / (2 / 3))


def test_share_and_uniform_are_summed_over_the_sub_words_of_a_word():
    encoder = np.array([[0.1, 0.2, 0.3, 0.4]] * 4)[None, None]
    words = {"source": [("house", 3), (".", 1)], "target": [("<s>", 1)], "output": [("Haus", 1)]}
    ones = np.ones((1, 1, 1, 1))
    maps = AttentionMaps(["ho", "·u", "·se", "."], ["<s>"], encoder, ones, encoder[:, :, :1], ["Haus"], words)
    score = first_score(tally_of(maps, times=1), "previous word", "encoder")
    assert (score.share, score.uniform, score.places) == (pytest.approx(0.6), pytest.approx(0.75), 1)


def test_even_attention_of_a_decoder_word_covers_only_visible_words():
    score = first_score(tally_of(build_maps(), times=1), "previous word", "decoder")
    num_visible = np.arange(2, len(TARGET) + 1)
    assert score.uniform == score.share == pytest.approx(np.mean(1 / num_visible))
    # The first word sees only itself, so it is not counted.
    assert first_score(tally_of(build_maps(), times=1), "itself", "decoder").places == len(TARGET) - 1


def test_even_attention_of_an_encoder_word_covers_only_the_neighbours_in_its_window():
    S = len(SOURCE)
    near = abs(np.arange(S)[:, None] - np.arange(S)) <= 1
    maps = build_maps(encoder=[near / near.sum(axis=1, keepdims=True)])
    assert first_score(tally_of(maps), "previous word", "encoder").score == pytest.approx(0)
    assert first_score(tally_of(maps), "long distance", "encoder").share == 0


@pytest.mark.parametrize(("relation", "threshold"), [("itself", 0.3), ("separator", 0.6)])
def test_a_head_is_named_if_it_reaches_the_threshold_of_its_relation_at_enough_places(relation, threshold):
    cases = [(threshold, FEWEST_PLACES), (threshold - 0.01, FEWEST_PLACES), (threshold, FEWEST_PLACES - 1)]
    scores = [HeadScore(relation, "encoder", 0, 0, share, 0.0, places) for share, places in cases]
    assert [score.is_named for score in scores] == [True, False, False]


# Measuring


@pytest.fixture(scope="module")
def pairs():
    return list(generate_pairs(split="dev", num_pairs=60))


@pytest.fixture(scope="module")
def translator(build_translator, pairs):
    texts = [text for pair in pairs for text in pair]
    return build_translator(texts, vocab_size=400, encoder_layers=2, decoder_layers=3)


def test_head_scores_do_not_depend_on_batches(pairs, translator):
    one_by_one = HeadTally()
    for pair in pairs:
        one_by_one.add(collect_attention(*translator, *pair))
    measured = measure_heads(*translator, iter(pairs))
    for in_batches, alone in zip(measured.scores(), one_by_one.scores(), strict=True):
        assert replace(in_batches, share=0, uniform=0) == replace(alone, share=0, uniform=0)
        assert (in_batches.share, in_batches.uniform) == pytest.approx((alone.share, alone.uniform), abs=1e-5)


def test_empty_and_too_long_pairs_are_left_out_and_counted(pairs, translator):
    long = "a " * MOST_TOKENS
    tally = measure_heads(*translator, [(" ", "b"), ("a", ""), (long, "b"), ("a", long), *pairs[:3]])
    assert (tally.num_sentences, tally.num_left_out) == (3, 4)
