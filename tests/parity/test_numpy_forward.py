"""The whole model agrees with a second implementation in NumPy, which was written from the paper's equations alone."""

import numpy as np
import pytest
import torch

SOURCE = torch.tensor(
    [[5, 9, 12, 30, 7, 2], [8, 3, 21, 2, 1, 1], [1, 1, 1, 6, 19, 2]]  # without padding, padded right, padded left
)
TARGET = torch.tensor([[0, 14, 6, 33, 8], [0, 25, 3, 1, 1], [1, 1, 0, 11, 4]])
PAD = 1


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attend(q, k, v, visible):
    """Return the result of equation 1 for one head and one sentence. A query that sees no key gets zeros."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    context = np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        keys = np.flatnonzero(visible[i])
        if len(keys):
            context[i] = softmax(scores[i, keys]) @ v[keys]
    return context


def multi_head(weights, x, memory, visible, num_heads):
    """Return multi-head attention (section 3.2.2), computed head by head. PyTorch stores matrices as (out, in)."""

    def heads(name, states):
        return np.split(states @ weights[f"{name}_proj.weight"].T, num_heads, axis=-1)

    triples = zip(heads("q", x), heads("k", memory), heads("v", memory), strict=True)
    concat = np.concatenate([attend(q, k, v, visible) for q, k, v in triples], axis=-1)
    return concat @ weights["out_proj.weight"].T


def feed_forward(weights, x):
    """Return the output of the feed-forward network (equation 2)."""
    inner = np.maximum(0, x @ weights["fc1.weight"].T + weights["fc1.bias"])
    return inner @ weights["fc2.weight"].T + weights["fc2.bias"]


def layer_norm(weights, x, eps):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weights["norm.weight"] + weights["norm.bias"]


def positional_encoding(positions, d_model):
    """Return the sinusoids of section 3.5."""
    encoding = np.zeros((len(positions), d_model))
    for row, pos in enumerate(positions):
        for i in range(d_model // 2):
            encoding[row, 2 * i] = np.sin(pos / 10000 ** (2 * i / d_model))
            encoding[row, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / d_model))
    # The package computes positions in float32 even if the model is in float64.
    return encoding.astype(np.float32).astype(np.float64)


def embed(matrix, ids):
    """Return embeddings plus positions (sections 3.4 and 3.5). The first token that is not padding has position 0."""
    positions = np.maximum(np.cumsum(ids != PAD) - 1, 0)
    return matrix[ids] * np.sqrt(matrix.shape[1]) + positional_encoding(positions, matrix.shape[1])


def part(weights, prefix):
    """Return the weights whose names begin with `prefix`. The returned names are without the prefix."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def logits_of_one_sentence(weights, config, source, target):
    matrix = weights["model.shared.weight"]
    heads = config.num_heads
    eps = config.layer_norm_eps
    source_is_real = source != PAD
    target_is_real = target != PAD

    x = embed(matrix, source)
    for n in range(config.encoder_layers):
        layer = part(weights, f"model.encoder.layers.{n}.")
        visible = np.tile(source_is_real, (len(source), 1))
        y = multi_head(part(layer, "self_attention."), x, x, visible, heads)
        x = layer_norm(part(layer, "self_attention_residual."), x + y, eps)
        y = feed_forward(part(layer, "feed_forward."), x)
        x = layer_norm(part(layer, "feed_forward_residual."), x + y, eps)
    memory = x

    x = embed(matrix, target)
    for n in range(config.decoder_layers):
        layer = part(weights, f"model.decoder.layers.{n}.")
        visible = np.tril(np.tile(target_is_real, (len(target), 1)))
        y = multi_head(part(layer, "self_attention."), x, x, visible, heads)
        x = layer_norm(part(layer, "self_attention_residual."), x + y, eps)
        visible = np.tile(source_is_real, (len(target), 1))
        y = multi_head(part(layer, "cross_attention."), x, memory, visible, heads)
        x = layer_norm(part(layer, "cross_attention_residual."), x + y, eps)
        y = feed_forward(part(layer, "feed_forward."), x)
        x = layer_norm(part(layer, "feed_forward_residual."), x + y, eps)
    return x @ matrix.T


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_agree_with_numpy(build_tiny_model, implementation):
    model = build_tiny_model(noise=0.3, dtype=torch.float64, attention=implementation)
    assert model.config.d_k != model.config.d_v
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        actual = model(
            input_ids=SOURCE, decoder_input_ids=TARGET, decoder_attention_mask=(TARGET != PAD).long()
        ).logits.numpy()
    for row, (source, target) in enumerate(zip(SOURCE.numpy(), TARGET.numpy(), strict=True)):
        expected = logits_of_one_sentence(weights, model.config, source, target)
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=1e-10)
