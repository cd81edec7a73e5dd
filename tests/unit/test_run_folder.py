import json
import subprocess
from pathlib import Path

import pytest

from vaswani_transformer.training import run_folder
from vaswani_transformer.training.run_folder import claim_run, describe_versions

RUN = {"recipe": {"num_updates": 7}, "seed": 0, "data": "1f", "mixed_precision": "no", "num_processes": 2}


def test_a_folder_tells_which_run_it_holds(tmp_path):
    text = claim_run(tmp_path, RUN, is_begun=False)
    assert (tmp_path / "recipe.json").read_text() == text
    written = json.loads(text)
    assert RUN.items() <= written.items()
    assert set(written["versions"]) >= {"python", "torch", "transformers", "accelerate", "tokenizers"}
    assert claim_run(tmp_path, RUN | {"num_processes": 3}, is_begun=True) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": {"num_updates": 9}}, r"recipe\.num_updates was 7, is 9\. Name another output folder"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"data": "2e"}, 'data was "1f", is "2e"'),
        ({"mixed_precision": "bf16"}, 'mixed_precision was "no", is "bf16"'),
    ],
)
def test_a_folder_of_another_run_is_refused_once_there_is_a_checkpoint(tmp_path, change, message):
    claim_run(tmp_path, RUN, is_begun=False)
    with pytest.raises(ValueError, match=f"holds another run: {message}"):
        claim_run(tmp_path, RUN | change, is_begun=True)
    claim_run(tmp_path, RUN | change, is_begun=False)


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
        claim_run(tmp_path, RUN, is_begun=True)


def test_the_commit_of_a_checkout_is_known():
    root = Path(run_folder.__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert describe_versions()["commit"] == head.strip()
