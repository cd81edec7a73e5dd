"""Exported models translate like the model, in CTranslate2."""

import copy
import re
from contextlib import chdir
from pathlib import Path

import ctranslate2
import pytest
import torch
from ctranslate2.converters import TransformersConverter
from shortcuts import read_json
from tiny_training import assert_close

from vaswani_transformer import train_tokenizer
from vaswani_transformer.export import ctranslate2_converter

SENTENCES = ["a dog runs", "the old cat sleeps on the roof", "two", "who sees the dog", "cats and dogs and cats"]
# Fields of the config that change what the model computes, each with another value than in the paper.
OTHER_FIELDS = {
    "attention_bias": True,
    "output_bias": True,
    "tie_word_embeddings": False,
    "activation_function": "gelu",
    "position_embedding_type": "learned",
    "layer_norm_eps": 1e-2,
    "d_k": 7,
    "d_v": 7,
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, vocab_size=280)


@pytest.fixture(scope="module")
def build_model(build_tiny_model, tokenizer):
    """Return a function that builds a random model.

    The model has 3 embeddings more than the tokenizer has tokens, as if its vocabulary were padded to a
    multiple of 8.
    """

    def build(**changes):
        sizes = {"vocab_size": len(tokenizer) + 3, "encoder_layers": 1, "decoder_layers": 2, "d_k": 7}
        return build_tiny_model(noise=0.1, **sizes | changes)

    return build


@pytest.fixture(scope="module")
def half_trained_model(build_model, tokenizer):
    """Return a briefly trained model. Its translations end, and the length penalty decides which of them is best."""
    model = build_model(output_bias=True)
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    labels = tokenizer(SENTENCES[::-1], padding=True, return_tensors="pt").input_ids
    labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    return model


def export_ctranslate2(model, tokenizer, folder: Path, **options) -> ctranslate2.Translator:
    ctranslate2_converter.export_model(model, tokenizer, folder, **options)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def translate_ids(translator: ctranslate2.Translator, tokenizer, sentences, **options) -> list[list[list[int]]]:
    """Return, for each sentence, the token ids of all hypotheses that CTranslate2 finds, </s> included."""
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(sentence).input_ids) for sentence in sentences]
    results = translator.translate_batch(sources, return_end_token=True, min_decoding_length=0, **options)
    return [[tokenizer.convert_tokens_to_ids(tokens) for tokens in result.hypotheses] for result in results]


def generate_ids(model, tokenizer, sentences: list[str], **options) -> list[list[int]]:
    """Return the token ids of the model's best hypothesis for each sentence, </s> included."""
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    eos = model.config.eos_token_id
    rows = model.generate(**inputs, **options)[:, 1:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


@pytest.mark.parametrize("changes", [{}, {"position_layout": "concatenated"}, OTHER_FIELDS])
def test_the_greedy_search_of_ctranslate2_finds_our_translations(build_model, tokenizer, tmp_path, changes):
    model = build_model(**changes)
    translator = export_ctranslate2(model, tokenizer, tmp_path)
    theirs = translate_ids(translator, tokenizer, SENTENCES, beam_size=1, max_decoding_length=25)
    ours = generate_ids(model, tokenizer, SENTENCES, num_beams=1, max_new_tokens=25, max_length_offset=None)
    assert [hypotheses[0] for hypotheses in theirs] == ours
    saved = read_json(tmp_path / "config.json")
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "decoder_start_token": "<s>"}
    assert saved.items() >= tokens.items()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_the_beam_search_of_ctranslate2_finds_our_translations_if_both_use_its_length_penalty(
    half_trained_model, tokenizer, tmp_path, alpha
):
    translator = export_ctranslate2(half_trained_model, tokenizer, tmp_path)
    options = {"beam_size": 4, "length_penalty": alpha, "max_decoding_length": 60}
    theirs = translate_ids(translator, tokenizer, SENTENCES, **options)
    # With a length penalty, CTranslate2's search ends when num_beams hypotheses are finished. With alpha 0, the search
    # ends when no unfinished hypothesis can win.
    options = {"length_penalty": alpha, "length_penalty_type": "power", "early_stopping": True if alpha else "never"}
    ours = generate_ids(half_trained_model, tokenizer, SENTENCES, num_beams=4, max_new_tokens=60, **options)
    assert [hypotheses[0] for hypotheses in theirs] == ours
    assert len({len(tokens) for tokens in ours}) > 1


def run_readme(name: str, export: Path, folder: Path) -> dict:
    """Run the Python block that loads exports/`name` in the README of exports. Return the variables that it sets.

    Args:
        name: the name that the README gives the exported model.
        export: the folder of the exported model.
        folder: the folder in which the block runs.
    """
    readme = Path(ctranslate2_converter.__file__).with_name("README.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall(r"```py\n(.*?)```", readme, re.DOTALL) if f'exports/{name}"' in block]
    (folder / "exports").mkdir()
    (folder / "exports" / name).symlink_to(export)
    values = {}
    with chdir(folder):
        exec(block, values)
    return values


def test_the_rescoring_in_the_readme_finds_the_translation_of_our_search(half_trained_model, tokenizer, tmp_path):
    export_ctranslate2(half_trained_model, tokenizer, tmp_path / "export")
    values = run_readme("mine", tmp_path / "export", tmp_path)
    expected = generate_ids(half_trained_model, tokenizer, [values["text"]])[0]
    assert tokenizer.convert_tokens_to_ids(values["best"]) == expected


@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_quantised_weights_make_a_smaller_file_and_give_similar_log_probabilities(
    half_trained_model, tokenizer, tmp_path, quantization
):
    source, target = (tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in SENTENCES[:2])
    before = copy.deepcopy(half_trained_model.state_dict())
    log_probs, sizes = [], []
    for name in ("float32", quantization):
        export_ctranslate2(half_trained_model, tokenizer, tmp_path / name, quantization=name)
        # CTranslate2 multiplies in float32 here, because its int8 products saturate on processors without VNNI.
        translator = ctranslate2.Translator(f"{tmp_path}/{name}", compute_type="float32")
        log_probs.append(translator.score_batch([source], [target[:-1]])[0].log_probs)
        sizes.append((tmp_path / name / "model.bin").stat().st_size)
    assert sizes[1] < sizes[0]
    assert log_probs[0] == pytest.approx(log_probs[1], abs=0.2)
    assert log_probs[0] != log_probs[1]
    assert_close(half_trained_model.state_dict(), before)


@pytest.fixture
def saved_model(half_trained_model, tokenizer, tmp_path):
    """Return a folder with the half-trained model and its tokenizer."""
    for part in (half_trained_model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_converter_of_ctranslate2_writes_the_same_weights_as_our_export(
    saved_model, half_trained_model, tokenizer, tmp_path
):
    TransformersConverter(str(saved_model)).convert(f"{tmp_path}/theirs")
    export_ctranslate2(half_trained_model, tokenizer, tmp_path / "ours")
    theirs, ours = (tmp_path / name / "model.bin" for name in ("theirs", "ours"))
    assert theirs.read_bytes() == ours.read_bytes()


def test_the_export_command_prints_the_search_settings_of_the_model(saved_model, tokenizer, tmp_path, output_of):
    output = f"{tmp_path}/export"
    printed = output_of(f"export --model {saved_model} --format ctranslate2 --quantization int8 --output {output}")
    for setting in (output, "num_beams=4", "length_penalty=0.6", "max_length_offset=50"):
        assert setting in printed
    assert "_id=" not in printed
    assert len(translate_ids(ctranslate2.Translator(output), tokenizer, SENTENCES)) == len(SENTENCES)
