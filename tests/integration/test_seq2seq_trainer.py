"""transformers' Seq2SeqTrainer trains our models like any other model. It can use the batches of `vaswani train`."""

import os
import re
import socket
from functools import partial

import finetune_seq2seq_trainer
import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from shortcuts import read_json, write_lines
from tiny_training import PAIRS, assert_close
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, pipeline, train_tokenizer
from vaswani_transformer.data.batching import plan_updates
from vaswani_transformer.evaluation.metrics import build_compute_metrics
from vaswani_transformer.training.interruption import destroy_group_at_exit
from vaswani_transformer.training.seq2seq_trainer import TokenBatchSampler, load_token_batches

PAIRS = PAIRS[:40]
pytestmark = pytest.mark.usefixtures("metric_modules")
# Label smoothing may be set in the model or in the trainer.
SIDES = {"model": {"label_smoothing": 0.1}, "trainer": {"label_smoothing": 0.0, "label_smoothing_factor": 0.1}}


def build_dataset(tokenizer, pairs):
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    encoded = tokenizer(sources, text_target=targets)
    return Dataset.from_dict({"source": sources, "input_ids": encoded.input_ids, "labels": encoded.labels})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for pair in PAIRS for text in pair], vocab_size=300)


@pytest.fixture(scope="module")
def dataset(tokenizer):
    return build_dataset(tokenizer, PAIRS)


def build_model(tokenizer, *, dropout=0.1, label_smoothing=0.1, dtype=torch.float32):
    torch.manual_seed(0)
    sizes = {"d_model": 12, "d_ff": 19, "num_heads": 3, "encoder_layers": 1, "decoder_layers": 2}
    config = VaswaniConfig(vocab_size=len(tokenizer), **sizes, dropout=dropout, label_smoothing=label_smoothing)
    return VaswaniForConditionalGeneration(config).to(dtype)


def build_trainer(folder, tokenizer, dataset, *, by_tokens=False, model=None, compute_metrics=None, **settings):
    """Return a trainer on one CPU, which by default saves nothing.

    With `by_tokens`, training uses the batches of `vaswani train`, with up to 150 tokens on each side.
    `label_smoothing`, `dropout` and `dtype` are settings of the model. All other `settings` are arguments of
    Seq2SeqTrainingArguments.
    """
    model_settings = {name: settings.pop(name) for name in ("label_smoothing", "dropout", "dtype") if name in settings}
    model = build_model(tokenizer, **model_settings) if model is None else model
    defaults = {
        "save_strategy": "no",
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
    }
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(folder), **defaults | settings),
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=compute_metrics,
    )
    if by_tokens:
        trainer.get_train_dataloader = partial(load_token_batches, trainer, tokens_per_batch=150)
    return trainer


