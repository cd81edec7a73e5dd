"""Restricted self-attention (section 4, table 1): each position sees a neighbourhood of r positions, not all n.

A layer then costs O(r n d) instead of O(n^2 d), and the longest path between two positions grows from O(1) to
O(n / r). A mask alone restricts attention, but saves no time. Here the queries are cut into blocks. The queries of a
block attend only to the keys of a strip: the keys of the block, and as many on either side as a window reaches.

    keys          -2 -1  0  1  2  3  4  5  6  7           keys -2 and -1 are padding
    block 0              q  q  q
    strip 0        k  k  k  k  k  k                       two positions back, one ahead
    block 1                       q  q  q
    strip 1                 k  k  k  k  k  k

Equation 1 is computed for all blocks at once, as if they were short sentences.

Shapes: B batch, T query length, S key length, H num_heads, K d_k or d_v, N blocks, C queries of a block, W keys of a
strip.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..model.layers_vaswani import window_reach
from .cpu import half_precision_attention

WINDOW = "vaswani_window"  # name of an attention kernel
# Measured on a CPU core, forward and backward, with d_k 64 and batches of 1 x 2,048 and 8 x 512 positions. Up to r =
# 16, blocks of 16 to 64 queries took at most a quarter more time than the fastest block length. Longer blocks took more
# time, because they have many hidden keys.
LEAST_BLOCK = 32
# For sentences with at most as many keys as two strips, a mask over all keys was as fast as blocks.
LEAST_STRIPS = 2


def window_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Compute equation 1 within the window of `module`, in time and memory that are linear in T.

    A query without visible keys gets zeros. Three cases are computed with a mask over all keys: attention without a
    window, short sentences, and the few queries of a step with a cache.

    Args:
        query, key, value: (B, H, T, K).
        attention_mask: (B, T) from `window_mask`, False at padding; or a mask for PyTorch's attention.

    Returns:
        the context (B, T, H, K), and `None` in place of the attention weights, which are never computed as a matrix.
    """
    num_rows, _, num_queries, _ = query.shape
    is_padding_mask = attention_mask is None or attention_mask.dim() == 2
    if module.window is None or num_queries != key.shape[2] or not is_padding_mask:
        return half_precision_attention(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    back, ahead = (min(reach, num_queries - 1) for reach in window_reach(module.window, is_causal=module.is_causal))
    size = min(num_queries, max(LEAST_BLOCK, back + ahead + 1))  # C. Strips of shorter blocks would overlap more.
    num_blocks = -(-num_queries // size)
    visible = query.new_ones(1, num_queries, dtype=torch.bool) if attention_mask is None else attention_mask
    mask = _build_mask(visible, back, ahead, size)
    query = nn.functional.pad(query.transpose(1, 2), (0, 0, 0, 0, 0, num_blocks * size - num_queries))
    query = query.unflatten(1, (num_blocks, size)).transpose(2, 3)  # (B, N, H, C, K)
    key, value = (_cut_strips(x, back, ahead, size) for x in (key, value))  # (B, N, H, W, K)
    mask = mask[:, :, None].expand(num_rows, -1, -1, -1, -1).flatten(0, 1)  # (B * N, 1, C, W)
    context = nn.functional.scaled_dot_product_attention(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask, dropout, scale=scaling
    )
    context = context.unflatten(0, (num_rows, num_blocks)).transpose(2, 3)  # (B, N, C, H, K)
    return context.flatten(1, 2)[:, :num_queries], None


def window_mask(
    *args,
    q_length: int,
    kv_length: int,
    mask_function: Callable,
    attention_mask: Tensor | None = None,
    config: PreTrainedConfig,
    **kwargs,
) -> Tensor | None:
    """Return the mask for `window_attention`. The arguments are the arguments of `sdpa_mask`, and `config`.

    If blocks are faster, the mask is `attention_mask` (B, T), False at padding. Otherwise the mask covers all keys.
    """
    r = config.attention_window
    is_windowed = mask_function is not bidirectional_mask_function
    if is_windowed and q_length == kv_length and kv_length > LEAST_STRIPS * (max(LEAST_BLOCK, r) + r - 1):
        return attention_mask
    return sdpa_mask(
        *args,
        q_length=q_length,
        kv_length=kv_length,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **kwargs,
    )


def _build_mask(visible: Tensor, back: int, ahead: int, size: int) -> Tensor:
    """Return a mask (1 or B, N, C, W), True where a query of a block sees a key of its strip.

    Args:
        visible: (1 or B, T), False at padding.
        back: how many positions a query sees before its own.
        ahead: how many positions a query sees after its own.
        size: the number C of queries in a block.
    """
    device = visible.device
    is_token = _cut_strips(visible[:, None, :, None], back, ahead, size)[:, :, 0, :, 0]  # (B, N, W)
    # Key j of a strip lies `back` positions before query j of the block.
    distance = torch.arange(size + back + ahead, device=device) - torch.arange(size, device=device)[:, None]
    is_near = (distance >= 0) & (distance <= back + ahead)  # (C, W)
    return is_token[:, :, None] & is_near


def _cut_strips(x: Tensor, back: int, ahead: int, size: int) -> Tensor:
    """Return the strips (B, N, H, W, K) of all blocks of `x` (B, H, T, K). Entries beyond the ends of `x` are 0."""
    num_blocks = -(-x.shape[2] // size)
    width = size + back + ahead
    num_pieces = -(-width // size)  # A strip consists of pieces as long as a block, and a shorter last piece.
    length = (num_blocks + num_pieces - 1) * size  # the number of keys with padding
    x = nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, back, max(length - back - x.shape[2], 0)))[:, :length]
    x = x.unflatten(1, (-1, size))
    # `unfold` would do this in one step, but its backward pass took a third of the whole time.
    pieces = [x[:, piece : piece + num_blocks, : width - piece * size] for piece in range(num_pieces)]
    return torch.cat(pieces, dim=2).transpose(2, 3)  # from (B, N, W, H, K)


ALL_ATTENTION_FUNCTIONS.register(WINDOW, window_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(WINDOW, window_mask)
