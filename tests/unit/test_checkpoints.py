"""Checkpoints: how they are finished, chosen, deleted and averaged."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from shortcuts import vaswani

from vaswani_transformer.averaging import average_checkpoints
from vaswani_transformer.runs import averageable_checkpoints, checkpoint_name, resumable_checkpoints
from vaswani_transformer.training.checkpoints import choose_checkpoint, drop_old_checkpoints, finish_checkpoint
from vaswani_transformer.translation import example


def fill(folder, step, *, is_scheduled=True):
    """Write all files of a checkpoint except COMPLETE into a folder partial-..., and return the folder.

    The weights (3, 4) are random. The config holds `step` in place of the version of transformers. A checkpoint that is
    written at a stop has `is_scheduled=False`.
    """
    partial = folder / f"partial-{checkpoint_name(step, is_scheduled=is_scheduled)}"
    (partial / "training_state").mkdir(parents=True)
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
    save_file({"weight": weight}, partial / "model.safetensors")
    (partial / "config.json").write_text(json.dumps({"transformers_version": str(step)}))
    (partial / "training_state" / "optimizer.bin").write_bytes(b"state")
    return partial


def write_step(folder, step, **options):
    """Write a complete checkpoint and return its folder."""
    return finish_checkpoint(fill(folder, step, **options))


def read_weights(folder):
    return load_file(folder / "model.safetensors")["weight"]


def names(checkpoints):
    return [path.name for path in checkpoints]


def test_unfinished_checkpoints_are_ignored_and_checkpoints_written_at_a_stop_are_not_averaged(tmp_path):
    write_step(tmp_path, 2)
    write_step(tmp_path, 10)
    (write_step(tmp_path, 11) / "COMPLETE").unlink()
    fill(tmp_path, 12)
    write_step(tmp_path, 13, is_scheduled=False)
    assert names(averageable_checkpoints(tmp_path)) == ["step-00000002", "step-00000010"]
    assert names(resumable_checkpoints(tmp_path)) == ["step-00000002", "step-00000010", "stopped-00000013"]


def test_a_checkpoint_is_synced_then_marked_as_complete_then_renamed(tmp_path, file_calls):
    partial = fill(tmp_path, 57)
    file_calls.clear()
    finish_checkpoint(partial)
    calls = [call.replace("partial-step-00000057/", "") for call in file_calls]
    assert sorted(calls[:4]) == [
        "sync config.json",
        "sync model.safetensors",
        "sync training_state",
        "sync training_state/optimizer.bin",
    ]
    assert calls[4:] == [
        "sync COMPLETE.partial",
        "rename COMPLETE.partial",
        "sync partial-step-00000057",
        "rename partial-step-00000057",
        "sync .",
    ]
    mark = json.loads((tmp_path / "step-00000057" / "COMPLETE").read_text())
    assert mark["files"]["training_state/optimizer.bin"] == hashlib.sha256(b"state").hexdigest()
    assert sorted(mark["files"]) == ["config.json", "model.safetensors", "training_state/optimizer.bin"]


def flip(path):
    """Flip one bit in the last byte of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 4]))


