"""A run folder belongs to one run: it records the settings of this run and refuses other runs."""

import json

import pytest

from vaswani_transformer.training import run_folder
from vaswani_transformer.training.run_folder import claim_run

RUN = {
    "recipe": {"num_updates": 7, "patience": None, "lr_scale": 1.0},
    "seed": 0,
    "data": "1f",
    "mixed_precision": "no",
    "init_from": None,
    "num_processes": 2,
}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Return the folder of a run with an intact checkpoint of update 5."""
    claim_run(tmp_path, RUN, print)
    checkpoint = tmp_path / "checkpoints" / "step-00000005"
    monkeypatch.setattr(run_folder, "choose_checkpoint", lambda folder, warn: checkpoint)
    return tmp_path


def read(folder):
    """Return the contents of recipe.json."""
    return json.loads((folder / "recipe.json").read_text())


def test_the_run_folder_records_which_run_it_holds(tmp_path):
    assert claim_run(tmp_path, RUN, print) is None
    assert RUN.items() <= read(tmp_path).items()
    assert set(read(tmp_path)["versions"]) >= {"python", "torch", "transformers", "accelerate", "tokenizers"}
    # Before the first checkpoint a second start replaces recipe.json.
    claim_run(tmp_path, RUN | {"num_processes": 3}, print)
    assert read(tmp_path)["num_processes"] == 3


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
def test_a_folder_of_another_run_is_refused(begun, change, message):
    before = read(begun)
    with pytest.raises(ValueError, match=f"begun with other settings: {message}"):
        claim_run(begun, RUN | change, print)
    assert read(begun) == before


def test_the_end_of_a_run_may_move_but_not_before_the_updates_that_are_done(begun):
    ends = RUN["recipe"] | {"num_updates": 5, "patience": 3}
    assert claim_run(begun, RUN | {"recipe": ends, "num_processes": 9}, print).name == "step-00000005"
    assert read(begun)["recipe"] == ends
    assert read(begun)["num_processes"] == 2
    with pytest.raises(ValueError, match=r"has done 5 updates, but num_updates is 4: raise it\."):
        claim_run(begun, RUN | {"recipe": ends | {"num_updates": 4}}, print)


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
