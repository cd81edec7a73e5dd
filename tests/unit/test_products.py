"""Matrix products of an engine are those of the layers, packed or in integers."""

import pytest
import torch
from torch import nn

from vaswani_transformer.engine.products import Int8Products, PackedProducts, Products, build_products

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
