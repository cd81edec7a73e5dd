"""Label-smoothed cross-entropy (section 5.4).

The target distribution is 1 - eps at the true token, plus eps spread evenly over the whole vocabulary (Szegedy et al.
2015, section 7; as in `torch.nn.CrossEntropyLoss`).
"""

import torch

IGNORE_INDEX = -100


def sum_label_smoothed_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of section 5.4, summed over the labels, and -log P of the labels.

    Args:
        logits: (..., vocab_size).
        labels: (...), token ids; positions with -100 are ignored.
        label_smoothing: eps in [0, 1).

    Returns:
        Two scalars in nats, float32 or float64. The second is the loss without smoothing, and has no gradient.
    """
    real = labels != IGNORE_INDEX
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    nll = -log_probs.gather(-1, labels.where(real, 0)[..., None])[..., 0]
    loss = (1 - label_smoothing) * nll - label_smoothing * log_probs.mean(dim=-1)
    return (loss * real).sum(), (nll.detach() * real).sum()
