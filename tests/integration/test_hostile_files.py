"""Damaged or hostile model files cause a clear error or do no harm, and no code in them is run."""

import io
import json
import os
import pickle
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from shortcuts import Program, change_json, write_lines
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer import TranslationPipeline, VaswaniForConditionalGeneration
from vaswani_transformer.loading import load_translator
from vaswani_transformer.model import pipeline_vaswani
from vaswani_transformer.translation.pipeline import pipeline
from vaswani_transformer.translation.translator import Translator


@pytest.fixture(scope="module")
def whole(build_translator, tmp_path_factory):
    """Return the folder of an undamaged, untrained model."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    build_translator(["a dog runs"] * 3, folder=folder, num_heads=2)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """Return a copy of the folder `whole`, which a test may damage."""
    return shutil.copytree(whole, tmp_path / "model")


@pytest.fixture(scope="module")
def translator(whole):
    return load_translator(whole)


def test_a_pickle_beside_safetensors_is_not_read(folder, translator):
    torch.save(Program(), folder / "pytorch_model.bin")
    for options in ({}, {"use_safetensors": False}):
        loaded = VaswaniForConditionalGeneration.from_pretrained(folder, **options)
        assert torch.equal(loaded.lm_head.weight, translator[0].lm_head.weight)


INDEX = json.dumps({"metadata": {}, "weight_map": {"model.shared.weight": "pytorch_model.bin"}})


@pytest.mark.parametrize("named_by", ["the usual name", "an index", "config.json"])
def test_a_pickle_in_place_of_safetensors_is_refused_and_its_code_is_not_run(folder, named_by):
    (folder / "model.safetensors").unlink()
    torch.save(Program(), folder / "pytorch_model.bin")
    if named_by == "an index":
        (folder / "model.safetensors.index.json").write_text(INDEX)
    elif named_by == "config.json":
        change_json(folder / "config.json", transformers_weights="pytorch_model.bin")
    for load in (
        load_translator,
        VaswaniForConditionalGeneration.from_pretrained,
        AutoModelForSeq2SeqLM.from_pretrained,
    ):
        # A pickle that is read raises SystemExit, which is not among these errors.
        with pytest.raises((ValueError, OSError, pickle.UnpicklingError)):
            load(folder)


CODE = """
import pathlib
from transformers import PreTrainedTokenizerFast
pathlib.Path(__file__).with_name("has_run").touch()
class Trap(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize(
    "command", ["translate --model", "prepare --train text text --dev dev dev --output data --keep_vocabulary"]
)
def test_code_in_a_model_folder_is_never_run(folder, tmp_path, monkeypatch, error_of, command):
    (folder / "trap.py").write_text(CODE.replace("__file__", f"'{folder}/trap.py'"))
    change_json(
        folder / "tokenizer_config.json",
        tokenizer_class="Trap",
        auto_map={"AutoTokenizer": ["trap.Trap", "trap.Trap"]},
    )
    monkeypatch.chdir(tmp_path)
    for name in ("text", "dev"):
        write_lines(tmp_path / name, [f"a dog runs {name}"])
    # If transformers asked on standard input whether to run the code, it would read "1" as yes.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\nThe dog runs.\n")))
    message = "can only be read by the Python code of its model, and code that comes with a model is not run"
    assert message in error_of(f"{command} {folder}")
    assert sys.stdin.read() == "1\nThe dog runs.\n"
    with pytest.raises(ValueError, match="needs code that lies beside it"):
        pipeline(model=folder, trust_remote_code=True)
    assert not (folder / "has_run").exists()


def changed(name, **values):
    """Return a function that writes `values` into the file `name`.json of a model folder."""
    return lambda folder: change_json(folder / f"{name}.json", **values)


def changed_weights(replace):
    """Return a function that replaces the weights {name: weight} of a model folder by `replace(weights)`."""

    def damage(folder):
        path = folder / "model.safetensors"
        save_file(replace(load_file(path)), path, metadata={"format": "pt"})

    return damage


def add_tokens(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"token{number}" for number in range(40)])
    tokenizer.save_pretrained(folder)


def cut(path, num_bytes):
    path.write_bytes(path.read_bytes()[:num_bytes])


