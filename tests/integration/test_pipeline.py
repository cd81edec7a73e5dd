"""The translation pipeline translates strings and lists, and works in the pipeline() of transformers."""

import importlib
import math
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, TextStreamer

from vaswani_transformer import TranslationPipeline, registration
from vaswani_transformer import pipeline as vaswani_pipeline
from vaswani_transformer.model import pipeline_vaswani
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines
from vaswani_transformer.translation.translator import Translator

SENTENCES = ["a dog runs", "", "two cats sleep on the bed", "a dog"]


@pytest.fixture(scope="module")
def folder(build_translator, tmp_path_factory):
    """Return a folder with an untrained model."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    build_translator(SENTENCES * 3, folder=folder, custom_pipelines=custom_pipelines("translation_en_to_de"))
    return str(folder)


@pytest.fixture(scope="module")
def translate(folder):
    return vaswani_pipeline("translation", model=folder, max_new_tokens=6)


def test_a_list_gives_the_same_translations_as_its_sentences_alone(translate):
    alone = [translate(sentence)[0] for sentence in SENTENCES]
    assert translate(SENTENCES) == alone
    assert translate(SENTENCES, batch_size=3) == alone
    assert translate(SENTENCES[:1]) == alone[:1]
    assert translate([]) == []


@pytest.mark.parametrize("blank", ["", "   ", " \t", "\u3000", "\u200b", "\u00ad\ufeff", "\x00 \u200e"])
def test_the_translation_of_a_blank_sentence_is_empty(translate, blank):
    assert translate(blank) == [{"translation_text": ""}]
    assert translate([blank, "a dog"], num_return_sequences=2, batch_size=2)[0] == [{"translation_text": ""}] * 2


@pytest.mark.parametrize(
    "wordless", ["-", "***", "00:00:01,200 --> 00:00:03,900", " 12 345 ", "\u2764\ufe0f\u200d\U0001f525"]
)
def test_a_line_without_letters_is_copied(translate, wordless):
    copied = wordless.strip()
    assert translate(wordless) == [{"translation_text": copied}]
    for found in translate(f"{wordless}\na dog", num_return_sequences=2):
        assert found["translation_text"].startswith(f"{copied}\n")
    translator = Translator(
        translate.model, translate.tokenizer, max_new_tokens=6, with_scores=True, num_hypotheses=2, num_beams=2
    )
    [both, _] = translator([wordless, "a dog"])
    assert both == [(copied, 0.0), ("", -math.inf)]
    assert translator([f"{wordless}\na dog"])[0][1].text.startswith(f"{copied}\n")


def test_a_text_is_translated_line_by_line_and_keeps_its_line_breaks(translate):
    first, _, third, _ = (found["translation_text"] for found in translate(SENTENCES))
    expected = [{"translation_text": f"{first}\n\n{third}"}]
    assert translate("\n".join(SENTENCES[:3])) == expected
    for line_break in ("\r\n", "\r"):
        with_break = [{"translation_text": expected[0]["translation_text"].replace("\n", line_break)}]
        assert translate(line_break.join(SENTENCES[:3])) == with_break
    assert translate(["a dog", "\n".join(SENTENCES[:3])], batch_size=3)[1:] == expected
    assert len(translate("a dog\ntwo cats", num_return_sequences=2)) == 2


def test_a_sentence_longer_than_any_in_training_is_translated_with_a_warning(translate, monkeypatch):
    warnings = []
    monkeypatch.setattr(translate.tokenizer, "model_max_length", 5)
    monkeypatch.setattr("vaswani_transformer.model.pipeline_vaswani.logger.warning", warnings.append)
    assert len(translate("two cats sleep on the bed " * 3)) == 1
    assert len(warnings) == 1
    assert "longer than 5, the longest in training" in warnings[0]


def test_a_column_of_a_dataset_or_table_is_translated_as_a_list_and_a_column_of_a_stream_one_by_one(translate):
    dataset = Dataset.from_dict({"en": SENTENCES})
    assert translate(dataset["en"]) == translate(SENTENCES)
    assert [found for [found] in translate(dataset.to_iterable_dataset()["en"])] == translate(SENTENCES)
    assert translate(dataset.to_pandas()["en"]) == translate(SENTENCES)
    with pytest.raises(ValueError, match="a sentence to translate must be a str, got DataFrame"):
        translate(dataset.to_pandas())


def test_a_value_that_is_not_a_string_is_refused(translate):
    with pytest.raises(ValueError, match=r"a sentence to translate must be a str, got tuple: \('a',\). Give several"):
        translate(("a",))


def test_a_pipeline_decodes_without_its_engine_if_an_option_needs_the_model(translate, tmp_path):
    printed = []
    streamer = TextStreamer(translate.tokenizer, skip_special_tokens=True)
    streamer.on_finalized_text = lambda text, stream_end=False: printed.append(text)
    [found] = translate("a dog runs", streamer=streamer, num_beams=1)
    assert "".join(printed).endswith(found["translation_text"])
    sampled = translate("a dog runs", do_sample=True, num_beams=1, num_return_sequences=8)
    assert len({found["translation_text"] for found in sampled}) > 1
    translate.save_pretrained(tmp_path)
    assert vaswani_pipeline("translation", model=tmp_path, max_new_tokens=6)(SENTENCES) == translate(SENTENCES)


@pytest.mark.parametrize("pipeline_class", [TranslationPipeline, pipeline_vaswani.TranslationPipeline])
def test_a_pickled_pipeline_translates_as_before(translate, pipeline_class):
    translate = pipeline_class(translate.model, tokenizer=translate.tokenizer, max_new_tokens=6)
    pickled = pickle.dumps(translate)
    expected = translate(SENTENCES)
    assert pickle.dumps(translate) == pickled
    assert pickle.loads(pickled)(SENTENCES) == expected


def test_half_a_surrogate_pair_is_refused_before_any_sentence_is_translated(translate, monkeypatch):
    monkeypatch.setattr(translate.model, "generate", None)
    for sentences in (["a dog", "a \ud83d dog"], "a \ud83d dog"):
        with pytest.raises(ValueError, match=r"half of a surrogate pair, .*: 'a \\ud83d dog'\. Remove it, or decode"):
            translate(sentences)


def test_a_pipeline_returns_token_ids_text_or_both_as_asked(translate):
    [text] = translate(SENTENCES[0])
    [ids] = translate(SENTENCES[0], return_tensors=True)
    [both] = translate(SENTENCES[0], return_tensors=True, return_text=True)
    assert translate(SENTENCES[0], return_text=True) == [text]
    assert translate.tokenizer.decode(*ids.values(), skip_special_tokens=True) == text["translation_text"]
    assert both.keys() == ids.keys() | text.keys()


@pytest.mark.parametrize("options", [{"num_return_sequences": 2}, {"num_beams": 1, "do_sample": True, "top_k": 1}])
def test_a_pipeline_returns_the_same_if_generate_returns_an_object(translate, options):
    found = translate(SENTENCES, return_dict_in_generate=True, output_scores=True, **options)
    assert found == translate(SENTENCES, **options)


def test_languages_that_the_model_does_not_translate_are_refused(folder, translate):
    assert translate(SENTENCES[0], src_lang="en", tgt_lang="de") == translate(SENTENCES[0])
    with pytest.raises(ValueError, match="translates from en to de; src_lang is de, tgt_lang is fr"):
        translate(SENTENCES[0], src_lang="de", tgt_lang="fr")
    for task in ("translation_de_to_en", "translation_en-US_to_zh_CN"):
        with pytest.raises(ValueError, match="translates from en to de; src_lang is"):
            transformers.pipeline(task, model=folder)


def test_spaces_before_punctuation_are_removed_if_clean_up_tokenization_spaces_is_set(translate, monkeypatch):
    monkeypatch.setattr(
        translate.model, "generate", lambda **_: translate.tokenizer("a dog , a cat .", return_tensors="pt").input_ids
    )
    assert translate("a")[0]["translation_text"] == "a dog , a cat ."
    assert translate("a", clean_up_tokenization_spaces=True)[0]["translation_text"] == "a dog, a cat."


def test_a_model_may_be_given_as_a_path_or_by_its_run_folder(folder, translate, monkeypatch):
    expected = translate(SENTENCES[0])
    run = Path(folder).parent
    for name in (Path(folder), run, str(run)):
        assert vaswani_pipeline("translation", model=name, max_new_tokens=6)(SENTENCES[0]) == expected
    with pytest.raises(FileNotFoundError, match="runs/bsae does not exist; name a model folder"):
        vaswani_pipeline(model="a/runs/bsae")  # the Hub is not asked
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"runs/bsae is no folder in .*, and was not loaded from the Hub"):
        vaswani_pipeline(model="runs/bsae")


def test_arguments_of_from_pretrained_work_as_in_transformers(folder, translate):
    options = {"trust_remote_code": True, "model_kwargs": {"attn_implementation": "eager"}}
    pipe = vaswani_pipeline("translation", model=folder, max_new_tokens=6, **options)
    assert pipe.model.config._attn_implementation == "eager"
    assert pipe(SENTENCES[0]) == translate(SENTENCES[0])
    assert vaswani_pipeline("translation", model=folder, dtype=torch.bfloat16).model.dtype == torch.bfloat16


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de"])
def test_the_pipeline_of_transformers_works_without_trust_remote_code(folder, translate, task):
    expected = translate(SENTENCES[0])
    found = transformers.pipeline(task, model=folder, max_new_tokens=6)
    assert isinstance(found, TranslationPipeline)
    assert found(SENTENCES[0]) == expected
    parts = {"model": AutoModelForSeq2SeqLM.from_pretrained(folder), "tokenizer": translate.tokenizer}
    assert transformers.pipeline(task, **parts, max_new_tokens=6)(SENTENCES[0]) == expected


def test_a_pipeline_works_after_the_package_is_registered_again(folder, translate):
    importlib.reload(registration)
    found = transformers.pipeline("translation_en_to_de", model=folder, max_new_tokens=6)
    assert found(SENTENCES) == translate(SENTENCES)


def test_other_tasks_raise_the_errors_of_transformers(folder):
    for task, message in (("summarization", "has been removed"), ("translating", "Unknown task translating")):
        for make in (transformers.pipeline, vaswani_pipeline):
            with pytest.raises(KeyError, match=message):
                make(task, model=folder)
