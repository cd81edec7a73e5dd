"""Label-smoothed cross-entropy (section 5.4).

The target distribution is 1 - eps at the true token, plus eps spread evenly over the whole vocabulary, as in Szegedy et
al. 2015, section 7, and in `torch.nn.CrossEntropyLoss`.
"""

import torch
from torch import Tensor

IGNORE_INDEX = -100


def sum_label_smoothed_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss of section 5.4 and -log P, each summed over the labels.

    Args:
        logits: (..., vocab_size).
        labels: (...), token ids; positions with -100 are ignored.
        label_smoothing: eps in [0, 1).

    Returns:
        Two scalars in nats, in float64 for float64 logits, else in float32. The second scalar has no gradient.
    """
    is_label = labels != IGNORE_INDEX
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    nll = -log_probs.gather(-1, labels.where(is_label, 0)[..., None])[..., 0]
    loss = (1 - label_smoothing) * nll - label_smoothing * log_probs.mean(dim=-1)
    return (loss * is_label).sum(), (nll.detach() * is_label).sum()