# What the warning says after the path of the checkpoint -> a function that damages the checkpoint. If COMPLETE is
# missing, the warning is Python's FileNotFoundError, which closes the path with a quotation mark.
DAMAGES = {
    "model.safetensors is damaged": lambda folder: flip(folder / "model.safetensors"),
    "config.json is missing": lambda folder: (folder / "config.json").unlink(),
    "training_state/optimizer.bin is damaged": lambda folder: flip(folder / "training_state" / "optimizer.bin"),
    "training_state/optimizer.bin is missing": lambda folder: shutil.rmtree(folder / "training_state"),
    "COMPLETE'; trying": lambda folder: (shutil.rmtree(folder), folder.touch()),  # a file with this name
    "COMPLETE'": lambda folder: (folder / "COMPLETE").unlink(),
    "COMPLETE was not written by this version of the package, or is damaged": lambda folder: flip(folder / "COMPLETE"),
    "COMPLETE was not written by this version": lambda folder: (folder / "COMPLETE").write_text('{"files": [1]}'),
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_training_resumes_from_the_newest_intact_checkpoint(tmp_path, fault, capsys):
    intact = write_step(tmp_path, 2)
    damaged = write_step(tmp_path, 4)
    for name in ("step-00000006 (copy)", "step-²"):
        shutil.copytree(damaged, tmp_path / name)  # a folder with this name is no checkpoint
    assert choose_checkpoint(tmp_path, print) == damaged
    DAMAGES[fault](damaged)
    assert choose_checkpoint(tmp_path, print) == intact
    assert f"{damaged}/{fault}" in capsys.readouterr().out
    assert not damaged.exists()


def test_a_damaged_checkpoint_is_not_averaged(tmp_path):
    folders = [write_step(tmp_path, 2), write_step(tmp_path, 4)]
    shutil.rmtree(folders[0] / "training_state")  # as `drop_old_checkpoints` does
    average_checkpoints(folders, tmp_path / "mean")
    flip(folders[0] / "model.safetensors")
    with pytest.raises(ValueError, match=r"step-00000002/model\.safetensors is damaged: copy the file back, or remove"):
        average_checkpoints(folders, tmp_path / "mean")
    (folders[0] / "COMPLETE").write_text("{}")
    with pytest.raises(ValueError, match=r"step-00000002/COMPLETE was not written by this version"):
        average_checkpoints(folders, tmp_path / "mean")


def test_the_error_about_a_full_disk_names_the_file_of_the_average(tmp_path, little_room):
    checkpoint = write_step(tmp_path, 2)
    with little_room(100), pytest.raises(OSError, match=r"File too large: '.*mean/model\.safetensors'"):
        average_checkpoints([checkpoint], tmp_path / "mean")
    assert not (tmp_path / "mean" / "model.safetensors").exists()


def test_leftovers_of_stopped_and_killed_runs_are_deleted_after_the_next_checkpoint(tmp_path):
    write_step(tmp_path, 10)
    write_step(tmp_path, 13, is_scheduled=False)
    fill(tmp_path, 15)
    (tmp_path / "partial-file").touch()
    (tmp_path / "partial-link").symlink_to("step-00000010")
    drop_old_checkpoints(tmp_path, keep=5)  # keeps stopped-00000013, because it is the newest
    assert sorted(names(tmp_path.iterdir())) == ["step-00000010", "stopped-00000013"]
    write_step(tmp_path, 20)
    drop_old_checkpoints(tmp_path, keep=5)
    assert sorted(names(tmp_path.iterdir())) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize(("keep", "kept"), [(4, "3456"), (1, "56")])  # the newest two are always kept
def test_old_checkpoints_are_deleted_unless_the_average_needs_them(tmp_path, keep, kept):
    for step in range(1, 7):
        write_step(tmp_path, step)
        drop_old_checkpoints(tmp_path, keep=keep)
    assert [path.name[-1] for path in averageable_checkpoints(tmp_path)] == list(kept)
    assert [path.name[-1] for path in resumable_checkpoints(tmp_path)] == ["5", "6"]


@pytest.mark.parametrize("num_whole_deletions", [0, 1])
def test_a_half_deleted_checkpoint_is_ignored_and_deleted_later(tmp_path, monkeypatch, num_whole_deletions):
    for step in (1, 2, 3, 4):
        write_step(tmp_path, step)
    rmtree = shutil.rmtree
    deleted = []

    def die(path, ignore_errors=False):
        # Delete `num_whole_deletions` folders, then one file of the next folder, and stop.
        if path.exists():
            deleted.append(path)
            if len(deleted) > num_whole_deletions:
                next(file for file in path.rglob("*") if file.is_file()).unlink()
                raise KeyboardInterrupt
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        drop_old_checkpoints(tmp_path, keep=3)
    monkeypatch.undo()
    assert names(averageable_checkpoints(tmp_path)) == ["step-00000002", "step-00000003", "step-00000004"]
    assert names(resumable_checkpoints(tmp_path)) == ["step-00000003", "step-00000004"]
    drop_old_checkpoints(tmp_path, keep=3)
    assert sorted(names(tmp_path.iterdir())) == ["step-00000002", "step-00000003", "step-00000004"]


@pytest.mark.parametrize(("last", "averaged"), [("--last 2", [3, 4]), ("", [2, 3, 4])])
def test_vaswani_average_takes_the_last_checkpoints_of_a_run(tmp_path, capsys, monkeypatch, last, averaged):
    # The command ends with a translation by the averaged model, but these folders hold no model that can translate.
    monkeypatch.setattr(example, "keep_example", lambda folder: None)
    folders = {step: write_step(tmp_path / "checkpoints", step) for step in range(1, 5)}
    (tmp_path / "recipe.json").write_text('{"recipe": {"num_averaged_checkpoints": 3}}')
    command = f"average --run {tmp_path} --output {tmp_path}/mean"
    vaswani(f"{command} --last 5", status=1)
    assert ": 4, fewer than --last 5: give a smaller number." in capsys.readouterr().err
    vaswani(f"{command} {last}")
    average_checkpoints([folders[step] for step in averaged], tmp_path / "expected")
    assert torch.equal(read_weights(tmp_path / "mean"), read_weights(tmp_path / "expected"))
    (tmp_path / "recipe.json").write_text("{}")
    vaswani(f"average --run {tmp_path} --output {tmp_path}/b", status=1)
    assert "recipe.json was not written by this version" in capsys.readouterr().err


def test_vaswani_average_takes_named_checkpoints_and_models(tmp_path, monkeypatch, capsys):
    # The command ends with a translation by the averaged model, but these folders hold no model that can translate.
    monkeypatch.setattr(example, "keep_example", lambda folder: None)
    model = write_step(tmp_path / "checkpoints", 3).rename(tmp_path / "model")
    folders = [*(write_step(tmp_path / "checkpoints", step) for step in (7, 1)), model]
    command = f"average --output {tmp_path}/mean --checkpoints"
    vaswani(command, *folders)
    average_checkpoints(folders, tmp_path / "expected")
    assert torch.equal(read_weights(tmp_path / "mean"), read_weights(tmp_path / "expected"))
    with pytest.raises(SystemExit):
        vaswani(command, *folders, "--last", 2)
    assert "--last counts the checkpoints of a --run" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["vocabulary", "weights"])
