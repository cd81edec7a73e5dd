"""The matrix products of an engine agree with the linear layers, whether weights are packed or not."""

import copy

import pytest
import torch
from torch import nn

from vaswani_transformer.engine.products import PackedProducts, Products, build_products

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_products_agree_with_the_layers(dtype, is_packed, bias):
    with torch.backends.mkldnn.flags(enabled=is_packed):
        products = build_products(dtype, CPU)
    torch.manual_seed(0)
    layers = [nn.Linear(64, size, bias=bias) for size in (40, 8, 17)]
    for shape in ((1, 64), (4, 64), (3, 21, 64)):
        x = torch.randn(shape).to(dtype)
        rounding = {torch.float32: 1e-6, torch.bfloat16: 4e-3}[dtype]
        found = [products.one(layer)(x) for layer in layers]
        rectified = [products.one(layer, relu=True)(x) for layer in layers]
        all_together = products.several(*layers)(x)
        for y, positive, joint, layer in zip(found, rectified, all_together, layers, strict=True):
            rounded = copy.deepcopy(layer).to(dtype).double()
            expected = rounded(x.double())
            for actual, wanted in ((y, expected), (positive, expected.relu()), (joint, expected)):
                assert actual.dtype == dtype
                assert (actual - wanted).norm() <= rounding * expected.norm()


def test_the_fastest_available_products_are_chosen():
    assert type(build_products("float64", CPU)) is Products
    fastest = PackedProducts if PackedProducts.supports(torch.float32) else Products
    assert type(build_products(torch.float32, CPU)) is fastest
    with torch.backends.mkldnn.flags(enabled=False):
        assert type(build_products(torch.float32, CPU)) is Products
    with pytest.raises(
        ValueError, match=r"must be floating-point.*got 'int8'.*--format ctranslate2 --quantization int8"
    ):
        build_products("int8", CPU)
