"""A training run writes its files, has the same result if it is stopped and continued, and refuses bad input."""

import contextlib
import itertools
import os
import re
import shutil
import signal
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from accelerate.state import AcceleratorState
from shortcuts import Program, change_json, read_json, vaswani
from tiny_training import PAIRS, TINY, WITHOUT_DROPOUT, assert_close, build, log_without_times, read_log, train, weights

from vaswani_transformer.data.preparation import Corpus, prepare, read_prepared
from vaswani_transformer.engine.obstacles import find_obstacle
from vaswani_transformer.files import digest_files
from vaswani_transformer.kernels.cpu import HALF_PRECISION
from vaswani_transformer.runs import resumable_checkpoints
from vaswani_transformer.training import loop, progress, setup
from vaswani_transformer.training.interruption import Interrupted
from vaswani_transformer.training.loop import read_updates
from vaswani_transformer.training.optimizer import inverse_sqrt_lr


def die(*args):
    raise KeyboardInterrupt


def before_update(number, act):
    """Return a context manager in whose block training calls `act(parts)` before update `number`.

    Updates are counted from 1 in each block, even if the block continues a run.
    """
    run_update = loop.run_update
    calls = itertools.count(1)

    def count_and_run(parts, update):
        if next(calls) == number:
            act(parts)
        return run_update(parts, update)

    return patch.object(loop, "run_update", count_and_run)


def train_until(number, *args, **options):
    """Train, and end the training without saving before update `number` of this start, counted from 1."""
    with before_update(number, die), pytest.raises(KeyboardInterrupt):
        train(*args, **options)


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory):
    """Return the folder of a run that was never stopped."""
    run = tmp_path_factory.mktemp("whole")
    train(TINY, tiny_data, run, log_interval=3)
    return run


@pytest.fixture(scope="module")
def stopped_run(tiny_data, tmp_path_factory):
    """Return the folder of a run that stopped after update 6, with checkpoints of updates 4 and 6."""
    run = tmp_path_factory.mktemp("stopped")
    train_until(7, TINY, tiny_data, run, log_interval=3)
    return run


@pytest.fixture
def copy_of_stopped(stopped_run, tmp_path):
    return shutil.copytree(stopped_run, tmp_path / "run")


def assert_ends_as(whole, data, run):
    """Continue a run, and check that it ends with the weights and the log of `whole`."""
    train(TINY, data, run, log_interval=3)
    assert_close(weights(whole / "model"), weights(run / "model"))
    assert log_without_times(whole) == log_without_times(run)


def test_a_run_writes_model_recipe_log_and_checkpoints(whole, tiny_data):
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= set(os.listdir(whole / "model"))
    description = read_json(whole / "recipe.json")
    assert (description["recipe"]["num_updates"], description["recipe"]["vocab_size"]) == (7, 300)
    assert description["data"] == read_json(tiny_data / "preparation.json")["fingerprint"]
    assert [description[name] for name in ("seed", "mixed_precision", "num_processes")] == [0, "no", 1]
    assert description["versions"].keys() >= {"torch", "transformers"}
    lines = read_log(whole)
    rates = {line["update"]: line["lr"] for line in lines if line.get("loss", 0) > 0}
    assert rates == {update: 0.5 * inverse_sqrt_lr(update, d_model=16, warmup_steps=10) for update in (3, 6, 7)}
    assert [line["update"] for line in lines if "dev_perplexity" in line] == [2, 4, 6, 7]
    assert set(os.listdir(whole / "checkpoints")) == {"step-00000006", "step-00000007"}
    # The final model is the mean of the two checkpoints.
    saved = [weights(path) for path in sorted((whole / "checkpoints").iterdir())]
    mean = {name: ((weight.double() + saved[1][name].double()) / 2).float() for name, weight in saved[0].items()}
    assert_close(weights(whole / "model"), mean)


def test_a_run_that_was_stopped_twice_ends_like_an_uninterrupted_run(whole, tiny_data, tmp_path):
    # Each start has a new clock, which begins at 0 and moves by a second each time it is read. The seconds in the log
    # must still grow from line to line.
    for num_stops in range(3):
        with patch.object(loop, "time", SimpleNamespace(perf_counter=itertools.count().__next__)):
            if num_stops < 2:
                train_until(3, TINY, tiny_data, tmp_path, log_interval=3)
            else:
                assert_ends_as(whole, tiny_data, tmp_path)
    seconds = [line["seconds"] for line in read_log(tmp_path) if "seconds" in line]
    assert len(seconds) == 3
    assert seconds == sorted(set(seconds))


