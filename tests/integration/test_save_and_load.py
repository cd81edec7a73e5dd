import json
import os
import subprocess
import sys

import pytest
import torch
from accelerate import init_empty_weights
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, GenerationConfig

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel, train_tokenizer
from vaswani_transformer.conversion.marian import export_model
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
    ids=["paper", "untied", "every weight"],
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


def test_a_loaded_model_gives_the_same_logits_bit_by_bit(model, folder):
    loaded = VaswaniForConditionalGeneration.from_pretrained(folder)
    assert not loaded.training
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("options", [{"device_map": "cpu"}, {"low_cpu_mem_usage": True}])
def test_ways_of_loading_give_the_same_logits(model, folder, options):
    loaded = VaswaniForConditionalGeneration.from_pretrained(folder, **options)
    assert torch.equal(logits(loaded), logits(model))


def test_arguments_of_saving_may_stand_where_those_of_transformers_do(model, tmp_path):
    for is_main_process in (True, False):
        model.save_pretrained(tmp_path / str(is_main_process), is_main_process)
        assert (tmp_path / str(is_main_process) / "model.safetensors").exists() == is_main_process


def test_weights_fill_a_model_built_on_the_meta_device(model, folder):
    with init_empty_weights():
        empty = VaswaniForConditionalGeneration(VaswaniConfig.from_pretrained(folder)).eval()
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    empty.load_state_dict(load_file(folder / "model.safetensors"), strict=False, assign=True)
    empty.tie_weights()
    assert torch.equal(logits(empty), logits(model))


def test_auto_classes_load_the_model(model, folder):
    assert type(AutoConfig.from_pretrained(folder)) is VaswaniConfig
    loaded = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(loaded) is VaswaniForConditionalGeneration
    assert torch.equal(logits(loaded), logits(model))


def test_the_auto_class_loads_the_stacks_alone(model, folder):
    loaded = AutoModel.from_pretrained(folder)
    assert type(loaded) is VaswaniModel
    with torch.no_grad():
        expected = model.model(**INPUTS).last_hidden_state
        assert torch.equal(loaded(**INPUTS).last_hidden_state, expected)


@pytest.mark.parametrize("max_shard_size", ["5KB", "1MB"])
def test_shards_are_put_together(model, tmp_path, max_shard_size):
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert torch.equal(logits(VaswaniForConditionalGeneration.from_pretrained(tmp_path)), logits(model))


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
@pytest.mark.parametrize("max_shard_size", ["5GB", "10kB"])
def test_files_of_weights_have_the_mode_of_new_files(build_tiny_model, tmp_path, mask, mode, max_shard_size):
    model = build_tiny_model(d_k=4, d_v=4)
    before = os.umask(mask)
    try:
        model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
        export_model(model, train_tokenizer(["a dog runs"], vocab_size=290), tmp_path / "marian")
    finally:
        assert os.umask(before) == mask
    for folder in (tmp_path, tmp_path / "marian"):
        files = [folder / "config.json", *folder.glob("*.safetensors")]
        assert len(files) >= 2
        assert {path.stat().st_mode & 0o777 for path in files} == {mode}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loading_in_half_precision_is_casting(model, folder, dtype):
    loaded = VaswaniForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert torch.equal(logits(loaded), logits(model.to(dtype)))


def test_a_model_saved_in_half_precision_comes_back_in_it(model, tmp_path):
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(logits(loaded), logits(model))


def test_saving_what_was_loaded_writes_the_same_files(folder, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    VaswaniForConditionalGeneration.from_pretrained(folder).save_pretrained(again)
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_no_weight_is_missing_or_unexpected(folder):
    _, report = VaswaniForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())


def test_a_tied_model_is_tied_after_loading(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    uses = (loaded.model.shared, loaded.model.encoder.embed_tokens, loaded.model.decoder.embed_tokens)
    assert {use.weight.data_ptr() for use in uses} == {loaded.lm_head.weight.data_ptr()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_positions_are_right_after_loading(build_tiny_model, tmp_path, layout, dtype):
    build_tiny_model(position_layout=layout).save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    expected = sinusoids(torch.arange(6000), d_model=12, layout=layout)[None]
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert torch.equal(stack.positions(6000, mask=None, device=loaded.device), expected)


def test_a_fresh_process_gives_the_same_logits_bit_by_bit(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    torch.save(INPUTS, tmp_path / "inputs.pt")
    program = """
import sys, torch
torch.set_num_threads(1)
import vaswani_transformer
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
with torch.no_grad():
    torch.save(model(**torch.load(sys.argv[1] + "/inputs.pt")).logits, sys.argv[1] + "/logits.pt")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), logits(tiny_model))


# How the model translates is saved with it.


def test_the_search_of_the_paper_is_saved_with_the_model(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    expected = {
        "num_beams": 4,
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_length_offset": 50,
        "early_stopping": "never",
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    }
    assert {name: saved.get(name) for name in expected} == expected


def test_a_changed_search_survives_saving(tiny_model, tmp_path):
    changes = {
        "num_beams": 21,
        "length_penalty": 0.3,
        "length_penalty_type": "power",
        "max_length_offset": 300,
        "early_stopping": True,
    }
    tiny_model.generation_config.update(**changes)
    tiny_model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path).generation_config
    assert {name: getattr(loaded, name) for name in changes} == changes


def test_a_given_search_survives_saving(tiny_model, tmp_path):
    tiny_model.generation_config = GenerationConfig(
        num_beams=2, early_stopping="never", length_penalty_type="power", max_length_offset=7
    )
    tiny_model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path).generation_config
    assert (loaded.num_beams, loaded.early_stopping) == (2, "never")
    assert (loaded.length_penalty_type, loaded.max_length_offset) == ("power", 7)


def test_without_a_saved_search_it_is_the_paper_s(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.to_dict() == tiny_model.generation_config.to_dict()


def test_a_loaded_model_translates_the_same(tiny_model, tmp_path):
    tiny_model.generation_config.max_length_offset = 3
    tiny_model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    source = INPUTS["input_ids"]
    assert torch.equal(loaded.generate(source), tiny_model.generate(source))
