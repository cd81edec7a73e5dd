import json
import subprocess
from pathlib import Path

import pytest

from vaswani_transformer.training import run_folder
from vaswani_transformer.training.run_folder import claim_run, describe_versions

RUN = {
    "recipe": {"num_updates": 7, "patience": None, "lr_scale": 1.0},
    "seed": 0,
    "data": "1f",
    "mixed_precision": "no",
    "num_processes": 2,
}


def test_a_folder_tells_which_run_it_holds(tmp_path):
    text = claim_run(tmp_path, RUN, done=0)
    assert (tmp_path / "recipe.json").read_text() == text
    written = json.loads(text)
    assert RUN.items() <= written.items()
    assert set(written["versions"]) >= {"python", "torch", "transformers", "accelerate", "tokenizers"}
    assert claim_run(tmp_path, RUN | {"num_processes": 3}, done=5) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": RUN["recipe"] | {"lr_scale": 0.5}}, r"recipe\.lr_scale was 1\.0, is 0\.5\. Name another out"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"data": "2e"}, 'data was "1f", is "2e"'),
        ({"mixed_precision": "bf16"}, 'mixed_precision was "no", is "bf16"'),
        ({"init_from": "runs/a"}, 'init_from was null, is "runs/a"'),
    ],
)
def test_a_folder_of_another_run_is_refused_once_there_is_a_checkpoint(tmp_path, change, message):
    claim_run(tmp_path, RUN, done=0)
    with pytest.raises(ValueError, match=f"holds another run: {message}"):
        claim_run(tmp_path, RUN | change, done=5)
    claim_run(tmp_path, RUN | change, done=0)


def test_the_end_of_a_run_may_change_but_not_to_fewer_updates_than_are_done(tmp_path):
    claim_run(tmp_path, RUN, done=0)
    ends = RUN["recipe"] | {"num_updates": 5, "patience": 3}
    text = claim_run(tmp_path, RUN | {"recipe": ends, "num_processes": 9}, done=5)
    assert text == (tmp_path / "recipe.json").read_text()
    assert json.loads(text)["recipe"] == ends
    assert json.loads(text)["num_processes"] == 2
    with pytest.raises(ValueError, match=r"has done 5 updates, and num_updates is 4: give at least 5, or name another"):
        claim_run(tmp_path, RUN | {"recipe": ends | {"num_updates": 4}}, done=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"recipe\.json is damaged: expected a JSON object"),
        ('{"recipe": {', r"recipe\.json is damaged: expected a JSON object"),
        ("{}", r"recipe\.json was not written by this version of the package, or is damaged: KeyError 'recipe'"),
        ('{"recipe": {}, "seed": {"a": 1}, "data": 1, "mixed_precision": 0}', "holds another run"),
    ],
)
def test_a_damaged_description_of_a_run_is_refused(tmp_path, text, message):
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        claim_run(tmp_path, RUN, done=5)


def test_the_commit_of_a_checkout_is_known():
    root = Path(run_folder.__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    command = ["git", "-C", root, "rev-parse", "HEAD"]
    try:
        head = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git does not tell: {error}")
    assert describe_versions()["commit"] == head.strip()
