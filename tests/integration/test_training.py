import contextlib
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vaswani_transformer import cli
from vaswani_transformer.data.preparation import prepare
from vaswani_transformer.training import checkpoints, development, log, setup, state, tally
from vaswani_transformer.training import trainer as trainer_module
from vaswani_transformer.training.interruption import Interrupted
from vaswani_transformer.training.recipes import BASE
from vaswani_transformer.training.schedule import inverse_sqrt_lr
from vaswani_transformer.training.trainer import Trainer

TINY = replace(
    BASE,
    model={"d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1},
    vocab_size=300,
    tokens_per_batch=160,
    num_updates=7,
    warmup_updates=10,
    checkpoint_interval=(2, "updates"),
    num_averaged_checkpoints=2,
)
PAIRS = [(f"the dog {i} runs" + " far" * (i % 5), f"der hund {i} läuft" + " weit" * (i % 7)) for i in range(60)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prepare(lambda: PAIRS, lambda: PAIRS[:9], folder, vocab_size=300)
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def read_log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def stop_after(trainer, saves):
    """Make `trainer` die just after that many checkpoints."""
    save = trainer._save

    def save_and_count(**options):
        nonlocal saves
        save(**options)
        saves -= 1
        if not saves:
            raise KeyboardInterrupt

    trainer._save = save_and_count


def before_update(trainer, number, act):
    """Call `act` before update `number` of this sitting, counted from 1."""
    run_update, calls = trainer._run_update, 0

    def count_and_run(update):
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        run_update(update)

    trainer._run_update = count_and_run


def timeless(run):
    """The log without what the clock wrote."""
    clock = ("seconds", "target_tokens_per_second")
    return [{name: value for name, value in line.items() if name not in clock} for line in read_log(run)]


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_a_run_leaves_model_recipe_log_and_checkpoints(data, tmp_path):
    model = Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    assert (model / "model.safetensors").exists()
    assert (model / "tokenizer.json").exists()
    assert (model / "generation_config.json").exists()
    description = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert description["recipe"]["num_updates"] == 7
    assert description["recipe"]["vocab_size"] == 300
    assert description["seed"] == 0
    assert description["data"] == json.loads((data / "preparation.json").read_text())["fingerprint"]
    assert (description["mixed_precision"], description["num_processes"]) == ("no", 1)
    assert set(description["versions"]) >= {"torch", "transformers"}
    lines = read_log(tmp_path / "run")
    assert [line["update"] for line in lines if "loss" in line] == list(range(1, 8))
    assert [line["update"] for line in lines if "dev_perplexity" in line] == [2, 4, 6, 7]
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints == ["step-00000006", "step-00000007"]


def test_the_final_model_is_the_mean_of_the_last_checkpoints(data, tmp_path):
    model = Trainer(TINY, data, tmp_path / "run").train()
    last = [weights(path) for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    for name, tensor in weights(model).items():
        expected = ((last[0][name].double() + last[1][name].double()) / 2).float()
        assert torch.equal(tensor, expected)


def test_a_run_stopped_twice_ends_with_the_weights_of_one_never_stopped(data, tmp_path):
    whole = Trainer(TINY, data, tmp_path / "whole", log_interval=1).train()
    for _ in range(2):
        trainer = Trainer(TINY, data, tmp_path / "stopped", log_interval=1)
        stop_after(trainer, 1)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    stopped = Trainer(TINY, data, tmp_path / "stopped", log_interval=1).train()
    assert_equal_weights(weights(whole), weights(stopped))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "stopped")


def test_a_line_of_the_log_is_the_same_when_the_run_was_stopped_inside_it(data, tmp_path):
    Trainer(TINY, data, tmp_path / "whole", log_interval=3).train()
    trainer = Trainer(TINY, data, tmp_path / "stopped", log_interval=3)
    stop_after(trainer, 2)  # after update 4: the line of update 6 is begun
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    Trainer(TINY, data, tmp_path / "stopped", log_interval=3).train()
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "stopped")


def test_the_seconds_of_a_run_are_those_of_all_sittings(data, tmp_path, monkeypatch):
    # Each sitting has its own clock, which begins at 0 and goes on by a second at each look.
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=1)
    stop_after(trainer, 2)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    seconds = [line["seconds"] for line in read_log(tmp_path / "run") if "seconds" in line]
    assert len(seconds) == 7
    assert seconds == sorted(set(seconds))


