"""The loss agrees with `torch.nn.CrossEntropyLoss`, in float64."""

import pytest
import torch
from tiny_training import assert_close
from torch import nn

from vaswani_transformer.kernels import cross_entropy
from vaswani_transformer.kernels.cross_entropy import sum_loss_by_slices
from vaswani_transformer.model.loss_vaswani import sum_label_smoothed_loss


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("slice_length", [1, 2, 7, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_loss_and_gradients_agree_with_pytorch(monkeypatch, smoothing, slice_length, has_bias):
    torch.manual_seed(0)
    sizes = [(3, 7, 5), (23, 5), (23,)][: 3 if has_bias else 2]
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    hidden, weight, bias = inputs if has_bias else (*inputs, None)
    labels = torch.randint(0, 23, (3, 7))
    labels[0, 4:] = labels[2, 0] = -100
    monkeypatch.setattr(cross_entropy, "find_slice_length", lambda *_: slice_length)
    logits = nn.functional.linear(hidden, weight, bias).flatten(0, 1)
    expected, expected_nll = (
        nn.CrossEntropyLoss(label_smoothing=eps, reduction="sum")(logits, labels.flatten()) for eps in (smoothing, 0)
    )
    found = [
        sum_label_smoothed_loss(logits, labels.flatten(), label_smoothing=smoothing),
        sum_loss_by_slices(hidden, weight, bias, labels, label_smoothing=smoothing),
    ]
    gradients = torch.autograd.grad(3 * expected, inputs, retain_graph=True)
    for loss, nll in found:
        assert_close((loss, nll), (expected, expected_nll), tolerance=1e-10)
        assert not nll.requires_grad
        assert_close(torch.autograd.grad(3 * loss, inputs, retain_graph=True), gradients, tolerance=1e-10)
