"""The cost of training: the formula of the paper, and the cost of a run from its log."""

import json
import re

import pytest
import torch
from shortcuts import vaswani
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer.training.cost import (
    PAPER_FLOP,
    RATES,
    RunCost,
    compute_training_cost,
    count_parameters,
    find_rate,
)

DESCRIPTION = {"seed": 0, "mixed_precision": "no", "num_processes": 2, "num_parameters": 8_000}
LOG = [
    {"update": 6, "seconds": 8.0, "target_tokens": 600},
    {"update": 6, "dev_perplexity": 9.0},
    {"update": 9, "seconds": 22.0, "target_tokens": 300},
]


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(DESCRIPTION))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    return tmp_path


def test_the_formula_of_the_paper_gives_the_costs_in_the_paper():
    for size, hours in {"base": 12.0, "big": 3.5 * 24}.items():
        cost = compute_training_cost(3600 * hours, 8, find_rate("P100"))
        assert cost == pytest.approx(PAPER_FLOP[size], rel=0.01)


def test_a_device_without_a_known_rate_is_refused():
    assert (find_rate("a100"), find_rate("A100", mixed_precision="bf16")) == (19.5e12, 312e12)
    assert find_rate("1.6e11", mixed_precision="fp16") == 1.6e11
    assert all(1e12 < full < 1e14 and (half is None or full < half < 1e16) for full, half in RATES.values())
    for device, precision in (("H900", "no"), ("0", "no"), ("nan", "no"), ("inf", "no"), ("P100", "bf16")):
        with pytest.raises(ValueError, match=f"the rate of '{device}'"):
            find_rate(device, mixed_precision=precision)


def test_the_command_prints_the_costs_of_a_run_beside_the_costs_in_the_paper(run_folder, capsys):
    vaswani(f"cost --run {run_folder} --device P100")
    printed = capsys.readouterr().out
    assert "updates 9 in 0.01 hours" in printed
    assert "4.2e+14 FLOP  the paper's formula: 22 s x 2 devices x 9.5e+12 FLOP/s" in printed
    assert "4.3e+07 FLOP  6 x parameters x target tokens: 8,000 parameters, 900 target tokens" in printed
    assert "2.3e+19 FLOP  the paper's big model" in printed
    vaswani(f"cost --run {run_folder} --device 1e12 --devices 3")
    assert "6.6e+13 FLOP  the paper's formula: 22 s x 3 devices x 1e+12 FLOP/s" in capsys.readouterr().out
    vaswani(f"cost --run {run_folder}")
    assert "name a --device" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", "{", r"recipe\.json was not written by this version.*JSONDecodeError"),
        ("recipe.json", '{"seed": 3}', r"recipe\.json was not written by this version.*KeyError 'mixed_precision'"),
        ("log.jsonl", '{"update": 1, "seconds": 2.0}', r"log\.jsonl was not written by this version"),
        (
            "log.jsonl",
            '{"update": 1, "seconds": "x", "target_tokens": 3}',
            r"log\.jsonl was not written by this version",
        ),
        ("log.jsonl", "", "has no line of training yet"),
    ],
)
def test_the_error_about_a_damaged_or_empty_file_says_what_is_wrong(run_folder, name, content, message):
    (run_folder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        RunCost.read(run_folder)


def test_the_parts_of_a_model_add_up_to_its_parameters_and_to_the_flop_of_its_products(build_tiny_model):
    model = build_tiny_model(attention="eager", tie_word_embeddings=False)
    counts = count_parameters(model.config)
    assert counts.total() == model.num_parameters()
    ids = torch.zeros(1, 9, dtype=torch.long)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids, decoder_input_ids=ids)
    found = counter.get_flop_counts()["Global"]
    # Look-ups, norms and biases are no products. The forward pass has a third of the FLOP of a training.
    unused = sum(p.numel() for name, p in model.named_parameters() if "bias" in name or "norm" in name)
    unused += counts["embeddings"]
    assert 3 * (found[torch.ops.aten.mm] + found[torch.ops.aten.addmm]) == 6 * 9 * (counts.total() - unused)


def test_the_command_prints_the_parameters_and_flop_of_each_part_of_a_recipe(output_of):
    printed = output_of("cost --recipe base_en_de")
    assert re.search(r"decoder feed_forward +12,598,272 +20.0% +7.6e\+07\n", printed)
    assert re.search(r"sum +63,045,632 +100.0% +3.8e\+08\n", printed)
    assert "9.5e+17 FLOP  6 x parameters x target tokens: 100,000 updates" in printed
