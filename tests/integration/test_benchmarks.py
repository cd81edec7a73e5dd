"""The benchmark programs run from end to end, and what they compare is the same model."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.tokenization_vaswani import train_tokenizer

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = {"vocab_size": 300, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 1}
SOURCES = ["a dog runs .", "two men stand at the river and fish .", "she reads .", "a child eats an apple ."]
TARGETS = ["ein hund rennt .", "zwei männer stehen am fluss und angeln .", "sie liest .", "ein kind isst ."]


@pytest.fixture
def common(monkeypatch):
    """The module that the programs share, and a size small enough for tests."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import benchmark_common

    monkeypatch.setitem(benchmark_common.SIZES, "tiny", TINY)
    return benchmark_common


@pytest.fixture
def corpus(tmp_path):
    for language, sentences in (("en", SOURCES), ("de", TARGETS)):
        (tmp_path / f"text.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return tmp_path


def build_pair(common, **options):
    """A model whose every weight counts, and its twin."""
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**TINY | options)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    marian = common.build_marian(model.config).eval()
    common.copy_weights(model, marian)
    return model, marian


@pytest.mark.parametrize(
    "options",
    [
        {"position_layout": "concatenated"},
        {"position_layout": "interleaved"},
        {"attention_bias": True, "output_bias": True},
    ],
)
def test_marian_with_copied_weights_has_our_logits(common, options):
    model, marian = build_pair(common, **options)
    input_ids = torch.randint(3, 300, (3, 9))
    input_ids[1, 6:] = model.config.pad_token_id
    batch = {
        "input_ids": input_ids,
        "attention_mask": (input_ids != model.config.pad_token_id).long(),
        "decoder_input_ids": torch.randint(3, 300, (3, 7)),
    }
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, marian(**batch).logits, atol=1e-4, rtol=0)


def test_marian_with_copied_weights_has_our_loss_and_gradients(common):
    import benchmark_training

    model, marian = build_pair(common, dropout=0.0)
    labels = torch.randint(3, 300, (2, 6))
    labels[1, 4:] = -100
    batch = {
        "input_ids": torch.randint(3, 300, (2, 5)),
        "attention_mask": torch.ones(2, 5, dtype=torch.long),
        "labels": labels,
    }
    ours = benchmark_training.our_loss(model.train(), batch)
    theirs = benchmark_training.marian_loss(marian.train(), batch)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(
        model.model.shared.weight.grad[3:], marian.model.shared.weight.grad[3:], atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("options", [{"d_k": 8}, {"position_embedding_type": "learned"}, {"attention_window": 3}])
def test_a_model_that_marian_cannot_be_is_refused(common, options):
    with pytest.raises(ValueError, match="MarianMTModel cannot have"):
        common.build_marian(VaswaniConfig(**TINY | options))


def test_the_peak_of_memory_is_seen_after_it_was_given_back(common):
    def work():
        torch.ones(25, 2**20)  # 100 MiB

    assert 90 < common.peak_growth(work) < 150


def test_training_benchmark_runs(common, corpus, capsys):
    import benchmark_training

    output = corpus / "result.json"
    arguments = ["--size", "tiny", "--source", corpus / "text.en", "--target", corpus / "text.de", "--repeats", 2]
    arguments += ["--vocab_size", 300, "--tokens_per_batch", 64, "--updates", 2, "--threads", 1, "--output", output]
    assert benchmark_training.main([str(argument) for argument in arguments]) == 0
    assert "target tokens/s" in capsys.readouterr().out
    ours, theirs, ratio = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert (ours["system"], theirs["system"]) == (common.OURS, common.MARIAN)
    assert ours["parameters"] < theirs["parameters"]
    assert ratio["min"] <= ratio["median"] <= ratio["max"]


def test_training_benchmark_wants_both_sides_of_the_text(common, corpus):
    import benchmark_training

    with pytest.raises(SystemExit, match="go together"):
        benchmark_training.main(["--source", str(corpus / "text.en")])


@pytest.fixture
def decode(common, corpus, monkeypatch):
    """A function that runs the decoding benchmark and returns the rows of its result."""
    import benchmark_decoding

    # A process for each memory would take longer than all the rest; the test of training has them.
    monkeypatch.setattr(benchmark_decoding, "measure_in_child", lambda work, *args: work(*args))

    def run(*options) -> list[dict]:
        output = corpus / "result.json"
        arguments = ["--size", "tiny", "--source", corpus / "text.en", "--repeats", 1, "--vocab_size", 300]
        arguments += ["--threads", 1, "--output", output, *options]
        assert benchmark_decoding.main([str(argument) for argument in arguments]) == 0
        return json.loads(output.read_text(encoding="utf-8"))["rows"]

    return run


def test_decoding_benchmark_runs_and_both_systems_translate_alike(decode):
    rows = decode("--forced_length", 5, "--batch_sizes", 1, 3)
    assert [row["batch_size"] for row in rows] == [1, 1, 1, 3, 3, 3]
    assert [row["same_translations"] for row in rows if "paper" not in row["system"]] == [len(SOURCES)] * 4


def test_decoding_benchmark_runs_with_a_saved_model(common, decode, corpus):
    model, _ = build_pair(common)
    tokenizer = train_tokenizer(SOURCES, vocab_size=300)
    model.save_pretrained(corpus / "model")
    tokenizer.save_pretrained(corpus / "model")
    for row in decode("--model", corpus / "model", "--batch_sizes", 4):
        if "equal" in row["system"]:
            assert row["same_translations"] + row["cut_by_marian"] >= len(SOURCES)


def test_decoding_benchmark_refuses_models_that_differ(common):
    import benchmark_decoding

    model, marian = build_pair(common)
    nn.init.zeros_(marian.model.decoder.layers[0].fc2.bias)
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    with pytest.raises(RuntimeError, match="logits of both systems differ"):
        benchmark_decoding.largest_difference(model, marian, batch)
