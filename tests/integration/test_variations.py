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
    check = [sys.executable, "-c", IN_A_NEW_PROCESS, "check", "--model", averaged]
    done = subprocess.run([*check, "--import", file], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{averaged} translates as when it was saved")  # without what the file prints
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert "name its file: --import FILE." in done.stderr


def test_a_model_says_that_its_file_has_changed(run, file, caplog):
    (run / f"model/{file.name}").write_text("# another file")
    load(run)
    assert f"The installed code runs, not {run}/model/{file.name}" in caplog.text


def test_an_unknown_variation_asks_for_its_file(build_translator, tiny_data, tmp_path, error_of):
    build_translator(["a dog runs"] * 3, folder=tmp_path)
    change_json(tmp_path / "config.json", model_type="unheard_of")
    assert "name its file: --import FILE" in error_of(f"check --model {tmp_path}")
    train = f"train --data {tiny_data} --output {tmp_path}/run --recipe big_en_de"
    for model_type in ("unheard_of", "marian"):
        assert "give --import FILE" in error_of(f"{train} --set model.model_type={model_type}")


def test_weights_of_the_plain_model_are_no_start_for_a_variation(
    run, file, tiny_data, build_translator, tmp_path, error_of
):
    build_translator(["a dog runs"] * 3, folder=tmp_path / "plain")
    command = f"train --import {file} --data {tiny_data} --output {tmp_path}/run --recipe {run}/recipe.json"
    assert f'model_type was "vaswani", is "{NAME}"' in error_of(f"{command} --init_from {tmp_path}/plain")


@pytest.mark.parametrize("name", ["torch.py", "gone.py"])
def test_a_file_that_cannot_be_imported_by_its_name_is_refused_and_not_run(tmp_path, error_of, monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "torch.py").write_text("raise SystemExit")
    assert "whose name is that of no other module" in error_of(f"recipes --import {tmp_path}/{name}")
