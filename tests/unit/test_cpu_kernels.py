"""Kernels for training on CPUs: dropout and half-precision attention compute what PyTorch's kernels compute."""

import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vaswani_transformer.kernels import cpu
from vaswani_transformer.kernels.cpu import HALF_PRECISION, Dropout, half_precision_attention, speed_up_training


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(p):
    torch.manual_seed(0)
    y = Dropout(p)(torch.full((1000, 301), 2.0))
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=0.003)
    assert y[y != 0].unique().tolist() == pytest.approx([2 / (1 - p)], rel=1e-3)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 301])
def test_dropout_drops_neighbouring_entries_independently(stride):
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(300_000)) != 0
    assert (kept[stride:] == kept[:-stride]).double().mean().item() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 0), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dropout_keeps_shape_and_precision(shape, dtype):
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (y.shape, y.dtype) == (torch.Size(shape), dtype)


def test_dropout_scales_gradients_as_it_scales_values():
    torch.manual_seed(0)
    x = torch.rand(100, 30).T.requires_grad_()
    y = Dropout(0.25)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    assert 0 < (y == 0).sum() < 1_500


def test_dropout_does_nothing_in_evaluation_mode_or_at_rate_zero():
    x = torch.rand(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [1e-7, 0.99999, 0.999999])
def test_dropout_is_finite_at_extreme_rates(p):
    assert Dropout(p)(torch.ones(1000)).isfinite().all()


def test_compiled_models_and_devices_other_than_cpus_use_the_dropout_of_pytorch(monkeypatch):
    x = torch.ones(1000)
    torch.manual_seed(0)
    expected = nn.functional.dropout(x, 0.5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.manual_seed(0)
    assert torch.equal(Dropout(0.5)(x), expected)
    monkeypatch.undo()
    assert Dropout(0.5)(x.to("meta")).is_meta


# Attention in half precision


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"requires_grad": False}, False),
        ({"device": "meta"}, False),
        ({"num_keys": 129}, False),
    ],
    ids=str,
)
def test_eager_attention_is_used_only_for_training_on_short_sentences_in_half_precision_on_a_cpu(
    monkeypatch, change, expected
):
    chosen = []
    monkeypatch.setattr(cpu, "eager_attention", lambda *args, **kwargs: chosen.append("eager"))
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *args, **kwargs: chosen.append("sdpa"))
    case = {"dtype": torch.bfloat16, "requires_grad": True, "device": "cpu", "num_keys": 128} | change
    num_keys = case.pop("num_keys")
    key = torch.empty(1, 1, num_keys, 8)
    half_precision_attention(nn.Module(), torch.empty(2, 4, 6, 8, **case), key, key, None, scaling=1.0)
    assert chosen == ["eager" if expected else "sdpa"]


@pytest.mark.parametrize(
    ("kernel", "dtype", "tolerance"), [("sdpa", torch.float64, 1e-9), (HALF_PRECISION, torch.bfloat16, 0)]
)
def test_sdpa_and_half_precision_attention_give_the_gradients_of_eager_attention(
    build_tiny_model, kernel, dtype, tolerance
):
    batch = {"input_ids": torch.randint(3, 37, (3, 9)), "labels": torch.randint(3, 37, (3, 7))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, 5:] = 0
    gradients = []
    for attention in ("eager", kernel):
        model = build_tiny_model(noise=0.3, dropout=0.0, dtype=dtype, attention=attention).train()
        model(**batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=1e-3 * tolerance)


@pytest.mark.parametrize(
    ("kernel", "is_half_precision", "expected"),
    [("sdpa", True, HALF_PRECISION), ("sdpa", False, "sdpa"), ("eager", True, "eager")],
)
def test_speed_up_training_replaces_dropout_and_the_kernel(build_tiny_model, kernel, is_half_precision, expected):
    model = build_tiny_model(dropout=0.25, attention=kernel)
    speed_up_training(model, is_half_precision=is_half_precision)
    rates = [module.p for module in model.modules() if type(module) is Dropout]
    assert len(rates) == sum(isinstance(module, nn.Dropout) for module in model.modules())
    # Two sums of embeddings and positions, 2 encoder layers of two sub-layers, 4 decoder layers of three sub-layers.
    assert rates.count(0.25) == 2 + 2 * 2 + 4 * 3
    assert model.config._attn_implementation == expected