DAMAGES = {
    "a model of another kind": (
        changed("config", model_type="marian"),
        "is a model of type 'marian', expected 'vaswani'. `vaswani convert` converts models of MarianMT",
    ),
    "a huge vocabulary": (changed("config", vocab_size=10**15), "damaged"),
    "an epsilon that is not a number": (
        changed("config", layer_norm_eps=float("nan")),
        "layer_norm_eps must be a positive finite number, got nan",
    ),
    "a million layers": (changed("config", encoder_layers=10**6), "encoder_layers must be at most 1,000, got 1000000"),
    "model_max_length x": (changed("tokenizer_config", model_max_length="x"), "model_max_length must be a number"),
    "a tokenizer without padding": (
        lambda folder: (folder / "tokenizer_config.json").unlink(),
        "tokenizer_config.json names no pad_token or no eos_token",
    ),
    **{
        f"{name} {value}": (changed("generation_config", **{name: value}), message)
        for name, value, message in (
            ("length_penalty", "x", "length_penalty must be a number from -10.0 to 10.0, got 'x'"),
            ("num_beams", 100_000, "num_beams must be a whole number from 1 to 1,000, got 100000"),
            ("max_length_offset", "a", "max_length_offset must be a whole number from 0 to 10,000, got 'a'"),
            ("pad_token_id", None, r"pad_token_id must be a token id below \d+, got None"),
            ("eos_token_id", [2, 10**6], r"eos_token_id must be a token id below \d+, got \[2, 1000000\]"),
            ("exponential_decay_length_penalty", [1], "damaged file.*IndexError"),
            ("early_stopping", "maybe", "`early_stopping` must be a boolean or 'never'"),
            ("alignment_heads", [], "alignment_heads must be pairs .layer, head., layers below 1 and heads below"),
            ("alignment_heads", 5, "alignment_heads must be pairs"),
            ("alignment_heads", [[-1, -1]], "alignment_heads must be pairs"),
            ("alignment_heads", [[True, False]], "alignment_heads must be pairs"),
        )
    },
    "another shape": (changed("config", d_ff=25), "damaged"),
    "an empty tokenizer.json": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "damaged file"),
    "a normaliser that makes tokenizers panic": (
        changed("tokenizer", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "holds a damaged file.*PanicException",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "example.json"), "example.json is a pipe or a device, not a file"),
    "a foreign tokenizer": (add_tokens, r"the tokenizer has \d+ entries, the model \d+"),
    "a cut generation config": (lambda folder: cut(folder / "generation_config.json", -2), r"generation_config\.json"),
    "cut weights": (lambda folder: cut(folder / "model.safetensors", 3_000), "damaged file.*Safetensor"),
    "a weight less": (changed_weights(lambda weights: dict(list(weights.items())[1:])), "missing weights: "),
    "a weight more": (changed_weights(lambda weights: weights | {"trap": torch.zeros(1)}), "unexpected weights: trap"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_refused_with_an_error_of_one_line(folder, name, error_of):
    damage, message = DAMAGES[name]
    damage(folder)
    error = error_of(f"translate --model {folder} --input {folder}/config.json")
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_an_attention_kernel_named_in_config_json_is_not_downloaded(folder):
    change_json(folder / "config.json", attn_implementation="me/kernel")
    assert load_translator(folder)[0].config._attn_implementation == "sdpa"


def test_a_very_long_line_is_cut_with_a_warning(translator, monkeypatch):
    for module in ("model.pipeline_vaswani", "translation.translator"):
        monkeypatch.setattr(f"vaswani_transformer.{module}.MOST_SOURCE_TOKENS", 50)
    warnings = []
    monkeypatch.setattr(pipeline_vaswani.logger, "warning", warnings.append)
    model, tokenizer = translator
    line = "ab " * 100
    shorter = tokenizer.decode(tokenizer(line).input_ids[:49], skip_special_tokens=True)  # the 50th token is </s>
    translate_all = Translator(model, tokenizer, max_new_tokens=4)
    assert translate_all(["ab " * 350_000, "ab"]) == translate_all([shorter, "ab"])
    assert translate_all.num_cut == 1
    pipe = TranslationPipeline(model, tokenizer, task="translation")
    assert pipe(line, max_new_tokens=4) == pipe(shorter, max_new_tokens=4)
    assert warnings[0].endswith("50 of its tokens are translated. Split it into sentences.")