def weights(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def test_every_evaluation_translates_as_generate_does(tokenizer, dataset, tmp_path):
    model = build_model(tokenizer).eval()
    inputs = tokenizer(dataset["source"][:12], return_tensors="pt", padding=True)
    translations = model.generate(**inputs)
    assert translations.shape[1] > 21  # the default limit of transformers would cut them
    generated = [[token for token in row.tolist()[1:] if token != tokenizer.pad_token_id] for row in translations]
    references = dataset.select(range(12)).remove_columns("labels").add_column("labels", generated)
    trainer = build_trainer(
        tmp_path,
        tokenizer,
        references,
        model=model,
        predict_with_generate=True,
        per_device_eval_batch_size=5,
        compute_metrics=build_compute_metrics(tokenizer),
    )
    for _ in range(2):  # the first evaluation writes the trainer's defaults into the generation config
        assert trainer.evaluate()["eval_sacrebleu"] == pytest.approx(100)
    trainer.save_model()
    assert "max_length" not in read_json(tmp_path / "generation_config.json")
    assert torch.equal(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generate(**inputs), translations)


def test_bleu_without_generated_text_is_refused_and_the_missing_setting_is_named(tokenizer, dataset, tmp_path):
    trainer = build_trainer(tmp_path, tokenizer, dataset, compute_metrics=build_compute_metrics(tokenizer))
    with pytest.raises(ValueError, match="not token ids: set predict_with_generate=True"):
        trainer.evaluate()


@pytest.mark.parametrize("length", [19, 20, None])
def test_a_length_set_by_the_caller_holds_in_every_batch(tokenizer, dataset, tmp_path, length):
    model = build_model(tokenizer)
    model.generation_config.max_length = length
    rows = dataset.select([9] * 3)
    options = {"predict_with_generate": True, "per_device_eval_batch_size": 1}
    found = build_trainer(tmp_path, tokenizer, rows, model=model, **options).predict(rows).predictions
    lengths = {sum(token not in (tokenizer.pad_token_id, -100) for token in row) for row in found}
    expected = model.generate(**tokenizer(rows["source"][:1], return_tensors="pt"))
    assert lengths == {expected.shape[1]}
    assert length in (None, expected.shape[1])


def test_evaluations_use_the_fast_search_although_the_trainer_passes_labels(tokenizer, dataset, tmp_path, monkeypatch):
    # No step is computed by `forward`, and nothing is compared with it.
    monkeypatch.setattr("vaswani_transformer.model.search_vaswani.Witness.confirms", lambda *_: True)
    monkeypatch.setattr("vaswani_transformer.model.search_vaswani.ForwardSteps.__init__", None)
    trainer = build_trainer(tmp_path, tokenizer, dataset, predict_with_generate=True)
    assert len(trainer.predict(dataset.select(range(3))).predictions) == 3


def test_label_smoothing_of_the_trainer_overrides_the_model_in_training_and_evaluation(tokenizer, dataset, tmp_path):
    found, losses = [], []
    for settings in (SIDES["trainer"], SIDES["trainer"] | {"label_smoothing": 0.3}, SIDES["model"]):
        trainer = build_trainer(tmp_path, tokenizer, dataset, per_device_eval_batch_size=len(dataset), **settings)
        losses.append(trainer.evaluate()["eval_loss"])
        batch = next(iter(trainer.get_eval_dataloader()))
        logits = trainer.model.eval()(**batch).logits.flatten(0, 1)
        labels = batch["labels"].flatten()
        torch.manual_seed(1)  # dropout is on
        loss = trainer.compute_loss(trainer.model.train(), dict(batch), num_items_in_batch=torch.tensor(1000))
        loss.backward()
        found.append({"loss": loss.detach()} | {name: p.grad for name, p in trainer.model.named_parameters()})
    assert_close(found[0], found[1])
    assert_close(found[0], found[2], tolerance=1e-6)
    assert losses[0] == losses[1] == pytest.approx(cross_entropy(logits, labels, label_smoothing=0.1).item())
    assert losses[2] == pytest.approx(cross_entropy(logits, labels).item())


@pytest.mark.parametrize("side", SIDES)
def test_the_number_of_accumulation_steps_does_not_change_an_update(tokenizer, dataset, tmp_path, side):
    learned = []
    for batch_size, accumulation_steps in [(8, 1), (1, 8)]:
        trainer = build_trainer(
            tmp_path,
            tokenizer,
            dataset,
            dropout=0.0,
            dtype=torch.float64,
            train_sampling_strategy="sequential",
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation_steps,
            **SIDES[side],
        )
        trainer.train()
        learned.append(weights(trainer))
    assert_close(learned[0], learned[1], tolerance=1e-10)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_a_resumed_run_ends_like_an_uninterrupted_run(tokenizer, dataset, tmp_path, by_tokens):
    settings = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1, "by_tokens": by_tokens}
    whole = build_trainer(tmp_path, tokenizer, dataset, **settings)
    whole.train()
    epoch_length = len(whole.get_train_dataloader())
    assert 1 < epoch_length < 6
    for stop in (epoch_length, epoch_length + 1):  # after the first epoch, and inside the second
        resumed = build_trainer(tmp_path, tokenizer, dataset, **settings)
        resumed.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-{stop}")
        assert resumed.state.global_step == 8
        assert_close(weights(resumed), weights(whole))


LENGTHS = np.array([3, 9, 4, 4, 7, 2, 8, 5, 6, 3, 3, 5, 7]), np.array([4, 8, 4, 6, 3, 2, 9, 5, 7, 3, 2, 6, 6])