def test_sigterm_finishes_the_update_saves_and_changes_nothing(data, tmp_path):
    whole = Trainer(TINY, data, tmp_path / "whole", log_interval=1).train()
    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=1)
    before_update(trainer, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped by SIGTERM after update 3 and saved"):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / "run" / "checkpoints" / "stopped-00000003" / "COMPLETE").exists()
    model = Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    assert_equal_weights(weights(whole), weights(model))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "run")


def test_sigterm_to_the_whole_process_group_is_outlived_by_the_worker_of_the_loader(data, tmp_path, monkeypatch):
    whole = Trainer(TINY, data, tmp_path / "whole", log_interval=1).train()
    monkeypatch.setattr(setup, "LOADER_WORKERS", {"cpu": 1})
    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=1)

    def stop_all():
        (worker,) = multiprocessing.active_children()
        # From another process, as a launcher is: from its parent PyTorch's worker takes it for the end of training.
        subprocess.run(["kill", "-TERM", str(worker.pid), str(os.getpid())], check=True)
        time.sleep(0.5)  # until it would be dead
        assert worker.is_alive()

    before_update(trainer, 3, stop_all)
    with pytest.raises(Interrupted, match="stopped by SIGTERM after update 3 and saved"):
        trainer.train()
    model = Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    assert_equal_weights(weights(whole), weights(model))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "run")


def test_checkpoints_may_be_several_epochs_apart(data, tmp_path):
    recipe = replace(TINY, num_updates=60, checkpoint_interval=(3, "epochs"))
    Trainer(recipe, data, tmp_path / "run", log_interval=60).train()
    evaluations = [line for line in read_log(tmp_path / "run") if "dev_perplexity" in line]
    epochs = [line["epoch"] for line in evaluations if line["update"] < 60]
    assert epochs == [3 * number for number in range(1, len(epochs) + 1)]
    assert len(epochs) >= 2


def test_the_rate_of_a_line_is_that_of_its_update(data, tmp_path):
    Trainer(replace(TINY, lr_scale=0.5), data, tmp_path / "run", log_interval=3).train()
    rates = {line["update"]: line["lr"] for line in read_log(tmp_path / "run") if "lr" in line}
    assert rates == {update: 0.5 * inverse_sqrt_lr(update, d_model=16, warmup_steps=10) for update in (3, 6, 7)}


def test_weight_decay_takes_its_share_of_each_weight(data, tmp_path):
    starts, ends = [], []
    for decay in (0.0, 0.5):
        trainer = Trainer(replace(TINY, num_updates=1, weight_decay=decay), data, tmp_path / str(decay))
        starts.append({name: weight.clone() for name, weight in trainer.model.state_dict().items()})
        trainer.train()
        ends.append(trainer.model.state_dict())
    share = 0.5 * inverse_sqrt_lr(1, d_model=16, warmup_steps=10)
    for name, start in starts[1].items():
        torch.testing.assert_close(ends[1][name], ends[0][name] - share * start)


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_on_it(data, tmp_path, file_calls):
    Trainer(replace(TINY, num_updates=2), data, tmp_path / "run", log_interval=1).train()
    named = file_calls.index("rename run/checkpoints/partial-step-00000002")
    assert "sync run/log.jsonl" in file_calls[:named]


@pytest.mark.parametrize("damage", [os.remove, lambda path: os.truncate(path, 100)], ids=["deleted", "cut"])
def test_a_run_goes_on_without_its_log_and_its_cost_can_be_told(stopped_run, data, tmp_path, capsys, damage):
    source, whole, _ = stopped_run
    run = tmp_path / "run"
    shutil.copytree(source, run)
    damage(run / "log.jsonl")
    model = Trainer(TINY, data, run, log_interval=1).train()
    assert f"WARNING: {run / 'log.jsonl'} has lost lines up to update 6" in capsys.readouterr().err
    assert_equal_weights(whole, weights(model))
    for command in (["cost"], ["card"], ["plot", "--output", str(tmp_path / "curves.svg")]):
        assert cli.main([*command, "--run", str(run)]) == 0


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(data, tmp_path, little_room):
    whole = Trainer(TINY, data, tmp_path / "whole").train()
    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=10)
    with contextlib.ExitStack() as stack:
        before_update(trainer, 4, lambda: stack.enter_context(little_room(20_000)))
        with pytest.raises(OSError, match=r"checkpoint of update 4 could not be written: .*step-00000002 is intact"):
            trainer.train()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    assert_equal_weights(weights(whole), weights(Trainer(TINY, data, tmp_path / "run", log_interval=10).train()))


