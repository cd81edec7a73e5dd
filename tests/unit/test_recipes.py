import json
import re
from dataclasses import replace

import pytest
import torch

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.commands.recipes import run
from vaswani_transformer.training.recipes import (
    BASE,
    BIG,
    BOUNDS,
    GENERAL_EN_DE,
    IWSLT14_DE_EN,
    MULTI30K_TINY,
    RECIPES,
    TABLE_3,
    WIDTHS,
    divide_widths,
    load_recipe,
)


def test_base_is_section_5():
    assert (BASE.tokens_per_batch, BASE.num_updates, BASE.warmup_updates) == (25_000, 100_000, 4_000)
    assert (BASE.adam_betas, BASE.adam_eps) == ((0.9, 0.98), 1e-9)
    assert BASE.num_averaged_checkpoints == 5
    assert (BASE.num_beams, BASE.length_penalty) == (4, 0.6)


def test_big_differs_from_base_in_what_the_paper_names():
    config = VaswaniConfig(**BIG.model)
    assert (config.d_model, config.d_ff, config.num_heads, config.d_k, config.dropout) == (1024, 4096, 16, 64, 0.3)
    assert (BIG.num_updates, BIG.num_averaged_checkpoints) == (300_000, 20)
    assert load_recipe("big_en_fr").model["dropout"] == 0.1
    assert (load_recipe("big_en_fr").vocab_size, load_recipe("big_en_fr").subword_model) == (32_000, "wordpiece")
    # The averaged checkpoints are ten minutes apart, at 0.4 s and 1 s for an update on the paper's machine.
    assert [recipe.checkpoint_interval for recipe in (BASE, BIG)] == [(1_500, "updates"), (600, "updates")]


def test_the_rows_of_table_3_average_nothing_and_train_as_base_or_big_do():
    for row, recipe in TABLE_3.items():
        trained_as = BIG if row == "big" else BASE
        assert recipe == replace(trained_as, model=recipe.model, num_averaged_checkpoints=1)


@pytest.mark.parametrize(
    ("recipe", "expected"), [(BASE, 6.99e-4), (MULTI30K_TINY, 5e-3), (IWSLT14_DE_EN, 5e-4), (GENERAL_EN_DE, 6.92e-4)]
)
def test_the_peak_rate_is_the_one_published_or_chosen(recipe, expected):
    d_model = VaswaniConfig(**recipe.model).d_model
    assert recipe.lr_scale * (d_model * recipe.warmup_updates) ** -0.5 == pytest.approx(expected, rel=1e-3)


def test_iwslt14_is_the_architecture_and_data_of_fairseq():
    config = VaswaniConfig(**IWSLT14_DE_EN.model)
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 1024)
    assert (config.num_heads, config.dropout, config.label_smoothing) == (4, 0.3, 0.1)
    assert (IWSLT14_DE_EN.vocab_size, IWSLT14_DE_EN.max_length, IWSLT14_DE_EN.max_length_ratio) == (10_000, 175, 1.5)
    assert (IWSLT14_DE_EN.tokens_per_batch, IWSLT14_DE_EN.weight_decay, IWSLT14_DE_EN.num_beams) == (4_096, 1e-4, 5)
    assert [name for name, recipe in RECIPES.items() if recipe.weight_decay] == ["iwslt14_de_en"]


def test_the_list_of_recipes_has_each_with_its_parameters(capsys):
    run(None)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["recipe", "parameters"]
    assert [line.split()[0] for line in lines] == list(RECIPES)
    for line, recipe in zip(lines, RECIPES.values(), strict=True):
        assert recipe.model.keys() <= VaswaniConfig().to_dict().keys()  # a misspelt field would be taken in silence
        with torch.device("meta"):
            model = VaswaniForConditionalGeneration(VaswaniConfig(**{"vocab_size": recipe.vocab_size} | recipe.model))
        assert line.split()[1] == f"{model.num_parameters() / 1e6:.1f}M"


@pytest.mark.parametrize("divisor", [2, 8])
def test_every_row_of_table_3_becomes_narrower_alike(divisor):
    for recipe in TABLE_3.values():
        wide, narrow = (VaswaniConfig(**each.model).to_dict() for each in (recipe, divide_widths(recipe, divisor)))
        assert {name: narrow[name] * divisor for name in WIDTHS} == {name: wide[name] for name in WIDTHS}
        assert {**narrow, **{name: wide[name] for name in WIDTHS}} == wide  # heads, layers, probabilities, positions
        assert replace(divide_widths(recipe, divisor), model=recipe.model) == recipe


