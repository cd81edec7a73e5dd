import pytest
import torch

from vaswani_transformer.model import modeling_vaswani
from vaswani_transformer.training.diagnosis import find_non_finite

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