def test_other_errors_of_saving_are_not_taken_for_a_full_disk(data, tmp_path, monkeypatch):
    def fail(folder):
        raise RuntimeError("NCCL error")

    trainer = Trainer(TINY, data, tmp_path / "run")
    monkeypatch.setattr(trainer.accelerator, "save_state", fail)
    with pytest.raises(RuntimeError, match=r"^NCCL error"):
        trainer.train()


def test_what_fails_after_a_checkpoint_is_whole_does_not_say_that_it_could_not_be_written(data, tmp_path, monkeypatch):
    def fail(folder, keep):
        raise PermissionError("old checkpoints belong to somebody else")

    monkeypatch.setattr(state, "drop_old_checkpoints", fail)
    with pytest.raises(PermissionError, match=r"^old checkpoints belong"):
        Trainer(TINY, data, tmp_path / "run").train()
    assert names_of_resumable(tmp_path / "run") == ["step-00000002"]


def names_of_resumable(run):
    return [path.name for path in checkpoints.resumable_checkpoints(run / "checkpoints")]


def flip(path):
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


class Program:
    """Something whose pickle runs a program when it is read."""

    def __reduce__(self):
        return sys.exit, ("the pickle has been run",)


DAMAGES = {
    "model.safetensors": flip,
    "tokenizer.json": lambda path: path.unlink(),
    "training_state/custom_checkpoint_2.pkl": lambda path: torch.save(Program(), path),
    "COMPLETE": lambda path: path.write_text("{}"),
}


