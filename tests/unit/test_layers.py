"""The layers of section 3 of the paper, each compared with its formula."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.model.layers_vaswani import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionEncoding,
    Residual,
    TokenEmbedding,
    build_padding_mask,
    eager_attention,
    sinusoids,
)


def randomise(module: nn.Module) -> nn.Module:
    """Randomise all weights, because the initial biases of zero and norm weights of one could hide a mistake."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.4)
    return module.eval()


@pytest.fixture(params=["eager", "sdpa"])
def attention(request, tiny_config):
    tiny_config._attn_implementation = request.param
    return randomise(MultiHeadAttention(tiny_config, layer_idx=0))


# Equation 1


def test_attention_agrees_with_equation_1_computed_by_hand():
    q = torch.tensor([[[[2.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 5.0], [0.0, -3.0]]]])
    v = torch.tensor([[[[10.0, 0.0, 1.0], [20.0, 4.0, 1.0]]]])
    training = SimpleNamespace(is_causal=False, training=True)  # without a dropout rate, training drops nothing
    context, weights = eager_attention(training, q, k, v, None, scaling=2**-0.5)
    # The scaled scores are 2 / sqrt(2) and 0.
    first_weight = math.exp(math.sqrt(2)) / (math.exp(math.sqrt(2)) + 1)
    assert_close(weights, torch.tensor([[[[first_weight, 1 - first_weight]]]]))
    expected = [10 * first_weight + 20 * (1 - first_weight), 4 * (1 - first_weight), 1.0]
    assert_close(context, torch.tensor([[[expected]]]))


@pytest.mark.parametrize(("num_queries", "num_keys"), [(4, 4), (2, 5), (1, 5)])
def test_causal_attention_without_a_mask_hides_later_positions(num_queries, num_keys):
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, num_queries, 4), torch.randn(1, 1, num_keys, 4)
    causal = SimpleNamespace(is_causal=True, training=False)
    _, weights = eager_attention(causal, q, k, k, None, scaling=0.5)
    num_visible = weights[0, 0].count_nonzero(dim=-1).tolist()
    assert num_visible == list(range(num_keys - num_queries + 1, num_keys + 1))
    assert_close(weights.sum(-1), torch.ones(1, 1, num_queries))


def test_attention_dropout_acts_in_training_mode_only(attention):
    attention.attention_dropout = 0.5
    x = torch.randn(1, 50, 12)
    for training in (False, True):
        attention.train(training)
        first, weights = attention(x)
        second, _ = attention(x)
        assert torch.equal(first, second) != training
        if attention.config._attn_implementation == "eager":
            assert (weights == 0).double().mean().item() == pytest.approx(0.5 * training, abs=0.05)


def test_activation_dropout_acts_between_the_two_products_in_training_mode_only(tiny_config):
    tiny_config.dropout, tiny_config.activation_dropout = 0.0, 0.25
    feed_forward = FeedForward(tiny_config)
    x = torch.randn(4_000, 12)
    with torch.no_grad():
        for parameter, value in zip(feed_forward.parameters(), (0.0, 1.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    # All 19 inner activations are 1. Each output is the sum of the activations that dropout keeps.
    assert (feed_forward.eval()(x) == 19).all()
    num_kept = feed_forward.train()(x) * 0.75
    assert_close(num_kept, num_kept.round())
    assert num_kept.mean().item() == pytest.approx(0.75 * 19, abs=0.2)
    assert num_kept.std().item() == pytest.approx((19 * 0.75 * 0.25) ** 0.5, rel=0.1)


def test_the_context_of_a_query_without_visible_keys_is_zero(attention):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12, requires_grad=True)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0, :, 1] = False
    output, _ = attention(x, attention_mask=mask)
    assert (output[0, 1] == 0).all()
    assert (output[1] != 0).all()
    output.sum().backward()
    assert x.grad.isfinite().all()
    if attention.config._attn_implementation == "eager":
        additive = torch.full((2, 1, 4, 4), torch.finfo(torch.float32).min)
        assert (attention(x, attention_mask=additive)[0] == 0).all()


# Masks


@pytest.mark.parametrize(("pad", "expected"), [(1, [1, 0, 1]), (0, [1, 1, 1]), (None, [1, 1, 1])])
def test_padding_is_masked_if_a_padding_token_is_set(pad, expected):
    mask = build_padding_mask(torch.tensor([[5, 1, 2]]), VaswaniConfig(pad_token_id=pad))
    assert mask.tolist() == [expected]


@pytest.mark.parametrize("ends", [1, [2, 1]])
def test_a_mask_is_required_if_the_padding_is_also_an_end_token(ends):
    config = VaswaniConfig(pad_token_id=1, eos_token_id=ends)
    with pytest.raises(ValueError, match=r"cannot be distinguished: pad_token_id=1 is .* Pass the attention_mask"):
        build_padding_mask(torch.tensor([[5, 1]]), config)


# Multi-head attention


