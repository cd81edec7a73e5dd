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
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import save_file
from tiny_training import PAIRS, TINY, WITHOUT_DROPOUT, assert_close, read_log, timeless, weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vaswani_transformer import cli
from vaswani_transformer.data.preparation import Corpus, prepare
from vaswani_transformer.files import digest_file
from vaswani_transformer.training import checkpoints, development, setup, state, tally
from vaswani_transformer.training import trainer as trainer_module
from vaswani_transformer.training.interruption import Interrupted
from vaswani_transformer.training.schedule import inverse_sqrt_lr
from vaswani_transformer.training.trainer import Trainer


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


def stop(trainer):
    with pytest.raises(KeyboardInterrupt):
        trainer.train()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory):
    """The folder of a run that was never stopped."""
    run = tmp_path_factory.mktemp("whole")
    Trainer(TINY, tiny_data, run, log_interval=3).train()
    return run


@pytest.fixture(scope="module")
def stopped_run(tiny_data, tmp_path_factory):
    """The folder of a run that stopped at its last checkpoints but one, 4 and 6."""
    run = tmp_path_factory.mktemp("stopped")
    trainer = Trainer(TINY, tiny_data, run, log_interval=3)
    stop_after(trainer, 3)
    stop(trainer)
    return run


@pytest.fixture
def copy_of_stopped(stopped_run, tmp_path):
    return shutil.copytree(stopped_run, tmp_path / "run")


def assert_ends_as(whole, data, run):
    """Given again, the run goes on and ends with weights and log of `whole`."""
    Trainer(TINY, data, run, log_interval=3).train()
    assert_close(weights(whole / "model"), weights(run / "model"))
    assert timeless(whole) == timeless(run)


def test_a_run_leaves_model_recipe_log_and_checkpoints(whole, tiny_data):
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= set(names_in(whole / "model"))
    description = json.loads((whole / "recipe.json").read_text())
    assert (description["recipe"]["num_updates"], description["recipe"]["vocab_size"]) == (7, 300)
    assert description["data"] == json.loads((tiny_data / "preparation.json").read_text())["fingerprint"]
    assert [description[name] for name in ("seed", "mixed_precision", "num_processes")] == [0, "no", 1]
    assert set(description["versions"]) >= {"torch", "transformers"}
    lines = read_log(whole)
    rates = {line["update"]: line["lr"] for line in lines if "loss" in line}
    assert rates == {update: 0.5 * inverse_sqrt_lr(update, d_model=16, warmup_steps=10) for update in (3, 6, 7)}
    assert [line["update"] for line in lines if "dev_perplexity" in line] == [2, 4, 6, 7]
    assert names_in(whole / "checkpoints") == ["step-00000006", "step-00000007"]


def test_the_final_model_is_the_mean_of_the_last_checkpoints(whole):
    last = [weights(path) for path in sorted((whole / "checkpoints").iterdir())]
    for name, tensor in weights(whole / "model").items():
        assert torch.equal(tensor, ((last[0][name].double() + last[1][name].double()) / 2).float())


def test_a_run_stopped_twice_inside_lines_of_its_log_ends_as_one_never_stopped(whole, tiny_data, tmp_path):
    for _ in range(2):
        trainer = Trainer(TINY, tiny_data, tmp_path, log_interval=3)
        stop_after(trainer, 1)
        stop(trainer)
    assert_ends_as(whole, tiny_data, tmp_path)


def test_the_seconds_of_a_run_are_those_of_all_sittings(tiny_data, tmp_path, monkeypatch):
    # Each sitting has its own clock, which begins at 0 and goes on by a second at each look.
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    trainer = Trainer(TINY, tiny_data, tmp_path / "run", log_interval=1)
    stop_after(trainer, 2)
    stop(trainer)
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    Trainer(TINY, tiny_data, tmp_path / "run", log_interval=1).train()
    seconds = [line["seconds"] for line in read_log(tmp_path / "run") if "seconds" in line]
    assert len(seconds) == 7
    assert seconds == sorted(set(seconds))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sigterm_finishes_the_update_saves_and_changes_nothing(whole, tiny_data, tmp_path, monkeypatch, num_workers):
    with monkeypatch.context() as context:
        context.setattr(setup, "LOADER_WORKERS", {"cpu": num_workers})
        trainer = Trainer(TINY, tiny_data, tmp_path, log_interval=3)

        def stop_all():
            workers = multiprocessing.active_children()
            assert len(workers) == num_workers
            # From another process, as a launcher is: from its parent PyTorch's worker takes it for the end of training.
            processes = [str(pid) for pid in (*(worker.pid for worker in workers), os.getpid())]
            subprocess.run(["kill", "-TERM", *processes], check=True)
            time.sleep(0.5 * num_workers)  # until it would be dead
            assert all(worker.is_alive() for worker in workers)

        before_update(trainer, 3, stop_all)
        with pytest.raises(Interrupted, match="stopped after update 3 and saved"):
            trainer.train()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / "checkpoints" / "stopped-00000003" / "COMPLETE").exists()
    assert_ends_as(whole, tiny_data, tmp_path)