@pytest.fixture(scope="module")
def stopped_run(data, tmp_path_factory):
    """A run that stopped at checkpoints 4 and 6, and the weights of one that never stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    whole = weights(Trainer(TINY, data, folder / "whole", log_interval=1).train())
    trainer = Trainer(TINY, data, folder / "run", log_interval=1)
    stop_after(trainer, 3)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return folder / "run", whole, timeless(folder / "whole")


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(name, stopped_run, data, tmp_path, capsys):
    source, whole, lines = stopped_run
    run = tmp_path / "run"
    shutil.copytree(source, run)
    DAMAGES[name](run / "checkpoints" / "step-00000006" / name)
    model = Trainer(TINY, data, run, log_interval=1).train()
    printed = capsys.readouterr().err
    assert f"WARNING: {run / 'checkpoints' / 'step-00000006' / name} " in printed
    assert "; the checkpoint before is taken" in printed
    assert "resuming after update 4 from " in printed
    assert_equal_weights(whole, weights(model))
    assert timeless(run) == lines


def test_a_run_of_which_no_checkpoint_is_intact_does_not_start_from_the_beginning(stopped_run, data, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped_run[0], run)
    for path in run.glob("checkpoints/*/model.safetensors"):
        flip(path)
    message = r"none of the checkpoints in .*checkpoints is intact: .*step-00000004/model\.safetensors is damaged"
    with pytest.raises(ValueError, match=message):
        Trainer(TINY, data, run).train()
    assert names_of_resumable(run) == ["step-00000004", "step-00000006"]


@pytest.fixture
def run_of_an_earlier_version(stopped_run, tmp_path):
    """The run as it was written before checkpoints had digests and when they could be minutes apart."""
    run = tmp_path / "run"
    shutil.copytree(stopped_run[0], run)
    for path in run.glob("checkpoints/*/COMPLETE"):
        path.write_text(json.dumps({"update": int(path.parent.name[-1]), "seconds": 3.5}))
    for path in run.glob("checkpoints/*/training_state/custom_checkpoint_1.pkl"):
        torch.save(torch.load(path) | {"seconds_at_checkpoint": 3.5}, path)
    return run


def test_a_run_of_an_earlier_version_goes_on(run_of_an_earlier_version, stopped_run, data, capsys):
    model = Trainer(TINY, data, run_of_an_earlier_version, log_interval=1).train()
    assert "resuming after update 6" in capsys.readouterr().err
    assert_equal_weights(stopped_run[1], weights(model))


@pytest.mark.parametrize("name", ["custom_checkpoint_2.pkl", "optimizer.bin", "random_states_0.pkl"])
def test_a_checkpoint_that_holds_a_program_is_refused(name, run_of_an_earlier_version, data):
    torch.save(Program(), run_of_an_earlier_version / "checkpoints" / "step-00000006" / "training_state" / name)
    with pytest.raises(ValueError, match=r"training_state holds more than values, .* Remove .*step-00000006"):
        Trainer(TINY, data, run_of_an_earlier_version).train()


def test_lines_logged_after_the_last_checkpoint_are_written_once(data, tmp_path):
    def die():
        raise KeyboardInterrupt

    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=1)
    before_update(trainer, 4, die)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [line["update"] for line in read_log(tmp_path / "run") if "loss" in line] == [1, 2, 3]
    Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    assert [line["update"] for line in read_log(tmp_path / "run") if "loss" in line] == list(range(1, 8))


def test_batches_of_all_shapes_share_a_compilation_which_changes_no_result(data, tmp_path, monkeypatch):
    recipe = replace(TINY, model=TINY.model | {"dropout": 0.0})
    plain = Trainer(recipe, data, tmp_path / "plain").train()
    compile_module = torch.nn.Module.compile

    def without_code_generation(self, **options):  # which takes minutes, and is not what is tested
        compile_module(self, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", without_code_generation)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = Trainer(replace(recipe, compile=True), data, tmp_path / "compiled").train()
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(compiled)[name], tensor, rtol=0, atol=1e-4)


def test_accumulation_gives_the_same_update_as_one_batch(data, tmp_path):
    recipe = replace(TINY, model=TINY.model | {"dropout": 0.0}, num_updates=5, num_averaged_checkpoints=1)
    results = []
    for steps in (1, 3):
        trainer = Trainer(recipe, data, tmp_path / str(steps), accumulation_steps=steps)
        trainer.model.double()
        trainer.train()
        results.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    for name, tensor in results[0].items():
        torch.testing.assert_close(results[1][name], tensor, rtol=0, atol=1e-10)


def test_patience_ends_a_run_that_no_longer_improves(data, tmp_path):
    recipe = replace(TINY, num_updates=1000, lr_scale=0.0, patience=2, checkpoint_interval=(1, "updates"))
    Trainer(recipe, data, tmp_path / "run", log_interval=1).train()
    assert read_log(tmp_path / "run")[-1]["update"] == 3  # the first evaluation, and two without gain


def test_the_development_set_can_be_scored_as_text(data, tmp_path):
    seen = []

    def score(model, tokenizer, pairs):
        seen.append((type(model).__name__, len(pairs)))
        return 12.5

    Trainer(replace(TINY, num_updates=2), data, tmp_path / "run", score_dev=score).train()
    assert seen == [("VaswaniForConditionalGeneration", 9)]
    assert read_log(tmp_path / "run")[-1]["dev_bleu"] == 12.5


def test_a_folder_of_another_recipe_is_refused_with_the_difference(data, tmp_path):
    Trainer(TINY, data, tmp_path / "run").train()
    with pytest.raises(ValueError, match=r"run with another recipe: num_updates is 7 there, 9 here"):
        Trainer(replace(TINY, num_updates=9), data, tmp_path / "run").train()
    with pytest.raises(ValueError, match=r"run with another seed: 0 there, 1 here"):
        Trainer(TINY, data, tmp_path / "run", seed=1).train()


def test_a_run_does_not_go_on_with_other_data(stopped_run, tmp_path):
    prepare(lambda: PAIRS[1:], lambda: PAIRS[:9], tmp_path / "data", vocab_size=300)
    with pytest.raises(ValueError, match=r"run with another data: \w+ there, \w+ here\. Name another output folder"):
        Trainer(TINY, tmp_path / "data", stopped_run[0]).train()


@pytest.fixture
def launched_for_bf16(monkeypatch):
    """As `accelerate launch --mixed_precision bf16` starts a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_launcher_s_precision_holds_and_is_written_down(launched_for_bf16, data, tmp_path, capsys):
    Trainer(replace(TINY, num_updates=1), data, tmp_path / "run").train()
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["mixed_precision"] == "bf16"
    assert "training on 1 x cpu, mixed precision bf16" in capsys.readouterr().err


