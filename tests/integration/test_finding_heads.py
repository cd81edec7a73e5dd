"""`vaswani heads` scores the heads of a model, and `vaswani attention` refuses heads that the model does not have."""

import pytest
from shortcuts import write_lines

from vaswani_transformer.attention.heads import RELATIONS
from vaswani_transformer.data.phrasebook.pairs import generate_pairs


@pytest.fixture(scope="module")
def pairs():
    return [("-- It's <b>late</b>, isn't it?", "-- Es ist spät."), *generate_pairs(split="dev", num_pairs=40)]


@pytest.fixture(scope="module")
def untrained(build_translator, tmp_path_factory, pairs):
    """Return a folder with an untrained model."""
    folder = tmp_path_factory.mktemp("untrained")
    texts = [text for pair in pairs for text in pair]
    build_translator(texts, vocab_size=400, folder=folder, d_model=32, d_ff=64, encoder_layers=2)
    return folder


@pytest.fixture
def files(tmp_path, pairs):
    """Return options that name files of sentences and of translations. The second line of each file is empty."""
    sources, targets = zip(pairs[0], ("", ""), *pairs[1:], strict=True)
    write_lines(tmp_path / "source", sources)
    write_lines(tmp_path / "target", targets)
    return f"--source {tmp_path}/source --target {tmp_path}/target"


def test_heads_of_an_untrained_model_get_scores_but_reach_no_threshold(untrained, files, output_of):
    printed = output_of(f"heads --model {untrained} {files}")
    assert "source: measured 41, left out 1 (empty or longer than 512 tokens)" in printed
    for relation, (threshold, definition) in RELATIONS.items():
        assert f"{relation:13}  {threshold}  {definition}" in printed
    assert printed.count("layer 1 head 4") == 3
    assert printed.count("layer 2 head 4") == 1  # only the encoder has a second layer
    assert "*" not in printed.replace("* if it reaches the threshold", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind cross --layer 2", "Encoder-decoder attention has no layer 2: choose a number from 1 to 1"),
        ("--heads 1 5", "has no head 5: choose a number from 1 to 4"),
    ],
)
def test_a_layer_or_head_that_the_model_does_not_have_is_refused(untrained, tmp_path, options, message, error_of):
    command = f"attention --model {untrained} --source 'a dog' --target 'ein Hund' --output {tmp_path}"
    assert message in error_of(f"{command} {options}")


def test_a_sentence_of_a_wrong_encoding_is_refused_before_the_model_is_loaded(tmp_path, error_of):
    # Python reads the byte 0xFC, which is no UTF-8, in an argument as \udcfc.
    command = f"attention --model {tmp_path} --source 'a dog' --target 'gr\udcfcn' --output {tmp_path}"
    assert "half of a surrogate pair" in error_of(command)
