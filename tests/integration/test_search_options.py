"""Commands apply their search options when they translate with an ensemble."""

import pytest
from shortcuts import write_lines

from vaswani_transformer.loading import load_translator
from vaswani_transformer.translation.translator import Translator

SENTENCES = ["the dog runs far away", "the cat and the dog", "cat sleeps", "away runs the dog and the cat"]


@pytest.fixture(scope="module")
def folders(build_translator, tmp_path_factory):
    """Return the folders of two models with the same vocabulary."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
    for folder, d_model in zip(folders, (16, 12), strict=True):
        build_translator(SENTENCES, folder=folder, d_model=d_model)
    return folders


@pytest.fixture
def text(tmp_path):
    """Return the path of a file with `SENTENCES`, one per line."""
    write_lines(tmp_path / "text", SENTENCES)
    return tmp_path / "text"


def test_an_ensemble_writes_a_score_before_each_translation(folders, text, output_of):
    options = "--scores --max_length_offset 3"
    printed = output_of(f"translate --model {folders[0]} --ensemble {folders[1]} --input {text} {options}")
    (one, tokenizer), (other, _) = map(load_translator, folders)
    found = Translator(one, tokenizer, with_scores=True, max_length_offset=3, ensemble=[other])(SENTENCES)
    assert printed == "".join(f"{hypothesis.score:.4f}\t{hypothesis.text}\n" for [hypothesis] in found)


def test_an_ensemble_refuses_a_model_with_another_vocabulary(folders, text, build_translator, tmp_path, error_of):
    build_translator(["quick brown foxes jump over lazy hens"] * 2, folder=tmp_path)
    error = error_of(f"translate --model {folders[0]} --ensemble {folders[1]} {tmp_path} --input {text}")
    message = f"must share one vocabulary, but {tmp_path} and {folders[0]} have different ones: prepare their data with"
    assert message in error


def test_the_printed_scores_name_the_models_and_their_dtype(folders, text, output_of):
    options = "--dtype bfloat16 --num_beams 2 --max_length_offset 3 --tokenize none"
    printed = output_of(f"evaluate --model {folders[0]} --ensemble {folders[1]} --test {text} {text} {options}")
    assert f"no label smoothing, {folders[0]} alone\n" in printed
    assert "search num_beams:2|" in printed
    assert f"|dtype:bfloat16  model {folders[0]} + {folders[1]}  fingerprint " in printed