def test_checkpoints_may_be_several_epochs_apart(tiny_data, tmp_path):
    recipe = replace(TINY, num_updates=60, checkpoint_interval=(3, "epochs"))
    Trainer(recipe, tiny_data, tmp_path, log_interval=60).train()
    evaluations = [line for line in read_log(tmp_path) if "dev_perplexity" in line]
    epochs = [line["epoch"] for line in evaluations if line["update"] < 60]
    assert epochs == [3 * number for number in range(1, len(epochs) + 1)]
    assert len(epochs) >= 2


def test_weight_decay_takes_its_share_of_each_weight(tiny_data, tmp_path):
    starts, ends = [], []
    for decay in (0.0, 0.5):
        trainer = Trainer(replace(TINY, num_updates=1, weight_decay=decay), tiny_data, tmp_path / str(decay))
        starts.append({name: weight.clone() for name, weight in trainer.model.state_dict().items()})
        trainer.train()
        ends.append(trainer.model.state_dict())
    share = 0.5 * 0.5 * inverse_sqrt_lr(1, d_model=16, warmup_steps=10)
    for name, start in starts[1].items():
        torch.testing.assert_close(ends[1][name], ends[0][name] - share * start)


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_on_it(tiny_data, tmp_path, file_calls):
    Trainer(replace(TINY, num_updates=2), tiny_data, tmp_path, log_interval=1).train()
    named = file_calls.index("rename checkpoints/partial-step-00000002")
    assert "sync log.jsonl" in file_calls[:named]


@pytest.mark.parametrize("damage", [os.remove, lambda path: os.truncate(path, 100)], ids=["deleted", "cut"])
def test_a_run_goes_on_without_its_log_and_its_cost_can_be_told(
    copy_of_stopped, whole, tiny_data, tmp_path, capsys, damage
):
    run = copy_of_stopped
    damage(run / "log.jsonl")
    model = Trainer(TINY, tiny_data, run, log_interval=3).train()
    assert f"WARNING: {run / 'log.jsonl'} has lost lines up to update 6" in capsys.readouterr().err
    assert_close(weights(whole / "model"), weights(model))
    for command in (["cost"], ["card"], ["plot", "--output", str(tmp_path / "curves.svg")]):
        assert cli.main([*command, "--run", str(run)]) == 0


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(whole, tiny_data, tmp_path, little_room):
    trainer = Trainer(TINY, tiny_data, tmp_path, log_interval=3)
    with contextlib.ExitStack() as stack:

        def fill_disk():
            trainer.state.close()
            stack.enter_context(little_room(20_000))

        before_update(trainer, 4, fill_disk)
        with pytest.raises(OSError, match=r"checkpoint of update 4 could not be written: .*step-00000002 is intact"):
            trainer.train()
    assert names_in(tmp_path / "checkpoints") == ["step-00000002"]
    assert_ends_as(whole, tiny_data, tmp_path)


def test_training_goes_on_while_a_checkpoint_is_written_and_changes_nothing_in_it(
    whole, tiny_data, tmp_path, monkeypatch
):
    trainer = Trainer(TINY, tiny_data, tmp_path, log_interval=3)
    late = []

    def save_late(tensors, path, **options):
        update = checkpoints.checkpoint_step(path.parent)
        while trainer.progress.update == update < TINY.num_updates:
            time.sleep(0.001)
        late.append(trainer.progress.update - update)
        save_file(tensors, path, **options)

    monkeypatch.setattr(state, "save_file", save_late)
    trainer.train()
    assert [number > 0 for number in late] == [True, True, True, False]
    for name in ("step-00000006", "step-00000007"):
        ours, theirs = (run / "checkpoints" / name for run in (tmp_path, whole))
        assert_close(weights(ours), weights(theirs))
        averages = [torch.load(path / "training_state" / "optimizer.bin")["state"] for path in (ours, theirs)]
        for one, other in zip(*(of_all.values() for of_all in averages), strict=True):
            assert_close(one, other)


