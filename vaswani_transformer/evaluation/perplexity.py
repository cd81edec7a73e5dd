"""Perplexity of a trained model, per sub-word (section 6.2)."""

from collections.abc import Iterable

import numpy as np
from transformers import PreTrainedTokenizerFast

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .pairs import score_pairs


def compute_perplexity(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
) -> float:
    """Return exp of the mean of -log P over the sub-words of the targets, with `</s>`, without label smoothing."""
    rated = score_pairs(model.eval(), tokenizer, pairs, tokens_per_batch=tokens_per_batch)
    log_probs, lengths, _ = zip(*rated, strict=True)
    return float(np.exp(-sum(log_probs) / sum(lengths)))
