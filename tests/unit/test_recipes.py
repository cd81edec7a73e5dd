"""Training recipes: their values, and how they are loaded and changed."""

import hashlib
import json
import re
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.commands.recipes import run
from vaswani_transformer.training.progress import Progress
from vaswani_transformer.training.recipes import (
    RECIPES,
    WIDTHS,
    Recipe,
    divide_widths,
    load_recipe,
)


def test_the_base_recipe_has_the_settings_of_section_5():
    assert Recipe().to_dict() == {
        "model": {},
        "vocab_size": 37_000,
        "subword_model": "bpe",
        "max_length": 256,
        "max_length_ratio": None,
        "tokens_per_batch": 25_000,
        "short_first": False,
        "num_updates": 100_000,
        "adam_betas": (0.9, 0.98),
        "adam_eps": 1e-9,
        "warmup_updates": 4_000,
        "lr_scale": 1.0,
        "weight_decay": 0.0,
        "compile": None,
        "checkpoint_interval": (1_500, "updates"),
        "num_averaged_checkpoints": 5,
        "patience": None,
        "num_beams": 4,
        "length_penalty": 0.6,
    }


def test_the_recipes_of_the_published_scores_do_not_change():
    values = json.dumps({name: recipe.to_dict() for name, recipe in RECIPES.items()})
    digest = hashlib.sha256(values.encode()).hexdigest()
    assert digest.startswith("aae720e71b3f"), f"a recipe was changed or added; if on purpose, expect {digest[:12]} here"


def test_the_big_recipe_has_the_changes_named_in_the_paper():
    base = RECIPES["base_en_de"]
    big = RECIPES["big_en_de"]
    config = VaswaniConfig(**big.model)
    assert (config.d_model, config.d_ff, config.num_heads, config.d_k, config.dropout) == (1024, 4096, 16, 64, 0.3)
    assert (big.num_updates, big.num_averaged_checkpoints) == (300_000, 20)
    french = load_recipe("big_en_fr")
    assert (french.model["dropout"], french.vocab_size, french.subword_model) == (0.1, 32_000, "wordpiece")
    # Checkpoints are ten minutes apart: on the paper's machine an update took 0.4 s (base) or 1 s (big).
    assert [recipe.checkpoint_interval for recipe in (base, big)] == [(1_500, "updates"), (600, "updates")]


