"""Training with several processes works. Here the processes run on one CPU and are connected by gloo, without GPUs."""

import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from accelerate import debug_launcher
from accelerate.state import AcceleratorState, GradientState
from shortcuts import change_json
from tiny_training import TINY, WITHOUT_DROPOUT, assert_close, log_without_times, train, weights
from torch.multiprocessing import ProcessRaisedException

from vaswani_transformer.evaluation import metrics
from vaswani_transformer.translation.translator import Translator

RECIPE = replace(TINY, num_updates=5)
# Without dropout, any number of processes computes the same.
EXACT = replace(WITHOUT_DROPOUT, num_updates=5)


def train_in_fork(recipe, data, run, settings, double):
    """Train in one of several processes.

    Args:
        data: a folder, or a function that returns a folder for the rank of the process.
        double: True to train in float64.
    """
    # This process is a fork of the test process. The copied state of Accelerate says that there is only one process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)
    if double:
        torch.set_default_dtype(torch.float64)
    data = data(torch.distributed.get_rank()) if callable(data) else data
    train(recipe, data, run, log_interval=1, **settings)


def train_in_processes(num_processes, recipe, data, run, *, double=False, **settings):
    debug_launcher(train_in_fork, args=(recipe, data, run, settings, double), num_processes=num_processes)
    return weights(run / "model")


