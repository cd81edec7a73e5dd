"""Matrices packed for the products of a search: the same results, made anew when a matrix changes."""

import copy
import gc

import pytest
import torch
from torch import nn
from vaswani_transformer.model.packed_vaswani import can_pack, pack

from vaswani_transformer.model import packed_vaswani
from vaswani_transformer.model.layers_vaswani import has_onednn

pytestmark = pytest.mark.skipif(not has_onednn(), reason="nothing is packed here: no oneDNN, or not x86-64")


def build_linear(num_inputs: int = 24, num_outputs: int = 40, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(num_outputs)
    return nn.Linear(num_inputs, num_outputs, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 4, 63])
@torch.no_grad()
def test_products_are_those_of_the_layers_one_after_the_other(num_rows, bias):
    layers = [build_linear(num_outputs=size, bias=bias) for size in (40, 8, 17)]
    x = torch.randn(num_rows, 24)
    expected = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(pack(layers)(x), expected)
    torch.testing.assert_close(pack(layers, relu=True)(x), expected.relu())


@torch.no_grad()
def test_products_in_bfloat16_are_those_of_the_layer():
    layer = build_linear().bfloat16()
    if not can_pack([layer]):
        pytest.skip("this processor has no instructions that oneDNN multiplies bfloat16 with")
    x = torch.randn(5, 24).bfloat16()
    torch.testing.assert_close(pack([layer])(x), layer(x))


def exchange_rows(layer: nn.Linear) -> None:
    layer.weight.data[:2] = layer.weight.data[:2].flip(0)


def exchange_columns(layer: nn.Linear) -> None:
    layer.weight.data[:, :2] = layer.weight.data[:, :2].flip(1)


def balance(layer: nn.Linear) -> None:
    """Sums stay: that of the rows and that of the columns."""
    layer.weight[:2, :2] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]])


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.data.mul_(2),  # leaves `_version` as it is, as merging an adapter does
        lambda layer: layer.weight.data[3, 5:6].add_(0.01),
        exchange_rows,
        exchange_columns,
        balance,
        lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
        lambda layer: layer.bias.data.add_(1),
    ],
    ids=["written whole", "one entry", "rows exchanged", "columns exchanged", "same sums", "another parameter", "bias"],
)
@torch.no_grad()
@pytest.mark.parametrize("is_coarse", [False, True])
def test_a_layer_that_has_changed_is_packed_anew(change, is_coarse):
    layer, x = build_linear(), torch.randn(4, 24)
    if is_coarse:  # then sums are exact, and tell nothing by their rounding
        layer.weight.data = (layer.weight.data * 64).round() / 64
    before = pack([layer])(x)
    change(layer)
    after = pack([layer])(x)
    torch.testing.assert_close(after, layer(x))
    assert not torch.allclose(after, before)


@torch.no_grad()
def test_a_layer_is_packed_once_and_its_copy_dies_with_it():
    layer = build_linear()
    pack([layer])
    packed = packed_vaswani._packed[layer]
    pack([layer])
    assert packed_vaswani._packed[layer] is packed
    assert copy.deepcopy(layer) not in packed_vaswani._packed
    count = len(packed_vaswani._packed)
    del layer
    gc.collect()
    assert len(packed_vaswani._packed) == count - 1


def add_hook(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    return layer


def compile_in_place(layer: nn.Linear) -> nn.Linear:
    layer.compile()
    return layer


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.LayerNorm(24),
        lambda: add_hook(build_linear()),
        lambda: build_linear().double(),
        lambda: build_linear().to("meta"),
        lambda: compile_in_place(build_linear()),
        lambda: build_linear(bias=False),
        lambda: build_linear().bfloat16(),
    ],
    ids=["no linear layer", "hook", "float64", "meta", "compiled", "no bias", "another dtype"],
)
def test_what_would_compute_something_else_is_not_packed(build):
    assert can_pack([build_linear()])
    assert not can_pack([build_linear(), build()])


def test_who_turns_onednn_off_packs_nothing():
    with torch.backends.mkldnn.flags(enabled=False):
        assert not can_pack([build_linear()])
    assert can_pack([build_linear()])


def test_training_forgets_copies(build_tiny_model):
    model = build_tiny_model()
    model.generate(torch.tensor([[5, 6, 2]]), max_new_tokens=2)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert any(layer in packed_vaswani._packed for layer in layers)
    model.eval()
    assert any(layer in packed_vaswani._packed for layer in layers)
    model.train()
    assert not any(layer in packed_vaswani._packed for layer in layers)


def test_under_autocast_nothing_is_packed():
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_pack([build_linear()])


def test_a_matrix_packed_in_inference_mode_serves_outside_of_it():
    layer, x = build_linear(), torch.randn(4, 24)
    with torch.inference_mode():
        multiply = pack([layer])
    assert not packed_vaswani._packed[layer].matrix.is_inference()
    assert not multiply(x).is_inference()
