"""Beam search, greedy search and sampling: results, scores, limits, prompts, batches and caches."""

import copy
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from shortcuts import END, PAD, SENTENCES, START, each_case
from tiny_training import assert_close
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.cache_utils import DynamicLayer, StaticLayer

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.engine.search import FastBeamSearch
from vaswani_transformer.evaluation.likelihood import score
from vaswani_transformer.model.search_vaswani import LENGTH_PENALTIES, BeamSearch, SearchOptions, agree

# Sentences of 2, 5, 7 and 4 tokens, </s> included.
LENGTHS = [2, 5, 7, 4]


def batch_of(sentences: list[list[int]], side: str = "right") -> torch.LongTensor:
    """Return a batch of sentences, padded on one side."""
    return pad_sequence([*map(torch.tensor, sentences)], batch_first=True, padding_value=PAD, padding_side=side)


SOURCE = batch_of(SENTENCES)


def new_tokens(row: torch.Tensor, prompt_length: int = 1) -> list[int]:
    """Return the tokens after the prompt, up to and including the first </s>."""
    tokens = row[prompt_length:].tolist()
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


SMALL = {"noise": 0.4, "encoder_layers": 1, "decoder_layers": 2}
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def model(build_tiny_model):
    """Return a model that rarely ends a translation. Noise makes its distributions uneven, so the beam size matters."""
    model = build_tiny_model(**SMALL)
    model.generation_config.max_length_offset = 4
    return model


@pytest.fixture(scope="module")
def endless(build_ending_model):
    """Return a model that generates </s> only where it is forced to."""
    return build_ending_model(end_bias=-100.0, max_length_offset=4, decoder_layers=2)


@pytest.fixture(scope="module")
def brief(build_ending_model):
    """Return a model that ends many hypotheses after a few words."""
    return build_ending_model(end_bias=4.0, max_length_offset=9, decoder_layers=2)


# Faulty caches, as another version of transformers may have


def forget_first_token(layer):
    """Return the name of a cache's method, and a replacement that sets the keys of the first token to zero."""
    update = layer.update

    def update_and_forget(self, *args, **kwargs):
        keys, values = update(self, *args, **kwargs)
        return keys * (torch.arange(keys.shape[2])[:, None] > 0), values

    return "update", update_and_forget


def forget_positions(layer):
    """Return the name of a cache's method, and a replacement that always returns a length of 0."""
    return "get_seq_length", lambda self, *_: 0


# Options of `generate()`. Without an engine, sampling with one beam is left to transformers' own loop. With `top_k=1`
# this loop has only one choice, so its results can be compared.
WITHOUT_ENGINE = {
    "beams": {},
    "greedy": {"num_beams": 1},
    "static": {"cache_implementation": "static"},
    "loop of transformers": {"do_sample": True, "num_beams": 1, "top_k": 1, "max_new_tokens": 6},
}


@each_case("options", WITHOUT_ENGINE)
@pytest.mark.parametrize("broken", [forget_first_token, forget_positions])
def test_a_cache_that_changes_the_logits_is_detected_and_not_used(build_tiny_model, monkeypatch, options, broken):
    monkeypatch.setattr(VaswaniForConditionalGeneration, "faster", None)
    model = build_tiny_model(**SMALL)
    warnings = []
    without_cache = options | {"use_cache": False, "cache_implementation": None}
    expected = model.generate(SOURCE, **without_cache)
    for kind in (DynamicLayer, StaticLayer):
        monkeypatch.setattr(kind, *broken(kind))
    monkeypatch.setattr("vaswani_transformer.model.search_vaswani.logger.warning", warnings.append)
    for _ in range(2):
        assert torch.equal(model.generate(SOURCE, **options), expected)
    assert len(warnings) == 1  # The second call knows the result of the first comparison.
    assert f"in transformers {transformers.__version__} and torch {torch.__version__}" in warnings[0]


