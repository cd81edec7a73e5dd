"""Every option of transformers is honoured, passed on to transformers, or refused. None is ignored."""

import logging
import math
from dataclasses import fields, replace
from unittest import mock

import pytest
import torch
from shortcuts import END, PAD, SOURCE, each_case
from tiny_training import assert_close
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.generation import (
    BaseStreamer,
    ForcedEOSTokenLogitsProcessor,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
    configuration_utils,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from vaswani_transformer import VaswaniForConditionalGeneration, train_tokenizer
from vaswani_transformer.bounds import Number
from vaswani_transformer.model.generation_vaswani import (
    VaswaniGenerationConfig,
    VaswaniGreedyOutput,
)
from vaswani_transformer.model.search_vaswani import MOST_ALPHA, SearchOptions
from vaswani_transformer.training.recipes import BOUNDS

MASK = (SOURCE != PAD).long()
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}
AS_IN_TRANSFORMERS = {"length_penalty_type": "power", "max_length_offset": None}

# Fields of GenerationConfig that the search itself handles.
BY_THE_SEARCH = """
    max_length max_new_tokens early_stopping max_time stop_strings do_sample num_beams length_penalty
    use_cache cache_implementation max_cache_len num_return_sequences
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    pad_token_id bos_token_id eos_token_id decoder_start_token_id forced_eos_token_id
""".split()  # noqa: SIM905 - a list would have a line for each name
# Fields from which transformers builds logits processors, with an example for each. The search calls the processors.
BY_PROCESSORS = {
    "min_length": {"min_length": 3, "min_new_tokens": None},  # min_new_tokens would override min_length
    "min_new_tokens": {"min_new_tokens": 5},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2, "forced_bos_token_id": 9},
    "bad_words_ids": {"bad_words_ids": [[5], [17], [7, 8]]},
    "renormalize_logits": {"renormalize_logits": True, "sequence_bias": {(5,): 2.0}},
    "forced_bos_token_id": {"forced_bos_token_id": 7},
    "remove_invalid_values": {"remove_invalid_values": True, "forced_bos_token_id": 7},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 1.1)},
    "suppress_tokens": {"suppress_tokens": [5, 17]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [5, 17, 3, 14]},
    "sequence_bias": {"sequence_bias": {(5,): 1.0, (17, 17): -3.0}},
}
# Logits processors and stopping criteria that the caller passes to `generate`.
OF_THE_CALLER = {
    "prefix": {"prefix_allowed_tokens_fn": lambda i, _: [[5, 17, 3, END], [9, 10, END], [14, 15, END]][i]},
    "processor": {"logits_processor": [ForcedEOSTokenLogitsProcessor(5, END, "cpu")]},
    "criterion": {"stopping_criteria": [lambda ids, scores, **_: ids[:, -1] % 4 == 0]},
}
# Fields of sampling. transformers warns if they are given without do_sample.
BY_SAMPLING = "temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff".split()  # noqa: SIM905
# The fields that are not refused. `transformers_version` does not concern the search.
HONOURED = {*BY_THE_SEARCH, *BY_PROCESSORS, *BY_SAMPLING, "compile_config", "disable_compile", "transformers_version"}


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=4.0, max_length_offset=50, seed=2, noise=0.2, decoder_layers=2)


def test_every_option_is_honoured_or_refused(model):
    others = {name for name in vars(GenerationConfig()) if not name.startswith("_")} - HONOURED
    # With the first two, the loop of transformers decodes. The last one is an object, so 0.5 has a wrong type.
    for name in others - {"is_assistant", "prompt_lookup_num_tokens", "watermarking_config"}:
        config = GenerationConfig()
        setattr(config, name, 0.5)
        with pytest.raises(ValueError, match=rf"^this model's search does not support the given value of {name}:"):
            model.generate(SOURCE, generation_config=config)


@each_case("options", BY_PROCESSORS | OF_THE_CALLER)
def test_a_processor_acts_as_in_transformers(model, options):
    common = {"num_beams": 4, "max_new_tokens": 30, "min_new_tokens": 3, "early_stopping": True}
    common |= AS_IN_TRANSFORMERS | WITH_SCORES
    actual = model.generate(SOURCE, **common | options)
    expected = GenerationMixin.generate(model, SOURCE, attention_mask=MASK, **common | options)
    assert expected.sequences.shape[1] < 31
    assert torch.equal(actual.sequences, expected.sequences)
    assert_close(actual.sequences_scores, expected.sequences_scores, tolerance=1e-5)
    without_options = model.generate(SOURCE, **common)
    assert not torch.allclose(actual.sequences_scores, without_options.sequences_scores, rtol=0, atol=1e-3)
    # Without `return_dict_in_generate` no cache is returned, so an engine decodes. It must find the same tokens.
    tokens = model.generate(SOURCE, **common | options | {"return_dict_in_generate": False})
    assert torch.equal(tokens, actual.sequences)