def test_an_error_of_the_writing_thread_ends_the_run_at_the_next_check(tiny_data, tmp_path, monkeypatch):
    trainer = Trainer(TINY, tiny_data, tmp_path)
    monkeypatch.setattr(state, "save_file", fail)
    before_update(trainer, 3, lambda: trainer.state._written.exception())  # waits
    with pytest.raises(RuntimeError, match=r"^NCCL error"):
        trainer.train()
    assert trainer.progress.update == 3


def fail(*args, **options):
    raise RuntimeError("NCCL error")


@pytest.mark.parametrize("where", ["in saving", "after a checkpoint is whole"])
def test_other_errors_are_not_taken_for_a_full_disk(tiny_data, tmp_path, monkeypatch, where):
    trainer = Trainer(TINY, tiny_data, tmp_path)
    if where == "in saving":
        monkeypatch.setattr(trainer.accelerator, "save_state", fail)
    else:
        monkeypatch.setattr(state, "drop_old_checkpoints", fail)
    with pytest.raises(RuntimeError, match=r"^NCCL error"):
        trainer.train()
    assert names_of_resumable(tmp_path) == (["step-00000002"] if where.startswith("after") else [])


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


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(name, copy_of_stopped, whole, tiny_data, capsys):
    run = copy_of_stopped
    DAMAGES[name](run / "checkpoints" / "step-00000006" / name)
    assert_ends_as(whole, tiny_data, run)
    printed = capsys.readouterr().err
    assert f"WARNING: {run / 'checkpoints' / 'step-00000006' / name} " in printed
    assert "; the checkpoint before is taken" in printed
    assert "resuming after update 4 from " in printed


def test_a_run_of_which_no_checkpoint_is_intact_does_not_start_from_the_beginning(copy_of_stopped, tiny_data):
    for path in copy_of_stopped.glob("checkpoints/*/model.safetensors"):
        flip(path)
    message = r"none of the checkpoints in .*checkpoints is intact: .*step-00000004/model\.safetensors is damaged"
    with pytest.raises(ValueError, match=message):
        Trainer(TINY, tiny_data, copy_of_stopped).train()
    assert names_of_resumable(copy_of_stopped) == ["step-00000004", "step-00000006"]


@pytest.mark.parametrize("name", ["custom_checkpoint_2.pkl", "optimizer.bin", "random_states_0.pkl"])
def test_a_checkpoint_that_holds_a_program_is_refused(name, copy_of_stopped, tiny_data):
    checkpoint = copy_of_stopped / "checkpoints" / "step-00000006"
    path = checkpoint / "training_state" / name
    torch.save(Program(), path)
    mark = json.loads((checkpoint / "COMPLETE").read_text())
    mark["files"][f"training_state/{name}"] = digest_file(path)
    (checkpoint / "COMPLETE").write_text(json.dumps(mark))
    with pytest.raises(ValueError, match=r"training_state holds more than values, .* Remove .*step-00000006"):
        Trainer(TINY, tiny_data, copy_of_stopped).train()


def test_lines_logged_after_the_last_checkpoint_are_written_once(tiny_data, tmp_path, writers):
    def die():
        raise KeyboardInterrupt

    options = {"log_interval": 1, "report_to": ["tensorboard"]}
    trainer = Trainer(TINY, tiny_data, tmp_path, **options)
    assert not writers
    before_update(trainer, 4, die)
    stop(trainer)
    assert [line["update"] for line in read_log(tmp_path) if "loss" in line] == [1, 2, 3]
    Trainer(TINY, tiny_data, tmp_path, **options).train()
    assert [line["update"] for line in read_log(tmp_path) if "loss" in line] == list(range(1, 8))
    assert [(writer.folder, writer.purge_step) for writer in writers] == [
        (str(tmp_path / "trackers"), update) for update in (1, 3)
    ]
    assert ("dev_perplexity", read_log(tmp_path)[-1]["dev_perplexity"], 7) in writers[1].points
    assert all(writer.is_closed for writer in writers)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="needs a C++ compiler")
