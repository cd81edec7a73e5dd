import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vaswani_transformer.training.checkpoints import (
    average_checkpoints,
    begin_checkpoint,
    checkpoint_name,
    complete_checkpoints,
    drop_old_checkpoints,
    finish_checkpoint,
    resumable_checkpoints,
    select_checkpoints,
)


def write_model(folder, *, seed, d_model=4, value=None):
    weight = torch.randn(3, d_model, generator=torch.Generator().manual_seed(seed))
    if value is not None:
        weight[0, 0] = value
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"d_model": d_model, "transformers_version": str(seed)}))
    return weight


def fill(folder, step, *, is_scheduled=True):
    """A checkpoint folder with all in it, not yet complete."""
    partial = begin_checkpoint(folder, checkpoint_name(step, is_scheduled=is_scheduled))
    write_model(partial, seed=step)
    (partial / "training_state").mkdir()
    (partial / "training_state" / "optimizer.bin").write_bytes(b"state")
    return partial


def write_step(folder, step, *, is_scheduled=True, seconds=0.0):
    return finish_checkpoint(fill(folder, step, is_scheduled=is_scheduled), seconds=seconds)


def names(checkpoints):
    return [path.name for path in checkpoints]


def test_only_checkpoints_written_to_the_end_are_seen(tmp_path):
    write_step(tmp_path, 2)
    write_step(tmp_path, 10)
    (write_step(tmp_path, 11) / "COMPLETE").unlink()
    fill(tmp_path, 12)
    assert names(complete_checkpoints(tmp_path)) == ["step-00000002", "step-00000010"]
    assert names(resumable_checkpoints(tmp_path)) == ["step-00000002", "step-00000010"]


def test_a_half_written_checkpoint_is_written_anew(tmp_path):
    (fill(tmp_path, 3) / "rubbish").write_text("x")
    folder = write_step(tmp_path, 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "COMPLETE",
        "config.json",
        "model.safetensors",
        "training_state",
    ]


def test_a_complete_checkpoint_says_when_it_was_written(tmp_path):
    folder = write_step(tmp_path, 57, seconds=600.5)
    assert json.loads((folder / "COMPLETE").read_text()) == {"update": 57, "seconds": 600.5}


def test_a_stop_leaves_a_checkpoint_to_resume_from_but_not_to_average(tmp_path):
    write_step(tmp_path, 10)
    write_step(tmp_path, 13, is_scheduled=False)
    assert names(complete_checkpoints(tmp_path)) == ["step-00000010"]
    assert names(resumable_checkpoints(tmp_path)) == ["step-00000010", "stopped-00000013"]


def test_what_stops_and_kills_left_behind_goes_with_the_next_checkpoint(tmp_path):
    write_step(tmp_path, 10)
    write_step(tmp_path, 13, is_scheduled=False)
    fill(tmp_path, 15)
    drop_old_checkpoints(tmp_path, keep=5)  # the stop is the newest still
    assert sorted(names(tmp_path.iterdir())) == ["step-00000010", "stopped-00000013"]
    write_step(tmp_path, 20)
    drop_old_checkpoints(tmp_path, keep=5)
    assert sorted(names(tmp_path.iterdir())) == ["step-00000010", "step-00000020"]


def test_old_checkpoints_go_but_those_the_average_needs_stay(tmp_path):
    for step in range(1, 7):
        write_step(tmp_path, step)
        drop_old_checkpoints(tmp_path, keep=4, keep_states=2)
    assert [path.name[-1] for path in complete_checkpoints(tmp_path)] == ["3", "4", "5", "6"]
    assert [path.name[-1] for path in resumable_checkpoints(tmp_path)] == ["5", "6"]


