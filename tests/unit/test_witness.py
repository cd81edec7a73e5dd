"""A search uses a faster way, such as an engine or a cache, only while its logits are those of `forward`."""

import copy
from types import SimpleNamespace

import pytest
import torch
from shortcuts import SOURCE, each_case
from torch import nn
from transformers.cache_utils import DynamicLayer

from vaswani_transformer import VaswaniForConditionalGeneration, pipeline
from vaswani_transformer.model import generation_vaswani, search_vaswani
from vaswani_transformer.model.layers_vaswani import (
    FeedForward,
    Residual,
)
from vaswani_transformer.translation.translator import Translator

LONG = {"max_new_tokens": 25, "length_penalty": 3.0}


@pytest.fixture
def model(build_tiny_model):
    return build_tiny_model(noise=0.4, decoder_layers=2)


@pytest.fixture
def warnings(monkeypatch):
    """Return the list that collects the warnings of searches."""
    found = []
    monkeypatch.setattr(search_vaswani.logger, "warning", found.append)
    return found


@pytest.fixture
def at_every_call(monkeypatch):
    monkeypatch.setattr(generation_vaswani, "CALLS_PER_CHECK", 1)


class LaterNorm(Residual):
    def forward(self, x, sublayer_output):
        return x + self.norm(sublayer_output)


class GatedResidual(Residual):
    settings = SimpleNamespace(gate=0.0)

    def forward(self, x, sublayer_output):
        return super().forward(x, sublayer_output + self.settings.gate * x)


class LateFeedForward(FeedForward):
    def forward(self, x):
        return super().forward(x) * torch.where(torch.arange(x.shape[1]) < 20, 1.0, 3.0)[:, None]


class FirstWord(VaswaniForConditionalGeneration):
    def forward(self, *args, decoder_input_ids=None, **kwargs):
        outputs = super().forward(*args, decoder_input_ids=decoder_input_ids, **kwargs)
        outputs.logits[..., 4] += 100.0 * (decoder_input_ids.shape[1] == 1)
        return outputs


def replace_class(old, new):
    def change(model):
        for module in model.modules():
            if type(module) is old:
                module.__class__ = new

    return change


def drop_first_layer(model):
    model.model.decoder.layers = nn.ModuleList(model.model.decoder.layers[1:])


def repeat_layers(model):
    model.model.decoder.layers = nn.ModuleList([*model.model.decoder.layers] * 2)


def swap_rows(model):
    weight = model.model.shared.weight
    weight.data[[5, 30, 7, 12]] = weight.data[[30, 5, 12, 7]]


def open_gate(model):
    replace_class(Residual, GatedResidual)(model)
    for module in model.modules():
        if isinstance(module, GatedResidual):
            module.settings = SimpleNamespace(gate=2.0)


CHANGES = {
    "norm before the residual is added": replace_class(Residual, LaterNorm),
    "an open gate": open_gate,
    "a feed-forward network that differs from position 20 on": replace_class(FeedForward, LateFeedForward),
    "another first word": replace_class(VaswaniForConditionalGeneration, FirstWord),
    "the first layer removed": drop_first_layer,
    "layers that stand twice": repeat_layers,
    "swapped rows": swap_rows,
}
# Ways to decode; without return_dict_in_generate, an engine decodes.
WAYS = {
    "engine": {},
    "cache": {"return_dict_in_generate": True},
    "static cache": {"cache_implementation": "static"},
    "loop of transformers": {"num_beams": 1, "do_sample": True, "top_k": 1},
}
each_change = each_case("change", CHANGES)
each_way = each_case("options", WAYS)


def search(model, **options):
    found = model.generate(SOURCE, **LONG | options)
    return getattr(found, "sequences", found)


def search_without_cache(model, options):
    return search(model, **options | {"use_cache": False, "cache_implementation": None})


@each_way
@each_change
def test_a_model_that_was_changed_before_its_first_call_decodes_by_its_forward_at_once(
    model, change, options, warnings
):
    change(model)
    assert torch.equal(search(model, **options), search_without_cache(model, options))


@each_way
@each_change
def test_a_model_that_is_changed_in_silence_decodes_by_its_forward_from_the_next_check_on(
    model, change, options, warnings, at_every_call
):
    search(model, **options)
    assert warnings == []
    change(model)
    expected = search_without_cache(model, options)
    for _ in range(2):
        assert torch.equal(search(model, **options), expected)
    assert len(warnings) == len(set(warnings))
    assert all("which is right but slower" in warning for warning in warnings)


def test_every_sixteenth_call_is_checked_and_the_warning_counts_the_calls_before(model, warnings):
    replace_class(Residual, GatedResidual)(model)
    search(model)
    open_gate(model)  # A value in a module has no version.
    changed = [search(model) for _ in range(16)][-1]
    assert torch.equal(changed, search_without_cache(model, {}))
    [warning] = warnings
    assert "Up to 15 earlier calls may be wrong" in warning


def test_a_weight_that_changes_in_place_is_seen_at_once(model, warnings):
    search(model)
    engine = model.build_engine()
    with torch.no_grad():
        model.model.shared.weight.mul_(0.5)
    assert torch.equal(search(model), search_without_cache(model, {}))
    assert not torch.equal(search(model, engine=engine), search(model))  # An engine keeps its weights.
    assert warnings == []


# No false alarm


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@each_way
def test_rounding_is_no_difference(build_tiny_model, dtype, options, warnings, at_every_call):
    model = build_tiny_model(noise=0.05, dtype=getattr(torch, dtype))
    for _ in range(3):
        search(model, **options)
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        search(model, **options)
    engine = model.build_engine(dtype="bfloat16")
    for _ in range(3):
        search(model, engine=engine)
    assert warnings == []


def test_quantised_layers_are_no_difference(model, warnings, at_every_call):
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    for options in WAYS.values():
        search(quantised, **options)
    assert warnings == []


def test_dropout_acts_in_a_model_whose_layers_are_set_to_training_mode(build_tiny_model, warnings, at_every_call):
    model = build_tiny_model(noise=0.4, dropout=0.5)
    search(model)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(search(model), search(model))
    model.eval()
    assert torch.equal(search(model), search(model))
    assert warnings == []


def test_a_check_draws_no_random_numbers(build_tiny_model, at_every_call):
    model = build_tiny_model(dropout=0.5)
    for options in WAYS.values():
        torch.manual_seed(0)
        before = torch.get_rng_state()
        search(model, **options | {"do_sample": False})
        assert torch.equal(torch.get_rng_state(), before)


# An engine whose model is gone, ensembles, pipelines


def test_a_translator_lets_go_of_its_model_only_after_its_engine_was_checked(build_translator, warnings):
    model, tokenizer = build_translator(["a dog runs", "ein Hund rennt"])
    replace_class(Residual, LaterNorm)(model)
    expected = pipeline("translation", model, tokenizer)("a dog runs")[0]["translation_text"]
    for ensemble in ((), (copy.deepcopy(model),)):
        translator = Translator(model, tokenizer, ensemble=ensemble)
        assert translator(["a dog runs"])[0][0].text == expected
        assert [translator.decoder, *translator.members[1:]] == [model, *ensemble]


def test_an_error_of_a_faster_way_is_raised_if_its_logits_are_right(model, monkeypatch, warnings):
    def fail(self, *args):
        raise IndexError("from the cache")

    monkeypatch.setattr(DynamicLayer, "reorder_cache", fail)
    with pytest.raises(IndexError, match="from the cache"):
        search(model, return_dict_in_generate=True)
    assert warnings == []
