"""The translator: order, batches, scores and warnings."""

import copy
import logging
import math

import pytest
from shortcuts import TEXTS
from transformers import GenerationConfig

from vaswani_transformer import VaswaniForConditionalGeneration, pipeline
from vaswani_transformer.evaluation.likelihood import score, score_pairs
from vaswani_transformer.translation import translator as translation
from vaswani_transformer.translation.translator import Hypothesis, Translator, format_lines, translate


@pytest.fixture(scope="module")
def parts(build_translator):
    """Return a model and a tokenizer."""
    return build_translator(TEXTS * 3)


def test_translations_keep_order_and_empty_lines_and_on_batch_counts_each_sentence_once(parts):
    counts = []
    together = translate(*parts, TEXTS, max_new_tokens=8, tokens_per_batch=15, on_batch=counts.append)
    assert len(counts) > 2
    assert sum(counts) == len(TEXTS)
    assert translate(*parts, []) == []
    alone = [translate(*parts, [sentence], max_new_tokens=8)[0] for sentence in TEXTS]
    assert together == alone
    assert [bool(text) for text in together] == [True, False, True, False, True, True]


def test_half_a_surrogate_pair_is_refused_before_any_sentence_is_translated_or_scored(parts, monkeypatch):
    monkeypatch.setattr(Translator, "translate", None)
    for work in (translate, lambda *parts: list(score_pairs(*parts[:2], [(text, "a") for text in parts[2]]))):
        with pytest.raises(ValueError, match=r"half of a surrogate pair, which is no character: 'a \\ud83d dog'"):
            work(*parts, ["a dog", "a \ud83d dog"])


def test_line_breaks_in_a_translation_become_spaces(parts, monkeypatch):
    model, tokenizer = parts
    monkeypatch.setattr(tokenizer, "batch_decode", lambda tokens, **_: ["two\nlines"] * len(tokens))
    assert translate(model, tokenizer, ["a dog"], max_new_tokens=2) == ["two lines"]


@pytest.mark.parametrize("tokens_per_batch", [1, 12, 30, 10_000])
def test_batches_are_sorted_by_length_and_hold_at_most_tokens_per_batch(parts, tokens_per_batch, monkeypatch):
    monkeypatch.setattr(translation, "TEXTS_PER_CALL", 3)
    sentences = [" ".join(["dog"] * (7 * i % 11)) for i in range(40)]
    empty, *batches = Translator(*parts, tokens_per_batch=tokens_per_batch).plan(sentences)
    assert sorted(row for batch in (empty, *batches) for row in batch.rows) == list(range(40))
    assert [sentences[row] for row in empty.rows] == [""] * sentences.count("")
    lengths = [len(ids) for batch in batches for ids in batch.ids]
    assert lengths == sorted(lengths, reverse=True)
    for batch in batches:
        assert batch.ids == [parts[1](sentences[row]).input_ids for row in batch.rows]
        assert len(batch.rows) == 1 or len(batch.rows) * len(batch.ids[0]) <= tokens_per_batch
    for batch in batches[:-1]:  # one sentence more would exceed tokens_per_batch
        assert (len(batch.rows) + 1) * len(batch.ids[0]) > tokens_per_batch