@pytest.mark.parametrize(
    ("interval", "due"), [((4, "updates"), [4, 8, 10]), ((1, "epochs"), [3, 6, 9, 10]), ((2, "epochs"), [6, 10])]
)
def test_a_checkpoint_is_due_after_each_interval_and_at_the_last_update(interval, due):
    recipe = Recipe(checkpoint_interval=interval, num_updates=10)
    states = [Progress(update=n, epoch=n // 3, updates_of_epoch=n % 3) for n in range(1, 11)]  # epochs of 3 updates
    assert [state.update for state in states if recipe.is_checkpoint_due(state)] == due
    assert [state.update for state in states if recipe.is_interval_complete(state)] == due[:-1]


def test_a_run_is_finished_after_its_last_update_or_when_its_patience_ends():
    recipe = Recipe(num_updates=10, patience=3)
    assert [recipe.is_finished(Progress(update=number)) for number in (9, 10, 11)] == [False, True, True]
    waited = [Progress(update=5, evaluations_without_gain=number) for number in (2, 3, 4)]
    assert [recipe.is_finished(progress) for progress in waited] == [False, True, True]
    assert not any(replace(recipe, patience=None).is_finished(progress) for progress in waited)


def test_the_list_of_recipes_gives_their_numbers_of_parameters(capsys):
    run(Namespace(name=None))
    header, *lines, _, _ = capsys.readouterr().out.splitlines()  # the last two lines are a note
    assert header.split()[:2] == ["recipe", "parameters"]
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for line, recipe in zip(lines, RECIPES.values(), strict=True):
        assert recipe.model.keys() <= VaswaniConfig().to_dict().keys()  # VaswaniConfig accepts misspelt fields silently
        with torch.device("meta"):
            model = VaswaniForConditionalGeneration(VaswaniConfig(**{"vocab_size": recipe.vocab_size} | recipe.model))
        assert line.split()[1] == f"{model.num_parameters() / 1e6:.1f}M"


def test_divide_widths_divides_the_widths_of_each_row_of_table_3_and_nothing_else():
    for recipe in [recipe for name, recipe in RECIPES.items() if name.startswith("table3_")]:
        wide, narrow = (VaswaniConfig(**each.model).to_dict() for each in (recipe, divide_widths(recipe, 8)))
        assert narrow | {name: narrow[name] * 8 for name in WIDTHS} == wide
        assert replace(divide_widths(recipe, 8), model=recipe.model) == recipe


def test_a_recipe_is_read_from_a_file_and_from_the_recipe_json_of_a_run(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"model": {"dropout": 0.3}, "checkpoint_interval": [2, "epochs"], "lr_scale": 1}')
    assert load_recipe(str(path)) == Recipe(model={"dropout": 0.3}, checkpoint_interval=(2, "epochs"), lr_scale=1)
    path.write_text('{"model": {"d_model": 256, "dropout": 0.2}, "model.dropout": 0.3}')
    assert load_recipe(str(path)) == Recipe(model={"d_model": 256, "dropout": 0.3})
    for recipe in RECIPES.values():
        path.write_text(json.dumps({"recipe": recipe.to_dict(), "seed": 3}))
        assert load_recipe(str(path)) == recipe


def test_changes_are_read_as_json_or_text_and_do_not_alter_the_named_recipe():
    changes = ["model.dropout=0.25", "subword_model=wordpiece", 'checkpoint_interval=[1, "epochs"]', "patience=null"]
    tiny = RECIPES["multi30k_tiny"]
    recipe = load_recipe("multi30k_tiny", [*changes, "max_length_ratio=1.0", "num_updates=9", "num_updates=8"])
    assert recipe == replace(
        tiny,
        model=tiny.model | {"dropout": 0.25},
        subword_model="wordpiece",
        checkpoint_interval=(1, "epochs"),
        patience=None,
        max_length_ratio=1.0,
        num_updates=8,
    )
    assert tiny.model["dropout"] == 0.3


COUNTS = "vocab_size max_length tokens_per_batch num_updates warmup_updates num_averaged_checkpoints patience num_beams"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dropout=0.3", "a recipe has no field dropout; choose one of: model.activation_dropout, model.attention_d"),
        ("model.positions=learned", "a recipe has no field model.positions; choose one of: model.max_position_emb"),
        ("max_tokens=4000", "a recipe has no field max_tokens; choose one of: adam_betas, "),
        ("model.pad_token_id=8", "a recipe has no field model.pad_token_id; "),
        ("num_updates=many", "num_updates must be a whole number from 1 to 1,000,000,000, got 'many'."),
        *((f"{name}=0", f"{name} must be a whole number from 1 to") for name in COUNTS.split()),
        ("num_beams=null", "num_beams must be a whole number from 1 to 1,000, got None."),
        ("short_first=no", "short_first must be true or false, and compile must be true, false or null; got 'no' and"),
        ("short_first=1", "short_first must be true or false"),
        ('checkpoint_interval=[true, "epochs"]', "checkpoint_interval must be like"),
        ("compile=2", "short_first must be true or false, and compile must be true, false or null; got False and 2"),
        ("model.dropout=high", "Validation error for field 'dropout'"),
        ("model.dropout=1.5", "dropout is a probability in [0, 1), got 1.5."),
        ("lr_scale=NaN", "lr_scale must be a number from 0.0 to 1,000,000.0, got nan."),
        (
            'checkpoint_interval=[0, "epochs"]',
            'checkpoint_interval must be like [500, "updates"] or [1, "epochs"], got',
        ),
        ('checkpoint_interval=[10, "days"]', 'checkpoint_interval must be like [500, "updates"] or [1, "epochs"], got'),
        ("checkpoint_interval=500", 'checkpoint_interval must be like [500, "updates"] or [1, "epochs"], got 500.'),
        ("adam_betas=[0.9]", "adam_betas must be two numbers from 0 to below 1, such as [0.9, 0.98], got (0.9,)."),
        ('adam_betas=["a",2]', "adam_betas must be two numbers from 0 to below 1, such as [0.9, 0.98], got ('a', 2)."),
        ("adam_betas=0.9", "adam_betas must be two numbers from 0 to below 1, such as [0.9, 0.98], got 0.9."),
        ("model=5", "model must be an object of fields, got 5. To change one field, give model.dropout=0.3."),
        ("model.dropout=nan", "Validation error for field 'dropout'"),
        ("warmup_updates", "a change is FIELD=VALUE, such as model.dropout=0.3; got 'warmup_updates'."),
    ],
)
def test_a_change_with_a_wrong_name_type_or_value_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        load_recipe("base_en_de", [change])


def test_unknown_recipes_and_indivisible_widths_are_refused():
    with pytest.raises(ValueError, match=r"no recipe 'huge', and no such file; choose one of: base_en_de, big_en_de"):
        load_recipe("huge")
    with pytest.raises(ValueError, match=r"choose one of: parsing_small, "):
        load_recipe("parsing_smal")
    with pytest.raises(ValueError, match="'d_k': 16, 'd_v': 64} cannot all be divided by 32"):
        divide_widths(RECIPES["table3_B1"], 32)