def test_after_sigterm_a_run_finishes_its_update_saves_and_can_be_continued_exactly(whole, tiny_data, tmp_path):
    stopped = pytest.raises(Interrupted, match="stopped after update 3 and saved")
    with before_update(3, lambda parts: signal.raise_signal(signal.SIGTERM)), stopped:
        train(TINY, tiny_data, tmp_path, log_interval=3)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / "checkpoints/stopped-00000003/COMPLETE").exists()
    assert_ends_as(whole, tiny_data, tmp_path)


def test_checkpoints_may_be_several_epochs_apart(tiny_data, tmp_path):
    recipe = replace(TINY, num_updates=1_000, lr_scale=0.0, patience=1, checkpoint_interval=(3, "epochs"))
    train(recipe, tiny_data, tmp_path, log_interval=60)
    lines = [line for line in read_log(tmp_path) if "dev_perplexity" in line]
    assert [line["epoch"] for line in lines] == [3, 6]  # the second loss is no better, which ends the run


def test_the_log_is_on_disk_before_a_checkpoint_gets_its_final_name(tiny_data, tmp_path, file_calls):
    train(replace(TINY, num_updates=2), tiny_data, tmp_path, log_interval=1)
    rename_index = file_calls.index("rename checkpoints/partial-step-00000002")
    assert "sync log.jsonl" in file_calls[:rename_index]


def test_a_truncated_log_stops_neither_the_run_nor_the_commands_cost_and_card(copy_of_stopped, whole, tiny_data):
    run = copy_of_stopped
    os.truncate(run / "log.jsonl", 100)
    model = train(TINY, tiny_data, run, log_interval=3)
    assert_close(weights(whole / "model"), weights(model))
    for command in ("cost", "card"):
        vaswani(f"{command} --run {run}")


@pytest.mark.parametrize("cause", ["a full disk", "another error"])
def test_an_error_while_saving_keeps_the_earlier_checkpoints_and_the_run_can_be_continued(
    whole, tiny_data, tmp_path, little_room, cause
):
    with contextlib.ExitStack() as stack:

        def prevent_saving(parts):
            if cause == "another error":
                parts.checkpoints.tokenizer = None
            else:
                stack.enter_context(little_room(20_000))

        stack.enter_context(before_update(4, prevent_saving))
        with pytest.raises(OSError, match=r"partial-step-00000004 could not be written: .* before it are intact"):
            train(TINY, tiny_data, tmp_path, log_interval=3)
    assert os.listdir(tmp_path / "checkpoints") == ["step-00000002"]
    assert_ends_as(whole, tiny_data, tmp_path)


