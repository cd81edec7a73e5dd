"""Several processes on one CPU, joined by gloo: what eight GPUs do, at a size a test can afford."""

import json
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
import yaml
from accelerate import debug_launcher
from accelerate.state import AcceleratorState, GradientState
from tiny_training import TINY, WITHOUT_DROPOUT, assert_close, timeless, weights
from torch.multiprocessing import ProcessRaisedException

from vaswani_transformer.evaluation import scores
from vaswani_transformer.training.trainer import Trainer
from vaswani_transformer.translation.translator import Translator

SCRIPTS = Path(__file__).parents[2] / "scripts"
RECIPE = replace(TINY, num_updates=5)
EXACT = replace(WITHOUT_DROPOUT, num_updates=5)


def train(recipe, data, run, settings, double):
    """`data` and `run` are folders, or a function of the number of the process that returns one."""
    # The processes are forks of this one, in which Accelerate knows itself alone.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)
    if double:
        torch.set_default_dtype(torch.float64)
    data, run = (folder(str(torch.distributed.get_rank())) if callable(folder) else folder for folder in (data, run))
    Trainer(recipe, data, run, log_interval=1, **settings).train()


def train_in_processes(num_processes, recipe, data, run, *, double=False, **settings):
    debug_launcher(train, args=(recipe, data, run, settings, double), num_processes=num_processes)
    return weights(run / "model")


def log_of(run):
    return [{name: value for name, value in line.items() if name != "fill"} for line in timeless(run)]