def test_a_cache_may_be_passed_as_past_key_values_or_cache_and_unknown_arguments_are_refused(build_tiny_model):
    model = build_tiny_model(**SMALL)
    ids = torch.tensor([[START, 5, 6]])
    expected = model(SOURCE[:1], decoder_input_ids=ids).logits[:, -1]
    for name in ("past_key_values", "cache"):
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        model(SOURCE[:1], decoder_input_ids=ids[:, :2], **{name: cache})
        found = model(SOURCE[:1], decoder_input_ids=ids[:, 2:], **{name: cache}).logits[:, -1]
        torch.testing.assert_close(found, expected)
    for part in (model, model.model, model.get_decoder()):
        with pytest.raises(ValueError, match="past_key_values and cache are two names of one argument"):
            part(ids, past_key_values=cache, cache=cache)
        with pytest.raises(TypeError, match=r"forward\(\) has no argument 'past_key_value'"):
            part(ids, past_key_value=cache)
    with pytest.raises(TypeError, match=r"VaswaniEncoder.forward\(\) has no argument 'padding_mask'"):
        model.get_encoder()(SOURCE, padding_mask=SOURCE)


# The length penalty


@pytest.mark.parametrize(
    ("penalty", "lengths", "alpha", "expected"),
    [
        ("gnmt", [1, 25], 0.6, [1.0, 5**0.6]),
        ("gnmt", [1, 7, 19], 1.0, [1.0, 2.0, 4.0]),
        ("gnmt", [30, 49], 0.0, [1.0, 1.0]),
        ("power", [1, 9], 0.5, [1.0, 3.0]),
        ("power", [9], 0.0, [1.0]),
        ("power", [1, 4], -1, [1.0, 0.25]),
        ("power", [100], 10, [1e20]),
    ],
)
def test_length_penalties_agree_with_values_computed_by_hand(penalty, lengths, alpha, expected):
    penalty = LENGTH_PENALTIES[penalty]
    assert [penalty(length, alpha) for length in lengths] == pytest.approx(expected)
    assert penalty(torch.tensor(lengths), alpha).tolist() == pytest.approx(expected)


def test_the_default_search_has_the_settings_of_the_paper(tiny_model):
    config = tiny_model.generation_config
    assert (config.num_beams, config.length_penalty, config.length_penalty_type) == (4, 0.6, "gnmt")
    assert (config.max_length_offset, config.early_stopping) == (50, "never")


# Which sentences stay in the batch, and which logits agree


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_open_sentences_stay_in_the_batch_and_batches_have_few_sizes(done):
    staying = FastBeamSearch.find_staying(None, done)
    places = list(range(len(done))) if staying is None else staying
    still_open = {place for place, is_done in enumerate(done) if not is_done}
    assert still_open <= set(places)
    assert len(set(places)) == len(places)
    assert len(places) - len(still_open) <= max(0, len(still_open) // 4) or staying is None
    if staying is not None:
        assert len(places) < len(done)
        assert len(places) in {0, *range(1, 9), *(unit * step for unit in (2, 4, 8, 16, 32) for step in range(5, 9))}


def test_logits_that_forbid_different_words_do_not_agree():
    logits = torch.tensor([[0.0, 1.0]])
    assert agree(logits, logits + 1e-7)
    assert agree(logits * 1.01, logits.bfloat16())  # The coarser dtype decides.
    assert not agree(logits, torch.tensor([[0.0, -torch.inf]]))


def test_logits_that_differ_for_one_word_only_do_not_agree_even_in_half_precision():
    logits = torch.linspace(-3, 3, 10_000)[None]
    expected = logits.bfloat16()
    logits[0, 5] -= 4  # 2 % of the norm of all logits, which is less than bfloat16 may round
    assert not agree(logits, expected)


# Finding the best sums of a score and a log-probability


@pytest.mark.parametrize("count", [1, 8, 42, 300])
@pytest.mark.parametrize(
    ("num_sentences", "num_beams", "vocab_size"), [(16, 4, 2048), (10, 5, 2303), (4, 4, 10_000), (2, 2, 37_001)]
)
def test_finding_the_best_sums_agrees_with_sorting_all_sums(num_sentences, num_beams, vocab_size, count):
    torch.manual_seed(0)
    log_probs = torch.stack([torch.randperm(num_beams * vocab_size) for _ in range(num_sentences)]).float()
    log_probs = log_probs.unflatten(1, (num_beams, vocab_size))
    scores = torch.randint(1000, (num_sentences, num_beams)).float() + torch.arange(num_beams) / num_beams
    sums, beams, words = FastBeamSearch.best_sums(SimpleNamespace(scores=scores), log_probs, count)
    expected = (scores[..., None] + log_probs).flatten(1).topk(count)
    assert torch.equal(sums, expected.values)
    assert torch.equal(beams * vocab_size + words, expected.indices)


# When hypotheses and searches end


def test_with_a_negative_alpha_a_search_goes_on_while_an_open_hypothesis_can_win():
    limits = torch.tensor([20])
    options = SearchOptions(
        num_beams=2,
        length_penalty=-1.0,
        length_penalty_type="power",
        early_stopping="never",
        eos_token_id=END,
        pad_token_id=PAD,
    )
    search = BeamSearch(torch.full((1, 1), START), options, limits=limits, must_end=limits > 0)
    # The finished hypothesis "</s>" gets the score -2. An open hypothesis has log P = -1, so its score is -1 with the
    # present penalty, 1. With the penalty at the limit, 1 / 20, its score would be -20, and the search would end.
    search.advance(torch.tensor([[-9.0, -9.0, -2.0, -1.0]] * 2), None)
    assert not search.done.any()


def test_the_beam_stays_full_when_many_hypotheses_end(model):
    # Each of the four likeliest words ends a hypothesis. So the two open hypotheses, 20 and 30, are only the fifth and
    # the sixth best continuation. The hypothesis 30 wins, because 30 is by far the likeliest word after 30.
    biases = {(END,): 60.0, (3,): 50.0, (4,): 40.0, (5,): 30.0, (20,): 20.0, (30,): 10.0, (30, 30): 500.0}
    found = model.generate(SOURCE, num_beams=2, eos_token_id=[END, 3, 4, 5], sequence_bias=biases)
    assert (found[:, 1:3] == 30).all()


# Scores


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 5},
        {"min_length": 7},
        {"forced_eos_token_id": END},
        {"forced_eos_token_id": END, "length_penalty_type": "power"},
        {"decoder_input_ids": torch.tensor([[START, 5, 6]] * 4), "forced_eos_token_id": END},
        {"bad_words_ids": [[5]], "renormalize_logits": True, "forced_eos_token_id": END},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("fixture", ["brief", "endless"])