def test_a_recipe_may_begin_with_short_pairs(data, tmp_path):
    first = {}
    for short_first in (False, True):
        trainer = Trainer(replace(TINY, short_first=short_first), data, tmp_path / str(short_first))
        widths = []
        for update in trainer._read_updates():
            widths.append(max(update.micro_batches[0][side].shape[1] for side in ("input_ids", "labels")))
            if update.is_last_of_epoch:
                break
        first[short_first] = widths
    assert first[True] == sorted(first[False]) != first[False]


@pytest.mark.parametrize(("given", "kept"), [(None, "192"), ("7", "7")])
def test_half_precision_on_a_cpu_keeps_few_kernels(launched_for_bf16, data, tmp_path, monkeypatch, given, kept):
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    Trainer(TINY, data, tmp_path)
    assert [os.environ[name] for name in names] == [kept, kept]


def test_a_run_does_not_go_on_in_another_precision(launched_for_bf16, stopped_run, data):
    with pytest.raises(ValueError, match=r"run with another mixed_precision: no there, bf16 here"):
        Trainer(TINY, data, stopped_run[0]).train()


def test_a_model_in_parts_is_not_asked_to_translate(data, tmp_path, monkeypatch):
    monkeypatch.setattr(development, "is_sharded", lambda accelerator: True)
    with pytest.raises(ValueError, match=r"part of the model only \(FSDP\): leave dev_bleu away, and run `vaswani ev"):
        Trainer(TINY, data, tmp_path / "run", score_dev=lambda *_: 0.0)


def test_accumulation_steps_are_chosen_by_the_size_of_a_micro_batch(data, tmp_path):
    for tokens_per_batch, expected in ((160, 1), (8_192, 2), (25_000, 6)):
        trainer = Trainer(replace(TINY, tokens_per_batch=tokens_per_batch), data, tmp_path / "run")
        assert trainer.accumulation_steps == expected
    with pytest.raises(ValueError, match="accumulation_steps must be at least 1, one micro-batch; got 0"):
        Trainer(TINY, data, tmp_path / "run", accumulation_steps=0)


def test_processes_that_do_not_know_each_other_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")  # as a launcher of GPU processes sets it, on a machine without
    with pytest.raises(ValueError, match=r"started 3 processes, but each .* one of 1\. .* ACCELERATE_USE_CPU=true"):
        Trainer(TINY, data, tmp_path / "run")


def test_tensorboard_begins_with_the_training_and_goes_on_where_the_run_does(data, tmp_path, monkeypatch):
    begun, ended = [], []

    class Writer:
        def __init__(self, folder, *, purge_step):
            begun.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            pass

        def close(self):
            ended.append(True)

    monkeypatch.setattr(log, "SummaryWriter", Writer)
    trainer = Trainer(TINY, data, tmp_path / "run")
    assert not begun
    stop_after(trainer, 1)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    Trainer(TINY, data, tmp_path / "run").train()
    assert begun == [(str(tmp_path / "run" / "tensorboard"), update) for update in (1, 3)]
    assert len(ended) == 2


@pytest.mark.parametrize("name", ["train/part-00001.arrow", "dev/part-00000.arrow", "tokenizer.json", "dev.json"])
@pytest.mark.parametrize(("damage", "word"), [(flip, "damaged"), (os.remove, "missing")])
def test_a_damaged_file_of_the_data_is_named(tmp_path, name, damage, word):
    folder = tmp_path / "data"
    prepare(lambda: PAIRS, lambda: PAIRS[:9], folder, vocab_size=300, pairs_per_part=40)
    damage(folder / name)
    with pytest.raises(ValueError, match=rf"data/{name} is {word}\. Copy the folder again, or remove it"):
        Trainer(TINY, folder, tmp_path / "run")