def test_an_additive_mask_may_hold_any_values(attention):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)
    mask = torch.randn(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
    output, _ = attention(x, attention_mask=mask)
    by_equation_1, weights = attention(x, attention_mask=mask, output_attentions=True)
    assert_close(by_equation_1, output)
    assert (weights.triu(1) == 0).all()


def test_multi_head_attention_concatenates_the_results_of_its_heads(attention):
    torch.manual_seed(0)
    x, source = torch.randn(2, 4, 12), torch.randn(2, 6, 12)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    heads = []
    for w_q, w_k, w_v in zip(*(projection.weight.chunk(3) for projection in projections), strict=True):
        weights = ((x @ w_q.T) @ (source @ w_k.T).transpose(1, 2) / math.sqrt(5)).softmax(-1)
        heads.append(weights @ (source @ w_v.T))
    expected = torch.cat(heads, dim=-1) @ attention.out_proj.weight.T
    actual, _ = attention(x, key_value_states=source)
    assert_close(actual, expected)


def test_the_source_is_projected_only_once_while_decoding(attention):
    torch.manual_seed(0)
    x, source = torch.randn(2, 1, 12), torch.randn(2, 5, 12)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    expected, _ = attention(x, source, past_key_values=cache)
    # A second projection of the source would give NaN.
    again, _ = attention(x, torch.full_like(source, float("nan")), past_key_values=cache)
    assert_close(again, expected)
    assert cache.get_seq_length() == 0  # the cache of self-attention stays empty


# Sections 3.3 to 3.5


def test_feed_forward_agrees_with_equation_2(tiny_config):
    module = randomise(FeedForward(tiny_config))
    x = torch.randn(2, 4, 12)
    w_1, b_1, w_2, b_2 = module.parameters()
    assert_close(module(x), torch.clamp(x @ w_1.T + b_1, min=0) @ w_2.T + b_2)


def test_embeddings_are_multiplied_by_the_square_root_of_d_model():
    embedding = TokenEmbedding(11, 16)
    assert_close(embedding(torch.tensor([[3, 5]])), 4 * embedding.weight[[3, 5]][None])


# Angle i (0 to 11) at position pos is (pos + p) / 10000^(2i / d). Here are (p, d) of each layout for d_model = 24.
SINUSOIDS = {"interleaved": (0, 24), "concatenated": (0, 24), "fairseq": (2, 22)}


@pytest.mark.parametrize("layout", SINUSOIDS)
@pytest.mark.parametrize("position", [0, 1, 7, 100, 5000])
def test_sinusoids_agree_with_the_formula_of_their_layout(position, layout):
    first, divisor = SINUSOIDS[layout]
    angles = [(position + first) / 10000 ** (2 * i / divisor) for i in range(12)]
    expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    if layout == "interleaved":  # the layout of the paper
        expected = [expected[half * 12 + i] for i in range(12) for half in range(2)]
    actual = sinusoids(torch.tensor([position]), d_model=24, layout=layout)
    assert actual.dtype == torch.float32
    # 6e-8 is half a unit in the last place of 1.0 in float32. Large positions must be as exact as small ones.
    assert actual[0].tolist() == pytest.approx(expected, abs=6e-8, rel=0)


@pytest.mark.parametrize(("length", "start"), [(6, 0), (1, 5), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_sequence_longer_than_the_learned_table_is_refused(length, start, masked):
    config = VaswaniConfig(d_model=8, num_heads=2, position_embedding_type="learned", max_position_embeddings=5)
    positions = PositionEncoding(config)
    assert len(positions.embedding.weight) == 5
    mask = torch.ones(1, start + length) if masked else None
    with pytest.raises(ValueError, match=r"a sequence of 6 tokens is longer than .* \(max_position_embeddings=5\)"):
        positions(length, start=start, mask=mask, device=torch.device("cpu"))


# Section 3.1


def layer_norm(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    """Return the layer norm of x with the weights of `norm`, computed from the formula."""
    deviation = x - x.mean(-1, keepdim=True)
    return norm.weight * deviation / (deviation.square().mean(-1, keepdim=True) + 1e-6).sqrt() + norm.bias


def test_the_norm_comes_after_the_addition(tiny_config):
    module = randomise(Residual(tiny_config))
    x, y = torch.randn(2, 3, 12), torch.randn(2, 3, 12)
    assert_close(module(x, y), layer_norm(x + y, module.norm))


def test_dropout_acts_on_the_sub_layer_and_not_on_the_residual_stream(tiny_config):
    tiny_config.dropout = 0.5
    module = Residual(tiny_config).train()
    module.norm = nn.Identity()
    x = torch.randn(2, 300, 12)
    assert torch.equal(module(x, torch.zeros_like(x)), x)
    added = module(torch.zeros_like(x), torch.ones_like(x))
    assert set(added.unique().tolist()) == {0.0, 2.0}


def test_an_encoder_layer_is_attention_then_feed_forward(tiny_config):
    layer = randomise(EncoderLayer(tiny_config, 0))
    x = torch.randn(2, 4, 12)
    y = layer_norm(x + layer.self_attention(x)[0], layer.self_attention_residual.norm)
    expected = layer_norm(y + layer.feed_forward(y), layer.feed_forward_residual.norm)
    assert_close(layer(x, None), expected)


def test_a_decoder_layer_attends_to_itself_then_to_the_source(tiny_config):
    layer = randomise(DecoderLayer(tiny_config, 0))
    x, source = torch.randn(2, 4, 12), torch.randn(2, 6, 12)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    y = layer_norm(x + layer.self_attention(x, attention_mask=mask)[0], layer.self_attention_residual.norm)
    z = layer_norm(y + layer.cross_attention(y, source)[0], layer.cross_attention_residual.norm)
    expected = layer_norm(z + layer.feed_forward(z), layer.feed_forward_residual.norm)
    assert_close(layer(x, mask, source, None), expected)