@pytest.fixture(scope="module")
def one_process(tiny_data, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    return train_in_processes(1, EXACT, tiny_data, run, double=True), log_without_times(run)


@pytest.fixture(scope="module")
def two_processes(tiny_data, tmp_path_factory):
    """Return the weights that two processes learn with dropout."""
    return train_in_processes(2, RECIPE, tiny_data, tmp_path_factory.mktemp("two") / "run")


@pytest.mark.parametrize(("num_processes", "accumulation_steps"), [(8, 1), (2, 4), (1, 8)])
def test_an_update_is_the_same_however_it_is_split(num_processes, accumulation_steps, one_process, tiny_data, tmp_path):
    run = tmp_path / "run"
    found = train_in_processes(num_processes, EXACT, tiny_data, run, double=True, accumulation_steps=accumulation_steps)
    assert found["model.shared.weight"].dtype == torch.float64
    assert_close(found, one_process[0], tolerance=1e-10)
    for line, expected in zip(log_without_times(run), one_process[1], strict=True):
        assert line == pytest.approx(expected, abs=1e-10)


def test_compiled_processes_learn_the_same_as_one_process(one_process, tiny_data, tmp_path, monkeypatch):
    # This backend traces the model but generates no code, because generating code takes long.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    run = tmp_path / "run"
    found = train_in_processes(2, replace(EXACT, compile=True), tiny_data, run, double=True)
    assert_close(found, one_process[0], tolerance=1e-10)


def test_a_run_continues_with_another_number_of_processes_and_a_warning(one_process, tiny_data, tmp_path, capfd):
    run = tmp_path / "run"
    train_in_processes(2, EXACT, tiny_data, run, double=True)
    (
        run / "checkpoints/step-00000005/COMPLETE"
    ).unlink()  # as if the run had been killed after update 4, inside the third epoch
    found = train_in_processes(3, EXACT, tiny_data, run, double=True)
    error = capfd.readouterr().err
    assert "was written by 2 processes, and this run has 3: dropout" in error
    assert error.count("the dog 0 runs -> ") == 4  # in both runs, one process prints this line in each evaluation
    assert_close(found, one_process[0], tolerance=1e-10)
    assert [line["update"] for line in log_without_times(run) if "lr" in line] == [1, 2, 3, 4, 5]


def test_processes_that_find_different_data_are_refused(tiny_data, tmp_path):
    other = shutil.copytree(tiny_data, tmp_path / "data/1")
    change_json(other / "preparation.json", fingerprint="another")
    data = [tiny_data, other].__getitem__
    with pytest.raises(ProcessRaisedException, match="the processes find different prepared data"):
        debug_launcher(train_in_fork, args=(RECIPE, data, tmp_path / "run", {}, False), num_processes=2)


def test_processes_draw_different_dropout_and_a_stopped_run_continues_exactly(two_processes, tiny_data, tmp_path):
    run = tmp_path / "stopped"
    train_in_processes(2, RECIPE, tiny_data, run)
    saved = [torch.load(path, weights_only=True) for path in run.glob("checkpoints/*/training_state/state.pt")]
    states = [state["cpu"] for checkpoint in saved for state in checkpoint["random_states"]]
    assert len({state.numpy().tobytes() for state in states}) == len(states) == 4  # 2 checkpoints x 2 processes
    with pytest.raises(ProcessRaisedException, match="begun with other settings: seed was 0, is 1"):
        train_in_processes(2, RECIPE, tiny_data, run, seed=1)  # the first process refuses the seed, and all raise
    (run / "checkpoints/step-00000005/COMPLETE").unlink()
    continued = train_in_processes(2, RECIPE, tiny_data, run)
    assert_close(continued, two_processes)


class Checksum:
    """A checksum of translations in place of BLEU, because any translations of an untrained model have a BLEU of 0."""

    def corpus_score(self, translations, references):
        assert len(translations) == len(references[0]) == 9
        return SimpleNamespace(score=zlib.crc32("\n".join(translations).encode()))


def compute_checksum(*args, **processes):
    """Return a checksum of the translated development set. The set has more batches than there are processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sacrebleu, "BLEU", Checksum)
        patch.setattr(metrics, "Translator", partial(Translator, tokens_per_batch=50))
        return metrics.compute_bleu(*args, **processes)


def test_several_processes_translate_the_development_set_as_one_process_does(tiny_data, tmp_path):
    sums = []
    for num_processes in (1, 2):
        run = tmp_path / str(num_processes)
        train_in_processes(num_processes, EXACT, tiny_data, run, double=True, score_dev=compute_checksum)
        sums.append([line["dev_bleu"] for line in log_without_times(run) if "dev_bleu" in line])
    assert sums[0] == sums[1]
    assert len(set(sums[0])) > 1  # the translations change during the training


LAUNCH = {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    # Otherwise a restarted worker may find a dead worker's address in the launcher's store, and wait for that worker.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
WORKER = """
import faulthandler, gc, os, signal, sys, weakref
from pathlib import Path
faulthandler.dump_traceback_later(400, exit=True)  # shows where a process waits for ever
sys.path[:0] = {tests!r}
from test_distributed_training import RECIPE
from vaswani_transformer.data.preparation import read_prepared
from vaswani_transformer.training import loop
from vaswani_transformer.training.interruption import EXIT_CODE, Interrupted, StopRequest, destroy_group_at_exit
from vaswani_transformer.training.setup import build_run

run = Path(sys.argv[2])
parts = build_run(RECIPE, read_prepared(Path(sys.argv[1])), run, log_interval=1)
run_update = loop.run_update

def die_or_stop(parts, update):
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_life and os.environ["RANK"] == "1" and parts.progress.update == 3:
        while not (run / "checkpoints/step-00000002").exists():  # the other process writes this checkpoint
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    if not first_life and os.environ["RANK"] == "0" and parts.progress.update == 2:
        os.kill(os.getppid(), signal.SIGTERM)
        while not received:  # torchrun passes the signal on to all workers
            pass
    return run_update(parts, update)

received, remember = [], StopRequest._remember

def note(self, number, frame):
    received.append(number)  # not the frame, which holds the model
    remember(self, number, frame)

StopRequest._remember = note
loop.run_update = die_or_stop
status = 0
try:
    loop.train(parts)
except Interrupted as error:
    print(error)
    status = EXIT_CODE
model = weakref.ref(parts.model)
del parts
gc.collect()
assert model() is None  # a living model would keep the processes from destroying their process group
destroy_group_at_exit()
sys.exit(status)
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_run_and_sigterm_makes_it_save(two_processes, tiny_data, tmp_path, capfd):
    script = tmp_path / "worker.py"
    run = tmp_path / "run"
    script.write_text(WORKER.format(tests=list(map(str, Path(__file__).parents[:2]))))
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node 2 --max-restarts 1 --shutdown-timeout 120"
    result = subprocess.run(
        [sys.executable, *torchrun.split(), script, tiny_data, run],
        env=os.environ | LAUNCH,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert "resuming after update 2" in result.stderr
    assert result.returncode != 0
    (checkpoint,) = run.glob("checkpoints/stopped-*")
    assert result.stdout.count(f"stopped after update {checkpoint.name[-1]} and saved") == 2
    found = train_in_processes(2, RECIPE, tiny_data, run)
    assert f"resuming after update {checkpoint.name[-1]}" in capfd.readouterr().err
    assert_close(found, two_processes)
