"""A model that is saved and loaded again is the same model."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel
from vaswani_transformer.loading import load_translator
from vaswani_transformer.model.layers_vaswani import sinusoids

INPUTS = {
    "input_ids": torch.tensor([[5, 9, 12, 30, 7, 2], [8, 3, 21, 2, 1, 1]]),
    "decoder_input_ids": torch.tensor([[0, 14, 6, 33], [0, 25, 3, 8]]),
}


@pytest.fixture(
    params=[
        {},
        {"tie_word_embeddings": False},
        {"position_embedding_type": "learned", "attention_bias": True, "output_bias": True},
    ],
    ids=["paper", "untied", "all optional weights"],
)
def model(request, build_tiny_model):
    return build_tiny_model(noise=0.3, **request.param)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


@torch.no_grad()
def logits(model):
    return model(**INPUTS).logits


@pytest.mark.parametrize("max_shard_size", ["5KB", "1MB"])
def test_a_loaded_model_gives_the_same_logits_bit_for_bit(model, tmp_path, max_shard_size):
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert type(AutoConfig.from_pretrained(tmp_path)) is VaswaniConfig
    for loader in (VaswaniForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded = loader.from_pretrained(tmp_path)
        assert type(loaded) is VaswaniForConditionalGeneration
        assert not loaded.training
        assert torch.equal(logits(loaded), logits(model))
        assert (loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight) == model.config.tie_word_embeddings


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loading_in_half_precision_equals_casting(model, folder, dtype):
    loaded = VaswaniForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert torch.equal(logits(loaded), logits(model.to(dtype)))


def test_a_loaded_model_is_saved_as_the_same_files(folder, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    VaswaniForConditionalGeneration.from_pretrained(folder).save_pretrained(again)
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


class Variation(VaswaniForConditionalGeneration):
    """A subclass in a file of the user (here, this file)."""


class WithNewNorm(VaswaniForConditionalGeneration):
    """A subclass that adds a norm to the trained weights."""

    def __init__(self, config):
        super().__init__(config)
        self.new_norm = torch.nn.RMSNorm(config.d_model)
        self.post_init()


def test_the_config_of_a_saved_variation_names_only_code_that_is_saved_with_it(tiny_model, tmp_path):
    Variation(tiny_model.config).save_pretrained(tmp_path)
    named = AutoConfig.from_pretrained(tmp_path).auto_map
    assert named["AutoModelForSeq2SeqLM"] == "test_save_and_load.Variation"
    assert all((tmp_path / f"{name.partition('.')[0]}.py").exists() for name in named.values())


def test_a_warning_names_the_class_of_a_variation_that_is_loaded_as_the_plain_model(tiny_model, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("vaswani_transformer.model.modeling_vaswani.logger.warning", warnings.append)
    Variation(tiny_model.config).save_pretrained(tmp_path)
    Variation.from_pretrained(tmp_path)
    assert not warnings
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert "was saved as Variation, but is loaded as VaswaniForConditionalGeneration" in warnings[0]
    tiny_model.save_pretrained(tmp_path)
    for loader in (VaswaniModel, VaswaniForConditionalGeneration, Variation):
        loader.from_pretrained(tmp_path)
    assert len(warnings) == 1


def test_a_norm_that_the_file_of_the_weights_lacks_begins_as_in_pytorch(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    loaded = WithNewNorm.from_pretrained(tmp_path)
    assert torch.equal(loaded.new_norm.weight, torch.ones(12))
    assert torch.equal(loaded.lm_head.weight, tiny_model.lm_head.weight)


def test_a_model_that_was_saved_with_other_code_is_loaded_with_a_warning(build_translator, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("vaswani_transformer.loading.logger.warning", warnings.append)
    build_translator(["a dog runs"], folder=tmp_path)
    load_translator(tmp_path)
    assert not warnings
    with open(tmp_path / "layers_vaswani.py", "a") as file:
        file.write("MultiHeadAttention = None\n")
    load_translator(tmp_path)
    assert "was saved with other code" in warnings[0]
    assert "layers_vaswani.py" in warnings[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_a_loaded_model_computes_exact_positions(build_tiny_model, tmp_path, layout, dtype):
    build_tiny_model(position_layout=layout).save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    expected = sinusoids(torch.arange(6000), d_model=12, layout=layout)[None]
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert torch.equal(stack.positions(6000, mask=None, device=loaded.device), expected)
    assert not any("positions" in name for name in loaded.state_dict())


def test_the_search_settings_of_the_paper_apply_if_the_file_of_the_settings_is_missing(tiny_model, tmp_path):
    settings_of_the_paper = tiny_model.generation_config.to_dict()
    tiny_model.generation_config.num_beams = 21
    tiny_model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.to_dict() == settings_of_the_paper
