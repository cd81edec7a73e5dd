"""The command line trains with a user's own recipe, extends runs, and starts runs from given weights."""

import itertools
import json
import shutil

import pytest
import torch
from shortcuts import change_json, read_json, vaswani, write_lines
from tiny_training import PAIRS, TINY, assert_close, read_log, weights

from vaswani_transformer.model import layers_vaswani
from vaswani_transformer.runs import find_model_folder, read_update
from vaswani_transformer.training import loop


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepare data with a recipe that is read from a file, and return the folder of the data."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.json").write_text(json.dumps(TINY.to_dict()))
    for side, name in enumerate(("en", "de")):
        write_lines(folder / f"train.{name}", [pair[side] for pair in PAIRS])
        write_lines(folder / f"dev.{name}", [pair[side] for pair in PAIRS[:9]])
    prepare(folder / "mine.json", folder, folder / "data", "model.dropout=0.2")
    return folder / "data"


def prepare(recipe, texts, output, change):
    """Prepare the files train.en, train.de, dev.en and dev.de of the folder `texts`."""
    files = f"--train {texts}/train.en {texts}/train.de --dev {texts}/dev.en {texts}/dev.de"
    vaswani(f"prepare --recipe {recipe} {files} --set {change} --output {output}")


def train_to(run, data, num_updates, options="", *, status=0):
    """Train with the command, and check its exit status."""
    vaswani(f"train --data {data} --output {run} --num_updates {num_updates} {options}", status=status)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Return the folder of a run of 17 updates, with a checkpoint after every second update and after the last."""
    run = tmp_path_factory.mktemp("whole")
    train_to(run, data, 17)
    return run


def assert_ends_alike(one, other):
    """Fail unless two runs have bitwise equal weights and bitwise equal averages of Adam."""
    assert_close(weights(one / "model"), weights(other / "model"))
    path = "checkpoints/step-00000016/training_state/state.pt"
    averages = [torch.load(run / path, weights_only=True)["optimizer"]["state"] for run in (one, other)]
    assert_close(*averages)


def test_training_uses_the_recipe_of_the_data_and_prints_its_plan(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train_to(tmp_path / "run", data, 3, "--set tokens_per_batch=99 --set num_averaged_checkpoints=1")
    written = read_json(tmp_path / "run/recipe.json")["recipe"]
    assert written["model"] == TINY.model | {"dropout": 0.2}
    assert (written["tokens_per_batch"], written["num_updates"]) == (99, 3)
    first, second, *lines, last, advice = capsys.readouterr().err.splitlines()
    assert first.startswith(f"recipe {data / 'recipe.json'}: ")
    assert "model.dropout was 0.1, is 0.2" in first
    assert second.startswith("device cpu, pairs 60, seed 0, data ")
    assert ", mixed_precision no, num_processes 1, num_parameters " in second
    assert [line.partition(" -> ")[0] for line in lines if " -> " in line] == [f"  {pair[0]}" for pair in PAIRS[:3]] * 2
    found = read_log(tmp_path / "run")[-1]["dev_perplexity"]
    model = tmp_path / "run/model"
    assert last == f"averaged 1 checkpoint into {model}: perplexity of the development set {found:.6g}"
    assert advice == f"next: vaswani translate --model {tmp_path / 'run'} --input FILE"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is written beside the run


def test_a_run_extended_twice_ends_like_an_uninterrupted_run_of_the_same_length(data, whole, tmp_path, capsys):
    run = tmp_path / "run"
    for num_updates in (8, 9, 17):  # the recipe plans a checkpoint at update 8, but none at update 9
        train_to(run, data, num_updates)
        assert (run / "model/model.safetensors").exists()
    error = capsys.readouterr().err
    assert "resuming after update 8 from" in error
    assert "resuming after update 9 from" in error
    assert_ends_alike(run, whole)
    assert read_json(run / "recipe.json")["recipe"]["num_updates"] == 17
    assert read_log(run)[-1]["update"] == 17


def test_a_run_may_be_shortened_but_not_below_the_updates_done(data, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"

    def stop_after(num_updates):
        with monkeypatch.context() as context:
            calls = itertools.count(1)
            context.setattr(loop, "_agree_to_stop", lambda *args: next(calls) == num_updates)
            train_to(run, data, 30, status=75)  # stopped and saved

    stop_after(9)
    assert (run / "checkpoints/stopped-00000009").exists()
    assert read_update(find_model_folder(run)) == 9
    note = f"{run} has no final model yet: its newest checkpoint is used (stopped-00000009)\n"
    assert capsys.readouterr().err.endswith(note)
    train_to(run, data, 8, status=1)
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"vaswani train: {run} has done 9 updates, but num_updates is 8: give 9 or more."
    train_to(run, data, 9)
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"step-00000008", "step-00000009"}
    assert find_model_folder(run) == run / "model"
    stop_after(2)
    assert find_model_folder(run) == run / "checkpoints/stopped-00000011"
    note = f"{run} was continued after its final model (update 9): its newest checkpoint is used (stopped-00000011)\n"
    assert capsys.readouterr().err.endswith(note)
    (run / "model/README.md").write_text("of update 9")
    train_to(run, data, 11)
    assert "README.md describes the previous model: replace it" in capsys.readouterr().err


def test_a_run_whose_patience_ran_out_says_so_and_continues_with_more_patience(data, tmp_path, capsys):
    changes = "--set lr_scale=0 --set patience"
    # The evaluation at the end of this short run must not count for the patience of the runs below.
    train_to(tmp_path / "run", data, 3, f"{changes}=2")
    for num_updates in (30, 40):
        train_to(tmp_path / "run", data, num_updates, f"{changes}=2")
        error = capsys.readouterr().err
        assert f"ended after update 6 of {num_updates}. Evaluations in a row without a better development" in error
        assert "loss: 2. To continue, give a larger patience: --set patience=4" in error
        assert "WARNING: a uniform guess would have perplexity" in error  # a learning rate of 0 teaches nothing
    for name in ("run", "whole"):
        train_to(tmp_path / name, data, 30, f"{changes}=4")
        assert read_log(tmp_path / name)[-1]["update"] == 10


def test_a_run_continues_with_changed_code_of_the_layers_after_a_warning(data, whole, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(whole, tmp_path / "run")
    changed = tmp_path / "layers_vaswani.py"
    changed.write_text("")
    monkeypatch.setattr(layers_vaswani, "__file__", str(changed))
    train_to(run, data, 19)
    assert "WARNING: the model was saved with other code than the installed code" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "message"),
    [("checkpoints", "holds a final model but no checkpoint"), ("recipe.json", "no recipe.json beside it")],
)
def test_a_final_model_without_checkpoints_or_recipe_is_not_overwritten(data, whole, tmp_path, capsys, lost, message):
    run = shutil.copytree(whole, tmp_path / "run", ignore=shutil.ignore_patterns(lost))
    train_to(run, data, 17, status=1)
    assert message in capsys.readouterr().err
    assert_close(weights(run / "model"), weights(whole / "model"))


@pytest.mark.parametrize("name", ["recipe.json", "log.jsonl", "checkpoints/partial-anything", "model"])
def test_training_refuses_to_overwrite_or_delete_a_file_of_the_user(data, tmp_path, capsys, name):
    path = tmp_path / name
    content = json.dumps(TINY.to_dict())
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    recipe = path if name == "recipe.json" else "phrasebook"
    train_to(tmp_path, data, 2, f"--recipe {recipe}", status=1)
    assert capsys.readouterr().err.startswith(f"vaswani train: {tmp_path}")
    assert path.read_text() == content


@pytest.fixture
def trained(whole, tmp_path):
    """Return the folder of a finished run. The generation config of its model names an alignment head."""
    folder = shutil.copytree(whole, tmp_path / "trained")
    change_json(folder / "model/generation_config.json", alignment_heads=[[0, 1]])
    return folder


def test_a_run_starts_from_trained_weights_and_continues_after_the_weights_are_removed(data, trained, tmp_path, capsys):
    run = tmp_path / "run"
    changes = "--set model.dropout=0.0 --set lr_scale=0"
    train_to(run, data, 2, f"--init_from {trained} {changes}")
    start = weights(trained / "model")
    search = read_json(run / "model/generation_config.json")
    assert search["alignment_heads"] == [[0, 1]]
    assert_close(weights(run / "model"), start)  # a learning rate of 0 changes no weight
    fingerprint = read_json(run / "recipe.json")["init_fingerprint"]
    assert f", init_from {trained}, init_fingerprint {fingerprint}, " in capsys.readouterr().err
    shutil.rmtree(trained)
    train_to(run, data, 4, f"--init_from {trained} {changes}")
    assert "init_fingerprint None" in capsys.readouterr().err
    assert_close(weights(run / "model"), start)
    assert read_json(run / "model/generation_config.json") == search
    assert read_json(run / "recipe.json")["init_fingerprint"] == fingerprint
    train_to(run, data, 4, f"--recipe {data}/recipe.json {changes}", status=1)
    error = capsys.readouterr().err
    assert 'begun with other settings: init_from was "' in error
    assert f", is not set. Give the same settings, or name another output folder, with --init_from {run} to" in error


def test_a_run_continues_with_its_saved_settings_if_none_are_given(data, tmp_path, capsys):
    run = tmp_path / "run"
    changes = "--set num_beams=2 --set model.num_heads=2 --set warmup_updates=5"
    options = f"--recipe multi30k_tiny --seed 3 --divide_widths 8 {changes}"
    train_to(run, data, 2, options)
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first.startswith("recipe multi30k_tiny with changes: model.d_ff was 256, is 32, ")
    assert ", seed 3, " in second
    recorded = read_json(run / "recipe.json")
    train_to(run, data, 3, "--set patience=4")
    assert capsys.readouterr().err.startswith(f"recipe {run / 'recipe.json'}: multi30k_tiny with changes: ")
    changed = {"num_updates": 3, "patience": 4}
    assert read_json(run / "recipe.json") == recorded | {"recipe": recorded["recipe"] | changed}
    train_to(run, data, 3, f"{options} --set patience=4")
    train_to(run, data, 3, "--set lr_scale=9", status=1)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "recipe.lr_scale was 2.53, is 9. Give the same settings, or name another output folder, with --init" in error


def test_a_run_with_divided_widths_continues_with_the_same_command(data, tmp_path):
    command = tmp_path / "run", data, 2, "--divide_widths 2"
    for _ in range(2):
        train_to(*command)


def test_training_records_the_settings_of_the_data_and_refuses_to_change_them(data, tmp_path, capsys):
    for change in ("vocab_size=300", "subword_model=bpe", "max_length=5", "max_length_ratio=1.1"):
        train_to(tmp_path / "run", data, 2, f"--set {change}", status=1)
        assert f"again, in another folder, with vaswani prepare --set {change}." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    train_to(tmp_path / "run", data, 2, "--recipe iwslt14_de_en --divide_widths 32")
    recipe = read_json(tmp_path / "run/recipe.json")["recipe"]
    prepared = read_json(data / "preparation.json")
    assert recipe["subword_model"] == "bpe"
    for name in ("vocab_size", "max_length", "max_length_ratio"):
        assert recipe[name] == prepared[name]


def test_a_run_does_not_begin_inside_a_model_folder(data, whole, capsys):
    train_to(whole / "model", data, 2, status=1)
    assert f"{whole / 'model'} is the folder of a model: name the folder of a run" in capsys.readouterr().err


def test_initial_weights_of_another_architecture_or_vocabulary_are_refused(data, trained, tmp_path, capsys):
    prepare(data / "recipe.json", data.parent, tmp_path / "data", "vocab_size=290")
    tokenizer = read_json(trained / "model/tokenizer.json")["model"]
    tokenizer["vocab"]["a"], tokenizer["vocab"]["e"] = tokenizer["vocab"]["e"], tokenizer["vocab"]["a"]
    swapped = shutil.copytree(trained, tmp_path / "swapped")
    change_json(swapped / "model/tokenizer.json", model=tokenizer)
    for start, other, change, message in (
        (trained, data, "--set model.d_ff=20", "has another architecture than the recipe: d_ff was 24, is 20."),
        (trained, tmp_path / "data", "", f"{trained} has another vocabulary than {tmp_path}/data: prepare with --keep"),
        (swapped, data, "", "has another vocabulary"),
    ):
        train_to(tmp_path / "run", other, 2, f"--init_from {start} {change}", status=1)
        assert message in capsys.readouterr().err


def test_one_process_may_train_runs_of_different_precision_one_after_another(data, tmp_path):
    found = []
    for number, options in enumerate(("--mixed_precision no", "--mixed_precision bf16", "")):
        run = tmp_path / str(number)
        train_to(run, data, 2, options)
        found.append(weights(run / "model"))
    assert_close(found[0], found[2])
    assert any(not weight.equal(found[1][name]) for name, weight in found[0].items())
