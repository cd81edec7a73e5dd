"""With every kernel, the logits of a position do not depend on padding, batch, cache or later positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import assert_close

from vaswani_transformer.kernels import window

FEW = settings(max_examples=12)

words = st.integers(min_value=2, max_value=36)  # 0 starts a target, 1 is padding
any_token = st.integers(min_value=0, max_value=36)
sentences = st.lists(words, min_size=1, max_size=6)
targets = sentences.map(lambda tokens: [0, *tokens])
padding = st.lists(any_token, max_size=4)


@pytest.fixture(
    scope="module",
    params=[
        {"attention": "eager"},
        {"attention": "sdpa"},
        {"attention": "eager", "attention_window": 3},
        {"attention": "sdpa", "attention_window": 3},
        {"attention": window.WINDOW, "attention_window": 3},
        {"attention": window.WINDOW, "attention_window": 4},
        {"attention": "sdpa", "position_embedding_type": "learned", "attention_bias": True},
    ],
    ids=["eager", "sdpa", "eager window", "sdpa window", "blocks", "blocks, even window", "learned positions"],
)
def model(request, build_tiny_model):
    with pytest.MonkeyPatch.context() as patch:  # otherwise short sentences are not computed in blocks
        patch.setattr(window, "LEAST_BLOCK", 1)
        patch.setattr(window, "LEAST_STRIPS", 0)
        yield build_tiny_model(noise=0.3, dtype=torch.float64, **request.param)


@torch.no_grad()
def logits(model, source, target, source_mask=None, target_mask=None):
    masks = {"attention_mask": source_mask, "decoder_attention_mask": target_mask}
    given_masks = {name: torch.tensor(mask) for name, mask in masks.items() if mask is not None}
    return model(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target), **given_masks).logits


def pad(tokens, left, right):
    """Return `left`, `tokens` and `right` in one list, and a mask that hides `left` and `right`."""
    return [*left, *tokens, *right], [0] * len(left) + [1] * len(tokens) + [0] * len(right)


@FEW
@given(sentences, targets, padding, padding, padding, padding)
def test_padding_never_changes_a_result(model, source, target, left, right, target_left, target_right):
    expected = logits(model, [source], [target])
    padded_source, source_mask = pad(source, left, right)
    padded_target, target_mask = pad(target, target_left, target_right)
    actual = logits(model, [padded_source], [padded_target], [source_mask], [target_mask])
    real = slice(len(target_left), len(target_left) + len(target))
    assert_close(actual[:, real], expected, tolerance=1e-10)


@FEW
@given(sentences, targets, st.integers(0, 5), st.integers(0, 5))
def test_the_padding_token_is_hidden_without_a_mask(model, source, target, left, right):
    expected = logits(model, [source], [target])
    actual = logits(model, [[1] * left + source + [1] * right], [target])
    assert_close(actual, expected, tolerance=1e-10)


@FEW
@given(st.lists(st.tuples(sentences, targets, st.booleans()), min_size=2, max_size=4))
def test_the_logits_of_a_batch_equal_those_of_each_pair_alone(model, pairs):
    def stack(sequences):
        longest = max(map(len, sequences))
        rows = []
        for tokens, (_, _, on_the_left) in zip(sequences, pairs, strict=True):
            filler = [1] * (longest - len(tokens))
            rows.append(pad(tokens, filler, []) if on_the_left else pad(tokens, [], filler))
        return [ids for ids, _ in rows], [mask for _, mask in rows]

    sources, source_masks = stack([source for source, _, _ in pairs])
    targets, target_masks = stack([target for _, target, _ in pairs])
    batch = logits(model, sources, targets, source_masks, target_masks)
    for row, (source, target, _) in enumerate(pairs):
        alone = logits(model, [source], [target])[0]
        assert_close(batch[row][torch.tensor(target_masks[row]) == 1], alone, tolerance=1e-10)


@FEW
@given(sentences, targets, padding, st.lists(st.integers(1, 3), min_size=11, max_size=11))
def test_decoding_in_steps_equals_one_pass(model, source, target, left, steps):
    ids, mask = pad(target, left, [])
    expected = logits(model, [source], [ids], target_mask=[mask])
    cache, done, parts = None, 0, []
    while done < len(ids):
        end = min(len(ids), done + steps.pop())
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([ids[done:end]]),
                decoder_attention_mask=torch.tensor([mask[:end]]),
                past_key_values=cache,
                use_cache=True,
            )
        cache, done = output.past_key_values, end
        parts.append(output.logits)
    actual = torch.cat(parts, dim=1)
    assert_close(actual[:, len(left) :], expected[:, len(left) :], tolerance=1e-10)


@FEW
@given(sentences, targets, st.data())
def test_a_position_never_sees_later_positions(model, source, target, data):
    position = data.draw(st.integers(0, len(target) - 1))
    future = data.draw(st.lists(any_token, max_size=5))
    changed = [*target[: position + 1], *future]
    expected = logits(model, [source], [target])
    actual = logits(model, [source], [changed])
    assert_close(actual[:, : position + 1], expected[:, : position + 1], tolerance=1e-10)
