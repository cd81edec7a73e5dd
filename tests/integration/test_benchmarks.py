"""The benchmark programs run from end to end, and compare models that compute the same."""

import contextlib
import mmap

import benchmark_common
import benchmark_decoding
import benchmark_training
import gpu_report
import pytest
import torch
from shortcuts import read_json, vaswani

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.conversion.marian import copy_weights
from vaswani_transformer.training.recipes import Recipe

TINY = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 1}


@pytest.fixture(autouse=True)
def tiny_size(monkeypatch):
    monkeypatch.setitem(benchmark_common.SIZES, "tiny", Recipe(model=TINY, vocab_size=300))


def read_rows(path):
    return read_json(path)["rows"]


def test_marian_with_copied_weights_has_our_loss_and_gradients():
    torch.manual_seed(0)
    config = VaswaniConfig(**TINY, vocab_size=300, dropout=0.0, position_layout="concatenated")
    model = VaswaniForConditionalGeneration(config).train()
    marian = benchmark_common.MarianWithLoss(model.config).train()
    copy_weights(model, marian.model)
    labels = torch.randint(3, 300, (2, 6))
    labels[1, 4:] = -100
    batch = {"input_ids": torch.randint(3, 300, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    ours = model(**batch, labels=labels).loss
    theirs = marian(**batch, labels=labels)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    gradients = [embedding.weight.grad[3:] for embedding in (model.model.shared, marian.model.model.shared)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_peak_growth_counts_memory_that_is_freed_before_the_end():
    def work():
        with mmap.mmap(-1, 100 * 2**20) as memory:  # malloc might reuse memory of the process
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1

    assert 90 < benchmark_common.peak_growth(work) < 150


def test_the_training_benchmark_runs(tmp_path, capsys):
    arguments = f"--size tiny --pairs 60 --tokens_per_batch 128 --repeats 2 --threads 1 --output {tmp_path}/result.json"
    benchmark_training.main(f"{arguments} --updates 2".split())
    ours, theirs = read_rows(tmp_path / "result.json")
    assert (ours["system"], theirs["system"]) == (benchmark_common.OURS, benchmark_common.MARIAN)
    assert ours["parameters"] < theirs["parameters"]
    assert ours["ratio"]["median"] == 1
    expected = [their / our for our, their in zip(ours["seconds"], theirs["seconds"], strict=True)]
    assert [theirs["ratio"]["min"], theirs["ratio"]["max"]] == sorted(expected)
    assert "target tokens/s" in capsys.readouterr().out


def test_the_decoding_benchmark_runs_and_all_systems_without_int8_translate_alike(tmp_path, monkeypatch):
    # Separate processes would take longer than the rest of this test. The test of the training benchmark starts some.
    child = contextlib.nullcontext(lambda work, *args: work(*args))
    monkeypatch.setattr(benchmark_decoding, "open_child", lambda: child)
    monkeypatch.setattr(benchmark_decoding, "PAUSE", 0)
    # `tune_memory` would change how this process allocates memory in all later tests.
    monkeypatch.setattr(benchmark_decoding, "tune_memory", lambda: None)
    sizes = "--sizes tiny --sentences 4 --batch_sizes 3 --forced_length 5"
    benchmark_decoding.main(f"{sizes} --repeats 1 --threads 1 --output {tmp_path}/result.json".split())
    rows = {row["system"]: row for row in read_rows(tmp_path / "result.json")}
    assert list(rows) == [*benchmark_decoding.ENGINES, *benchmark_decoding.PEERS]
    unquantised = [name for name in rows if "int8" not in name]
    assert {rows[name]["same_translations"] for name in unquantised} == {4}
    for row in rows.values():
        assert row["tokens_per_second"] == pytest.approx(5 * row["sentences_per_second"])


def test_the_gpu_report_measures_a_training_and_prints_which_training_failed(tmp_path, capsys):
    prepare = "prepare --train phrasebook --dev phrasebook --num_pairs 60 --vocab_size 500 --output"
    vaswani(f"{prepare} {tmp_path}/data")
    arguments = f"--device cpu --data {tmp_path}/data --updates 2 --sizes base --modes eager --output {tmp_path}/report"
    small = "--divide_widths 16 --set tokens_per_batch=100 --set model.encoder_layers=1 --set model.decoder_layers=1"
    assert gpu_report.main(f"{arguments} {small}".split()) == 0
    [row] = read_rows(tmp_path / "report")
    assert row["update"] == 4  # twice --updates: only the second half is measured
    assert row["hours"] == pytest.approx(100_000 * row["milliseconds"] / 3.6e6)
    assert min(row["milliseconds"], row["target_tokens_per_second"], row["loss"]) > 0
    assert gpu_report.main(f"{arguments} --set model.num_heads=7".split()) == 1
    assert "base, eager, 1: " in capsys.readouterr().out