def test_a_run_that_cannot_be_saved_is_refused_before_the_first_update(tiny_data, tmp_path):
    with patch.object(setup, "custom_pipelines", lambda task: {task: object()}), pytest.raises(TypeError, match="JSON"):
        train(TINY, tiny_data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def names_of_resumable(run):
    return [path.name for path in resumable_checkpoints(run / "checkpoints")]


def flip(path):
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


# The name of a file in a checkpoint -> a function that damages the file. To read a `Program` would end the process.
DAMAGES = {
    "model.safetensors": flip,
    "training_state/state.pt": lambda path: torch.save(Program(), path),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_warning_names_a_damaged_checkpoint_and_the_previous_checkpoint_is_used(
    name, copy_of_stopped, whole, tiny_data, capsys
):
    run = copy_of_stopped
    path = run / "checkpoints/step-00000006" / name
    DAMAGES[name](path)
    assert_ends_as(whole, tiny_data, run)
    printed = capsys.readouterr().err
    assert f"WARNING: {path} " in printed
    assert "; trying the checkpoint before it" in printed
    assert "resuming after update 4 from " in printed


@pytest.mark.parametrize("state", [Program(), [], {"progress": 3}])
def test_a_hostile_state_with_the_right_digest_is_refused_and_its_code_is_not_run(copy_of_stopped, tiny_data, state):
    checkpoint = copy_of_stopped / "checkpoints/step-00000006"
    path = checkpoint / "training_state/state.pt"
    torch.save(state, path)
    digests = read_json(checkpoint / "COMPLETE")["files"] | digest_files(checkpoint, [path])
    change_json(checkpoint / "COMPLETE", files=digests)
    with pytest.raises(ValueError, match=r"state\.pt was not (loaded\. It is damaged|written by this version)"):
        train(TINY, tiny_data, copy_of_stopped)


def test_a_run_without_an_intact_checkpoint_is_refused_and_keeps_its_checkpoints(copy_of_stopped, tiny_data):
    for path in copy_of_stopped.glob("checkpoints/*/model.safetensors"):
        flip(path)
    message = r"none of the checkpoints in .*checkpoints is intact: .*step-00000004/model\.safetensors is damaged"
    with pytest.raises(ValueError, match=message):
        train(TINY, tiny_data, copy_of_stopped)
    assert names_of_resumable(copy_of_stopped) == ["step-00000004", "step-00000006"]


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="needs a C++ compiler")
def test_batches_of_all_shapes_share_one_compilation_that_does_not_change_the_result(tiny_data, tmp_path, monkeypatch):
    recipe = replace(WITHOUT_DROPOUT, num_updates=4, num_averaged_checkpoints=1)
    folders = tmp_path / "plain", tmp_path / "compiled"
    parts = build(recipe, tiny_data, folders[0], log_interval=1)
    batches = [batch for update in itertools.islice(read_updates(parts), 4) for batch in update.micro_batches]
    assert len({batch["input_ids"].shape for batch in batches}) > 1
    loop.train(parts)
    # With `fullgraph`, a break in the graph raises an error. Without a break, an update has one forward graph, up to
    # the loss, and one backward graph.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    train(replace(recipe, compile=True), tiny_data, folders[1], log_interval=1)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == counters["aot_autograd"]["total"] == 1  # traced once
    losses = [[line["loss"] for line in read_log(folder) if "loss" in line] for folder in folders]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_close(*(weights(folder / "model") for folder in folders), tolerance=1e-5)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_an_engine_can_be_built_while_the_development_set_is_translated(tiny_data, tmp_path, precision):
    # An engine decodes faster than the model's `forward`, but cannot be built if `forward` was replaced. In bf16,
    # Accelerate replaces `forward` by a wrapper. So `DevelopmentSet` must take the wrapper off, and put it back.
    seen = []

    def score(model, tokenizer, pairs, **processes):
        seen.append((type(model).__name__, len(pairs), find_obstacle(model)))
        return 12.5

    parts = build(replace(TINY, num_updates=2), tiny_data, tmp_path, score_dev=score, mixed_precision=precision)
    wrapper = vars(parts.model).get("forward")
    loop.train(parts)
    assert seen == [("VaswaniForConditionalGeneration", 9, None)]
    assert read_log(tmp_path)[-1]["dev_bleu"] == 12.5
    assert vars(parts.model).get("forward") is wrapper


def test_a_run_does_not_continue_with_other_settings_or_other_data(stopped_run, tiny_data, tmp_path):
    with pytest.raises(
        ValueError, match=r"other settings: recipe\.warmup_updates was 10, is 9; seed was 0, is 1\. Give the same"
    ):
        train(replace(TINY, warmup_updates=9), tiny_data, stopped_run, seed=1)
    prepare([Corpus(lambda: PAIRS[1:])], lambda: PAIRS[:9], tmp_path, vocab_size=300)
    with pytest.raises(ValueError, match=r'other settings: data was "\w+", is "\w+"\. Give the same settings'):
        train(TINY, tmp_path, stopped_run)


@pytest.fixture
def bf16_environment(monkeypatch):
    """Set the environment in which `accelerate launch --mixed_precision bf16` starts a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_precision_of_the_launcher_is_used(bf16_environment, tiny_data, tmp_path, capsys):
    parts = build(replace(TINY, num_updates=1), tiny_data, tmp_path)
    assert parts.model.config._attn_implementation == HALF_PRECISION
    loop.train(parts)
    configs = [path.read_text() for path in tmp_path.rglob("config.json")]
    assert len(configs) == 2
    assert not any("attn_implementation" in config for config in configs)  # `HALF_PRECISION` is for training
    assert read_json(tmp_path / "recipe.json")["mixed_precision"] == "bf16"
    assert "mixed_precision bf16, num_processes 1" in capsys.readouterr().err


def test_short_first_orders_the_first_epoch_by_length(tiny_data, tmp_path):
    widths = {False: [], True: []}
    for short_first, found in widths.items():
        for update in read_updates(build(replace(TINY, short_first=short_first), tiny_data, tmp_path)):
            found.append(max(update.micro_batches[0][side].shape[1] for side in ("input_ids", "labels")))
            if update.is_last_of_epoch:
                break
    assert widths[True] == sorted(widths[False]) != widths[False]


def test_only_cuda_compiles_by_default(tiny_data):
    recipes = [setup._complete_recipe(TINY, read_prepared(tiny_data), device) for device in ("cuda", "mps")]
    assert [recipe.compile for recipe in recipes] == [True, False]


def test_the_remaining_time_of_a_run_falls_to_zero(tiny_data, tmp_path, capsys):
    with patch.object(progress, "time", SimpleNamespace(perf_counter=itertools.count().__next__)):
        train(replace(TINY, num_updates=2), tiny_data, tmp_path, log_interval=1)
    times = re.findall(r"remaining (\S+)", capsys.readouterr().err)
    assert times[0] > times[1] == "0:00:00"  # A negative time would begin with "-1 day".


def test_an_update_of_more_tokens_has_more_accumulation_steps(tiny_data, tmp_path):
    for tokens_per_batch, expected in ((160, 1), (25_000, 6)):
        parts = build(replace(TINY, tokens_per_batch=tokens_per_batch), tiny_data, tmp_path)
        assert parts.accumulation_steps == expected
    gpu = SimpleNamespace(device=torch.device("meta"))
    assert setup._choose_accumulation_steps(replace(TINY, tokens_per_batch=25_000), gpu) == 1


def test_a_tracker_whose_package_is_missing_is_refused(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    with pytest.raises(ModuleNotFoundError, match="the package tensorboard is not installed"):
        build(TINY, tiny_data, tmp_path, report_to="tensorboard")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        # A launcher sets WORLD_SIZE to the number of processes. Without GPUs and ACCELERATE_USE_CPU, the processes are
        # not connected.
        ("WORLD_SIZE", "3", r"started 3 processes, .* each knows of 1\. .* ACCELERATE_USE_CPU=true"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "the launcher asks for DEEPSPEED, but each process"),
    ],
)
def test_processes_that_are_not_connected_and_deepspeed_are_refused(
    tiny_data, tmp_path, monkeypatch, variable, value, message
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        build(TINY, tiny_data, tmp_path)


def test_the_error_about_a_damaged_or_missing_file_of_the_data_names_the_file(tiny_data, tmp_path):
    folder = shutil.copytree(tiny_data, tmp_path / "data")
    for damage, name, word in ((flip, "train/labels.tokens", "damaged"), (os.remove, "dev.json", "missing")):
        damage(folder / name)
        with pytest.raises(ValueError, match=rf"data/{name} is {word}\. Copy the folder again, or remove it"):
            build(TINY, folder, tmp_path / "run")
        shutil.copy(tiny_data / name, folder / name)


def test_dropout_gets_a_new_seed_if_the_number_of_processes_has_changed(copy_of_stopped, tiny_data):
    path = copy_of_stopped / "checkpoints/step-00000004/training_state/state.pt"
    state = torch.load(path)
    state["random_states"] *= 2
    torch.save(state, path)
    parts = build(TINY, tiny_data, copy_of_stopped)
    parts.checkpoints.load(path.parents[1], seed=5, warn=print)
    assert torch.initial_seed() == 5 + 4


def test_the_seed_decides_the_first_weights(tiny_data, tmp_path):
    first, same, other = (build(TINY, tiny_data, tmp_path, seed=seed).model.lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def build_spoilt(updates, *args, **options):
    """Return the parts of a run in which a gradient is NaN in each update whose number, from 1, is in `updates`."""
    parts = build(*args, **options)

    def spoil(gradient):
        return gradient * float("nan") if parts.progress.update + 1 in updates else gradient

    parts.model.lm_head.weight.register_hook(spoil)
    return parts


def test_an_update_without_a_finite_gradient_is_skipped_and_counted(tiny_data, tmp_path, monkeypatch):
    parts = build_spoilt({2, 3}, replace(TINY, num_updates=4), tiny_data, tmp_path, log_interval=1)
    seen = []
    run_update = loop.run_update

    def look_and_run(parts, update):
        seen.append(parts.model.lm_head.weight.detach().clone())
        return run_update(parts, update)

    monkeypatch.setattr(loop, "run_update", look_and_run)
    loop.train(parts)
    assert [torch.equal(*pair) for pair in itertools.pairwise(seen)] == [False, True, True]
    lines = [line for line in read_log(tmp_path) if "lr" in line]
    assert [line["skipped"] for line in lines] == [0, 1, 2, 2]
    assert [line["loss"] is None for line in lines] == [False, True, True, False]


def test_ten_updates_in_a_row_without_a_finite_gradient_end_the_run(tiny_data, tmp_path):
    recipe = replace(TINY, num_updates=30, checkpoint_interval=(100, "updates"))
    parts = build_spoilt(range(3, 14), recipe, tiny_data, tmp_path)
    message = "10 updates in a row, up to update 12, were skipped.* Name another output folder, and start again"
    with pytest.raises(FloatingPointError, match=message):
        loop.train(parts)
    assert names_of_resumable(tmp_path) == []