def test_transition_scores_add_up_to_the_score_of_the_sequence_times_its_length_penalty(
    request, fixture, options, alpha
):
    model = request.getfixturevalue(fixture)
    found = model.generate(SOURCE, length_penalty=alpha, num_return_sequences=3, **WITH_SCORES, **options)
    transitions = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    lengths = (found.beam_indices >= 0).sum(dim=-1)
    penalty = LENGTH_PENALTIES[options.get("length_penalty_type", "gnmt")]
    totals = found.sequences_scores * penalty(lengths, alpha)
    assert_close(transitions.sum(dim=-1), totals, tolerance=3e-5)
    if "forced_eos_token_id" in options and fixture == "endless":
        assert (totals > -60).all()  # a forced </s> adds 0 to the total, and not its log-probability of about -100


def test_attentions_and_states_of_each_step_are_recorded(model):
    found = model.generate(SOURCE, return_dict_in_generate=True, output_attentions=True, output_hidden_states=True)
    steps = found.sequences.shape[1] - 1
    assert len(found.decoder_hidden_states) == steps
    assert [step[0].shape for step in found.cross_attentions] == [(16, 3, 1, 7)] * steps
    assert [step[0].shape[-1] for step in found.decoder_attentions] == list(range(1, steps + 1))
    assert [weights.shape for weights in found.encoder_attentions] == [(4, 3, 7, 7)]


# Length


SEARCHES = {
    "beam": {"num_beams": 4},
    "greedy": {"num_beams": 1},
    "beam sampling": {"num_beams": 3, "do_sample": True},
}
each_search = each_case("options", SEARCHES)


@each_search
@pytest.mark.parametrize("side", ["right", "left"])
def test_each_sentence_may_grow_to_its_limit(endless, options, side):
    torch.manual_seed(0)
    for row, length in zip(endless.generate(batch_of(SENTENCES, side), **options).tolist(), LENGTHS, strict=True):
        assert row.index(END) == length + 4
        assert set(row[length + 5 :]) <= {PAD}


