"""What is done in another way on CPUs is the same mathematics: dropout, a choice of kernels, matrix products."""

import pytest
import torch
from torch import nn

from vaswani_transformer.engine.products import (
    Dropout,
    Int8Products,
    PackedProducts,
    Products,
    build_products,
    prefers_equation_1,
)

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not Int8Products.suit(), reason="this PyTorch has no int8 products")
KINDS = [
    pytest.param(lambda: Products(torch.float32), id="float32"),
    pytest.param(lambda: Products(torch.bfloat16), id="bfloat16"),
    *(
        pytest.param(
            lambda dtype=dtype: PackedProducts(dtype),
            id=f"packed {dtype}",
            marks=pytest.mark.skipif(not PackedProducts.suit(dtype), reason="oneDNN does not multiply so here"),
        )
        for dtype in (torch.float32, torch.bfloat16)
    ),
    pytest.param(Int8Products, id="int8", marks=needs_int8),
]


# Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(p):
    torch.manual_seed(0)
    y = Dropout(p)(torch.full((1000, 301), 2.0))
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=0.003)
    assert y[y != 0].unique().tolist() == pytest.approx([2 / (1 - p)], rel=1e-3)
    assert y.mean().item() == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 301])
def test_dropout_decides_on_neighbours_independently(stride):
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(300_000)) != 0
    assert (kept[stride:] == kept[:-stride]).double().mean().item() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 0), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dropout_keeps_shape_and_precision(shape, dtype):
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (y.shape, y.dtype) == (torch.Size(shape), dtype)


def test_dropout_lets_the_gradient_through_where_it_lets_the_value_through():
    torch.manual_seed(0)
    x = torch.rand(100, 30).T.requires_grad_()
    y = Dropout(0.25)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < (y == 0).sum() < 1_500


def test_dropout_in_evaluation_mode_or_of_rate_zero_does_nothing():
    x = torch.rand(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [1e-7, 0.99999, 0.999999])
def test_dropout_stays_finite_at_the_ends_of_its_range(p):
    assert Dropout(p)(torch.ones(1000)).isfinite().all()


def test_compiled_and_on_other_devices_dropout_is_pytorch_s(monkeypatch):
    x = torch.ones(1000)
    torch.manual_seed(0)
    expected = nn.functional.dropout(x, 0.5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.manual_seed(0)
    assert torch.equal(Dropout(0.5)(x), expected)
    monkeypatch.undo()
    assert Dropout(0.5)(x.to("meta")).is_meta


# Kernels of attention


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"requires_grad": False}, False),
        ({"device": "meta"}, False),
        ({"num_keys": 129}, False),
        ({"num_rows": 2**12}, False),
    ],
    ids=str,
)
def test_short_sentences_in_half_precision_are_trained_by_equation_1(change, expected):
    case = {"dtype": torch.bfloat16, "requires_grad": True, "device": "cpu", "num_keys": 128, "num_rows": 2} | change
    num_keys, num_rows = case.pop("num_keys"), case.pop("num_rows")
    query = torch.empty(num_rows, 4, 6, 8, **case)
    assert prefers_equation_1(query, torch.empty(1, 1, num_keys, 8)) == expected


def test_both_ways_of_training_give_the_same_gradients(build_tiny_model, monkeypatch):
    batch = {"input_ids": torch.randint(3, 37, (3, 9)), "labels": torch.randint(3, 37, (3, 7))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, 5:] = 0
    gradients = []
    for prefers in (True, False):
        monkeypatch.setattr(
            "vaswani_transformer.model.layers_vaswani.prefers_equation_1", lambda *_, answer=prefers: answer
        )
        model = build_tiny_model(noise=0.3, dropout=0.0, dtype=torch.float64).train()
        model(**batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


# Products


def build_layers(*sizes: int, bias: bool = True) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(64, size, bias=bias) for size in sizes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_products_are_those_of_the_layers(kind, bias):
    products, layers = kind(), build_layers(40, 8, 17, bias=bias)
    dtype = products.dtype
    for shape in ((1, 64), (4, 64), (3, 21, 64)):
        x = torch.randn(shape).to(dtype)
        rounding = {torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype] if kind is not Int8Products else 0.03
        found = [products.one(layer)(x) for layer in layers]
        rectified = [products.one(layer, relu=True)(x) for layer in layers]
        at_once = products.several(*layers)(x)
        for y, positive, together, layer in zip(found, rectified, at_once, layers, strict=True):
            weight, own_bias = (None if p is None else p.to(dtype).double() for p in (layer.weight, layer.bias))
            expected = nn.functional.linear(x.double(), weight, own_bias)
            for actual, wanted in ((y, expected), (positive, expected.relu()), (together, expected)):
                assert actual.dtype == dtype
                assert actual.shape == wanted.shape
                assert (actual - wanted).norm() <= rounding * expected.norm()


@needs_int8
@torch.no_grad()
def test_a_row_of_zeros_in_int8_gives_its_bias():
    [layer] = build_layers(40)
    layer.weight[3] = 0
    assert torch.equal(Int8Products().one(layer)(torch.randn(2, 64))[:, 3], layer.bias[3].expand(2))


@needs_int8
# With eight bits oneDNN's sums saturate where it is kept from instructions that the processor has.
@pytest.mark.parametrize(("has_tiles", "has_seven_bits"), [(False, False), (False, True), (True, True)])
@torch.no_grad()
def test_int8_multiplies_scaled_integers(monkeypatch, has_tiles, has_seven_bits):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles, raising=False)
    engine, products = torch.backends.quantized.engine, Int8Products()
    products.reduce_range |= has_seven_bits
    [layer], x = build_layers(40), torch.randn(3, 5, 64)
    # Rows of W scaled to [-127, 127], x by one scale to [0, 255] about a zero, or to [0, 127].
    lowest, highest, units = min(float(x.min()), 0.0), max(float(x.max()), 0.0), 127 if products.reduce_range else 255
    x_scale = (highest - lowest) / units
    zero = round(-lowest / x_scale)
    x_integers = ((x / x_scale).round() + zero).clamp(0, units) - zero
    w_scale = layer.weight.abs().amax(dim=1) / 127
    w_integers = (layer.weight / w_scale[:, None]).round()
    expected = (x_integers.double() @ w_integers.double().t()) * x_scale * w_scale + layer.bias
    torch.testing.assert_close(products.one(layer)(x).double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.backends.quantized.engine == engine  # other quantised models of the process have it too


def test_the_fastest_products_there_are_are_chosen():
    assert type(build_products("float64", CPU)) is Products
    packed = PackedProducts if PackedProducts.suit(torch.float32) else Products
    assert type(build_products(torch.float32, CPU)) is packed
    with torch.backends.mkldnn.flags(enabled=False):
        assert type(build_products(torch.float32, CPU)) is Products
    with pytest.raises(ValueError, match=r"int8 is for CPUs, and the model is on meta: use bfloat16 or float16 there"):
        build_products("int8", torch.device("meta"))
