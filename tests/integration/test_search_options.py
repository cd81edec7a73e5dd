"""Search options of the command line are applied, with an ensemble too."""

import pytest
from shortcuts import vaswani, write_lines

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
def files(tmp_path):
    """Return the paths of a text and of its translation, which does not exist yet."""
    write_lines(tmp_path / "text", SENTENCES)
    return tmp_path / "text", tmp_path / "out"


def run(command, *arguments):
    return vaswani(command, *arguments, "--max_length_offset", "3")


def test_an_ensemble_writes_a_score_before_each_translation(folders, files):
    text, output = files
    options = ["--ensemble", folders[1], "--scores"]
    assert run("translate", "--model", folders[0], *options, "--input", text, "--output", output) == 0
    (one, tokenizer), (other, _) = map(load_translator, folders)
    found = Translator(one, tokenizer, with_scores=True, max_length_offset=3, ensemble=[other])(SENTENCES)
    expected = "".join(f"{hypothesis.score:.4f}\t{hypothesis.text}\n" for [hypothesis] in found)
    assert output.read_text(encoding="utf-8") == expected


def test_an_ensemble_refuses_a_model_with_another_vocabulary(folders, files, build_translator, tmp_path, capsys):
    other = tmp_path / "other"
    build_translator(["quick brown foxes jump over lazy hens"] * 2, folder=other)
    assert run("translate", "--model", folders[0], "--ensemble", folders[1], other, "--input", files[0]) == 1
    assert (
        f"models of an ensemble must share one vocabulary, but {other} and {folders[0]} have different ones: "
        f"prepare their data with" in capsys.readouterr().err
    )


def test_the_printed_scores_name_the_models_and_their_dtype(folders, files, capsys):
    options = ["--ensemble", folders[1], "--dtype", "bfloat16", "--num_beams", "2", "--tokenize", "none"]
    assert run("evaluate", "--model", folders[0], "--test", files[0], files[0], *options) == 0
    printed = capsys.readouterr().out
    assert f"no label smoothing, {folders[0]} alone\n" in printed
    assert "search num_beams:2|" in printed
    assert f"|dtype:bfloat16  model {folders[0]} + {folders[1]}  fingerprint " in printed
