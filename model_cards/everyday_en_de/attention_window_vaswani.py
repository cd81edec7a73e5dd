"""Restricted self-attention (section 4, table 1): each position sees a neighbourhood of r positions, not all n.

A layer then costs O(r n d) instead of O(n^2 d), and the longest path between two positions grows from O(1) to
O(n / r). A mask alone restricts, but saves nothing. Here the queries are cut into blocks, and the queries of a block
meet only the keys of its strip: their own and as many on either side as their windows reach.

    keys           0  1  2  3  4  5  6  7  8  9
    block 0              q  q  q
    strip 0        k  k  k  k  k  k                       two positions back, one ahead
    block 1                       q  q  q
    strip 1                 k  k  k  k  k  k

Equation 1 is computed for all blocks at once, as if they were so many short sentences.

Shapes: B batch, T query length, S key length, H num_heads, K d_k or d_v, N blocks, C queries of a block, W keys of a
strip.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

# Measured on a CPU core, forward and backward, d_k 64, batches of 1 x 2,048 and 8 x 512 positions. Up to r = 16, blocks
# of 16 to 64 queries took within a quarter of the least time, and longer ones more, for their many hidden keys.
LEAST_BLOCK = 32
# With as few keys as in two strips a mask over all of them was as fast.
LEAST_STRIPS = 2


class WindowBlocks(NamedTuple):
    """What the blocks see: takes the place of the mask of an attention.

    A tuple, so that whatever moves the arguments of a layer to its device finds the mask.

    Attributes:
        back, ahead: how many positions the window of a query reaches.
        size: C.
        mask: (1 or B, N, C, W), True where a query may look; `None` where all may look everywhere.
    """

    back: int
    ahead: int
    size: int
    mask: torch.Tensor | None


def window_reach(r: int, *, is_causal: bool) -> tuple[int, int]:
    """How many positions a window of r reaches back and ahead: around its position, or the last r up to it.

    The paper centres the neighbourhood on the position. With an even r it reaches one position less ahead than back.
    The paper says nothing of the decoder. Here it sees the last r positions, because half of a centred window would be
    hidden from it.
    """
    return (r - 1, 0) if is_causal else (r // 2, r - r // 2 - 1)


def window_mask_function(back: int, ahead: int) -> Callable:
    """The window as a mask function of transformers, for kernels that take a mask."""
    return lambda batch, head, query, key: (key - query >= -back) & (key - query <= ahead)


def pays(back: int, ahead: int, *, num_queries: int, num_keys: int) -> bool:
    """Whether blocks are faster than a mask over all keys."""
    return num_queries == 1 or num_keys > LEAST_STRIPS * (_block_size(back, ahead, num_queries) + back + ahead)


def build_blocks(
    back: int,
    ahead: int,
    *,
    num_queries: int,
    num_keys: int,
    visible: torch.Tensor | None,
    device: torch.device,
) -> WindowBlocks:
    """The blocks of the last `num_queries` of `num_keys` positions.

    Args:
        back, ahead: reach of the window.
        visible: (B, S) boolean, False at padding; `None` where nothing is padded.
    """
    back, ahead = min(back, num_keys - 1), min(ahead, num_queries - 1)
    size = _block_size(back, ahead, num_queries)
    if num_queries == 1 and visible is None:  # a decoding step, whose strip is all it may see
        return WindowBlocks(back, ahead, size, None)
    if visible is None:
        visible = torch.ones(1, num_keys, dtype=torch.bool, device=device)
    exists = _cut_strips(visible[:, None, :, None], back, ahead, size, num_queries)[:, :, 0, :, 0]  # (B, N, W)
    # Key j of a strip lies `back` positions before query j of the block.
    distance = torch.arange(size + back + ahead, device=device) - torch.arange(size, device=device)[:, None]
    near = (distance >= 0) & (distance <= back + ahead)  # (C, W)
    return WindowBlocks(back, ahead, size, exists[:, :, None] & near)


def windowed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: WindowBlocks,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Equation 1 within the window: in time and memory that are linear in T.

    For the arguments see `scaled_dot_product_attention`.

    A query that may look nowhere gets zeros.

    Returns:
        context (B, T, H, K), and no weights: they are nowhere as a matrix (B, H, T, S).
    """
    back, ahead, size, mask = blocks
    num_rows, _, num_queries, _ = query.shape
    num_blocks = -(-num_queries // size)
    query = nn.functional.pad(query.transpose(1, 2), (0, 0, 0, 0, 0, num_blocks * size - num_queries))
    query = query.unflatten(1, (num_blocks, size)).transpose(2, 3)  # (B, N, H, C, K)
    key, value = (_cut_strips(x, back, ahead, size, num_queries) for x in (key, value))  # (B, N, H, W, K)
    if mask is not None:
        mask = mask[:, :, None].expand(num_rows, -1, -1, -1, -1).flatten(0, 1)  # (B * N, 1, C, W)
    context = nn.functional.scaled_dot_product_attention(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask, dropout, scale=scaling
    )
    context = context.unflatten(0, (num_rows, num_blocks)).transpose(2, 3)  # (B, N, C, H, K)
    return context.flatten(1, 2)[:, :num_queries], None


def _block_size(back: int, ahead: int, num_queries: int) -> int:
    """C: longer blocks have less of their strip in common with the next, shorter ones fewer keys that are hidden."""
    return min(num_queries, max(LEAST_BLOCK, back + ahead + 1))


def _cut_strips(x: torch.Tensor, back: int, ahead: int, size: int, num_queries: int) -> torch.Tensor:
    """(B, H, S, K) -> the strips of all blocks, (B, N, H, W, K); zeros, or False, where they reach over the edge."""
    num_keys, num_blocks, width = x.shape[2], -(-num_queries // size), size + back + ahead
    num_pieces = -(-width // size)  # a strip is its block of keys, the next, and so on
    first = num_keys - num_queries - back  # of the keys that block 0 sees
    last = first + (width if num_blocks == 1 else (num_blocks + num_pieces - 1) * size)
    x = x[:, :, max(first, 0) : last].transpose(1, 2)
    x = nn.functional.pad(x, (0, 0, 0, 0, max(-first, 0), max(last - num_keys, 0)))
    if num_blocks == 1:  # a step of decoding
        return x[:, None].transpose(2, 3)
    x = x.unflatten(1, (-1, size))
    # Not by `unfold`, whose gradient took a third of the time of all.
    pieces = [x[:, piece : piece + num_blocks, : width - piece * size] for piece in range(num_pieces)]
    return torch.cat(pieces, dim=2).transpose(2, 3)  # (B, N, W, H, K) so far