def test_a_width_that_cannot_be_divided_is_named_beside_the_others():
    message = r"d_k of this recipe is 16, which cannot be divided by 32: choose a divisor of all of d_model 512, d_ff"
    with pytest.raises(ValueError, match=message):
        divide_widths(TABLE_3["B1"], 32)


def test_an_unknown_recipe_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no recipe 'huge', nor such a file; choose one of: base_en_de, big_en_de"):
        load_recipe("huge")


def test_a_recipe_is_read_from_a_file_and_from_the_recipe_json_of_a_run(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"model": {"dropout": 0.3}, "checkpoint_interval": [2, "epochs"], "lr_scale": 1}')
    assert load_recipe(str(path)) == replace(
        BASE, model={"dropout": 0.3}, checkpoint_interval=(2, "epochs"), lr_scale=1
    )
    path.write_text('{"model": {"d_model": 256, "dropout": 0.2}, "model.dropout": 0.3}')
    assert load_recipe(str(path)) == replace(BASE, model={"d_model": 256, "dropout": 0.3})
    for recipe in RECIPES.values():
        path.write_text(json.dumps({"recipe": recipe.to_dict(), "seed": 3}))
        assert load_recipe(str(path)) == recipe


def test_changes_are_json_or_else_text_and_leave_the_named_recipe_alone():
    changes = ["model.dropout=0.25", "subword_model=wordpiece", 'checkpoint_interval=[1, "epochs"]', "patience=null"]
    recipe = load_recipe("multi30k_tiny", [*changes, "num_updates=9", "num_updates=8"])
    assert recipe == replace(
        MULTI30K_TINY,
        model=MULTI30K_TINY.model | {"dropout": 0.25},
        subword_model="wordpiece",
        checkpoint_interval=(1, "epochs"),
        patience=None,
        num_updates=8,
    )
    assert MULTI30K_TINY.model["dropout"] == 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("warmup_update=8", "a recipe has no field warmup_update: did you mean warmup_updates?"),
        ("dropout=0.3", "a recipe has no field dropout: did you mean model.dropout?"),
        ("model.pad_token_id=8", "a recipe has no field model.pad_token_id: "),
        ("qqq=8", "a recipe has no field qqq: there are model, vocab_size, "),
        ("num_updates=many", 'num_updates is "many", expected int.'),
        ("num_updates=true", "num_updates is true, expected int."),
        ("compile=1", "compile is 1, expected bool | None."),
        ("patience=no", 'patience is "no", expected int | None.'),
        ("adam_betas=[0.9]", "adam_betas is [0.9], expected tuple[float, float]."),
        ("model.dropout=high", 'model.dropout is "high", expected float | int.'),
        ("model=3", "a recipe is an object of fields and values, as is its model; got {"),
        ("model.dropout=1.5", "dropout is a probability in [0, 1), got 1.5."),
        ("lr_scale=NaN", "lr_scale must be between 0 and 1,000,000, got nan."),
        ("length_penalty=1e308", "length_penalty must be between -10 and 10, got 1e+308."),
        ("num_beams=100000", "num_beams must be between 1 and 1,000, got 100000."),
        ("tokens_per_batch=10000000000000", "tokens_per_batch must be between 1 and 10,000,000, got 10000000000000."),
        ("adam_betas=[0.9, 1.0]", "adam_betas must be in [0, 1), got (0.9, 1.0)."),
        ("subword_model=unigram", "subword_model must be one of ('bpe', 'wordpiece'), got 'unigram'."),
        ('checkpoint_interval=[0, "epochs"]', "checkpoint_interval is a whole number of at least 1 and one of "),
        ('checkpoint_interval=[10, "days"]', "checkpoint_interval is a whole number of at least 1 and one of "),
        ("warmup_updates", "a change is FIELD=VALUE, such as model.dropout=0.3; got 'warmup_updates'."),
    ],
)
def test_a_change_with_a_wrong_name_type_or_value_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        load_recipe("base_en_de", [change])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_field_may_have_its_bounds_and_no_more(name):
    for bound, beyond in zip(BOUNDS[name], (-1, 1), strict=True):
        assert getattr(replace(BASE, **{name: bound}), name) == bound
        with pytest.raises(ValueError, match=f"^{name} must be between "):
            replace(BASE, **{name: bound + beyond})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model": [1]}', r'as is its model; got {"model": \[1\]}'),
        ("[1]", r"expected a JSON object \(found list\)"),
        ('{"recipe": 3}', "a recipe is an object of fields and values, as is its model; got 3"),
    ],
)
def test_a_file_that_holds_no_recipe_is_refused(tmp_path, content, message):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_recipe(str(tmp_path / "mine.json"))