@pytest.mark.parametrize("early_stopping", ["never", False, True])
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("limit", [3, 40])  # 3 cuts hypotheses, and no hypothesis reaches 40
def test_the_power_penalty_finds_the_translations_of_transformers(model, limit, alpha, early_stopping):
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": limit, "length_penalty": alpha}
    options |= {"early_stopping": early_stopping} | AS_IN_TRANSFORMERS | WITH_SCORES
    actual = model.generate(SOURCE, **options)
    expected = GenerationMixin.generate(model, SOURCE, attention_mask=MASK, **options)
    assert any(END not in row for row in expected.sequences) == (limit == 3)
    assert torch.equal(actual.sequences, expected.sequences)
    assert torch.equal(actual.beam_indices.int(), expected.beam_indices)
    torch.testing.assert_close(actual.sequences_scores, expected.sequences_scores, rtol=1e-6, atol=1e-5)


# Options that are refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_implementation": "quantized"}, "does not support the quantized cache"),
        ({"num_beams": 0}, "num_beams must be an integer >= 1 .*, got 0"),
        ({"num_beams": "4"}, "num_beams must be an integer >= 1 .*, got '4'"),
        ({"length_penalty_type": "sum"}, r"length_penalty_type must be one of \('gnmt', 'power'\), got 'sum'"),
        ({"streamer": BaseStreamer()}, "a streamer and an assistant follow one hypothesis: pass num_beams=1"),
        ({}, "a streamer and an assistant follow one hypothesis"),  # the test replaces {} by an assistant_model
        ({"length_penalty": -10.5}, r"length_penalty must be from -10\.0 to 10\.0, got -10\.5"),
        ({"length_penalty": math.nan}, "length_penalty must be from .*, got nan"),
        ({"inputs": SOURCE[:0]}, "there is no sentence to translate"),
        ({"inputs": "The dog runs."}, r"input_ids must be a tensor, got str: call tokenizer\(sentences"),
        ({"decoder_input_ids": torch.tensor([[5, 6], [8, PAD], [9, 4]])}, "must be padded on the left"),
        ({"tokens": 3}, "not used by the model"),
        (
            {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=3)},
            r"does not support the given value of watermarking_config",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_unsupported_or_invalid_arguments_are_refused(model, options, message):
    options = options or {"assistant_model": model}
    with pytest.raises(ValueError, match=message):
        model.generate(**{"inputs": SOURCE} | options)


# Options that are passed on to transformers


def test_assisted_greedy_search_finds_the_tokens_of_greedy_search(model):
    expected = model.generate(SOURCE[1:2], num_beams=1)
    for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model}):
        assert torch.equal(model.generate(SOURCE[1:2], num_beams=1, **options), expected)


# Options that the search honours


@pytest.mark.parametrize(
    "options", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True, "top_k": 1}]
)
def test_a_stop_string_ends_a_translation(model, options):
    tokenizer = train_tokenizer(["a dog runs"], vocab_size=270)  # token 17, which the model likes to repeat, is a dot
    found = model.generate(SOURCE, stop_strings=".", tokenizer=tokenizer, **options)
    expected = model.generate(SOURCE, stopping_criteria=[StopStringCriteria(tokenizer, ".")], **options)
    assert torch.equal(found, expected)
    assert not torch.equal(found, model.generate(SOURCE, **options))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_sentence_may_have_a_different_start_token(model, num_beams):
    found = model.generate(SOURCE, num_beams=num_beams, decoder_start_token_id=[20, 0, 9])
    as_prompts = torch.tensor([[20], [0], [9]])
    assert torch.equal(found, model.generate(SOURCE, num_beams=num_beams, decoder_input_ids=as_prompts))


def test_options_of_this_package_work_with_a_generation_config_of_transformers(model, monkeypatch):
    expected = model.generate(SOURCE, length_penalty_type="power", max_length_offset=3)
    monkeypatch.setattr(model, "generation_config", GenerationConfig(num_beams=4, early_stopping="never"))
    special = {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 0, "length_penalty": 0.6}
    actual = model.generate(SOURCE, length_penalty_type="power", max_length_offset=3, **special)
    assert torch.equal(actual, expected)


# Prompts of different lengths


