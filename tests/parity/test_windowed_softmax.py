"""Restricted self-attention in blocks is a softmax over the positions in the window, written down again in numpy."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.model import attention_window_vaswani
from vaswani_transformer.training.window import build_blocks, window_reach, windowed_attention

MODULE = SimpleNamespace(training=False)


def softmax_in_the_window(q, k, v, *, r, is_causal, visible):
    """Table 1 position by position: (B, H, T, K), (B, H, S, K) -> (B, T, H, K). Queries are the last of the keys."""
    (num_rows, num_heads, num_queries, d_k), num_keys = q.shape, k.shape[2]
    context = np.zeros((num_rows, num_queries, num_heads, v.shape[-1]))
    for row in range(num_rows):
        for query in range(num_queries):
            position = num_keys - num_queries + query
            start = position - r + 1 if is_causal else position - r // 2
            near = [key for key in range(start, start + r) if 0 <= key < num_keys and visible[row, key]]
            if not near:
                continue
            for head in range(num_heads):
                scores = k[row, head, near] @ q[row, head, query] / np.sqrt(d_k)
                weights = np.exp(scores - scores.max())
                context[row, query, head] = weights @ v[row, head, near] / weights.sum()
    return context


@st.composite
def cases(draw):
    """Queries, keys and values, r, and which keys are no padding: on the left, on the right, or anywhere."""
    num_queries, num_past = draw(st.integers(1, 14)), draw(st.integers(0, 9))
    num_rows, num_keys = draw(st.integers(1, 3)), num_past + num_queries
    visible = np.ones((num_rows, num_keys), dtype=bool)
    for row in visible:
        row[: draw(st.integers(0, num_keys))] = False if draw(st.booleans()) else row[0]
        row[num_keys - draw(st.integers(0, num_keys // 2)) :] = False
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = ((num_queries, 5), (num_keys, 5), (num_keys, draw(st.sampled_from([5, 4]))))
    q, k, v = (rng.normal(size=(num_rows, 2, *shape)) for shape in shapes)
    is_causal = draw(st.booleans()) or num_past > 0
    return q, k, v, {"r": draw(st.integers(1, 30)), "is_causal": is_causal, "visible": visible}


def attend_in_blocks(q, k, v, *, r, is_causal, visible):
    blocks = build_blocks(
        *window_reach(r, is_causal=is_causal),
        num_queries=q.shape[2],
        num_keys=k.shape[2],
        visible=None if visible.all() else torch.from_numpy(visible),
        device=torch.device("cpu"),
    )
    return windowed_attention(MODULE, q, k, v, blocks, scaling=q.shape[-1] ** -0.5)


@given(cases(), st.integers(1, 16))
def test_blocks_of_any_size_give_the_softmax_in_the_window(case, least_block):
    q, k, v, options = case
    with mock.patch.object(attention_window_vaswani, "LEAST_BLOCK", least_block):
        context, weights = attend_in_blocks(*map(torch.from_numpy, (q, k, v)), **options)
    assert weights is None
    np.testing.assert_allclose(context.numpy(), softmax_in_the_window(q, k, v, **options), rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_positions", "r"), [(150, 1), (193, 6), (70, 65), (200, 67)])
def test_blocks_of_the_chosen_size_give_the_softmax_in_the_window(num_positions, r, is_causal):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 2, num_positions, 5))
    visible = np.arange(num_positions) < np.array([[num_positions], [num_positions - 80]])
    options = {"r": r, "is_causal": is_causal, "visible": np.abs(visible)}
    context, _ = attend_in_blocks(*map(torch.from_numpy, (q, k, v)), **options)
    np.testing.assert_allclose(context.numpy(), softmax_in_the_window(q, k, v, **options), rtol=0, atol=1e-12)