# Each case has options and a function. For the length of a source, the function returns the length of the translation,
# and True if the translation ends with </s>.
LIMITS = {
    "more new tokens": ({"max_new_tokens": 30}, lambda length: (length + 4, True)),
    "fewer new tokens": ({"max_new_tokens": 9}, lambda length: (min(9, length + 4), length + 4 <= 9)),
    "a shorter length": ({"max_length": 7}, lambda length: (min(6, length + 4), length + 4 <= 6)),
    "offset of a call": ({"max_length_offset": 1}, lambda length: (length + 1, True)),
    "offset of a config": (
        {"generation_config": GenerationConfig(max_length_offset=1)},
        lambda length: (length + 1, True),
    ),
    "an offset below all lengths": ({"max_length_offset": -100}, lambda length: (1, True)),
    "no offset": ({"max_length_offset": None, "max_new_tokens": 13}, lambda length: (13, False)),
    "a forced end": ({"max_new_tokens": 7, "forced_eos_token_id": END}, lambda length: (min(7, length + 4), True)),
}


@each_search
@each_case(("limit", "expected"), LIMITS)
def test_a_translation_ends_at_the_smallest_limit(endless, options, limit, expected):
    torch.manual_seed(0)
    new = map(new_tokens, endless.generate(SOURCE, **limit, **options))
    assert [(len(tokens), tokens[-1] == END) for tokens in new] == list(map(expected, LENGTHS))


def test_a_very_large_limit_takes_no_memory(brief):
    near, far = (brief.generate(SOURCE, length_penalty=0.0, max_length_offset=n) for n in (50, 10**9))
    assert torch.equal(near, far)


# Prompts


PROMPTS = {
    "with start": ([[START, 5, 6]] * 4, {}),
    "without start": ([[5, 6]] * 4, {}),
    # As in transformers, the start token is added only if no row begins with it.
    "start in one row": ([[START, 5], [6, 7], [6, 7], [6, 7]], {}),
    "another start token": ([[20, 5]] * 4, {"decoder_start_token_id": 20}),
}


@each_search
@each_case(("prompt", "more"), PROMPTS)
def test_a_prompt_begins_the_translation_and_does_not_count_towards_the_limit(endless, options, prompt, more):
    translations = endless.generate(SOURCE, decoder_input_ids=torch.tensor(prompt), **options, **more)
    expected_start = [[START, *row] for row in prompt] if prompt[0] == [5, 6] else prompt
    assert translations[:, : len(expected_start[0])].tolist() == expected_start
    assert [len(new_tokens(row, len(expected_start[0]))) for row in translations] == [length + 4 for length in LENGTHS]


# Padding and masks


@each_search
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_mask_is_derived_from_the_padding(model, options, side):
    source = batch_of(SENTENCES, side)
    results = []
    for mask in ({}, {"attention_mask": (source != PAD).long()}):
        torch.manual_seed(0)
        results.append(model.generate(source, **mask, **options))
    assert torch.equal(*results)


@each_search
def test_the_end_token_may_also_be_the_padding_if_a_mask_is_given(brief, options):
    padded_with_end = copy.deepcopy(brief)
    padded_with_end.config.pad_token_id = padded_with_end.generation_config.pad_token_id = END
    results = []
    for model, source in ((brief, SOURCE), (padded_with_end, SOURCE.masked_fill(SOURCE == PAD, END))):
        torch.manual_seed(0)
        found = model.generate(source, attention_mask=(SOURCE != PAD).long(), **options)
        results.append([new_tokens(row) for row in found])
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="padding and </s> cannot be distinguished"):
        padded_with_end.generate(SOURCE, **options)


def test_the_limit_of_an_encoded_source_without_a_mask_counts_all_its_positions(endless):
    encoded = endless.get_encoder()(SOURCE[2:3])
    for use_cache in (True, False):  # True: an engine decodes; False: `forward` does
        assert len(new_tokens(endless.generate(encoder_outputs=encoded, use_cache=use_cache)[0])) == 7 + 4


# Precision


def test_a_model_in_bfloat16_searches_in_float32(brief):
    found = copy.deepcopy(brief).to(torch.bfloat16).generate(SOURCE, **WITH_SCORES)
    assert found.sequences_scores.dtype == torch.float32
    assert found.sequences_scores.isfinite().all()


# Other options of generate()


