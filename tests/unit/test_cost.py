import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel, cli
from vaswani_transformer.data.batching import TokenizedPairs, plan_updates
from vaswani_transformer.data.phrasebook.pairs import generate_pairs
from vaswani_transformer.data.preparation import Corpus, prepare
from vaswani_transformer.model.masks_vaswani import window_function
from vaswani_transformer.training.cost import (
    PAPER_DEVICE,
    PAPER_DEVICES,
    PAPER_HOURS,
    PAPER_TABLE,
    RATES,
    RunCost,
    compute_training_cost,
    count_flop,
    estimate_target_tokens,
    find_rate,
)

MODEL = {"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    pairs = list(generate_pairs(split="train", num_pairs=60))
    prepare([Corpus(lambda: pairs)], lambda: pairs[:5], folder, vocab_size=300)
    return folder


@pytest.fixture
def run_folder(data, tmp_path):
    """A run of three epochs; evaluations take ten seconds, which the speed leaves out."""
    preparation = json.loads((data / "preparation.json").read_text())
    description = {
        "recipe": {"model": MODEL, "vocab_size": 300, "tokens_per_batch": 200},
        "seed": 0,
        "data": preparation["fingerprint"],
        "mixed_precision": "no",
        "num_processes": 2,
        "num_parameters": 8_000,
    }
    (tmp_path / "recipe.json").write_text(json.dumps(description))
    tokens = preparation["train"]["target_tokens"]
    updates = len(plan_updates(*lengths_of(data), tokens_per_batch=200, seed=0, epoch=0))
    log, seconds = [], 0.0
    for epoch in (1, 2, 3):
        for half in (0, 1):
            seconds += 4.0
            update = updates * (epoch - 1) + updates * (half + 1) // 2
            line = {"update": update, "seconds": seconds}
            log.append(line | {"target_tokens_per_second": tokens * ((update - log_update(log)) / updates) / 4})
        log.append({"update": updates * epoch, "dev_perplexity": 9.0})
        seconds += 10.0
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return tmp_path


def log_update(log):
    return log[-1]["update"] if log else 0


def lengths_of(data):
    pairs = TokenizedPairs.load(data / "train", pad_token_id=0)
    return pairs.sources.lengths, pairs.targets.lengths


def test_the_paper_s_formula_gives_the_paper_s_costs():
    table = {model: flop for model, _, _, flop, _ in PAPER_TABLE}
    for size, hours in PAPER_HOURS.items():
        cost = compute_training_cost(3600 * hours, PAPER_DEVICES, find_rate(PAPER_DEVICE))
        assert cost == pytest.approx(table[f"Transformer, {size}"], rel=0.01)


def test_every_device_has_a_plausible_rate():
    assert (find_rate("h200"), find_rate("H200", mixed_precision="bf16")) == (67e12, 989e12)
    assert find_rate("1.6e11", mixed_precision="fp16") == 1.6e11
    for full, half in RATES.values():
        assert 1e10 < full < 1e14
        assert half is None or full < half < 1e16


@pytest.mark.parametrize("device", ["H900", "-1", "nan", "inf"])
def test_an_unknown_device_is_refused_with_those_there_are(device):
    with pytest.raises(ValueError, match=rf"no rate for the device '{device}'.*K80, K40, M40, P100, V100"):
        find_rate(device)


def test_a_device_without_half_precision_is_refused_for_a_run_with_it():
    with pytest.raises(ValueError, match="multiplied in bf16, for which there is no rate of P100"):
        find_rate("P100", mixed_precision="bf16")


def test_model_flop_are_those_that_pytorch_counts():
    config = VaswaniConfig(**MODEL, vocab_size=300, d_k=5, d_v=3, label_smoothing=0.0)
    config._attn_implementation = "eager"
    model = VaswaniForConditionalGeneration(config).train()
    batch, source_length, target_length = 3, 6, 5
    input_ids, labels = torch.randint(3, 300, (batch, source_length)), torch.randint(3, 300, (batch, target_length))
    # PyTorch does not know the product that the loss adds in place.
    in_place = {torch.ops.aten.addmm_: lambda total, left, right, **_: 2 * left.numel() * right[-1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(input_ids=input_ids, labels=labels).loss.backward()
    # PyTorch counts the whole square of the decoder's self-attention, of which the causal mask hides almost half.
    hidden = batch * target_length * (target_length - 1) // 2
    hidden *= 3 * 2 * config.num_heads * (config.d_k + config.d_v) * config.decoder_layers
    lengths = np.full(batch, source_length), np.full(batch, target_length)
    assert counter.get_total_flops() - hidden == count_flop(config, *lengths)


@pytest.mark.parametrize("r", [1, 2, 3, 4, 7, 50])
def test_attention_is_counted_within_the_window_of_the_model(r):
    lengths = np.array([1, 2, 5, 9])
    whole, restricted = (
        count_flop(VaswaniConfig(**MODEL, vocab_size=300, attention_window=window), lengths, lengths)
        for window in (None, r)
    )
    positions = [(query, key) for length in lengths for query in range(length) for key in range(length)]
    model = VaswaniModel(VaswaniConfig(**MODEL, vocab_size=300, attention_window=r))
    sees, sees_of_the_past = (window_function(model.config, is_causal=is_causal) for is_causal in (False, True))
    num_hidden = MODEL["encoder_layers"] * sum(not sees(0, 0, query, key) for query, key in positions)
    num_hidden += MODEL["decoder_layers"] * sum(
        key <= query and not sees_of_the_past(0, 0, query, key) for query, key in positions
    )
    a = 4 * (4 + 4)
    assert whole - restricted == 6 * a * num_hidden


def test_a_run_costs_what_its_log_and_data_say(run_folder, data):
    cost = RunCost.read(run_folder)
    sources, targets = lengths_of(data)
    assert (cost.seconds, cost.num_processes) == (44.0, 2)
    assert cost.target_tokens == pytest.approx(3 * targets.sum(), rel=1e-6)
    assert cost.weight_flop == pytest.approx(6 * 8_000 * 3 * targets.sum())
    config = VaswaniConfig(**MODEL, vocab_size=300)
    assert cost.count(data) == pytest.approx(3 * count_flop(config, sources, targets))


def test_a_log_with_evaluations_in_all_intervals_is_still_counted():
    log = [{"update": 1, "dev_perplexity": 2.0}, {"update": 2, "seconds": 4.0, "target_tokens_per_second": 5.0}]
    assert estimate_target_tokens(log) == 20


def test_the_command_prints_the_costs_beside_the_paper_s(run_folder, data, capsys):
    arguments = ["cost", "--run", str(run_folder), "--device", "P100", "--data", str(data)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "8.4e+14 FLOP  the paper's formula: 44 s x 2 P100 x 9.5e+12 FLOP/s" in printed
    assert "6 x parameters x tokens: 8,000 parameters" in printed
    assert f"{RunCost.read(run_folder).count(data):.1e} FLOP  counted" in printed
    assert "Transformer, big                  28.40       41.80     2.3e+19" in printed
    assert cli.main(["cost", "--run", str(run_folder), "--device", "1e12", "--devices", "3"]) == 0
    printed = capsys.readouterr().out
    assert "1.3e+14 FLOP  the paper's formula: 44 s x 3 1e12 x 1e+12 FLOP/s" in printed
    assert "name the --data of the run" in printed


def test_cores_must_be_counted(run_folder, capsys):
    arguments = ["cost", "--run", str(run_folder), "--device", "epyc-7763-core"]
    assert cli.main(arguments) == 1
    assert "say how many cores there were by --devices" in capsys.readouterr().err
    assert cli.main([*arguments, "--devices", "2"]) == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", b"{", r"recipe\.json is damaged: expected a JSON object \("),
        ("recipe.json", b'{"recipe": 3}', r"recipe\.json was not written by this version.*TypeError"),
        ("recipe.json", b'{"recipe": {"vocab_size": 9, "model": {"d_ff": "x"}}}', r"recipe\.json was not written by"),
        ("log.jsonl", b'{"update": 1, "seconds": 2.0}', r"log\.jsonl, line 1: expected seconds and target_tokens"),
        ("log.jsonl", b'{"update": [], "seconds": 2.0}', r"log\.jsonl, line 1: expected numbers, found update \[\]"),
        ("log.jsonl", b'{"seconds": 2.0}', r"log\.jsonl, line 1: expected the number of its update"),
    ],
)
def test_a_damaged_file_is_named(run_folder, name, content, message):
    (run_folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        RunCost.read(run_folder)


def test_a_run_that_cannot_be_counted_is_refused(run_folder, data, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.raises(FileNotFoundError, match=r"holds no recipe\.json; name a folder that `vaswani train`"):
        RunCost.read(elsewhere)
    with pytest.raises(FileNotFoundError, match="holds no prepared data"):
        RunCost.read(run_folder).count(elsewhere)
    preparation = json.loads((data / "preparation.json").read_text())
    (elsewhere / "preparation.json").write_text(json.dumps(preparation | {"fingerprint": "another"}))
    with pytest.raises(ValueError, match="holds other data than the run was trained on"):
        RunCost.read(run_folder).count(elsewhere)
    recipe = json.loads((run_folder / "recipe.json").read_text())
    del recipe["num_processes"]
    (run_folder / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(ValueError, match=r"recipe\.json was not written by this version.*KeyError 'num_processes'"):
        RunCost.read(run_folder)
    (run_folder / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match="tells of no update yet"):
        RunCost.read(run_folder)