def test_batches_of_all_shapes_share_a_compilation_which_changes_no_result(tiny_data, tmp_path, monkeypatch):
    recipe = replace(WITHOUT_DROPOUT, bucketed=True, num_updates=4, num_averaged_checkpoints=1)
    folders = plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    trainer = Trainer(recipe, tiny_data, plain, seed=1, log_interval=1)
    batches = [batch for update in itertools.islice(trainer._read_updates(), 4) for batch in update.micro_batches]
    shapes = [(*batch["input_ids"].shape, batch["labels"].shape[1]) for batch in batches]
    assert shapes == [(16, 8, 8), (13, 12, 8), (13, 8, 12), (13, 12, 12)]  # the first must not stand for S = T
    trainer.train()
    # A graph that breaks raises. It ends in the loss: an update is one graph and its backward pass.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    Trainer(replace(recipe, compile=True), tiny_data, compiled, seed=1, log_interval=1).train()
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == counters["aot_autograd"]["total"] == 1  # and traced once
    losses = [[line["loss"] for line in read_log(folder) if "loss" in line] for folder in folders]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_close(*(weights(folder / "model") for folder in folders), tolerance=1e-5)


def test_accumulation_gives_the_same_update_as_one_batch(tiny_data, tmp_path):
    recipe = replace(WITHOUT_DROPOUT, num_updates=5, num_averaged_checkpoints=1)
    results = []
    for steps in (1, 3):
        trainer = Trainer(recipe, tiny_data, tmp_path / str(steps), accumulation_steps=steps)
        trainer.model.double()
        trainer.train()
        results.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    assert_close(*results, tolerance=1e-10)


def test_patience_ends_a_run_that_no_longer_improves(tiny_data, tmp_path):
    recipe = replace(TINY, num_updates=1000, lr_scale=0.0, patience=2, checkpoint_interval=(1, "updates"))
    Trainer(recipe, tiny_data, tmp_path, log_interval=1).train()
    assert read_log(tmp_path)[-1]["update"] == 3  # the first evaluation, and two without gain


def test_the_development_set_can_be_scored_as_text(tiny_data, tmp_path):
    seen = []

    def score(model, tokenizer, pairs, **place):
        seen.append((type(model).__name__, len(pairs)))
        return 12.5

    Trainer(replace(TINY, num_updates=2), tiny_data, tmp_path, score_dev=score).train()
    assert seen == [("VaswaniForConditionalGeneration", 9)]
    assert read_log(tmp_path)[-1]["dev_bleu"] == 12.5


def test_in_half_precision_too_the_development_set_is_translated_by_an_engine(tiny_data, tmp_path):
    obstacles = []

    def score(model, tokenizer, pairs, **place):
        obstacles.append(model.engine_obstacle())
        return 0.0

    trainer = Trainer(replace(TINY, num_updates=2), tiny_data, tmp_path, score_dev=score, mixed_precision="bf16")
    wrapper = vars(trainer.model)["forward"]
    trainer.train()
    assert obstacles == [None]
    assert vars(trainer.model)["forward"] is wrapper


def test_a_run_does_not_go_on_under_other_settings_or_with_other_data(stopped_run, tiny_data, tmp_path):
    with pytest.raises(
        ValueError, match=r"holds another run: recipe\.warmup_updates was 10, is 9; seed was 0, is 1\. Name"
    ):
        Trainer(replace(TINY, warmup_updates=9), tiny_data, stopped_run, seed=1).train()
    prepare([Corpus(lambda: PAIRS[1:])], lambda: PAIRS[:9], tmp_path, vocab_size=300)
    with pytest.raises(ValueError, match=r'holds another run: data was "\w+", is "\w+"\. Name another output folder'):
        Trainer(TINY, tmp_path, stopped_run).train()