def test_data_without_digests_is_counted(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    preparation = json.loads((folder / "preparation.json").read_text())
    preparation["train"]["pairs"] += 1
    del preparation["files"]
    (folder / "preparation.json").write_text(json.dumps(preparation))
    with pytest.raises(ValueError, match=r"train holds 60 pairs, but preparation\.json counts 61: a part is missing"):
        Trainer(TINY, folder, tmp_path / "run")


def test_missing_data_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run `vaswani prepare` with --output"):
        Trainer(TINY, tmp_path / "nowhere", tmp_path / "run")


def spoil_gradients(trainer, updates):
    """Let a gradient be NaN in these updates, counted from 1."""

    def spoil(gradient):
        return gradient * float("nan") if trainer.progress.update + 1 in updates else gradient

    trainer.model.lm_head.weight.register_hook(spoil)


def test_an_update_without_a_finite_gradient_is_skipped_and_counted(data, tmp_path):
    trainer = Trainer(replace(TINY, num_updates=4), data, tmp_path / "run", log_interval=1)
    spoil_gradients(trainer, {2, 3})
    seen = []
    run_update = trainer._run_update

    def run_and_look(update):
        run_update(update)
        seen.append(trainer.model.lm_head.weight.detach().clone())

    trainer._run_update = run_and_look
    trainer.train()
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3])
    lines = [line for line in read_log(tmp_path / "run") if "lr" in line]
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2]
    assert [line["loss"] is None for line in lines] == [False, True, True, False]


def test_ten_such_updates_in_a_row_end_the_run_and_name_the_cause(data, tmp_path):
    trainer = Trainer(replace(TINY, num_updates=50), data, tmp_path / "run")
    with torch.no_grad():
        trainer.model.model.encoder.layers[0].feed_forward.fc1.weight[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"10 updates in a row, up to update 10, had a gradient that is not"):
        trainer.train()
    report = json.loads((tmp_path / "run" / "0-non_finite.json").read_text())
    (micro_batch,) = report["micro_batches"]
    assert micro_batch["first_non_finite"].startswith("model.encoder.layers.0.feed_forward.fc1")
    assert all([source, target] == list(PAIRS[row]) for row, source, target in micro_batch["pairs"])
    assert report["update"] == 10


@pytest.mark.parametrize(("checkpoints_every", "noticed"), [(100, 20), (15, 15)])
def test_ten_in_a_row_are_noticed_though_they_ended_between_two_looks(
    data, tmp_path, monkeypatch, checkpoints_every, noticed
):
    monkeypatch.setattr(trainer_module, "UPDATES_PER_CHECK", {"cpu": 10})  # as on a GPU
    recipe = replace(TINY, num_updates=30, checkpoint_interval=(checkpoints_every, "updates"))
    trainer = Trainer(recipe, data, tmp_path / "run")
    spoil_gradients(trainer, range(3, 14))
    message = rf"11 updates in a row, before update {noticed}, had .* name another output folder and begin anew"
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    assert names_of_resumable(tmp_path / "run") == []


def test_a_run_that_diverges_goes_on_with_an_infinite_perplexity(data, tmp_path, monkeypatch):
    trainer = Trainer(replace(TINY, num_updates=2), data, tmp_path / "run")
    monkeypatch.setattr(trainer.dev_set, "compute_loss", lambda model: 1000.0)
    trainer.train()
    assert read_log(tmp_path / "run")[-1]["dev_perplexity"] == math.inf


class WithoutFloat64(TorchDispatchMode):
    """As a device of Apple's."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            assert not (isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64), function
        return result


def test_a_device_without_float64_can_train(data, tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "SUM_DTYPES", {"cpu": torch.float32})
    # The table of sinusoids is in float64 wherever there is one.
    recipe = replace(TINY, model=TINY.model | {"position_embedding_type": "learned"})
    with WithoutFloat64():
        trainer = Trainer(recipe, data, tmp_path / "run", log_interval=1)

    def without_float64(method):
        def call(*args):
            with WithoutFloat64():
                return method(*args)

        return call

    for name in ("_run_update", "_log_training", "_evaluate"):  # but not the mean of the checkpoints, on the CPU
        setattr(trainer, name, without_float64(getattr(trainer, name)))
    trainer.train()
    assert [line["update"] for line in read_log(tmp_path / "run") if "loss" in line] == list(range(1, 8))


def test_running_out_of_memory_names_the_batch_and_what_to_change(data, tmp_path):
    trainer = Trainer(TINY, data, tmp_path / "run")
    trainer.model.register_forward_hook(lambda *_: torch.empty(2**60))
    with pytest.raises(
        MemoryError, match=r"micro-batch of \d+ pairs, padded to \d+ source .* Raise accumulation_steps"
    ):
        trainer.train()
