"""The loss of section 5.4 without storing all logits. For one token y with logits z, label smoothing eps and V words

    loss = logsumexp(z) - (1 - eps) z_y - eps mean(z)        dloss/dz = softmax(z) - (1 - eps) onehot(y) - eps / V

Loss and gradient of a token need its logits only once. So the code below computes logits, loss and gradient for a slice
of the tokens at a time. For 25,000 tokens and a vocabulary of 37,000, the plain formula would store three matrices of
3.7 GB each.
"""

import contextlib

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..model.loss_vaswani import IGNORE_INDEX

LOGITS_PER_SLICE = 2**28  # enough to keep a GPU busy
LEAST_LOGITS_ON_CPU = 2**20  # Smaller slices are slow.


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
        # Autocast would convert the weights for each slice, and it would convert the softmax to float32 and back.
        without_autocast = torch.autocast(kind, enabled=False)
    if bias is not None:
        # A bias is the weight of an input that is always 1. Seven zeros keep widths that are a multiple of 8, because
        # products of other widths are slow on GPUs.
        hidden_states = nn.functional.pad(nn.functional.pad(hidden_states, (0, 1), value=1.0), (0, 7))
        weight = torch.cat([weight, nn.functional.pad(bias[:, None], (0, 7))], dim=1)
    with without_autocast:
        return _SlicedCrossEntropy.apply(
            hidden_states.flatten(0, -2), weight, labels.flatten(), label_smoothing, dtype, torch.is_grad_enabled()
        )


class _SlicedCrossEntropy(torch.autograd.Function):
    """The loss and its gradients, in slices. The forward pass computes gradients, and the backward pass scales them."""

    @staticmethod
    def forward(ctx, hidden_states, weight, labels, label_smoothing, dtype, is_grad_enabled):
        needs_hidden, needs_weight = (is_grad_enabled and needs_grad for needs_grad in ctx.needs_input_grad[:2])
        accumulate = torch.promote_types(dtype, torch.float32)
        # The mean of a token's logits over the vocabulary is the product of its hidden state and the mean row.
        mean_row = weight.mean(dim=0, dtype=accumulate)
        mean_logits = hidden_states.to(accumulate) @ mean_row
        weight = weight.to(dtype)
        is_label = labels != IGNORE_INDEX
        labels = labels.where(is_label, 0)
        # Hidden states of padding become zero, so they add nothing to the gradient of `weight`. Masks keep padding out
        # of the other results.
        hidden_states = hidden_states.to(dtype) * is_label[:, None]
        num_tokens, vocab_size = len(hidden_states), len(weight)
        grad_hidden = torch.empty_like(hidden_states) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate) if needs_weight else None

        loss = -label_smoothing * (mean_logits * is_label).sum()
        nll = mean_logits.new_zeros(())
        slice_length = min(num_tokens, find_slice_length(hidden_states, vocab_size))
        # All slices share two buffers, because allocating such a buffer takes as long as the products.
        logits_buffer, probs_buffer = hidden_states.new_empty(2, slice_length, vocab_size)
        for start in range(0, num_tokens, max(1, slice_length)):
            rows = slice(start, start + slice_length)
            h, y, slice_is_label = hidden_states[rows], labels[rows, None], is_label[rows, None]
            logits = torch.mm(h, weight.t(), out=logits_buffer[: len(h)])
            chosen = logits.gather(1, y)
            greatest = logits.amax(dim=-1, keepdim=True)
            grad_logits = torch.softmax(logits, dim=-1, out=probs_buffer[: len(h)])
            # logsumexp(z) = z_w - log P(w) for each word w. The code takes the most likely word as w: its probability
            # is at least 1 / V, while P(y) could be 0 in half precision. P(w) is rounded too, but this costs less
            # accuracy than the rounding of the logits.
            log_normaliser = greatest.to(accumulate) - grad_logits.amax(dim=-1, keepdim=True).to(accumulate).log()
            nll = nll + ((log_normaliser - chosen) * slice_is_label).sum()
            loss = loss + ((log_normaliser - (1 - label_smoothing) * chosen) * slice_is_label).sum()
            grad_logits.scatter_add_(1, y, torch.full_like(y, label_smoothing - 1, dtype=grad_logits.dtype))
            if needs_hidden:
                grad_hidden[rows] = grad_logits @ weight
            if needs_weight:
                # On a CPU, which has many slices, `addmm_` adds the product in one pass over the matrix.
                if grad_weight.device.type == "cpu" and grad_weight.dtype == dtype:
                    grad_weight.addmm_(grad_logits.T, h)
                else:
                    grad_weight += grad_logits.T @ h
        # The term -eps / V is equal in all entries of dloss/dz, so its share of each gradient is added once.
        if needs_hidden:
            grad_hidden -= (label_smoothing * mean_row).to(dtype)
            grad_hidden *= is_label[:, None]
        if needs_weight:
            grad_weight -= label_smoothing / vocab_size * hidden_states.sum(dim=0, dtype=accumulate)
        ctx.gradients = (grad_hidden, grad_weight)
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


def find_slice_length(hidden_states: Tensor, vocab_size: int) -> int:
    """Return the number of tokens of a slice, for `hidden_states` (..., D)."""
    if hidden_states.device.type == "cpu":
        # A slice reads the matrix (V, D) and its logits (tokens, V) from memory. With D tokens both are equally large.
        # Half precision needs twice as many tokens, because the gradient of the matrix is still added in float32. With
        # slices of only 28 tokens (V 37,000, D 512) the loss took 2.5 times as long in float32, and 10 times as long in
        # bfloat16.
        d_model = hidden_states.shape[-1] * (2 if hidden_states.dtype.itemsize < 4 else 1)
        return max(d_model, LEAST_LOGITS_ON_CPU // vocab_size)
    return max(1, LOGITS_PER_SLICE // vocab_size)
