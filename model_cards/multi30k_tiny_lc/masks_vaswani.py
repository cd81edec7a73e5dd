"""Which positions a query may look at: padding, the future (section 3.2.3), and the window of section 4.

Shapes: B batch, T target length, S source length, D d_model. What the functions return is for the attention kernel of
`config._attn_implementation`: additive, boolean, of a kind of its own, or `None` where nothing is hidden.
"""

from collections.abc import Callable

import torch
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from .attention_window_vaswani import WindowBlocks, build_blocks, pays, window_mask_function, window_reach
from .configuration_vaswani import VaswaniConfig

Mask = torch.Tensor | WindowBlocks | None


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


def mask_encoder(
    config: VaswaniConfig,
    x: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    is_training: bool,
    output_attentions: bool | None = None,
    **kwargs,
) -> Mask:
    """For self-attention of the source `x` (B, S, D), with 0 at padding in `attention_mask` (B, S)."""
    blocks = _window_blocks(config, x, attention_mask, is_causal=False, output_attentions=output_attentions)
    if blocks is not None:
        return blocks
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        and_mask_function=window_function(config, is_causal=False),
        allow_is_bidirectional_skip=_may_skip_masks(x, is_training),
    )


def mask_decoder(
    config: VaswaniConfig,
    x: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Cache | None,
    *,
    output_attentions: bool | None = None,
    **kwargs,
) -> Mask:
    """For causal self-attention of the target `x` (B, T, D), behind the tokens of `cache`."""
    blocks = _window_blocks(config, x, attention_mask, is_causal=True, cache=cache, output_attentions=output_attentions)
    if blocks is not None:
        return blocks
    return create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        past_key_values=cache,
        and_mask_function=window_function(config, is_causal=True),
    )


def mask_source(
    config: VaswaniConfig,
    x: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    is_training: bool,
) -> Mask:
    """For attention of the target `x` (B, T, D) to the source (B, S, D), with 0 at its padding."""
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        allow_is_bidirectional_skip=_may_skip_masks(x, is_training),
    )


def window_function(config: VaswaniConfig, *, is_causal: bool) -> Callable | None:
    """Mask function of restricted self-attention (table 1), or `None` where it is not restricted."""
    r = config.attention_window
    return None if r is None else window_mask_function(*window_reach(r, is_causal=is_causal))


def _window_blocks(
    config: VaswaniConfig,
    x: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    is_causal: bool,
    output_attentions: bool | None,
    cache: Cache | None = None,
) -> WindowBlocks | None:
    """Restricted self-attention of `x` (B, T, D) in blocks, or `None` where it takes a mask over all keys.

    It takes a mask for kernels other than "sdpa", for weights that are asked for, for caches and masks of other
    shapes, in exported graphs, whose lengths are free, and for sentences too short for blocks to pay.
    """
    r, kernel, num_queries = config.attention_window, config._attn_implementation, x.shape[1]
    if r is None or output_attentions or kernel != "sdpa" or torch.compiler.is_exporting():
        return None
    num_past, num_keys = 0, num_queries
    if cache is not None:
        if cache.is_compileable:  # it has a fixed size, and its last keys are not the newest
            return None
        num_past, num_keys = cache.get_seq_length(), cache.get_mask_sizes(num_queries, 0)[0]
    if attention_mask is not None:
        if attention_mask.dim() != 2 or attention_mask.shape[1] != num_past + num_queries:
            return None
        attention_mask = attention_mask[:, -num_keys:].to(device=x.device, dtype=torch.bool)
    reach = window_reach(r, is_causal=is_causal)
    if not pays(*reach, num_queries=num_queries, num_keys=num_keys):
        return None
    return build_blocks(*reach, num_queries=num_queries, num_keys=num_keys, visible=attention_mask, device=x.device)


def _may_skip_masks(x: torch.Tensor, is_training: bool) -> bool:
    """True where a mask that hides nothing is worth finding: on a GPU the host would wait for it in each update."""
    return x.device.type == "cpu" or not is_training
