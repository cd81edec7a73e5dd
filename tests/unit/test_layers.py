import math
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.model import layers_vaswani
from vaswani_transformer.model.layers_vaswani import (
    MANY_ROWS,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionEncoding,
    Residual,
    TokenEmbedding,
    build_padding_mask,
    dropout,
    fused_attention,
    has_onednn,
    multiply,
    project,
    scaled_dot_product_attention,
    sinusoids,
)

ATTENDING = SimpleNamespace(is_causal=False, training=False)
CAUSAL = SimpleNamespace(is_causal=True, training=False)


def randomise(module: nn.Module) -> nn.Module:
    """Every weight drawn anew, so that zeros and ones of the initialisation cannot hide a mistake."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.4)
    return module.eval()


@pytest.fixture(params=["eager", "sdpa"])
def attention(request, tiny_config):
    tiny_config._attn_implementation = request.param
    return randomise(MultiHeadAttention(tiny_config, layer_idx=0))


# Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.full((1000, 301), 2.0)
    y = dropout(x, p, training=True)
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=0.003)
    assert y[y != 0].unique().tolist() == pytest.approx([2 / (1 - p)], rel=1e-3)
    assert y.mean().item() == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 301])
def test_dropout_decides_on_neighbours_independently(stride):
    torch.manual_seed(0)
    kept = dropout(torch.ones(300_000), 0.5, training=True) != 0
    assert (kept[stride:] == kept[:-stride]).double().mean().item() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 5), (3, 0), (2, 3, 5)])
def test_dropout_takes_any_shape(shape):
    assert dropout(torch.ones(shape), 0.5, training=True).shape == shape


def test_dropout_takes_a_transposed_tensor():
    torch.manual_seed(0)
    x = torch.arange(1.0, 10_001.0).view(100, 100).T
    y = dropout(x, 0.5, training=True)
    torch.testing.assert_close(y, torch.where(y == 0, 0.0, 2 * x))


def test_dropout_lets_the_gradient_through_where_it_lets_the_value_through():
    torch.manual_seed(0)
    x = torch.rand(1000, requires_grad=True)
    y = dropout(x, 0.25, training=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


def test_dropout_repeats_itself_with_the_seed_only():
    x = torch.ones(1000)
    first, second = (torch.manual_seed(0) and dropout(x, 0.5, training=True) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(dropout(x, 0.5, training=True), second)


def test_dropout_does_nothing_in_evaluation_mode():
    x = torch.rand(10)
    assert dropout(x, 0.5, training=False) is x


def test_dropout_of_rate_zero_does_nothing():
    x = torch.rand(10)
    assert dropout(x, 0.0, training=True) is x


@pytest.mark.parametrize("p", [1e-7, 0.99999, 0.999999])
def test_dropout_stays_finite_at_the_ends_of_its_range(p):
    assert dropout(torch.ones(1000), p, training=True).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dropout_keeps_the_precision_of_its_input(dtype):
    assert dropout(torch.ones(8, dtype=dtype), 0.5, training=True).dtype == dtype


# Equation 1


def test_attention_is_equation_1_by_hand():
    q = torch.tensor([[[[2.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 5.0], [0.0, -3.0]]]])
    v = torch.tensor([[[[10.0, 0.0, 1.0], [20.0, 4.0, 1.0]]]])
    context, weights = scaled_dot_product_attention(ATTENDING, q, k, v, None, scaling=2**-0.5)
    # Scores 2 / sqrt(2) and 0.
    first = math.exp(math.sqrt(2)) / (math.exp(math.sqrt(2)) + 1)
    torch.testing.assert_close(weights, torch.tensor([[[[first, 1 - first]]]]))
    expected = [10 * first + 20 * (1 - first), 4 * (1 - first), 1.0]
    torch.testing.assert_close(context, torch.tensor([[[expected]]]))


def test_scores_are_divided_by_the_root_of_d_k(tiny_config):
    assert MultiHeadAttention(tiny_config, layer_idx=0).scaling == pytest.approx(1 / math.sqrt(tiny_config.d_k))


@pytest.mark.parametrize("form", ["boolean", "additive"])
def test_a_masked_key_gets_no_weight(form):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 2)
    mask = torch.tensor([True, False, True, True, False])
    if form == "additive":
        mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    context, weights = scaled_dot_product_attention(ATTENDING, q, k, v, mask[None, None, None], scaling=0.5)
    expected, _ = scaled_dot_product_attention(ATTENDING, q, k[:, :, [0, 2, 3]], v[:, :, [0, 2, 3]], None, scaling=0.5)
    assert (weights[..., [1, 4]] == 0).all()
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(4, 4), (2, 5), (1, 5)])
def test_causal_attention_without_a_mask_ends_at_each_position(num_queries, num_keys):
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, num_queries, 4), torch.randn(1, 1, num_keys, 4)
    _, weights = scaled_dot_product_attention(CAUSAL, q, k, k, None, scaling=0.5)
    visible = [int((row > 0).sum()) for row in weights[0, 0]]
    assert visible == list(range(num_keys - num_queries + 1, num_keys + 1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, num_queries))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_dropout_is_drawn_in_training_mode_only(tiny_config, implementation):
    tiny_config.attention_dropout, tiny_config._attn_implementation = 0.5, implementation
    attention, x = randomise(MultiHeadAttention(tiny_config, layer_idx=0)), torch.randn(1, 50, 12)
    for training in (False, True):
        outputs = [attention.train(training)(x)[0] for _ in range(2)]
        assert torch.equal(*outputs) != training


def test_activation_dropout_acts_between_the_two_products_in_training_mode_only(tiny_config):
    tiny_config.dropout, tiny_config.activation_dropout = 0.0, 0.25
    feed_forward, x = FeedForward(tiny_config), torch.randn(4_000, 12)
    with torch.no_grad():
        for parameter, value in zip(feed_forward.parameters(), (0.0, 1.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    # The inner layer is 1 everywhere, and each output their sum.
    assert (feed_forward.eval()(x) == 19).all()
    kept = feed_forward.train()(x) * 0.75
    torch.testing.assert_close(kept, kept.round())
    assert kept.mean().item() == pytest.approx(0.75 * 19, abs=0.2)
    assert kept.std().item() == pytest.approx((19 * 0.75 * 0.25) ** 0.5, rel=0.1)


def test_attention_dropout_acts_in_training_mode_only(tiny_config):
    tiny_config.attention_dropout, tiny_config._attn_implementation = 0.5, "eager"
    attention = randomise(MultiHeadAttention(tiny_config, layer_idx=0))
    x = torch.randn(1, 50, 12)
    assert (attention(x)[1] > 0).all()
    weights = attention.train()(x)[1]
    assert (weights == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_query_with_nothing_to_attend_to_gets_zeros(attention):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12, requires_grad=True)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0, :, 1] = False
    output, _ = attention(x, attention_mask=mask)
    assert (output[0, 1] == 0).all()
    assert (output[1] != 0).all()
    output.sum().backward()
    assert x.grad.isfinite().all()


def test_a_source_of_padding_only_gives_zeros(attention):
    torch.manual_seed(0)
    x, source = torch.randn(2, 3, 12), torch.randn(2, 4, 12)
    mask = torch.zeros(2, 1, 1, 4, dtype=torch.bool)
    output, _ = attention(x, key_value_states=source, attention_mask=mask)
    assert (output == 0).all()


def test_an_additive_mask_of_a_whole_row_gives_zeros(tiny_config):
    tiny_config._attn_implementation = "eager"
    attention = randomise(MultiHeadAttention(tiny_config, layer_idx=0))
    mask = torch.full((2, 1, 3, 3), torch.finfo(torch.float32).min)
    assert (attention(torch.randn(2, 3, 12), attention_mask=mask)[0] == 0).all()


# Multi-head attention


def test_heads_are_attended_one_by_one_and_concatenated(attention):
    torch.manual_seed(0)
    x, source = torch.randn(2, 4, 12), torch.randn(2, 6, 12)
    heads = []
    for i in range(3):
        w_q, w_k = (m.weight[i * 5 : (i + 1) * 5].T for m in (attention.q_proj, attention.k_proj))
        w_v = attention.v_proj.weight[i * 7 : (i + 1) * 7].T
        weights = ((x @ w_q) @ (source @ w_k).transpose(1, 2) / math.sqrt(5)).softmax(-1)
        heads.append(weights @ (source @ w_v))
    expected = torch.cat(heads, dim=-1) @ attention.out_proj.weight.T
    actual, _ = attention(x, key_value_states=source)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_projections_have_a_bias_only_if_configured(tiny_config, bias):
    tiny_config.attention_bias = bias
    attention = MultiHeadAttention(tiny_config, layer_idx=0)
    assert [(m.bias is not None) for m in attention.children()] == [bias] * 4


@pytest.mark.parametrize("mask_rows", [None, 1, 3])
def test_one_source_serves_several_rows_of_queries(attention, mask_rows):
    torch.manual_seed(0)
    x, source = torch.randn(8, 3, 12), torch.randn(2, 5, 12)
    mask = None if mask_rows is None else torch.rand(2, 1, mask_rows, 5) < 0.7
    copied = None if mask is None else mask.repeat_interleave(4, dim=0)
    expected, _ = attention(x, source.repeat_interleave(4, dim=0), attention_mask=copied)
    shared, _ = attention(x, source, attention_mask=mask)
    torch.testing.assert_close(shared, expected)


def test_the_weights_of_shared_sources_keep_the_order_of_the_queries(tiny_config):
    tiny_config._attn_implementation = "eager"
    attention = randomise(MultiHeadAttention(tiny_config, layer_idx=0))
    x, source = torch.randn(6, 3, 12), torch.randn(2, 5, 12)
    _, expected = attention(x, source.repeat_interleave(3, dim=0))
    _, shared = attention(x, source)
    torch.testing.assert_close(shared, expected)


def test_decoding_step_by_step_equals_one_pass(attention):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    expected, _ = attention(x, attention_mask=mask)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    steps = [attention(x[:, t : t + 1], past_key_values=cache)[0] for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)


def test_the_source_is_projected_once_while_decoding(attention):
    torch.manual_seed(0)
    x, source = torch.randn(2, 1, 12), torch.randn(2, 5, 12)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    expected, _ = attention(x, source, past_key_values=cache)
    again, _ = attention(x, torch.full_like(source, float("nan")), past_key_values=cache)
    torch.testing.assert_close(again, expected)
    assert cache.get_seq_length() == 0  # the other half is for self-attention


@pytest.mark.parametrize("bias", [False, True])
def test_projections_at_once_equal_those_one_by_one(bias):
    torch.manual_seed(0)
    layers = [nn.Linear(6, size, bias=bias, dtype=torch.float64) for size in (4, 4, 10)]
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for at_once in (True, False):
        outputs = project(x, layers, at_once=at_once)
        weights = [parameter for layer in layers for parameter in layer.parameters()]
        loss = sum((output * output.sin()).sum() for output in outputs)
        found.append([*outputs, *torch.autograd.grad(loss, [x, *weights])])
    for together, apart in zip(*found, strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


def test_an_adapted_projection_is_called():
    layers = [nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(6, 4)]
    layers[2].register_forward_hook(lambda module, inputs, output: output + 1)
    x = torch.randn(2, 3, 6)
    for together, layer in zip(project(x, layers, at_once=True), layers, strict=True):
        assert torch.equal(together, layer(x))


def test_fused_attention_is_that_of_transformers():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 7)
    for mask in (None, torch.rand(2, 1, 4, 6) < 0.7, torch.randn(2, 1, 4, 6)):
        expected, _ = sdpa_attention_forward(ATTENDING, q, k, v, mask, scaling=0.3)
        actual, weights = fused_attention(ATTENDING, q, k, v, mask, scaling=0.3)
        assert torch.equal(actual, expected)
        assert weights is None


# Section 3.3 to 3.5


def test_feed_forward_is_equation_2(tiny_config):
    module = randomise(FeedForward(tiny_config))
    x = torch.randn(2, 4, 12)
    w_1, b_1, w_2, b_2 = (p.double() for p in module.parameters())
    expected = torch.clamp(x.double() @ w_1.T + b_1, min=0) @ w_2.T + b_2
    torch.testing.assert_close(module(x), expected.float())


def test_feed_forward_takes_another_activation(tiny_config):
    tiny_config.activation_function = "gelu"
    module = randomise(FeedForward(tiny_config))
    x = torch.randn(2, 4, 12)
    torch.testing.assert_close(module(x), module.fc2(nn.functional.gelu(module.fc1(x))))


def test_embeddings_are_multiplied_by_the_root_of_the_width():
    embedding = TokenEmbedding(11, 16)
    torch.testing.assert_close(embedding(torch.tensor([[3, 5]])), 4 * embedding.weight[[3, 5]][None])


@pytest.mark.parametrize("position", [0, 1, 7, 100, 5000])
def test_sinusoids_are_the_formula_of_the_paper(position):
    d_model = 24
    expected = []
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        expected += [math.sin(angle), math.cos(angle)]
    actual = sinusoids(torch.tensor([position]), d_model=d_model)
    assert actual.dtype == torch.float32
    # Half a unit in the last place of a float32: the angle of a large position is exact as well.
    assert actual[0].tolist() == pytest.approx(expected, abs=6e-8, rel=0)


@pytest.mark.parametrize("position", [0, 3, 5000])
def test_concatenated_sinusoids_are_sines_then_cosines(position):
    d_model = 24
    angles = [position / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    actual = sinusoids(torch.tensor([position]), d_model=d_model, layout="concatenated")
    assert actual[0].tolist() == pytest.approx(expected, abs=6e-8, rel=0)


@pytest.mark.parametrize("position", [0, 3, 5000])
def test_sinusoids_of_fairseq_start_at_two_and_reach_a_wavelength_of_10000(position):
    half = 12
    angles = [(position + 2) / 10000 ** (i / (half - 1)) for i in range(half)]
    expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    actual = sinusoids(torch.tensor([position]), d_model=2 * half, layout="fairseq")
    assert actual[0].tolist() == pytest.approx(expected, abs=6e-8, rel=0)


def test_the_layout_of_the_config_is_used(tiny_config):
    tiny_config.position_layout = "concatenated"
    encoded = PositionEncoding(tiny_config)(5, mask=None, device=torch.device("cpu"))
    assert torch.equal(encoded[0], sinusoids(torch.arange(5), d_model=12, layout="concatenated"))


def test_positions_go_on_from_the_tokens_already_decoded(tiny_config):
    positions = PositionEncoding(tiny_config)
    device = torch.device("cpu")
    whole = positions(9, mask=None, device=device)
    assert torch.equal(positions(3, start=6, mask=None, device=device), whole[:, 6:])


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_one_by_one_are_those_of_a_sequence(tiny_config, kind):
    tiny_config.position_embedding_type = kind
    positions = PositionEncoding(tiny_config)
    whole = positions(80, mask=None, device=torch.device("cpu"))[0]
    onwards = positions.onwards(3, device=torch.device("cpu"))
    torch.testing.assert_close(torch.cat(list(islice(onwards, 77))), whole[3:], rtol=0, atol=1e-7)


def test_a_learned_table_is_refused_only_where_it_ends():
    config = VaswaniConfig(d_model=8, num_heads=2, position_embedding_type="learned", max_position_embeddings=5)
    onwards = PositionEncoding(config).onwards(2, device=torch.device("cpu"))
    assert len(list(islice(onwards, 3))) == 3
    with pytest.raises(ValueError, match="a sequence of 6 tokens is longer than"):
        next(onwards)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("decoded", [0, 3, 5])
def test_padding_takes_no_position(tiny_config, kind, decoded):
    tiny_config.position_embedding_type = kind
    positions = PositionEncoding(tiny_config)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    encoded = positions(6 - decoded, start=decoded, mask=mask, device=mask.device)
    table = positions(6, mask=None, device=mask.device)[0]
    expected = table[torch.tensor([[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]])[:, decoded:]]
    assert torch.equal(encoded, expected)


@pytest.mark.parametrize(("length", "start"), [(6, 0), (1, 5), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_sequence_longer_than_the_learned_table_is_refused(length, start, masked):
    config = VaswaniConfig(d_model=8, num_heads=2, position_embedding_type="learned", max_position_embeddings=5)
    mask = torch.ones(1, start + length) if masked else None
    with pytest.raises(ValueError, match=r"a sequence of 6 tokens is longer than .* \(max_position_embeddings=5\)"):
        PositionEncoding(config)(length, start=start, mask=mask, device=torch.device("cpu"))


def test_sinusoids_have_no_weights_and_no_limit(tiny_config):
    tiny_config.max_position_embeddings = 5
    positions = PositionEncoding(tiny_config)
    assert positions.state_dict() == {}
    assert positions(50, mask=None, device=torch.device("cpu")).shape == (1, 50, 12)


# Section 3.1


def layer_norm(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    deviation = x - x.mean(-1, keepdim=True)
    return norm.weight * deviation / (deviation.square().mean(-1, keepdim=True) + 1e-6).sqrt() + norm.bias


def test_the_norm_comes_after_the_addition(tiny_config):
    module = randomise(Residual(tiny_config))
    x, y = torch.randn(2, 3, 12), torch.randn(2, 3, 12)
    torch.testing.assert_close(module(x, y), layer_norm(x + y, module.norm))


def test_dropout_hits_the_sublayer_and_not_the_residual_stream(tiny_config):
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
    torch.testing.assert_close(layer(x, None), expected)


def test_a_decoder_layer_attends_to_itself_then_to_the_source(tiny_config):
    layer = randomise(DecoderLayer(tiny_config, 0))
    x, source = torch.randn(2, 4, 12), torch.randn(2, 6, 12)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    y = layer_norm(x + layer.self_attention(x, attention_mask=mask)[0], layer.self_attention_residual.norm)
    z = layer_norm(y + layer.cross_attention(y, source)[0], layer.cross_attention_residual.norm)
    expected = layer_norm(z + layer.feed_forward(z), layer.feed_forward_residual.norm)
    torch.testing.assert_close(layer(x, mask, source, None), expected)


# Restricted self-attention, table 1


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5])
def test_a_window_shows_r_positions_around_each(build_tiny_model, r):
    model = build_tiny_model(attention="eager", attention_window=r)
    source = torch.randint(3, 37, (1, 13))
    weights = model.model.encoder(source, output_attentions=True).attentions
    for layer in weights:
        for position in range(r, 13 - r):
            visible = layer[0, 0, position].nonzero().flatten().tolist()
            assert visible == list(range(position - r // 2, position - r // 2 + r))


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5])
def test_a_window_of_the_decoder_ends_at_the_present_position(build_tiny_model, r):
    model = build_tiny_model(attention="eager", attention_window=r)
    ids = torch.randint(3, 37, (1, 13))
    output = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    for layer in output.decoder_attentions:
        for position in range(13):
            visible = layer[0, 0, position].nonzero().flatten().tolist()
            assert visible == list(range(max(0, position - r + 1), position + 1))


def test_a_window_leaves_the_attention_to_the_source_alone(build_tiny_model):
    model = build_tiny_model(attention="eager", attention_window=3)
    ids = torch.randint(3, 37, (1, 13))
    output = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    assert all((layer > 0).all() for layer in output.cross_attentions)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_window_that_covers_the_sentence_is_full_attention(build_tiny_model, implementation):
    ids = torch.randint(3, 37, (2, 7))
    windowed = build_tiny_model(attention=implementation, attention_window=14)
    full = build_tiny_model(attention=implementation)
    torch.testing.assert_close(
        windowed(input_ids=ids, decoder_input_ids=ids).logits, full(input_ids=ids, decoder_input_ids=ids).logits
    )


@pytest.mark.parametrize(
    ("keys", "dtype", "is_fused"), [(6, torch.bfloat16, False), (7, torch.bfloat16, True), (6, torch.float32, True)]
)
def test_short_sentences_are_trained_by_plain_products_in_half_precision(attention, monkeypatch, keys, dtype, is_fused):
    monkeypatch.setattr(layers_vaswani, "MOST_KEYS_IN_HALF_PRECISION", 6)
    calls, fused = [], nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs)
    )
    x = torch.randn(2, keys, attention.config.d_model, dtype=dtype)
    attention.to(dtype).train()(x)
    assert bool(calls) == (is_fused and attention.config._attn_implementation == "sdpa")
    calls.clear()
    with torch.no_grad():
        attention(x)
    assert bool(calls) == (attention.config._attn_implementation == "sdpa")


def test_both_ways_of_training_give_the_same_gradients(build_tiny_model, monkeypatch):
    batch = {"input_ids": torch.randint(3, 37, (3, 9)), "labels": torch.randint(3, 37, (3, 7))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, 5:] = 0
    gradients = []
    for is_slow in (True, False):
        monkeypatch.setattr(layers_vaswani, "is_slow_to_train", lambda *_, answer=is_slow: answer)
        model = build_tiny_model(noise=0.3, dropout=0.0, dtype=torch.float64).train()
        model(**batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


# The mask of a source


@pytest.mark.parametrize(("pad", "expected"), [(1, [1, 0, 1]), (0, [1, 1, 1]), (None, [1, 1, 1])])
def test_padding_is_masked_if_there_is_such_a_token(pad, expected):
    mask = build_padding_mask(torch.tensor([[5, 1, 2]]), VaswaniConfig(pad_token_id=pad))
    assert mask.tolist() == [expected]


@pytest.mark.parametrize("ends", [1, [2, 1]])
def test_a_mask_is_asked_for_where_the_padding_may_be_an_end(ends):
    config = VaswaniConfig(pad_token_id=1, eos_token_id=ends)
    with pytest.raises(ValueError, match=r"cannot be told from </s>: pad_token_id=1 is .* Pass the attention_mask"):
        build_padding_mask(torch.tensor([[5, 1]]), config)


@pytest.mark.parametrize("bias", [True, False])
def test_products_of_many_rows_are_those_of_the_layer(bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 5, bias=bias), torch.randn(3, MANY_ROWS, 8)
    expected = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(multiply(x, layer), expected)
        assert torch.equal(multiply(x[:1, :4], layer), layer(x[:1, :4]))
        layer.register_forward_hook(lambda module, inputs, output: output + 1)
        torch.testing.assert_close(multiply(x, layer), expected + 1)


def count_calls(act) -> int:
    """Of oneDNN's product while `act` runs."""
    with torch.profiler.profile() as profile:
        act()
    return sum(event.name == "mkldnn::_linear_pointwise" for event in profile.events())


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN here, or not x86-64")
@torch.no_grad()
def test_onednn_multiplies_where_nobody_looks_on():
    layer, x = nn.Linear(8, 5), torch.randn(MANY_ROWS, 8)
    assert count_calls(lambda: multiply(x, layer)) == 1
    assert count_calls(lambda: multiply(x[1:], layer)) == 0
    assert count_calls(lambda: multiply(x.double(), nn.Linear(8, 5).double())) == 0
    with torch.enable_grad():
        assert count_calls(lambda: multiply(x, layer)) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert count_calls(lambda: multiply(x, layer)) == 0
    with torch.backends.mkldnn.flags(enabled=False):
        assert count_calls(lambda: multiply(x, layer)) == 0
    with FlopCounterMode(display=False) as counter:
        multiply(x, layer)
    assert counter.get_total_flops() == 2 * MANY_ROWS * 8 * 5
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert count_calls(lambda: multiply(x, layer)) == 0
    finally:
        hook.remove()


def test_products_of_many_rows_have_gradients_where_they_are_asked_for():
    layer, x = nn.Linear(8, 5), torch.randn(MANY_ROWS, 8)
    multiply(x, layer).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