def test_models_with_different_vocabularies_or_shapes_are_not_averaged(tmp_path, change):
    folders = [write_step(tmp_path, step) for step in (1, 2)]
    for folder in folders:
        (folder / "COMPLETE").unlink()
        tokenizer = {"padding": str(folder), "model": str(folder) if change == "vocabulary" else ""}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if change == "weights":
        save_file({"weight": torch.zeros(1, 1)}, folders[1] / "model.safetensors")
    with pytest.raises(ValueError, match=r"step-00000002 has another architecture or vocabulary than .*1:"):
        average_checkpoints(folders, tmp_path / "mean")


def test_the_average_is_computed_in_float64_and_cast_once(tmp_path):
    checkpoints = [write_step(tmp_path, step) for step in range(7)]
    average_checkpoints(checkpoints, tmp_path / "mean")
    weights = [read_weights(path).double().numpy() for path in checkpoints]
    expected = np.mean(weights, axis=0).astype(np.float32)
    assert np.array_equal(read_weights(tmp_path / "mean").numpy(), expected)
    # The config is a copy from the last checkpoint.
    assert json.loads((tmp_path / "mean" / "config.json").read_text())["transformers_version"] == "6"


def test_averaging_no_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint to average"):
        average_checkpoints([], tmp_path / "mean")