@pytest.fixture
def launched_for_bf16(monkeypatch):
    """As `accelerate launch --mixed_precision bf16` starts a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_launcher_s_precision_holds_and_is_written_down(launched_for_bf16, tiny_data, tmp_path, capsys):
    Trainer(replace(TINY, num_updates=1), tiny_data, tmp_path).train()
    assert json.loads((tmp_path / "recipe.json").read_text())["mixed_precision"] == "bf16"
    assert "training on 1 x cpu, mixed precision bf16" in capsys.readouterr().err


def test_a_recipe_may_begin_with_short_pairs(tiny_data, tmp_path):
    first = {}
    for short_first in (False, True):
        trainer = Trainer(replace(TINY, short_first=short_first), tiny_data, tmp_path / str(short_first))
        widths = []
        for update in trainer._read_updates():
            widths.append(max(update.micro_batches[0][side].shape[1] for side in ("input_ids", "labels")))
            if update.is_last_of_epoch:
                break
        first[short_first] = widths
    assert first[True] == sorted(first[False]) != first[False]


def test_batches_are_bucketed_where_the_device_or_the_recipe_wants_it(tiny_data, tmp_path, monkeypatch):
    def read_shapes(bucketed):
        trainer = Trainer(replace(TINY, bucketed=bucketed), tiny_data, tmp_path, accumulation_steps=2)
        updates = itertools.islice(trainer._read_updates(), 20)
        shapes = {tuple(batch["labels"].shape) for update in updates for batch in update.micro_batches}
        return trainer._describe()["recipe"]["bucketed"], len(shapes)

    (recorded, exact), (asked_for, few) = read_shapes(None), read_shapes(True)
    assert recorded is None
    assert asked_for is True
    assert few < exact
    monkeypatch.setitem(setup.BUCKETED, "cpu", True)  # as for CUDA
    assert read_shapes(None) == (True, few)
    assert read_shapes(False) == (False, exact)


def test_a_bucketed_run_that_was_stopped_ends_as_one_that_never_was(tiny_data, tmp_path):
    recipe, options = replace(TINY, bucketed=True), {"accumulation_steps": 3}
    expected = Trainer(recipe, tiny_data, tmp_path / "whole", **options).train()
    trainer = Trainer(recipe, tiny_data, tmp_path / "stopped", **options)
    stop_after(trainer, 2)
    stop(trainer)
    with pytest.raises(ValueError, match=r"recipe\.bucketed was true, is null"):
        Trainer(TINY, tiny_data, tmp_path / "stopped", **options).train()
    found = Trainer(recipe, tiny_data, tmp_path / "stopped", **options).train()
    assert_close(weights(found), weights(expected))


@pytest.mark.parametrize(("given", "kept"), [(None, "192"), ("7", "7")])
def test_half_precision_on_a_cpu_keeps_few_kernels(launched_for_bf16, tiny_data, tmp_path, monkeypatch, given, kept):
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    Trainer(TINY, tiny_data, tmp_path)
    assert [os.environ[name] for name in names] == [kept, kept]


def test_a_run_does_not_go_on_in_another_precision(launched_for_bf16, stopped_run, tiny_data):
    with pytest.raises(ValueError, match=r'holds another run: mixed_precision was "no", is "bf16"'):
        Trainer(TINY, tiny_data, stopped_run).train()


def test_a_model_in_parts_is_not_asked_to_translate(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(development, "is_sharded", lambda accelerator: True)
    with pytest.raises(ValueError, match=r"part of the model only \(FSDP\): leave dev_bleu away, and run `vaswani ev"):
        Trainer(TINY, tiny_data, tmp_path, score_dev=lambda *_: 0.0)


def test_accumulation_steps_are_chosen_by_the_size_of_a_micro_batch(tiny_data, tmp_path):
    for tokens_per_batch, expected in ((160, 1), (8_192, 2), (25_000, 6)):
        trainer = Trainer(replace(TINY, tokens_per_batch=tokens_per_batch), tiny_data, tmp_path)
        assert trainer.accumulation_steps == expected
    with pytest.raises(ValueError, match="accumulation_steps must be at least 1, one micro-batch; got 0"):
        Trainer(TINY, tiny_data, tmp_path, accumulation_steps=0)


def test_processes_that_do_not_know_each_other_are_refused(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")  # as a launcher of GPU processes sets it, on a machine without
    with pytest.raises(ValueError, match=r"started 3 processes, but each .* one of 1\. .* ACCELERATE_USE_CPU=true"):
        Trainer(TINY, tiny_data, tmp_path)


@pytest.mark.parametrize("name", ["train/part-00001.arrow", "dev/part-00000.arrow", "tokenizer.json", "dev.json"])
@pytest.mark.parametrize(("damage", "word"), [(flip, "damaged"), (os.remove, "missing")])
def test_a_damaged_file_of_the_data_is_named(tmp_path, name, damage, word):
    folder = tmp_path / "data"
    prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:9], folder, vocab_size=300, pairs_per_part=40)
    damage(folder / name)
    with pytest.raises(ValueError, match=rf"data/{name} is {word}\. Copy the folder again, or remove it"):
        Trainer(TINY, folder, tmp_path / "run")


def test_a_part_of_other_data_is_refused(tiny_data, tmp_path):
    folder = shutil.copytree(tiny_data, tmp_path / "data")
    [part] = (folder / "train").iterdir()
    shutil.copy(part, part.with_name(part.name.replace("00000", "00009")))
    with pytest.raises(
        ValueError, match=r"train holds 120 pairs, but preparation\.json counts 60: a part is missing or"
    ):
        Trainer(TINY, folder, tmp_path / "run")


def test_missing_data_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run `vaswani prepare` with --output"):
        Trainer(TINY, tmp_path / "nowhere", tmp_path / "run")


def spoil_gradients(trainer, updates):
    """Let a gradient be NaN in these updates, counted from 1."""

    def spoil(gradient):
        return gradient * float("nan") if trainer.progress.update + 1 in updates else gradient

    trainer.model.lm_head.weight.register_hook(spoil)


def test_an_update_without_a_finite_gradient_is_skipped_and_counted(tiny_data, tmp_path):
    trainer = Trainer(replace(TINY, num_updates=4), tiny_data, tmp_path, log_interval=1)
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
    lines = [line for line in read_log(tmp_path) if "lr" in line]
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2]
    assert [line["loss"] is None for line in lines] == [False, True, True, False]


def test_ten_such_updates_in_a_row_end_the_run_and_name_the_cause(tiny_data, tmp_path):
    trainer = Trainer(replace(TINY, num_updates=50), tiny_data, tmp_path)
    with torch.no_grad():
        trainer.model.model.encoder.layers[0].feed_forward.fc1.weight[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"10 updates in a row, up to update 10, had a gradient that is not"):
        trainer.train()
    report = json.loads((tmp_path / "0-non_finite.json").read_text())
    (micro_batch,) = report["micro_batches"]
    assert micro_batch["first_non_finite"].startswith("model.encoder.layers.0.feed_forward.fc1")
    assert all([source, target] == list(PAIRS[row]) for row, source, target in micro_batch["pairs"])
    assert report["update"] == 10


@pytest.mark.parametrize(("checkpoints_every", "noticed"), [(100, 20), (15, 15)])
def test_ten_in_a_row_are_noticed_though_they_ended_between_two_looks(
    tiny_data, tmp_path, monkeypatch, checkpoints_every, noticed
):
    monkeypatch.setattr(trainer_module, "UPDATES_PER_CHECK", {"cpu": 10})  # as on a GPU
    recipe = replace(TINY, num_updates=30, checkpoint_interval=(checkpoints_every, "updates"))
    trainer = Trainer(recipe, tiny_data, tmp_path)
    spoil_gradients(trainer, range(3, 14))
    message = rf"11 updates in a row, before update {noticed}, had .* name another output folder and start again"
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    assert names_of_resumable(tmp_path) == []


def test_a_run_that_diverges_goes_on_with_an_infinite_perplexity(tiny_data, tmp_path, monkeypatch):
    trainer = Trainer(replace(TINY, num_updates=2), tiny_data, tmp_path)
    monkeypatch.setattr(trainer.dev_set, "compute_loss", lambda model: 1000.0)
    trainer.train()
    assert read_log(tmp_path)[-1]["dev_perplexity"] == math.inf


class WithoutFloat64(TorchDispatchMode):
    """As a device of Apple's."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            assert not (isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64), function
        return result


def test_a_device_without_float64_can_train(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(tally, "SUM_DTYPES", {"cpu": torch.float32})
    # The table of sinusoids is in float64 wherever there is one.
    recipe = replace(TINY, model=TINY.model | {"position_embedding_type": "learned"})
    with WithoutFloat64():
        trainer = Trainer(recipe, tiny_data, tmp_path, log_interval=1)

    def without_float64(method):
        def call(*args):
            with WithoutFloat64():
                return method(*args)

        return call

    for name in ("_run_update", "_log_training", "_evaluate"):  # but not the mean of the checkpoints, on the CPU
        setattr(trainer, name, without_float64(getattr(trainer, name)))
    trainer.train()
    assert [line["update"] for line in read_log(tmp_path) if "loss" in line] == list(range(1, 8))


def test_running_out_of_memory_names_the_batch_and_what_to_change(tiny_data, tmp_path):
    trainer = Trainer(TINY, tiny_data, tmp_path)
    trainer.model.register_forward_hook(lambda *_: torch.empty(2**60))
    with pytest.raises(
        MemoryError, match=r"micro-batch of \d+ pairs, padded to \d+ source .* Raise accumulation_steps"
    ):
        trainer.train()