PROMPTS = [[0, 5, 6, 7], [0, 8], [0, 9, 4]]
PADDED = torch.tensor([[PAD] * (4 - len(prompt)) + prompt for prompt in PROMPTS])


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4},
        {"num_beams": 4, "repetition_penalty": 1.8},
        {"num_beams": 3, "use_cache": False},
        {"num_beams": 3, "cache_implementation": "static"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mask", [{}, {"decoder_attention_mask": (PADDED != PAD).long()}], ids=["derived", "given"])
def test_padding_prompts_on_the_left_does_not_change_their_continuations(model, options, mask):
    together = model.generate(SOURCE, decoder_input_ids=PADDED, **mask, **options)
    for i, prompt in enumerate(PROMPTS):
        alone = model.generate(SOURCE[i : i + 1], decoder_input_ids=torch.tensor([prompt]), **options)[0]
        new = alone[len(prompt) :].tolist()
        row = together[i, 4:].tolist()
        assert row[: len(new)] == new
        assert set(row[len(new) :]) <= {PAD}


def test_the_mask_of_a_prompt_does_not_hide_the_start_token_that_the_search_adds(model):
    options = {"decoder_input_ids": torch.tensor([[5, 6]] * 3), "return_dict_in_generate": True}
    found = model.generate(SOURCE, decoder_attention_mask=torch.ones(3, 2).long(), **options)
    assert_close(found.sequences_scores, model.generate(SOURCE, **options).sequences_scores, tolerance=1e-5)


# Greedy search


RULES = {
    **BY_PROCESSORS,
    **OF_THE_CALLER,
    "no time": {"max_time": 0.0},
    "prompt": {"decoder_input_ids": torch.tensor([[0, 5, 6]] * 3)},
    "padded prompt": {"decoder_input_ids": PADDED, "decoder_attention_mask": (PADDED != PAD).long()},
}


@each_case("options", RULES)
def test_greedy_search_finds_the_tokens_and_scores_of_transformers(model, options):
    options = {"num_beams": 1, "max_new_tokens": 12, "max_length_offset": None} | options
    options |= WITH_SCORES | {"output_logits": True}
    expected = GenerationMixin.generate(model, SOURCE, attention_mask=MASK, **options)
    is_open = expected.sequences[:, -len(expected.scores) :].T != PAD  # no scores after </s> are compared
    engines = [] if "decoder_attention_mask" in options else [{"engine": model.build_engine()}]
    for given in ({}, *engines, {"cache_implementation": "static"}):
        found = model.generate(SOURCE, **options, **given)
        assert torch.equal(found.sequences, expected.sequences)
        assert isinstance(found, type(expected))
        for name in ("scores", "logits"):
            actual, wanted = (torch.stack(x[name])[is_open] for x in (found, expected))
            assert_close(actual, wanted, tolerance=1e-4)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"exponential_decay_length_penalty": (2, 1.5)}, True),
        ({"exponential_decay_length_penalty": (2, 1.5), "renormalize_logits": True}, False),
        ({"sequence_bias": {(5,): -1.0}}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logits_processor": [lambda _, scores: scores]}, True),
    ],
)
def test_a_warning_says_what_to_do_if_an_option_lets_longer_translations_score_higher(model, caplog, options, warns):
    logging.Logger.warning_once.cache_clear()  # an earlier test may have logged this warning
    model.generate(SOURCE, **options)
    assert ("pass early_stopping=True or renormalize_logits=True" in caplog.text) == warns


# Callers of `generate`


