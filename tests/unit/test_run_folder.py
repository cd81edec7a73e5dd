"""A run folder belongs to one run: it records the settings of this run and refuses other runs."""

import pytest
from shortcuts import read_json

from vaswani_transformer.training.run_folder import claim_run

RUN = {
    "recipe": {"num_updates": 7, "patience": None, "lr_scale": 1.0},
    "seed": 0,
    "data": "1f",
    "mixed_precision": "no",
    "init_from": None,
    "num_processes": 2,
}


def test_the_run_folder_records_which_run_it_holds(tmp_path):
    path = tmp_path / "recipe.json"
    assert claim_run(tmp_path, RUN, print) is None
    recorded = read_json(path)
    assert RUN.items() <= recorded.items()
    assert recorded["versions"].keys() >= {"python", "torch", "transformers", "accelerate", "tokenizers"}
    # Before the first checkpoint a second start replaces recipe.json.
    claim_run(tmp_path, RUN | {"num_processes": 3}, print)
    assert read_json(path)["num_processes"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": RUN["recipe"] | {"lr_scale": 0.5}}, r"recipe\.lr_scale was 1\.0, is 0\.5\. Give the same sett"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"data": "2e"}, 'data was "1f", is "2e"'),
        ({"mixed_precision": "bf16"}, 'mixed_precision was "no", is "bf16"'),
        ({"init_from": "runs/a"}, 'init_from was not set, is "runs/a"'),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path, change, message):
    claim_run(tmp_path, RUN, print)
    before = read_json(tmp_path / "recipe.json")
    with pytest.raises(ValueError, match=f"begun with other settings: {message}"):
        claim_run(tmp_path, RUN | change, print)
    assert read_json(tmp_path / "recipe.json") == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"recipe\.json was not written by this version of the package, or is damaged"),
        ("{}", r"begun with other settings: data was not set, is \"1f\""),
        ('{"recipe": 3}', "begun with other settings: .*recipe was 3, is "),
    ],
)
def test_a_recipe_json_that_describes_no_run_is_refused(tmp_path, text, message):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        claim_run(tmp_path, RUN, print)
