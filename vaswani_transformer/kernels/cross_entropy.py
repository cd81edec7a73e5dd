"""The loss of section 5.4 without storing all logits.

For 25,000 tokens and a vocabulary of 37,000, the formula stores several matrices of 3.7 GB each. So the code below
applies the formula to a slice of the tokens at a time. It computes the gradients of a slice at once, and adds them up.
Then the logits of the slice are no longer needed.
"""

import contextlib

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..model.loss_vaswani import IGNORE_INDEX, sum_label_smoothed_loss

# The number of logits in a slice. On a CPU, larger slices are not faster, but need more memory. Slices of a quarter of
# this number took 20 % longer for a vocabulary of 37,000, because each slice reads the whole projection.
LOGITS_ON_CPU = 2**23
LOGITS_ON_GPU = 2**27


def sum_loss_by_slices(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    label_smoothing: float,
) -> tuple[Tensor, Tensor]:
    """Return the loss of section 5.4 for the logits `hidden_states` @ `weight`.T + `bias`, summed over the labels.

    Args:
        hidden_states: (..., d_model), the output of the decoder.
        weight: (vocab_size, d_model), the pre-softmax projection.
        bias: (vocab_size,) or None.
        labels: (...), token ids. Positions with -100 are ignored.
        label_smoothing: eps in [0, 1).

    Returns:
        Two scalars, as `sum_label_smoothed_loss` returns them: the loss, and -log P of the labels, without a gradient.
    """
    kind = labels.device.type
    if kind == "cpu":
        is_label = labels != IGNORE_INDEX
        hidden_states = hidden_states[is_label]
        labels = labels[is_label]
    # On other devices padding stays. Selecting rows would synchronise with the device, which takes longer.
    dtype = hidden_states.dtype
    without_autocast = contextlib.nullcontext()
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        without_autocast = torch.autocast(kind, enabled=False)  # The slices below convert the factors themselves.
    with without_autocast:
        return _SlicedLoss.apply(
            hidden_states.flatten(0, -2),
            weight,
            bias,
            labels.flatten(),
            label_smoothing,
            dtype,
            torch.is_grad_enabled(),
        )


class _SlicedLoss(torch.autograd.Function):
    """The loss and its gradients, in slices. The forward pass computes gradients, and the backward pass scales them."""

    @staticmethod
    def forward(ctx, hidden_states, weight, bias, labels, label_smoothing, dtype, is_grad_enabled):
        needs_hidden, *needs_parameters = (is_grad_enabled and needs_grad for needs_grad in ctx.needs_input_grad[:3])
        # The gradients of the projection are sums over all slices, so they are added in float32 at least.
        parameters = [
            None if x is None else x.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_(needs_grad)
            for x, needs_grad in zip((weight, bias), needs_parameters, strict=True)
        ]
        length = find_slice_length(hidden_states.device, len(weight))
        slices = [h.requires_grad_(needs_hidden) for h in hidden_states.detach().split(length)]
        losses = 0
        with torch.enable_grad():
            for h, y in zip(slices, labels.split(length), strict=True):
                projection = (None if x is None else x.to(dtype) for x in parameters)
                logits = nn.functional.linear(h.to(dtype), *projection)
                loss, nll = sum_label_smoothed_loss(logits, y, label_smoothing=label_smoothing)
                if loss.requires_grad:
                    loss.backward()
                losses += torch.stack((loss.detach(), nll))
        grad_hidden = torch.cat([h.grad for h in slices]) if needs_hidden else None
        ctx.gradients = (grad_hidden, *(None if x is None else x.grad for x in parameters))
        loss, nll = losses
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss, _):
        grads = [
            # The product is in the dtype of the loss, because the scale of the loss may overflow in half precision.
            # Autograd then casts the product to the dtype of the input.
            None if gradient is None else gradient.to(grad_loss.dtype) * grad_loss
            for gradient in ctx.gradients
        ]
        return (*grads, None, None, None, None)


def find_slice_length(device: torch.device, vocab_size: int) -> int:
    """Return the number of tokens of a slice."""
    return max(1, (LOGITS_ON_CPU if device.type == "cpu" else LOGITS_ON_GPU) // vocab_size)