@pytest.fixture(scope="module")
def one_process(tiny_data, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    return train_in_processes(1, EXACT, tiny_data, run, double=True), log_of(run)


@pytest.fixture(scope="module")
def two_processes(tiny_data, tmp_path_factory):
    """What two processes learn with dropout."""
    return train_in_processes(2, RECIPE, tiny_data, tmp_path_factory.mktemp("two") / "run")


@pytest.mark.parametrize(("num_processes", "accumulation_steps"), [(8, 1), (2, 4), (1, 8)])
def test_an_update_is_the_same_however_it_is_split(num_processes, accumulation_steps, one_process, tiny_data, tmp_path):
    run = tmp_path / "run"
    found = train_in_processes(num_processes, EXACT, tiny_data, run, double=True, accumulation_steps=accumulation_steps)
    assert found["model.shared.weight"].dtype == torch.float64
    assert_close(found, one_process[0], tolerance=1e-10)
    for line, expected in zip(log_of(run), one_process[1], strict=True):
        assert line == pytest.approx(expected, abs=1e-10)


def test_compiled_processes_learn_the_same(one_process, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # without generating code
    run = tmp_path / "run"
    found = train_in_processes(2, replace(EXACT, compile=True), tiny_data, run, double=True)
    assert_close(found, one_process[0], tolerance=1e-10)


def test_another_number_of_processes_is_refused_unless_asked_for(one_process, tiny_data, tmp_path):
    run = tmp_path / "run"
    train_in_processes(2, EXACT, tiny_data, run, double=True)
    for path in (run / "checkpoints").glob("step-00000005"):
        (path / "COMPLETE").unlink()  # as if it had been killed after update 4, inside the third epoch
    with pytest.raises(ProcessRaisedException, match=r"was written by 2 processes, this is a run of 3\. Start 2"):
        train_in_processes(3, EXACT, tiny_data, run, double=True)
    found = train_in_processes(3, EXACT, tiny_data, run, double=True, change_processes=True)
    assert_close(found, one_process[0], tolerance=1e-10)
    assert [line["update"] for line in log_of(run) if "lr" in line] == [1, 2, 3, 4, 5]


def test_a_run_folder_that_not_all_processes_see_is_refused(tiny_data, tmp_path):
    message = r"process 1 on host \S+ does not find in \S*1/run what the main process finds .* shared by all machines"
    with pytest.raises(ProcessRaisedException, match=message):
        debug_launcher(
            train, args=(RECIPE, tiny_data, lambda rank: tmp_path / rank / "run", {}, False), num_processes=2
        )


def test_processes_do_not_train_on_different_data(tiny_data, tmp_path):
    other = tmp_path / "1"
    shutil.copytree(tiny_data, other)
    preparation = json.loads((other / "preparation.json").read_text())
    (other / "preparation.json").write_text(json.dumps(preparation | {"fingerprint": "another"}))
    folders = {"0": tiny_data, "1": other}
    with pytest.raises(
        ProcessRaisedException, match=r"process 1 on host \S+ does not find in \S*1 what the main process"
    ):
        debug_launcher(train, args=(RECIPE, folders.get, tmp_path / "run", {}, False), num_processes=2)


def test_all_processes_say_why_the_first_refuses_a_run(tiny_data, tmp_path):
    train_in_processes(2, RECIPE, tiny_data, tmp_path / "run")
    with pytest.raises(ProcessRaisedException, match="holds another run: seed was 0, is 1"):
        train_in_processes(2, RECIPE, tiny_data, tmp_path / "run", seed=1)


def test_processes_draw_different_dropout_and_a_stopped_run_goes_on_with_it(two_processes, tiny_data, tmp_path):
    run = tmp_path / "stopped"
    train_in_processes(2, RECIPE, tiny_data, run)
    states = [torch.load(path, weights_only=False) for path in run.glob("checkpoints/*/training_state/random_*_?.pkl")]
    assert len({state["torch_manual_seed"].numpy().tobytes() for state in states}) == len(states) == 4
    (run / "checkpoints" / "step-00000005" / "COMPLETE").unlink()
    stopped = train_in_processes(2, RECIPE, tiny_data, run)
    assert_close(stopped, two_processes)


class Checksum:
    """In place of BLEU, which is 0 for a model that has learnt nothing."""

    def corpus_score(self, translations, references):
        assert len(translations) == len(references[0]) == 9
        return SimpleNamespace(score=zlib.crc32("\n".join(translations).encode()))


def sum_up_translations(*args, **place):
    """A checksum of the translated development set, in more batches than there are processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sacrebleu, "BLEU", Checksum)
        patch.setattr(scores, "Translator", partial(Translator, tokens_per_batch=50))
        return scores.compute_bleu(*args, **place)


def test_all_processes_together_translate_the_development_set_as_one_does(tiny_data, tmp_path):
    sums = []
    for num_processes in (1, 2):
        run = tmp_path / str(num_processes)
        train_in_processes(num_processes, EXACT, tiny_data, run, double=True, score_dev=sum_up_translations)
        sums.append([line["dev_bleu"] for line in log_of(run) if "dev_bleu" in line])
    assert sums[0] == sums[1]
    assert len(set(sums[0])) > 1  # the translations change while it learns


LAUNCH = {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    # Else a restarted worker may find the address of a dead one in the launcher's store, and wait for it.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
WORKER = """
import gc, os, signal, sys, weakref
from pathlib import Path
import torch
sys.path[:0] = {tests!r}
from test_distributed_training import EXACT, RECIPE, Trainer
from accelerate.state import DistributedType, PartialState
from vaswani_transformer.training import setup
from vaswani_transformer.training.interruption import EXIT_CODE, Interrupted
from vaswani_transformer.training.parting import part_at_exit

run = Path(sys.argv[2])
setup.LOADER_WORKERS = {{"cpu": 1}}  # as on a GPU
recipe = RECIPE
if "sharded" in sys.argv:  # Accelerate shards over accelerators only: processes on CPUs pass for GPUs
    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
    recipe = EXACT
    reduce_scatter = torch.distributed.reduce_scatter_single

    def tell_dtype(**options):
        with run.with_suffix(".dtypes").open("a") as file:
            print(options["input"].dtype, file=file)
        return reduce_scatter(**options)

    torch.distributed.reduce_scatter_single = tell_dtype
trainer = Trainer(recipe, Path(sys.argv[1]), run, log_interval=1)
run_update = trainer._run_update

def die_once(update):
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_life and os.environ["RANK"] == "1" and trainer.progress.update == 3:
        while not (run / "checkpoints" / "step-00000002").exists():  # a thread of the other process writes it
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    run_update(update)

def stop_the_launcher(update):
    if trainer.progress.update == 2 and os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGTERM)
        while not trainer._stop_request.received:  # it comes back to all of this process group
            pass
    run_update(update)

if "killed" in sys.argv:
    trainer._run_update = die_once
if "stopped" in sys.argv:
    trainer._run_update = stop_the_launcher
status = 0
try:
    trainer.train()
except Interrupted as error:
    print(error)
    status = EXIT_CODE
model = weakref.ref(trainer.model)
del trainer, run_update
gc.collect()
assert model() is None  # else the processes could not part
part_at_exit()
sys.exit(status)
"""


def run_torchrun(script, data, run, *arguments, **environment):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.run(
        [*torchrun, "--max-restarts", "1", "--shutdown-timeout", "600", str(script), str(data), str(run), *arguments],
        env=os.environ | LAUNCH | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def read_final_weights(result, run):
    assert result.returncode == 0, result.stderr
    return weights(run / "model")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER.format(tests=list(map(str, Path(__file__).parents[:2]))))
    return path


@pytest.mark.slow
def test_torchrun_restarts_a_run_of_which_one_process_was_killed(script, two_processes, tiny_data, tmp_path):
    result = run_torchrun(script, tiny_data, tmp_path / "run", "killed")
    assert "resuming after update 2" in result.stderr
    assert_close(read_final_weights(result, tmp_path / "run"), two_processes)


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_though_it_reaches_the_workers_of_the_loaders(
    script, two_processes, tiny_data, tmp_path, capfd
):
    result = run_torchrun(script, tiny_data, tmp_path / "run", "stopped")
    assert result.returncode != 0
    (checkpoint,) = tmp_path.glob("run/checkpoints/stopped-*")
    assert result.stdout.count(f"stopped after update {checkpoint.name[-1]} and saved") == 2
    found = train_in_processes(2, RECIPE, tiny_data, tmp_path / "run")
    assert f"resuming after update {checkpoint.name[-1]}" in capfd.readouterr().err
    assert_close(found, two_processes)


def sharded_environment():
    settings = yaml.safe_load((SCRIPTS / "accelerate" / "8_gpus_fsdp.yaml").read_text())["fsdp_config"]
    environment = {name.upper(): str(value) for name, value in settings.items()}
    return environment | {
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_USE_CPU": "false",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }


@pytest.mark.slow
def test_a_sharded_run_in_half_precision_adds_gradients_in_float32(script, tiny_data, tmp_path):
    environment = sharded_environment() | {"ACCELERATE_MIXED_PRECISION": "bf16"}
    run = tmp_path / "sharded"
    read_final_weights(run_torchrun(script, tiny_data, run, "sharded", **environment), run)
    assert set(run.with_suffix(".dtypes").read_text().split()) == {"torch.float32"}


@pytest.mark.slow
def test_a_sharded_run_learns_what_a_run_of_whole_models_learns_and_goes_on(script, tiny_data, tmp_path):
    environment = sharded_environment()
    run = tmp_path / "sharded"
    found = read_final_weights(run_torchrun(script, tiny_data, run, "sharded", **environment), run)
    whole = train_in_processes(2, EXACT, tiny_data, tmp_path / "whole")
    assert_close(found, whole, tolerance=1e-5)
    (run / "checkpoints" / "step-00000005" / "COMPLETE").unlink()
    result = run_torchrun(script, tiny_data, run, "sharded", **environment)
    assert "resuming after update 4" in result.stderr
    assert_close(read_final_weights(result, run), found)