@pytest.mark.parametrize("options", [{}, {"num_beams": 2, "length_penalty": 0.0}, {"length_penalty_type": "power"}])
def test_a_translator_returns_the_translations_and_scores_of_generate(parts, options):
    model, tokenizer = parts
    found = Translator(model, tokenizer, num_hypotheses=2, with_scores=True, max_new_tokens=8, **options)(TEXTS)
    for row in (0, 2, 4, 5):
        output = model.generate(
            **tokenizer([TEXTS[row]], return_tensors="pt"),
            max_new_tokens=8,
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        texts, scores = zip(*found[row], strict=True)
        assert list(texts) == tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        assert scores == pytest.approx(output.sequences_scores.tolist(), abs=1e-5)


def test_a_translator_records_no_outputs_that_it_does_not_use(parts):
    model, tokenizer = copy.deepcopy(parts)
    unused = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    model.generation_config.update(return_dict_in_generate=True, **dict.fromkeys(unused, True))
    found = Translator(model, tokenizer, max_new_tokens=8).search([tokenizer("a dog").input_ids])
    assert set(found) <= {"sequences", "sequences_scores", "beam_indices"}


def test_missing_translations_are_empty_with_a_score_of_minus_infinity(parts):
    limit = {"max_new_tokens": 1, "forced_eos_token_id": parts[1].eos_token_id}
    empty, short = Translator(*parts, num_hypotheses=3, with_scores=True, **limit)(["", "a dog"])
    nothing = Hypothesis("", -math.inf)
    assert empty == [Hypothesis("", 0.0), nothing, nothing]
    # The first token must be </s>, so "a dog" has only one possible translation.
    assert short[0].score > -math.inf
    assert short[1:] == [nothing, nothing]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("num_others", [0, 1])
def test_a_score_comes_from_the_probabilities_of_the_whole_ensemble(parts, num_others, num_beams):
    model, tokenizer = parts
    others = [VaswaniForConditionalGeneration(model.config).eval()] * num_others
    options = {"num_beams": num_beams, "max_new_tokens": 8, "ensemble": others}
    translator = Translator(model, tokenizer, with_scores=True, **options)
    [[hypothesis]] = translator(["a dog"])
    inputs = tokenizer(["a dog"], return_tensors="pt")
    found = translator.search(inputs.input_ids.tolist(), output_scores=True)
    beams = found.get("beam_indices")
    transitions = model.compute_transition_scores(found.sequences, found.scores, beams, normalize_logits=True)
    penalty = ((5 + transitions.shape[1]) / 6) ** 0.6
    assert hypothesis.score == pytest.approx(transitions.sum().item() / penalty, abs=1e-5)
    alone = score(model, **inputs, labels=found.sequences[:, 1:]).scores.item()
    assert (hypothesis.score == pytest.approx(alone, abs=1e-5)) == (not others)


def test_an_empty_translation_has_a_score_even_if_one_token_is_both_end_and_padding(parts):
    model, tokenizer = copy.deepcopy(parts)
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.eos_token_id
    limit = {"max_new_tokens": 1, "forced_eos_token_id": tokenizer.eos_token_id}
    translator = Translator(model, tokenizer, num_hypotheses=2, with_scores=True, **limit)
    for best, nothing in translator(["a dog runs", "a dog"]):
        assert best.text == nothing.text == ""
        assert best.score > nothing.score == -math.inf


def test_sentences_longer_than_in_training_are_counted(parts, monkeypatch):
    monkeypatch.setattr(parts[1], "model_max_length", 5)
    translator = Translator(*parts, max_new_tokens=1)
    translator(["a", "a dog", "qwerty uiop asdf", ""])
    translator(["asdf qwerty uiop"])
    assert translator.num_over_long == 2


def test_line_numbers_and_scores_are_columns_before_the_text():
    hypotheses = [Hypothesis("ein\tHund", -0.5), Hypothesis("Hund", -math.inf)]
    assert format_lines(hypotheses, 7, is_numbered=False, is_scored=False) == "ein\tHund\nHund\n"
    assert format_lines(hypotheses, 7, is_numbered=False, is_scored=True) == "-0.5000\tein\tHund\n-inf\tHund\n"
    assert format_lines(hypotheses, 7, is_numbered=True, is_scored=False) == "7\tein\tHund\n7\tHund\n"


def test_a_generation_config_of_the_caller_sets_beam_and_penalty(parts):
    config = copy.deepcopy(parts[0].generation_config)
    settings = {"num_beams": 2, "length_penalty": 2.0, "max_new_tokens": 6}
    config.update(**settings)
    for asked in (0, 3):
        with pytest.raises(ValueError, match=rf"must be from 1 to num_beams .*, which is 2; got {asked}\."):
            Translator(*parts, num_hypotheses=asked, generation_config=config)
    options = {"num_hypotheses": 2, "with_scores": True}
    found = Translator(*parts, **options, generation_config=config)(TEXTS)
    open_config = GenerationConfig(max_new_tokens=6)  # the model's config supplies the beam of four
    assert len(Translator(*parts, num_hypotheses=4, generation_config=open_config)(TEXTS)[0]) == 4
    assert found == Translator(*parts, **options, **settings)(TEXTS)


def test_a_warning_counts_sentences_that_are_cut(parts, monkeypatch):
    monkeypatch.setattr(translation, "MOST_SOURCE_TOKENS", 6)
    with pytest.warns(UserWarning, match="sentences cut to 6 tokens, </s> included: 2. Split them."):
        translate(*parts, ["a dog", "dog " * 9, "cats " * 12], max_new_tokens=2)


def test_the_lines_of_a_text_are_translated_one_by_one_and_empty_translations_are_counted(build_translator):
    model, tokenizer = build_translator(["the dog runs ."] * 3)
    translator = Translator(model, tokenizer, with_scores=True, max_new_tokens=4)
    [first], _, [third] = translator(["the dog", "", "runs ."])
    [together] = translator(["the dog\r\n\rruns ."])[0]
    assert together.text == f"{first.text}\r\n\r{third.text}"
    assert together.score == pytest.approx(first.score + third.score)
    assert translator.find_warnings() == []
    translator = Translator(model, tokenizer, forced_bos_token_id=tokenizer.eos_token_id)
    translator(["the dog\n\nruns ."])
    assert translator.find_warnings() == ["2 of 2 translations are empty."]


def test_bytes_that_form_no_character_are_left_out_and_counted_and_a_pipeline_warns(parts, monkeypatch, caplog):
    model, tokenizer = parts
    monkeypatch.setattr(tokenizer, "batch_decode", lambda tokens, **_: ["x \ufffd y"] * len(tokens))
    sentences = ["a dog", "a \ufffd dog"]
    expected = ["x y", "x \ufffd y"]
    translator = Translator(model, tokenizer, max_new_tokens=2)
    assert [best.text for [best] in translator(sentences)] == expected
    assert translator.find_warnings() == [
        "1 line (the first begins 'x \ufffd y') with bytes in the translation that form no character, such as half of "
        "an emoji. They were left out."
    ]
    logging.Logger.warning_once.cache_clear()  # an earlier test may have logged this warning
    found = pipeline("translation", model=model, tokenizer=tokenizer)(sentences, max_new_tokens=2)
    assert [output["translation_text"] for output in found] == expected
    assert "a line has bytes in the translation that form no character" in caplog.text


def test_lines_in_a_script_unknown_to_the_vocabulary_are_counted_and_a_pipeline_warns(build_translator, caplog):
    model, tokenizer = build_translator(["Die schöne Stadt", "Ένα μικρό σπίτι"] * 9)
    translator = Translator(model, tokenizer, max_new_tokens=2)
    translator(["a dog", "Dvořák fährt", "μήλο: 5 € 😀", "Привет", "the word 犬", "\u3000"])
    assert translator.find_warnings() == [
        "2 lines (the first begins 'Привет') with letters of a script that the vocabulary does not know. "
        "Leave such lines out, or train on such text."
    ]
    translate = pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=2)
    logging.Logger.warning_once.cache_clear()  # an earlier test may have logged this warning
    for text, has_warned in (("Dvořák fährt", False), ("the word 犬", True)):
        translate(text)
        assert ("letters of a script that the vocabulary does not know" in caplog.text) == has_warned