@pytest.mark.parametrize("lasting_deletions", [0, 1])
def test_a_deletion_that_was_killed_is_never_taken_for_a_checkpoint_and_is_ended_later(
    tmp_path, monkeypatch, lasting_deletions
):
    for step in (1, 2, 3, 4):
        write_step(tmp_path, step)
    rmtree, deleted = shutil.rmtree, []

    def die(path, ignore_errors=False):
        if path.exists():
            deleted.append(path)
            if len(deleted) > lasting_deletions:
                next(file for file in path.rglob("*") if file.is_file()).unlink()
                raise KeyboardInterrupt
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        drop_old_checkpoints(tmp_path, keep=3)
    monkeypatch.undo()
    assert names(complete_checkpoints(tmp_path)) == ["step-00000002", "step-00000003", "step-00000004"]
    assert names(resumable_checkpoints(tmp_path)) == ["step-00000003", "step-00000004"]
    drop_old_checkpoints(tmp_path, keep=3)
    assert sorted(names(tmp_path.iterdir())) == ["step-00000002", "step-00000003", "step-00000004"]


def test_the_last_good_checkpoint_is_never_deleted(tmp_path):
    write_step(tmp_path, 1)
    drop_old_checkpoints(tmp_path, keep=0)
    assert len(resumable_checkpoints(tmp_path)) == 1


def test_checkpoints_are_selected_by_the_time_between_them(tmp_path):
    for step, minutes in enumerate([4, 9, 12, 19, 22, 29, 31, 40], start=1):
        write_step(tmp_path, step, seconds=60 * minutes)
    assert names(select_checkpoints(tmp_path, last=3)) == ["step-00000006", "step-00000007", "step-00000008"]
    apart = select_checkpoints(tmp_path, last=4, minutes_apart=10)
    assert names(apart) == ["step-00000002", "step-00000004", "step-00000006", "step-00000008"]  # 9, 19, 29, 40
    with pytest.raises(ValueError, match="holds 4 checkpoints 10 minutes apart, 5 are asked for"):
        select_checkpoints(tmp_path, last=5, minutes_apart=10)


def test_the_average_is_the_mean_in_float64_cast_once(tmp_path):
    weights = [write_model(tmp_path / str(seed), seed=seed) for seed in range(7)]
    average_checkpoints([tmp_path / str(seed) for seed in range(7)], tmp_path / "mean")
    expected = np.mean([weight.double().numpy() for weight in weights], axis=0).astype(np.float32)
    assert np.array_equal(load_file(tmp_path / "mean" / "model.safetensors")["weight"].numpy(), expected)
    assert json.loads((tmp_path / "mean" / "config.json").read_text())["transformers_version"] == "6"


def test_models_of_different_shape_are_not_averaged(tmp_path):
    write_model(tmp_path / "a", seed=0)
    write_model(tmp_path / "b", seed=1, d_model=6)
    with pytest.raises(ValueError, match=r"a and .*b are different models: they differ in d_model"):
        average_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")


def test_models_of_different_vocabulary_are_not_averaged(tmp_path):
    for name in ("a", "b"):
        write_model(tmp_path / name, seed=0)
        (tmp_path / name / "tokenizer.json").write_text(name)
    with pytest.raises(ValueError, match="they differ in the tokenizer"):
        average_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "mean")


def test_weights_that_are_not_finite_are_not_averaged(tmp_path):
    write_model(tmp_path / "a", seed=0, value=float("nan"))
    with pytest.raises(ValueError, match=r"weight in .*a holds a value that is not finite"):
        average_checkpoints([tmp_path / "a"], tmp_path / "mean")


def test_a_truncated_file_is_named(tmp_path):
    write_model(tmp_path / "a", seed=0)
    path = tmp_path / "a" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        average_checkpoints([tmp_path / "a"], tmp_path / "mean")


def test_nothing_to_average_is_said(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint to average"):
        average_checkpoints([], tmp_path / "mean")


def test_a_folder_without_weights_is_named(tmp_path):
    write_model(tmp_path / "a", seed=0)
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"a holds no model\.safetensors"):
        average_checkpoints([tmp_path / "a"], tmp_path / "mean")
