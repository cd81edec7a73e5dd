"""Masks of the source and of the target: which positions are padding.

Shapes: B batch, S tokens.
"""

import torch

from .configuration_vaswani import VaswaniConfig


def build_padding_mask(input_ids: torch.LongTensor, config: VaswaniConfig) -> torch.LongTensor:
    """1 at tokens and 0 at padding, (B, S).

    Raises:
        ValueError: if the padding token also ends sentences, and so may be either.
    """
    pad, ends = config.pad_token_id, config.eos_token_id
    if pad is None:
        return torch.ones_like(input_ids)
    if pad == ends or (isinstance(ends, list) and pad in ends):
        raise ValueError(
            f"padding cannot be told from </s>: pad_token_id={pad} is also eos_token_id. Pass the attention_mask that "
            f"the tokenizer returns."
        )
    return (input_ids != pad).long()
