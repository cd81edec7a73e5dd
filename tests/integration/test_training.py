import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from vaswani_transformer.data.preparation import prepare
from vaswani_transformer.recipes import BASE
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

    def save_and_count():
        nonlocal saves
        save()
        saves -= 1
        if not saves:
            raise KeyboardInterrupt

    trainer._save = save_and_count


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
    assert description["seed"] == 0
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
    timeless = [
        [{name: line[name] for name in ("update", "loss", "dev_perplexity") if name in line} for line in read_log(run)]
        for run in (tmp_path / "whole", tmp_path / "stopped")
    ]
    assert timeless[0] == timeless[1]


def test_lines_logged_after_the_last_checkpoint_are_written_once(data, tmp_path):
    trainer = Trainer(TINY, data, tmp_path / "run", log_interval=1)
    update, calls = trainer._update, 0

    def die_at_the_fourth(batches):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        update(batches)

    trainer._update = die_at_the_fourth
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [line["update"] for line in read_log(tmp_path / "run") if "loss" in line] == [1, 2, 3]
    Trainer(TINY, data, tmp_path / "run", log_interval=1).train()
    assert [line["update"] for line in read_log(tmp_path / "run") if "loss" in line] == list(range(1, 8))


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


def test_missing_data_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run `vaswani prepare` with --output"):
        Trainer(TINY, tmp_path / "nowhere", tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path):
    trainer = Trainer(TINY, data, tmp_path / "run")
    with torch.no_grad():
        trainer.model.lm_head.weight[5, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="the loss of update 1 is not finite"):
        trainer.train()
