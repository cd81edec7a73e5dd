from types import SimpleNamespace

import pytest
import torch

from vaswani_transformer.model import modeling_vaswani
from vaswani_transformer.training.diagnosis import describe_batch, find_non_finite

SOURCE, LABELS = torch.tensor([[5, 6, 7, 2], [9, 2, 1, 1]]), torch.tensor([[8, 3, 2], [4, 2, -100]])


@pytest.mark.parametrize("labels", [LABELS, torch.full_like(LABELS, -100)], ids=["pairs", "without pairs"])
def test_nothing_is_found_in_a_healthy_part(tiny_model, labels):
    assert find_non_finite(tiny_model.train(), {"input_ids": SOURCE, "labels": labels}) is None
    assert all(parameter.grad is None for parameter in tiny_model.parameters())


def test_the_logits_of_all_tokens_are_never_held(tiny_model, monkeypatch):
    monkeypatch.delattr(modeling_vaswani, "sum_label_smoothed_loss_of_logits")
    assert find_non_finite(tiny_model.train(), {"input_ids": SOURCE, "labels": LABELS}) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model.decoder.layers.1.feed_forward.fc2.weight", "model.decoder.layers.1.feed_forward.fc2"),
        ("model.shared.weight", "model.encoder.embed_tokens"),
    ],
)
def test_the_first_module_with_such_an_output_is_named(tiny_model, name, found):
    with torch.no_grad():
        tiny_model.get_parameter(name)[5] = torch.nan
    assert find_non_finite(tiny_model.train(), {"input_ids": SOURCE, "labels": LABELS}) == found


def test_a_part_without_pairs_is_described_too(build_translator):
    model, tokenizer = build_translator(["one two three"] * 3)
    parts = [{"input_ids": SOURCE, "labels": labels} for labels in (LABELS, torch.full_like(LABELS, -100))]
    sources, targets = tokenizer(["one two", "three"]).input_ids, tokenizer(["two", "one"]).input_ids
    update = SimpleNamespace(rows=[[1, 0], []], micro_batches=parts)
    report = describe_batch(model, update, SimpleNamespace(sources=sources, targets=targets), tokenizer)
    assert report == [
        {"first_non_finite": None, "pairs": [[1, "three", "one"], [0, "one two", "two"]]},
        {"first_non_finite": None, "pairs": []},
    ]