def test_a_cache_that_holds_the_first_tokens_of_the_prompt_changes_nothing(model):
    prompt = torch.tensor([[0, 5, 7]]).expand(len(SOURCE), -1)
    cache = model(input_ids=SOURCE, decoder_input_ids=prompt[:, :2], use_cache=True).past_key_values
    options = {"decoder_input_ids": prompt, "num_beams": 1, "max_new_tokens": 4}
    expected = model.generate(SOURCE, **options)
    assert torch.equal(model.generate(SOURCE, past_key_values=cache, **options), expected)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_sentences_that_have_ended_leave_the_batch_unless_a_hook_or_an_argument_may_know_their_rows(
    model, monkeypatch, num_beams
):
    sizes = []

    class Recorder(VaswaniForConditionalGeneration):
        faster = None

        def forward(self, *args, domains=None, **kwargs):
            sizes.append(len(kwargs["decoder_input_ids"]))
            return super().forward(*args, **kwargs)

    monkeypatch.setattr(model, "__class__", Recorder)
    options = {"max_length_offset": 1, "num_beams": num_beams}
    expected = model.generate(SOURCE, **options)
    assert sizes[-1] < sizes[0] == num_beams * len(SOURCE)
    sizes.clear()
    assert torch.equal(model.generate(SOURCE, **options, domains=["news"] * len(SOURCE)), expected)
    layer = model.get_decoder().layers[0]
    for register in (layer.register_forward_hook, layer.feed_forward.register_forward_pre_hook):
        with_hook = register(lambda *_: None)
        assert torch.equal(model.generate(SOURCE, **options), expected)
        with_hook.remove()
    assert set(sizes) == {num_beams * len(SOURCE)}


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("given", ["embeds", "encoded", "cache", "synced", "static", "custom", "inputs"])
def test_every_way_of_calling_finds_the_same_translations(model, monkeypatch, given, num_beams):
    options = {"num_beams": num_beams, "return_dict_in_generate": True}
    expected = model.generate(SOURCE, **options)
    ways = {
        "embeds": {"inputs_embeds": model.get_input_embeddings()(SOURCE), "attention_mask": MASK},
        "encoded": {"encoder_outputs": model.get_encoder()(SOURCE), "attention_mask": MASK},
        "cache": {"input_ids": SOURCE, "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())},
        "synced": {"input_ids": SOURCE, "synced_gpus": True},
        "static": {"input_ids": SOURCE, "cache_implementation": "static"},
        "custom": {
            "input_ids": SOURCE,
            "generation_config": GenerationConfig(num_beams=9, max_length_offset=None),
            "max_length_offset": 50,
        },
        "inputs": {"inputs": SOURCE, "labels": SOURCE, "use_cache": False},
    }

    # The steps stand for another process, whose search takes 60 steps. With `synced_gpus`, and only then, our search
    # must go on until the other search has ended.
    steps = iter(range(60))
    monkeypatch.setattr("torch.distributed.all_reduce", lambda flag, **_: flag.add_(next(steps, -1) >= 0))
    found = model.generate(**ways[given] | options)
    assert (next(steps, None) is None) == (given == "synced")
    kind = VaswaniGreedyOutput if num_beams == 1 else GenerateBeamEncoderDecoderOutput
    assert type(found) is type(expected) is kind
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(found.sequences_scores, expected.sequences_scores, tolerance=1e-5)
    assert (found.past_key_values is None) == (given == "inputs")


def test_an_encoded_source_may_be_a_tuple_as_in_transformers(model):
    options = {"attention_mask": MASK, "output_hidden_states": True, "return_dict_in_generate": True}
    encoded = model.get_encoder()(SOURCE, output_hidden_states=True)
    expected, found = (model.generate(encoder_outputs=each, **options) for each in (encoded, encoded.to_tuple()))
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(found.encoder_hidden_states, expected.encoder_hidden_states)


def test_saving_refuses_an_invalid_length_penalty_type(tmp_path):
    config = VaswaniGenerationConfig(length_penalty_type="words")
    config.validate()
    with pytest.raises(ValueError, match="length_penalty_type must be one of"):
        config.save_pretrained(tmp_path)


def test_alpha_has_the_same_bounds_in_searches_and_recipes():
    assert BOUNDS["length_penalty"] == Number(-MOST_ALPHA, MOST_ALPHA)


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("flex_attention", {}),
        ("sdpa", {"cache_implementation": "offloaded"}),
        ("sdpa", {"cache_implementation": "offloaded_static", "num_beams": 1, "do_sample": True}),
    ],
)
def test_what_needs_a_gpu_is_refused_on_a_cpu(build_tiny_model, attention, options):
    model = build_tiny_model(attention=attention)
    with pytest.raises(ValueError, match="flex_attention and offloaded caches need a GPU: load the model with"):
        model.generate(SOURCE, **options)


def test_a_static_cache_that_may_be_too_short_is_refused(model):
    config = model.config.get_text_config(decoder=True)
    options = {"num_beams": 1, "max_length_offset": None, "max_new_tokens": 4}
    expected = model.generate(SOURCE, **options)
    assert torch.equal(model.generate(SOURCE, **options, past_key_values=StaticCache(config, 4)), expected)
    with pytest.raises(ValueError, match="a cache of 3 tokens is too short for 4: lower max_new_tokens"):
        model.generate(SOURCE, **options, past_key_values=StaticCache(config, 3))


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 1, "length_penalty": 2.0}, {"temperature": 3.0}])
def test_options_without_effect_give_no_warning(build_tiny_model, tmp_path, monkeypatch, options):
    warn = mock.Mock()
    monkeypatch.setattr(configuration_utils.logger, "warning_once", warn)
    model = build_tiny_model()
    source = torch.tensor([[5, 6, 2]])
    model.generate(source, **options)
    model.generation_config.update(**options)
    model.save_pretrained(tmp_path)
    VaswaniForConditionalGeneration.from_pretrained(tmp_path).generate(source)
    warn.assert_not_called()


def test_a_search_records_scores_only_if_it_returns_them():
    options = SearchOptions(eos_token_id=END, pad_token_id=PAD, output_scores=True)
    assert options.start_records() == {}
    assert replace(options, return_dict_in_generate=True).start_records() == {"scores": ()}


def test_search_options_have_the_defaults_of_transformers_except_max_length():
    expected = GenerationConfig()._get_default_generation_params()
    for field in fields(SearchOptions):
        assert field.default == expected.get(field.name, field.default) or field.name == "max_length"
