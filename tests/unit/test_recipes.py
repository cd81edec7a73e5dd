import json
from dataclasses import replace

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.recipes import BASE, BIG, MULTI30K_TINY, RECIPES, Recipe, load_recipe


def test_base_is_section_5():
    assert (BASE.tokens_per_batch, BASE.num_updates, BASE.warmup_updates) == (25_000, 100_000, 4_000)
    assert (BASE.adam_betas, BASE.adam_eps) == ((0.9, 0.98), 1e-9)
    assert (BASE.num_averaged_checkpoints, BASE.checkpoint_interval) == (5, (10, "minutes"))
    assert (BASE.num_beams, BASE.length_penalty) == (4, 0.6)


def test_big_differs_from_base_in_what_the_paper_names():
    config = VaswaniConfig(**BIG.model)
    assert (config.d_model, config.d_ff, config.num_heads, config.d_k, config.dropout) == (1024, 4096, 16, 64, 0.3)
    assert (BIG.num_updates, BIG.num_averaged_checkpoints) == (300_000, 20)
    assert load_recipe("big_en_fr").model["dropout"] == 0.1
    assert (load_recipe("big_en_fr").vocab_size, load_recipe("big_en_fr").subword_model) == (32_000, "wordpiece")


def test_the_peak_rate_of_multi30k_tiny_is_0_005():
    peak = MULTI30K_TINY.lr_scale * (MULTI30K_TINY.model["d_model"] * MULTI30K_TINY.warmup_updates) ** -0.5
    assert peak == pytest.approx(0.005, rel=1e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_valid_model_and_survives_json(name):
    recipe = RECIPES[name]
    VaswaniConfig(vocab_size=recipe.vocab_size, **recipe.model)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"there is no recipe 'huge'; choose one of: base_en_de, big_en_de"):
        load_recipe("huge")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_updates": 0}, r"num_updates must be at least 1, got 0"),
        ({"num_averaged_checkpoints": 0}, r"num_averaged_checkpoints must be at least 1 \(no averaging\), got 0"),
        ({"checkpoint_interval": (10, "days")}, r"one of \('minutes', 'updates', 'epochs'\), got \(10, 'days'\)"),
    ],
)
def test_impossible_numbers_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(BASE, **change)
