"""Word alignments: computed from given attention and from batches, and compared with alignments made by hand."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shortcuts import vaswani

from vaswani_transformer.attention import alignment
from vaswani_transformer.attention.alignment import align, attend_words, format_links, link_words, parse_links

LINKS = st.sets(st.tuples(st.integers(0, 40), st.integers(0, 40)))
PAIRS = [
    ("the dog runs .", "the dog runs ."),
    ("", "the dog"),
    ("the", ""),
    ("dog  runs the\u00a0dog .", "runs . ."),
    ("the\u3000dog runs\u0085the .", "\tthe dog "),
    ("the dog runs . " * 5, "the"),
]


@pytest.fixture
def translator(build_translator):
    return build_translator(["the dog runs ."] * 3)


def test_a_link_joins_two_words_whose_share_of_attention_is_greatest_for_both(monkeypatch, translator):
    model, tokenizer = translator
    weights = np.zeros((2, 1, 3, 3))  # layer 1 keeps weights of 0, so it has no links
    # Rows are target words, columns are source words, and a link is (source word, target word). A share is a weight
    # divided by the sum of its column and 1/3. Target word 2 gives most, 0.4, to source word 2, but 0.4 / 1.83 is a
    # share of only 0.22. For source word 1 it has a share of 0.3 / 0.83 = 0.36, so these two words are linked.
    weights[0, 0] = [[0.1, 0.1, 0.7], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]
    monkeypatch.setattr(alignment, "attend_words", lambda model, tokenizer, pairs: iter([weights] * len(list(pairs))))
    model.generation_config.alignment_heads = [[0, 0]]
    assert list(align(model, tokenizer, PAIRS[:1])) == [{(2, 0), (0, 1), (1, 2)}]
    del model.generation_config.alignment_heads
    with pytest.warns(UserWarning, match=r"alignment_heads; using \[\[0, 0\]\]"):
        assert list(align(model, tokenizer, PAIRS[:2])) == [{(2, 0), (0, 1), (1, 2)}] * 2


@pytest.mark.parametrize(
    ("weights", "links"),
    [
        ([[0.1, 0.7, 0.2]], {(1, 0)}),
        ([[0.1, 0.7, 0.2, 0], [0, 0.001, 0, 0.9]], {(1, 0), (3, 1)}),
    ],
)
def test_a_word_is_linked_by_its_attention_where_no_other_word_competes(weights, links):
    assert {(source, target) for target, source in np.argwhere(link_words(np.array(weights)))} == links


def test_attention_between_words_does_not_depend_on_the_batch(translator):
    together = list(attend_words(*translator, PAIRS))
    for pair, weights in zip(PAIRS, together, strict=True):
        num_words = [len([word for word in side.replace("\t", " ").split(" ") if word]) for side in pair]
        assert weights.shape[2:] == (num_words[1], num_words[0])
        (alone,) = attend_words(*translator, [pair])
        np.testing.assert_allclose(weights, alone, atol=1e-6)


def test_words_beyond_the_limit_have_no_weight_and_a_warning_counts_the_cut_pairs(monkeypatch, translator):
    model, tokenizer = translator
    monkeypatch.setattr(alignment, "MOST_TOKENS", len(tokenizer("the dog").input_ids))
    with pytest.warns(UserWarning, match=r"per side: 1\. Split them"):
        long, short = attend_words(model, tokenizer, [("the dog runs .", "the"), ("the dog", "the")])
    np.testing.assert_allclose(long[..., :2], short, atol=1e-6)
    assert not long[..., 2:].any()


@given(LINKS)
def test_written_links_can_be_read_back(links):
    assert parse_links(format_links(links)) == links


@pytest.mark.parametrize("line", ["0?0", "a-b", "1-2-3", "0-0 1", "0--1", "\u0661-1", "0-0\u00a01-1"])
def test_a_line_with_anything_but_links_is_refused(line):
    with pytest.raises(ValueError, match="is not a link: write i-j"):
        parse_links(line)


def test_align_writes_links_and_rates_them_by_a_gold_file_or_names_a_wrong_line(bundled_model, tmp_path, capsys):
    source, output, links = (tmp_path / name for name in ("source", "output", "links.gz"))
    source.write_text("I am Tom.\n\nWhen did you buy the red car?\n")
    vaswani(f"translate --model {bundled_model} --input {source} --output {output}")
    align = f"align --model {bundled_model} --source {source} --target {output}"
    vaswani(f"{align} --output {links}")
    assert gzip.decompress(links.read_bytes()).decode() == "0-0 1-1 2-2\n\n0-0 1-1 2-2 3-6 4-3 5-4 6-5\n"
    gold = tmp_path / "gold"
    gold.write_text("0-0 1-1\n\n0-0 1-1 2-2 3-6 4-3 5-4 6-5\n")
    command = f"{align} --gold {gold}"
    vaswani(command)
    assert "alignment error rate 0.053  precision 0.900  recall 1.000" in capsys.readouterr().err
    gold.write_text("0-0\n\n0?0\n")
    vaswani(command, status=1)
    assert f"{gold}, line 3: '0?0' is not a link" in capsys.readouterr().err


def test_the_bundled_model_aligns_with_a_low_error_rate(bundled_model, data_folder, capsys):
    dev = data_folder / "alignment_de_en/dev"
    vaswani(f"align --model {bundled_model} --source {dev}.en --target {dev}.de --gold {dev}.gold.en-de")
    assert float(capsys.readouterr().err.split("error rate ")[1].split()[0]) < 0.18
