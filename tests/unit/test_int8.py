"""Products in int8 where they are faster, and float32 everywhere else."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from vaswani_transformer.model.int8_vaswani import Int8Linear, project_jointly, use_int8

from vaswani_transformer import VaswaniForConditionalGeneration, pipeline, train_tokenizer
from vaswani_transformer.model import int8_vaswani


@pytest.fixture
def always(monkeypatch):
    """Small products in int8 too."""
    monkeypatch.setattr(int8_vaswani, "FEWEST_MULTIPLICATIONS", 0)


def build_layer(in_features: int = 24, out_features: int = 40, *, bias: bool = True) -> Int8Linear:
    torch.manual_seed(0)
    return Int8Linear(in_features, out_features, bias=bias)


@torch.no_grad()
def multiply_integers(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """The formula: rows of W scaled to [-127, 127], x by one scale to [0, 255] about a zero, products of integers."""
    lowest, highest = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    x_scale = (highest - lowest) / 255
    zero = round(-lowest / x_scale)
    x_integers = ((x / x_scale).round() + zero).clamp(0, 255) - zero
    w_scale = layer.weight.abs().amax(dim=1) / 127
    w_integers = (layer.weight / w_scale[:, None]).round()
    product = (x_integers.double() @ w_integers.double().t()) * x_scale * w_scale
    return product if layer.bias is None else product + layer.bias


@pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="this processor multiplies seven bits of the input")
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_it_multiplies_scaled_integers(always, bias):
    layer, x = build_layer(bias=bias), torch.randn(3, 5, 24)
    product = layer(x)
    assert product.dtype == torch.float32
    assert product.shape == (3, 5, 40)
    torch.testing.assert_close(product.double(), multiply_integers(x, layer).double(), atol=1e-5, rtol=1e-5)
    assert not torch.equal(product, nn.functional.linear(x, layer.weight, layer.bias))


@torch.no_grad()
def test_it_is_close_to_the_product_of_floats(always):
    layer, x = build_layer(256, 64), torch.randn(40, 256)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    assert (layer(x) - expected).norm() < 0.03 * expected.norm()


@torch.no_grad()
def test_a_row_of_zeros_gives_its_bias(always):
    layer = build_layer()
    layer.weight[3] = 0
    assert torch.equal(layer(torch.randn(2, 24))[:, 3], layer.bias[3].expand(2))


@pytest.mark.parametrize("change", ["small", "half", "gradient", "nothing"])
def test_floats_are_multiplied_where_that_is_faster_or_needed(monkeypatch, change):
    if change != "small":
        monkeypatch.setattr(int8_vaswani, "FEWEST_MULTIPLICATIONS", 0)
    layer = build_layer()
    if change == "half":
        layer = layer.to(torch.bfloat16)
    x = torch.randn(0 if change == "nothing" else 2, 24, dtype=layer.weight.dtype)
    with torch.set_grad_enabled(change == "gradient"):
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert layer.packed is None


@torch.no_grad()
def test_a_matrix_that_changes_is_copied_anew(always):
    layer, x = build_layer(), torch.randn(2, 24)
    before = layer(x)
    layer.weight.mul_(2)
    layer.bias.mul_(2)
    torch.testing.assert_close(layer(x), 2 * before)
    layer.weight.data = layer.weight.data / 2  # as loading and moving do
    layer.bias.data = layer.bias.data / 2
    torch.testing.assert_close(layer(x), before)


@torch.no_grad()
def test_training_forgets_the_copy(always):
    layer, x = build_layer(), torch.randn(2, 24)
    layer(x)
    layer.weight.data.zero_()
    assert torch.equal(layer.train().eval()(x), layer.bias.expand(2, -1))


def test_a_layer_made_in_inference_mode_multiplies(always):
    with torch.inference_mode():
        layer = build_layer()
        assert layer(torch.randn(2, 24)).shape == (2, 40)


@torch.no_grad()
def test_a_matrix_is_copied_once(always, monkeypatch):
    layer, copies = build_layer(), []
    pack = int8_vaswani._pack
    monkeypatch.setattr(int8_vaswani, "_pack", lambda *args: copies.append(1) or pack(*args))
    for _ in range(3):
        layer(torch.randn(2, 24))
    assert len(copies) == 1


@torch.no_grad()
def test_a_copy_of_the_layer_multiplies_with_its_own_matrix(always):
    layer, x = build_layer(), torch.randn(2, 24)
    before = layer(x)
    other = copy.deepcopy(layer)
    other.weight.zero_()
    assert torch.equal(other(x), other.bias.expand(2, -1))
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_joint_product_is_that_of_each_layer(always, bias):
    layers, x = [build_layer(out_features=size, bias=bias) for size in (40, 8, 16)], torch.randn(3, 5, 24)
    for found, layer in zip(project_jointly(x, layers), layers, strict=True):
        torch.testing.assert_close(found, layer(x))


@torch.no_grad()
def test_a_joint_product_notices_a_change_of_any_layer(always):
    layers, x = [build_layer(), build_layer()], torch.randn(2, 24)
    project_jointly(x, layers)
    layers[1].weight.zero_()
    assert torch.equal(project_jointly(x, layers)[1], layers[1].bias.expand(2, -1))


@torch.no_grad()
def test_a_small_joint_product_is_of_floats():
    layers, x = [build_layer(), build_layer()], torch.randn(2, 24)
    for found, layer in zip(project_jointly(x, layers), layers, strict=True):
        assert torch.equal(found, nn.functional.linear(x, layer.weight, layer.bias))


@torch.no_grad()
def test_the_engine_of_other_quantised_models_stays(always, monkeypatch):
    if "onednn" not in torch.backends.quantized.supported_engines:
        pytest.skip("this PyTorch has no other engine")
    monkeypatch.setattr(int8_vaswani, "HAS_TILES", True)
    before = torch.backends.quantized.engine
    build_layer()(torch.randn(2, 24))
    assert torch.backends.quantized.engine == before


def test_every_linear_layer_is_replaced_and_weights_stay_tied(tiny_model):
    names, weights = list(tiny_model.state_dict()), dict(tiny_model.named_parameters())
    use_int8(tiny_model)
    linear = [module for module in tiny_model.modules() if isinstance(module, nn.Linear)]
    assert linear
    assert all(type(module) is Int8Linear and not module.training for module in linear)
    assert list(tiny_model.state_dict()) == names
    assert all(parameter is weights[name] for name, parameter in tiny_model.named_parameters())
    assert tiny_model.lm_head.weight is tiny_model.model.shared.weight


@pytest.mark.parametrize(
    "load", [VaswaniForConditionalGeneration.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained]
)
@pytest.mark.parametrize("dtype", ["int8", torch.int8])
def test_a_model_is_loaded_in_int8_and_saved_in_float32(build_tiny_model, tmp_path, load, dtype):
    model = build_tiny_model(noise=0.1)
    model.save_pretrained(tmp_path / "first")
    loaded = load(tmp_path / "first", dtype=dtype)
    assert type(loaded.lm_head) is Int8Linear
    assert loaded.dtype == torch.float32
    loaded.save_pretrained(tmp_path / "second")
    assert (tmp_path / "first/model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()
    assert (tmp_path / "first/config.json").read_text() == (tmp_path / "second/config.json").read_text()
    assert type(load(tmp_path / "second").lm_head) is nn.Linear


def test_loading_tells_what_transformers_tells(build_tiny_model, tmp_path):
    build_tiny_model().save_pretrained(tmp_path)
    load = VaswaniForConditionalGeneration.from_pretrained
    model, info = load(tmp_path, dtype="int8", output_loading_info=True)
    assert type(model.lm_head) is Int8Linear
    assert not info["missing_keys"]
    assert load(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("num_beams", [1, 4])
def test_all_searches_multiply_in_int8(always, build_tiny_model, num_beams):
    model = build_tiny_model(noise=0.3)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2], [9, 8, 2, 1]])}
    expected = model.generate(**inputs, num_beams=num_beams, max_new_tokens=8)
    use_int8(model)
    tokens = model.generate(**inputs, num_beams=num_beams, max_new_tokens=8)
    layers = {name: module for name, module in model.named_modules() if type(module) is Int8Linear}
    packed = {name for name, layer in layers.items() if layer.packed is not None}
    if num_beams > 1:  # where what one input is multiplied by is one matrix; the first layer holds it
        joint = [name.rpartition(".") for name, layer in layers.items() if layer.packed_jointly is not None]
        for parent, _, first in joint:
            names = ("q_proj", "k_proj", "v_proj")
            packed |= {f"{parent}.{name}" for name in names[names.index(first) :]}
    assert packed == set(layers)
    assert torch.equal(tokens[:, :3], expected[:, :3])


def test_a_pipeline_takes_int8(build_tiny_model, tmp_path):
    tokenizer = train_tokenizer(["a dog runs", "ein Hund rennt"], vocab_size=300)
    build_tiny_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translator = pipeline("translation", model=str(tmp_path), dtype="int8")
    assert type(translator.model.lm_head) is Int8Linear
    assert isinstance(translator("a dog runs")[0]["translation_text"], str)