def test_sampled_beams_have_the_scores_of_teacher_forcing(brief):
    torch.manual_seed(0)
    sampling = {"do_sample": True, "top_k": 0, "num_beams": 3, "num_return_sequences": 2}
    found = brief.generate(SOURCE, max_length_offset=4, **sampling, **WITH_SCORES)  # some sentences end before others
    expected = score(brief, SOURCE, found.sequences[:, 1:]).scores
    assert_close(found.sequences_scores, expected, tolerance=1e-5)


@each_search
@pytest.mark.parametrize("without_end", [{"min_new_tokens": 10}, {"suppress_tokens": [END]}, {"eos_token_id": None}])
def test_a_sentence_that_cannot_end_stops_at_its_limit(endless, options, without_end):
    tokens = endless.generate(SOURCE, **options, **without_end)
    for row, length in zip(tokens, LENGTHS, strict=True):
        assert (row[length + 5 :] == PAD).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_no_sentence_outgrows_the_table_of_learned_positions(build_ending_model, num_beams):
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 8}
    model = build_ending_model(end_bias=-100.0, max_length_offset=50, **learned)
    tokens = model.generate(SOURCE, num_beams=num_beams)
    assert tokens.shape[1] == 1 + 8
    assert (tokens[:, -1] == END).all()
    tokens = model.generate(SOURCE, num_beams=num_beams, max_length_offset=None, max_new_tokens=30)
    assert tokens.shape[1] == 1 + 8
    assert (tokens[:, -1] != END).all()  # Without an offset, the table cuts a translation, and forces no </s>.
    model = build_ending_model(end_bias=-100.0, max_length_offset=5, max_position_embeddings=8)
    assert model.generate(SOURCE, num_beams=num_beams).shape[1] == 1 + max(LENGTHS) + 5  # Sinusoids have no limit.


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_are_empty_if_a_processor_forbids_all_words(model, num_beams):
    found = model.generate(SOURCE, num_beams=num_beams, logits_processor=[lambda _, scores: scores - torch.inf])
    assert found.tolist() == [[START]] * len(SOURCE)


def test_hypotheses_that_the_search_cannot_find_are_empty(model):
    # The source has 2 tokens, so the limit is 2 - 1 tokens, which leaves room only for </s>.
    found = model.generate(SOURCE[:1], max_length_offset=-1, num_return_sequences=3, **WITH_SCORES)
    assert found.sequences.tolist() == [[START, END], [START, PAD], [START, PAD]]
    assert found.sequences_scores.isneginf().tolist() == [False, True, True]
    assert (found.beam_indices >= 0).tolist() == [[True], [False], [False]]


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_returned_cache_keeps_the_rows_of_finished_sentences(brief, as_dict):
    given_cache = {} if as_dict else {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}
    # If hidden states are asked for or a cache is given, `forward` decodes with a cache, instead of an engine.
    options = {"num_beams": 2, "return_dict_in_generate": as_dict, "output_hidden_states": as_dict}
    found = brief.generate(SOURCE, **options, **given_cache)
    cache = found.past_key_values if as_dict else given_cache["past_key_values"]
    for part in (cache.self_attention_cache, cache.cross_attention_cache):
        assert len(part.layers[0].keys) == 2 * len(SOURCE)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("uses_engine", [True, False])
@pytest.mark.parametrize(("factor", "dtype"), [(1e6, torch.float16), (torch.nan, torch.float32)])
def test_scores_that_are_not_finite_raise_an_error(build_tiny_model, factor, dtype, uses_engine, num_beams):
    model = build_tiny_model(**SMALL, dtype=dtype)
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc2.weight.mul_(factor)
    options = {"engine": model.build_engine()} if uses_engine else {"use_cache": False}
    with pytest.raises(FloatingPointError, match="not finite numbers"):
        model.generate(SOURCE, num_beams=num_beams, **options)


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 30}, {"max_length": 30}])
def test_sampling_stops_at_the_longest_limit_of_the_batch(endless, options):
    samples = endless.generate(SOURCE, num_beams=1, do_sample=True, **options)
    assert samples.shape[1] == 1 + max(LENGTHS) + 4


def test_a_processor_may_forbid_all_words_after_the_end(brief):
    def forbid(tokens, scores):
        return scores.masked_fill((tokens[:, 1:] == END).any(dim=-1, keepdim=True), -torch.inf)

    expected = brief.generate(SOURCE, num_beams=1)
    assert torch.equal(brief.generate(SOURCE, num_beams=1, logits_processor=[forbid]), expected)
