"""The loss against `torch.nn.CrossEntropyLoss`, in float64."""

import pytest
import torch
from torch import nn

from vaswani_transformer.model import loss_vaswani
from vaswani_transformer.model.loss_vaswani import sum_label_smoothed_loss

TOLERANCE = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def tensors(request):
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(23, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(23, dtype=torch.float64, requires_grad=True) if request.param else None
    return hidden, weight, bias


@pytest.fixture
def labels():
    torch.manual_seed(1)
    labels = torch.randint(0, 23, (3, 7))
    labels[0, 4:] = labels[2, 0] = -100
    return labels


@pytest.mark.parametrize("slice_length", [1, 2, 7, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.2, 0.9])
def test_loss_and_gradients_agree_with_pytorch(tensors, labels, monkeypatch, smoothing, slice_length):
    monkeypatch.setattr(loss_vaswani, "find_slice_length", lambda *_: slice_length)
    inputs = [tensor for tensor in tensors if tensor is not None]
    reference = nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")
    expected = reference(nn.functional.linear(*tensors).flatten(0, 1), labels.flatten())
    actual, _ = sum_label_smoothed_loss(*tensors, labels, label_smoothing=smoothing)
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    gradients = zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True)
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_likelihood_is_the_plain_cross_entropy(tensors, labels, smoothing):
    _, nll = sum_label_smoothed_loss(*tensors, labels, label_smoothing=smoothing)
    expected = nn.CrossEntropyLoss(reduction="sum")(nn.functional.linear(*tensors).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(nll, expected, **TOLERANCE)
