import contextlib
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from vaswani_transformer.training import run_folder
from vaswani_transformer.training.run_folder import claim_run, describe_versions, lock_run

RUN = {"recipe": {"num_updates": 7}, "seed": 0, "data": "1f", "mixed_precision": "no", "num_processes": 2}


def hold(folder, connection):
    """Lock `folder` for ever, with a child such as a worker of a data loader."""
    with lock_run(folder):
        if not (child := os.fork()):
            time.sleep(60)
            os._exit(0)
        connection.send(child)
        time.sleep(60)


@contextlib.contextmanager
def another_process_in(folder):
    """Yields that process, which holds the lock of `folder`, and its child."""
    ours, theirs = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(target=hold, args=(folder, theirs))
    holder.start()
    child = ours.recv()
    yield holder, child
    holder.kill()
    os.kill(child, signal.SIGKILL)


def test_a_folder_another_process_trains_in_is_refused_with_its_name(tmp_path):
    with another_process_in(tmp_path) as (holder, _):
        message = rf"process {holder.pid} on host \S+ is training in .*Wait for it or end it, or name another"
        with pytest.raises(ValueError, match=message), lock_run(tmp_path):
            pass


def test_the_folder_of_a_killed_process_is_free_though_its_workers_live(tmp_path):
    with another_process_in(tmp_path) as (holder, child):
        holder.kill()
        holder.join()
        os.kill(child, 0)  # is there
        with lock_run(tmp_path):
            assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on host ")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "lockf", refuse)
    with pytest.warns(UserWarning, match="cannot be locked .*No locks available.*: start no second run there"):  # noqa: SIM117
        with lock_run(tmp_path):
            pass


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
        ({"recipe": {"num_updates": 9}}, "another recipe: num_updates is 7 there, 9 here. Name another output folder"),
        ({"seed": 1}, "another seed: 0 there, 1 here"),
        ({"data": "2e"}, "another data: 1f there, 2e here"),
        ({"mixed_precision": "bf16"}, "another mixed_precision: no there, bf16 here"),
    ],
)
def test_a_folder_of_another_run_is_refused_once_there_is_a_checkpoint(tmp_path, change, message):
    claim_run(tmp_path, RUN, is_begun=False)
    with pytest.raises(ValueError, match=f"holds a run with {message}"):
        claim_run(tmp_path, RUN | change, is_begun=True)
    claim_run(tmp_path, RUN | change, is_begun=False)


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "damaged: expected a JSON object"), ('{"recipe": {}, "seed": {"a": 1}}', "another")]
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
