"""The commands train and use a variation of the model, which is one Python file: that of CONTRIBUTING.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from shortcuts import change_json, read_json, vaswani, write_lines
from tiny_training import PAIRS, TINY, assert_close, weights

from vaswani_transformer.loading import load
from vaswani_transformer.training import recipes

ROOT = Path(__file__).parents[2]
NAME = "variation_in_tests"  # of the file and of its `model_type`
IN_A_NEW_PROCESS = "import sys, vaswani_cli; sys.exit(vaswani_cli.main())"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(from torch import nn.*?)```", text, re.DOTALL)[1]
    path = tmp_path_factory.mktemp("code") / f"{NAME}.py"
    path.write_text(
        code.replace('    model_type = "pre_norm"', f'    model_type = "{NAME}"\n    of_mine: int = 3').replace(
            '("pre_norm"', f'("{NAME}"'
        )
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "path", [*sys.path])
        yield path


@pytest.fixture(scope="module")
def run(file, tiny_data, tmp_path_factory):
    """Return the folder of a run of the variation."""
    folder = tmp_path_factory.mktemp("variation")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(recipes.RECIPES, "tiny", TINY)
        options = f"--recipe tiny --set model.model_type={NAME} --set model.of_mine=4"
        vaswani(f"train --import {file} --data {tiny_data} --output {folder}/run {options}")
    return folder / "run"


def test_a_run_of_a_variation_remembers_it_and_continues_exactly(run, file, tiny_data, tmp_path):
    changed = {"model_type": NAME, "of_mine": 4}
    assert read_json(run / "recipe.json")["recipe"]["model"] == TINY.model | changed
    train = f"train --import {file} --data {tiny_data} --output {tmp_path}/run --recipe {run}/recipe.json"
    vaswani(f"{train} --num_updates 3")
    vaswani(f"train --import {file} --data {tiny_data} --output {tmp_path}/run --num_updates 7")
    assert_close(weights(tmp_path / "run/model"), weights(run / "model"))
    model = load(run).model
    assert (type(model).__name__, model.config.of_mine) == ("PreNormTransformer", 4)


def test_a_variation_is_averaged_scored_and_used_in_a_new_process(run, file, tmp_path, output_of):
    averaged = tmp_path / "averaged"
    assert output_of(f"average --import {file} --run {run} --output {averaged}").startswith("averaged ")
    assert_close(weights(averaged), weights(run / "model"))
    write_lines(tmp_path / "test.en", [source for source, _ in PAIRS[:3]])
    test = f"--test {tmp_path}/test.en {tmp_path}/test.en --num_beams 1 --max_length_offset 2"
    assert output_of(f"evaluate --import {file} --model {averaged} {test}").startswith("BLEU ")
    for options, status in ((f"--import {file}", 0), ("", 1)):
        words = [sys.executable, "-c", IN_A_NEW_PROCESS, *f"check --model {averaged} {options}".split()]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == status
        if status:
            assert "If the model is a variation of your own, name its file: --import FILE." in done.stderr
        else:
            assert done.stdout.count("\n") == 1  # What the file prints is not in the output.
            assert "translates as when it was saved" in done.stdout


def test_a_model_says_that_its_file_has_changed(run, file, caplog):
    (run / f"model/{file.name}").write_text("# another file")
    load(run)
    assert f"The installed code runs, not {run}/model/{file.name}" in caplog.text


def test_a_model_whose_variation_is_unknown_asks_for_its_file(build_translator, tmp_path, error_of):
    build_translator(["a dog runs"] * 3, folder=tmp_path)
    change_json(tmp_path / "config.json", model_type="unheard_of")
    for auto_map in ({"AutoConfig": "mine.MyConfig"}, {}):
        change_json(tmp_path / "config.json", auto_map=auto_map)
        assert "name its file: --import FILE" in error_of(f"check --model {tmp_path}")


@pytest.mark.parametrize("model_type", ["unheard_of", "marian", "3"])
def test_a_recipe_of_an_unknown_variation_is_refused(tiny_data, tmp_path, error_of, model_type):
    error = error_of(
        f"train --data {tiny_data} --output {tmp_path} --recipe big_en_de --set model.model_type={model_type}"
    )
    assert "no variation of the model has the model_type" in error
    assert "give --import FILE" in error


def test_weights_of_the_plain_model_are_no_start_for_a_variation(
    run, file, tiny_data, build_translator, tmp_path, error_of
):
    build_translator(["a dog runs"] * 3, folder=tmp_path / "plain")
    command = f"train --import {file} --data {tiny_data} --output {tmp_path}/run --recipe {run}/recipe.json"
    error = error_of(f"{command} --init_from {tmp_path}/plain")
    assert f'model_type was "vaswani", is "{NAME}"' in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.py", "rename"),
        ("sys.py", "rename"),
        ("a-b.py", "rename"),
        ("gone.py", "no Python file"),
        ("text", "no Python file"),
    ],
)
def test_a_file_that_cannot_be_imported_by_its_name_is_refused_and_not_run(
    tmp_path, error_of, monkeypatch, name, message
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    if name != "gone.py":
        (tmp_path / name).write_text("raise SystemExit")
    assert message in error_of(f"recipes --import {tmp_path}/{name}")