@pytest.mark.parametrize(("num_processes", "accumulation_steps"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_the_batches_of_all_processes_make_up_the_planned_updates(num_processes, accumulation_steps):
    plan = plan_updates(*LENGTHS, tokens_per_batch=40, seed=7, epoch=5)
    num_parts = num_processes * accumulation_steps
    rows_by_update = [[] for _ in plan]
    for first in range(0, num_parts, accumulation_steps):
        own_parts = slice(first, first + accumulation_steps)
        sampler = TokenBatchSampler(LENGTHS, num_parts=num_parts, own_parts=own_parts, tokens_per_batch=40, seed=7)
        sampler.set_epoch(5)
        assert len(sampler) == len(plan) * accumulation_steps
        for number, rows in enumerate(sampler):
            assert rows
            rows_by_update[number // accumulation_steps] += rows
    for found, expected in zip(rows_by_update, plan, strict=True):
        assert set(found) == set(expected)
        assert len(found) == max(len(expected), num_parts)


def test_each_batch_holds_the_pairs_of_its_planned_update(tokenizer, dataset, tmp_path):
    shuffled = dataset.shuffle(seed=3)  # leaves the stored rows in order, and maps row numbers to them
    lengths = [np.array([len(ids) for ids in shuffled[column]]) for column in ("input_ids", "labels")]
    for settings, seed in (({"seed": 3}, 3), ({"seed": 3, "data_seed": 4}, 4)):
        loader = build_trainer(tmp_path, tokenizer, shuffled, by_tokens=True, **settings).get_train_dataloader()
        for epoch in (0, 2):
            loader.set_epoch(epoch)
            plan = plan_updates(*lengths, tokens_per_batch=150, seed=seed, epoch=epoch)
            for rows, batch in zip(plan, loader, strict=True):
                assert batch.keys() == {"input_ids", "attention_mask", "labels", "decoder_input_ids"}
                for column, padding in (("input_ids", tokenizer.pad_token_id), ("labels", -100)):
                    assert [ids[ids != padding].tolist() for ids in batch[column]] == shuffled[rows][column]


EXACT = {"dropout": 0.0, "dtype": torch.float64, "max_steps": 8}


def train_alone(folder, tokenizer, dataset, **settings):
    trainer = build_trainer(folder, tokenizer, dataset, by_tokens=True, **settings)
    trainer.train()
    trainer.save_model()
    return load_file(folder / "model.safetensors")


def train_in_a_process(rank, port, folder, tokenizer, dataset):
    """Train to the end, and then train again from a checkpoint inside the second epoch."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    for name, checkpoint in (("whole", None), ("resumed", f"{folder}/whole/checkpoint-5")):
        settings = {"save_strategy": "steps", "save_steps": 5, **EXACT}
        trainer = build_trainer(folder / name, tokenizer, dataset, by_tokens=True, **settings)
        assert trainer.accelerator.num_processes == 2
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
    destroy_group_at_exit()


def test_two_processes_learn_the_same_as_one_and_continue_inside_an_epoch(tokenizer, dataset, tmp_path):
    one = train_alone(tmp_path / "one", tokenizer, dataset, **EXACT)
    assert one["model.shared.weight"].dtype == torch.float64
    accumulated = train_alone(tmp_path / "accumulated", tokenizer, dataset, gradient_accumulation_steps=2, **EXACT)
    assert_close(one, accumulated, tolerance=1e-10)
    with socket.socket() as held:  # holds the port, so that no other program gets it before the processes end
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        # Processes are spawned, because a fork of a process with threads may wait for these threads for ever.
        arguments = (held.getsockname()[1], tmp_path, tokenizer, dataset)
        torch.multiprocessing.spawn(train_in_a_process, args=arguments, nprocs=2)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert_close(one, whole, tolerance=1e-10)
    assert_close(whole, resumed)
    state = read_json(tmp_path / "whole/checkpoint-5/trainer_state.json")
    assert 1 < state["epoch"] < 2


@pytest.mark.slow
def test_the_example_of_fine_tuning_improves_the_bleu_of_a_model(tokenizer, tmp_path, capsys):
    for name, pairs in {"train": PAIRS, "dev": PAIRS[:8], "test": PAIRS[20:]}.items():
        for side, language in enumerate(("en", "de")):
            write_lines(tmp_path / f"{name}.{language}", [pair[side] for pair in pairs])
    model = build_model(tokenizer, dropout=0.0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = f"--train {tmp_path}/train --dev {tmp_path}/dev --test {tmp_path}/test"
    folders = f"--model {tmp_path}/model --output_dir {tmp_path}/finetuned"
    settings = "--use_cpu --num_train_epochs 8 --learning_rate 0.02 --tokens_per_batch 150 --logging_strategy no"
    finetune_seq2seq_trainer.main(f"{folders} {texts} {settings}".split())
    lines = re.findall(r"(before|after) fine-tuning: BLEU ([0-9.]+)  nrefs:1\|case:mixed\S+", capsys.readouterr().out)
    assert [when for when, _ in lines] == ["before", "after"]
    assert float(lines[0][1]) + 20 < float(lines[1][1])
    translate = pipeline("translation", model=f"{tmp_path}/finetuned")
    assert translate(PAIRS[20][0])
