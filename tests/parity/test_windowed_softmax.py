"""Restricted self-attention, which is computed in blocks, agrees with a plain softmax over the window in NumPy."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.kernels import window


def softmax_in_the_window(q, k, v, *, r, is_causal, visible):
    """Return restricted self-attention, computed position by position: (B, H, T, K) -> (B, T, H, K).

    Args:
        r: the size of the window.
        is_causal: True if the window ends at the position of the query, False if this position is in its middle.
        visible: (B, T), True for keys that are not padding.
    """
    num_rows, num_heads, length, d_k = q.shape
    context = np.zeros((num_rows, length, num_heads, v.shape[-1]))
    for row in range(num_rows):
        for position in range(length):
            start = position - r + 1 if is_causal else position - r // 2
            near = [key for key in range(start, start + r) if 0 <= key < length and visible[row, key]]
            if not near:
                continue
            for head in range(num_heads):
                scores = k[row, head, near] @ q[row, head, position] / np.sqrt(d_k)
                weights = np.exp(scores - scores.max())
                context[row, position, head] = weights @ v[row, head, near] / weights.sum()
    return context


@st.composite
def cases(draw):
    """Draw queries, keys, values and the options of `softmax_in_the_window`. Some keys are padding, on either side."""
    num_rows = draw(st.integers(1, 3))
    length = draw(st.integers(1, 23))
    visible = np.ones((num_rows, length), dtype=bool)
    for row in visible:
        row[: draw(st.integers(0, length))] = False if draw(st.booleans()) else row[0]
        row[length - draw(st.integers(0, length // 2)) :] = False
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    q, k, v = (rng.normal(size=(num_rows, 2, length, width)) for width in (5, 5, draw(st.sampled_from([5, 4]))))
    return q, k, v, {"r": draw(st.integers(1, 30)), "is_causal": draw(st.booleans()), "visible": visible}


def attend_in_blocks(q, k, v, *, r, is_causal, visible):
    module = SimpleNamespace(window=r, is_causal=is_causal)
    mask = None if visible.all() else torch.from_numpy(visible)
    return window.window_attention(module, q, k, v, mask, scaling=q.shape[-1] ** -0.5)


@given(cases(), st.integers(1, 16))
def test_blocks_of_any_size_give_the_plain_softmax_in_the_window(case, least_block):
    q, k, v, options = case
    with mock.patch.object(window, "LEAST_BLOCK", least_block):
        context, weights = attend_in_blocks(*map(torch.from_numpy, (q, k, v)), **options)
    assert weights is None
    np.testing.assert_allclose(context.numpy(), softmax_in_the_window(q, k, v, **options), rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_positions", "r"), [(150, 1), (193, 6), (70, 65), (200, 67)])
def test_blocks_of_the_default_size_give_the_softmax_in_the_window(num_positions, r, is_causal):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 2, num_positions, 5))
    visible = np.arange(num_positions) < np.array([[num_positions], [num_positions - 80]])
    options = {"r": r, "is_causal": is_causal, "visible": visible}
    context, _ = attend_in_blocks(*map(torch.from_numpy, (q, k, v)), **options)
    np.testing.assert_allclose(context.numpy(), softmax_in_the_window(q, k, v, **options), rtol=0, atol=1e-12)
