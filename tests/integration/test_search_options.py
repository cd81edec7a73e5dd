"""Options of the command line apply to the search, also with an ensemble."""

import pytest
import torch
from shortcuts import vaswani

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, train_tokenizer
from vaswani_transformer.loading import load_translator
from vaswani_transformer.translation.translator import Translator

SENTENCES = ["the dog runs far away", "the cat and the dog", "cat sleeps", "away runs the dog and the cat"]
TOKENIZER = train_tokenizer(SENTENCES, vocab_size=290)


def save_model(folder, *, seed, tokenizer=TOKENIZER, **sizes):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1} | sizes
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=290, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of two models with the same vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return save_model(folder / "one", seed=1), save_model(folder / "other", seed=2, d_model=12)


@pytest.fixture
def files(tmp_path):
    """The paths of a text and of its translation, which does not exist yet."""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in SENTENCES))
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


def test_an_ensemble_refuses_a_model_with_another_vocabulary(folders, files, tmp_path, capsys):
    other_tokenizer = train_tokenizer(["quick brown foxes jump over lazy hens"] * 2, vocab_size=290)
    other = save_model(tmp_path / "other", seed=3, tokenizer=other_tokenizer)
    assert run("translate", "--model", folders[0], "--ensemble", folders[1], other, "--input", files[0]) == 1
    assert (
        f"models of an ensemble must share one vocabulary, but {other} and {folders[0]} have different ones: "
        f"prepare their data with" in capsys.readouterr().err
    )


def test_an_interrupted_translation_is_not_resumed_with_other_models(folders, files, monkeypatch, capsys):
    def die(translator, batch):
        raise MemoryError("no room")

    command = ["translate", "--model", folders[0], "--input", files[0], "--output", files[1], "--ensemble", folders[1]]
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", die)
        assert run(*command) == 1
    assert run(*command[:-1], folders[0]) == 1
    assert "other settings: ensemble was [" in capsys.readouterr().err
    assert run(*command) == 0


def test_a_score_names_its_models_and_dtype(folders, files, capsys):
    options = ["--ensemble", folders[1], "--dtype", "bfloat16", "--num_beams", "2", "--tokenize", "none"]
    assert run("evaluate", "--model", folders[0], "--test", files[0], files[0], *options) == 0
    printed = capsys.readouterr().out
    assert f"no label smoothing, {folders[0]} alone\n" in printed
    assert "search num_beams:2|" in printed
    assert f"|dtype:bfloat16  model {folders[0]} + {folders[1]}  fingerprint " in printed
