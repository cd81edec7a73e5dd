"""The label-smoothed loss and its gradients, computed for a slice of the tokens at a time."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from vaswani_transformer.kernels import cross_entropy
from vaswani_transformer.kernels.cross_entropy import sum_loss_by_slices

LABELS = torch.tensor([3, -100, 0, 10, 3, -100])
find_loss = partial(sum_loss_by_slices, label_smoothing=0.1)


@pytest.fixture
def tensors():
    """Return hidden states (6, 4), weight (11, 4) and bias (11,) in float64."""
    torch.manual_seed(0)
    return [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in [(6, 4), (11, 4), (11,)]]


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_each_gradient_can_be_computed_alone(tensors, needed):
    loss, _ = find_loss(*tensors, LABELS)
    expected = torch.autograd.grad(loss, tensors)[needed]
    frozen = [tensor.detach().requires_grad_(i == needed) for i, tensor in enumerate(tensors)]
    find_loss(*frozen, LABELS)[0].backward()
    assert_close(frozen[needed].grad, expected)
    assert [tensor.grad is None for tensor in frozen].count(False) == 1


def test_a_batch_without_targets_has_no_loss_and_no_gradient(tensors):
    loss, nll = find_loss(*tensors, torch.full_like(LABELS, -100))
    loss.backward()
    assert loss == nll == 0
    assert all((tensor.grad == 0).all() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_in_half_precision_accumulates_in_float32(tensors, dtype):
    halves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    loss, nll = find_loss(*halves, LABELS)
    exact, _ = find_loss(*(t.double() for t in halves), LABELS)
    assert loss.dtype == nll.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)
    assert all(g.dtype == dtype for g in torch.autograd.grad(loss, halves))


def test_masking_ignored_tokens_gives_the_same_loss_as_leaving_them_out(tensors):
    # On a GPU, ignored tokens are masked, because leaving them out would make the CPU wait for the GPU.
    tensors = tensors[:2]
    left_out = find_loss(*tensors, None, LABELS)
    masked = cross_entropy._SlicedCrossEntropy.apply(*tensors, LABELS, 0.1, torch.float64, True)
    expected = torch.autograd.grad(left_out[0], tensors)
    found = torch.autograd.grad(masked[0], tensors)
    assert_close(tuple(masked), tuple(left_out), rtol=0, atol=1e-12)
    assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("device", "d_model", "vocab_size", "dtype", "expected"),
    [
        ("cpu", 512, 37_000, torch.float32, 512),
        ("cpu", 512, 37_000, torch.bfloat16, 1024),
        ("cpu", 32, 64, torch.float32, 2**14),
        ("meta", 8, 2**20, torch.float32, 2**8),
        ("meta", 8, 2**30, torch.float32, 1),
    ],
)
def test_the_length_of_a_slice_depends_on_device_dtype_d_model_and_vocabulary(
    device, d_model, vocab_size, dtype, expected
):
    hidden_states = torch.empty(3, d_model, dtype=dtype, device=device)
    assert cross_entropy.find_slice_length(hidden_states, vocab_size) == expected


def test_the_loss_computes_no_gradients_without_grad_mode(tensors):
    expected = find_loss(*tensors[:2], None, LABELS)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        found = find_loss(*tensors[:2], None, LABELS)
    assert_close(found, expected)
    assert counter.get_total_flops() == 2 * 4 * 4 * 11  # the logits of 4 labels


def test_the_loss_works_on_a_device_type_without_autocast(tensors):
    assert find_loss(*(tensor.to("meta") for tensor in tensors), LABELS.to("meta"))[0].is_meta


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.05), (torch.float64, 1e-12)])
def test_autocast_keeps_the_dtypes_of_gradients_and_leaves_float64_exact(tensors, dtype, tolerance):
    tensors = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    expected = find_loss(*tensors, LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        found = find_loss(*tensors, LABELS)
        assert torch.is_autocast_enabled("cpu")
    gradients = [torch.autograd.grad(loss, tensors) for loss, _ in (found, expected)]
    assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert_close(*gradients, rtol=tolerance, atol=tolerance)


def test_a_large_loss_scale_does_not_overflow_gradients_in_half_precision(tensors):
    hidden, weight, _ = tensors
    hidden = hidden.detach().half().requires_grad_()
    loss, _ = find_loss(hidden, weight.detach().half() / 1000, None, LABELS)
    (loss * 2.0**17).backward()
    assert hidden.grad.isfinite().all()
