"""The final model of a run appears, or replaces the previous final model, in one step."""

import ctypes
import itertools
import multiprocessing
import os
import shutil
import sys
from dataclasses import replace

import pytest
from shortcuts import vaswani
from tiny_training import TINY, build, train

from vaswani_transformer.files import digest_files
from vaswani_transformer.training import loop
from vaswani_transformer.translation.example import keep_example

# Names of the audit events of Python that change a file or folder.
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.copyfile")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the tests fork processes")


@pytest.fixture(scope="module", params=["first", "continued"])
def unfinished_run(request, tiny_data, tmp_path_factory):
    """Return the folder of a run that lacks only its new final model, and digests of files in its model folder.

    `finish_run` writes the new model. The first digests are those of the files before this call, and the second digests
    are those of the files after it. In the case "first", the run had no final model before. In the case "continued", it
    had one, with a card.
    """
    run = tmp_path_factory.mktemp(request.param)
    before = {}
    if request.param == "continued":
        finish_run(tiny_data, run, num_updates=3)
        (run / "model/README.md").write_text("my card")
        before = read_files(run / "model")
        shutil.copytree(run / "model", run / "kept")
    train(replace(TINY, num_updates=4), tiny_data, run)
    shutil.rmtree(run / "model")
    if before:
        (run / "kept").rename(run / "model")
    whole = shutil.copytree(run, tmp_path_factory.mktemp("whole") / "run")
    finish_run(tiny_data, whole)
    return run, before, read_files(whole / "model")


def finish_run(data, run, num_updates=4):
    loop.train(build(replace(TINY, num_updates=num_updates), data, run), finish=keep_example)


def read_files(folder):
    return digest_files(folder, folder.rglob("*"))


def die_at(number, parts, connection):
    """Finish the training, but die just before file change `number`. Changes are counted from the start of averaging.

    If `number` is 0, or if there are fewer changes, do not die, but send the number of changes through `connection`.
    """
    numbers = itertools.count(1)
    average, is_at_the_end = loop.average_checkpoints, False

    def hook(event, args):
        is_write = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if is_at_the_end and (is_write or event in CHANGES) and next(numbers) == number:
            os._exit(9)

    def average_and_count(*args):
        nonlocal is_at_the_end
        is_at_the_end = True
        average(*args)

    sys.addaudithook(hook)
    loop.average_checkpoints = average_and_count
    loop.train(parts, finish=keep_example)
    connection.send(next(numbers) - 1)


def run_and_die_at(number, parts):
    """Run `die_at` in a process. Return the number of file changes, or `None` if the process died."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=die_at, args=(number, parts, theirs))
    process.start()
    process.join()
    assert process.exitcode in (0, 9)
    return ours.recv() if process.exitcode == 0 else None


@pytest.mark.parametrize("steps", ["one step", "two steps"])
def test_a_kill_at_each_file_change_leaves_the_old_or_the_new_model(
    unfinished_run, tiny_data, tmp_path, monkeypatch, steps
):
    folder, before, after = unfinished_run
    allowed = [before, after]
    run = tmp_path / "run"
    if steps == "two steps":
        monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
        allowed.append({})  # without `renameat2` there are two renames, between which no model exists
    parts = build(replace(TINY, num_updates=4), tiny_data, run)
    shutil.copytree(folder, run)
    num_changes = run_and_die_at(0, parts)
    assert num_changes >= 10
    for number in range(1, num_changes + 1):
        shutil.rmtree(run)
        shutil.copytree(folder, run)
        assert run_and_die_at(number, parts) is None
        assert read_files(run / "model") in allowed
        if number in (5, num_changes - 4, num_changes):  # to save time, only these runs are finished
            assert run_and_die_at(0, parts)
            assert read_files(run / "model") == after
            assert not list(run.glob(".model*"))


def test_a_full_disk_leaves_the_old_model_with_all_its_files(unfinished_run, tiny_data, tmp_path, little_room):
    folder, before, after = unfinished_run
    run = shutil.copytree(folder, tmp_path / "run")
    with pytest.raises(OSError, match="File too large"), little_room(5_000):
        finish_run(tiny_data, run)
    assert read_files(run / "model") == before
    finish_run(tiny_data, run)
    assert read_files(run / "model") == after
    assert (run / "model/README.md").exists() == bool(before)
    vaswani(f"check --model {run}")
