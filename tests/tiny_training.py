"""A training run that is small enough for tests, and functions that read its files."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file

from vaswani_transformer.data.preparation import read_prepared
from vaswani_transformer.training import loop
from vaswani_transformer.training.recipes import RECIPES, Recipe
from vaswani_transformer.training.setup import build_run

TINY = Recipe(
    model={"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1},
    vocab_size=300,
    tokens_per_batch=160,
    num_updates=7,
    warmup_updates=10,
    lr_scale=0.5,
    checkpoint_interval=(2, "updates"),
    num_averaged_checkpoints=2,
)
WITHOUT_DROPOUT = replace(TINY, model=TINY.model | {"dropout": 0.0})
# The content of the recipe.json of a larger run. `vocab_size` depended on its corpus, and `compile` on its device.
DESCRIPTION = {
    "recipe": RECIPES["multi30k_tiny"].to_dict() | {"vocab_size": 9_712, "compile": False},
    "seed": 3,
    "data": "1f",
    "init_from": None,
    "init_fingerprint": None,
    "mixed_precision": "no",
    "num_processes": 2,
    "num_parameters": 2_598_912,
    "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
}
PAIRS = [(f"the dog {i} runs" + " far" * (i % 5), f"der hund {i} läuft" + " weit" * (i % 7)) for i in range(60)]


def build(recipe, data, run, **options):
    """Return the parts of a run on the prepared data in the folder `data`."""
    return build_run(recipe, read_prepared(data), run, **options)


def train(*args, **options):
    """Train the run that `build` builds from these arguments, and return the folder of its model."""
    return loop.train(build(*args, **options))


def weights(folder):
    return load_file(folder / "model.safetensors")


def read_log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def log_without_times(run):
    """Return the lines of the log without the fields that depend on the clock."""
    clock = ("seconds", "target_tokens_per_second")
    return [{name: value for name, value in line.items() if name not in clock} for line in read_log(run)]


def assert_close(one, other, *, tolerance=0.0):
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
