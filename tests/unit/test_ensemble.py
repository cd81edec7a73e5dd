"""Ensembles: several models that search together, by the mean of their probabilities."""

import functools

import pytest
import torch
from shortcuts import SOURCE
from tiny_training import assert_close

from vaswani_transformer.translation.ensemble import Ensemble, mean_log_probs

WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def build(build_ending_model):
    """Return a function that builds a model with short translations."""
    return functools.partial(build_ending_model, end_bias=3.0, max_length_offset=5, decoder_layers=2)


@pytest.fixture(scope="module")
def model(build):
    return build()


def test_the_mean_of_equal_probabilities_is_exact():
    logits = torch.randn(3, 50)
    for count in range(1, 12):
        assert torch.equal(mean_log_probs([logits] * count), logits.log_softmax(-1))


def test_a_word_that_only_one_of_the_models_forbids_is_still_possible():
    log_probs = [torch.tensor([-torch.inf, 0.0]), torch.tensor([0.5, 0.5]).log()]
    torch.testing.assert_close(mean_log_probs(log_probs).exp(), torch.tensor([0.25, 0.75]))
    assert mean_log_probs([torch.tensor([-torch.inf, 0.0])] * 2).tolist() == [-torch.inf, 0.0]


@pytest.mark.parametrize("num_copies", [1, 2, 4])
@pytest.mark.parametrize("is_engine", [True, False], ids=["engines", "models"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 4},
        {"num_beams": 1},
        {"no_repeat_ngram_size": 2},
        {"decoder_input_ids": torch.tensor([[0, 5, 6], [0, 4, 8], [0, 9, 4]])},
    ],
    ids=str,
)
def test_an_ensemble_of_copies_translates_as_the_model(model, options, is_engine, num_copies):
    member = model.build_engine() if is_engine else model
    alone = model.generate(SOURCE, **WITH_SCORES, **options)
    together = model.generate(SOURCE, engine=Ensemble([member] * num_copies), **WITH_SCORES, **options)
    assert torch.equal(together.sequences, alone.sequences)
    assert_close(together.sequences_scores, alone.sequences_scores, tolerance=1e-5)
    tokens = model.generate(SOURCE, engine=Ensemble([member] * num_copies), **options)
    assert torch.equal(tokens, alone.sequences)


def test_the_logits_of_an_ensemble_are_log_probabilities(model, build):
    options = {"output_logits": True, "return_dict_in_generate": True}
    found = model.generate(SOURCE, engine=Ensemble([model, build(seed=7)]), **options)
    torch.testing.assert_close(found.logits[0].exp().sum(-1), torch.ones(len(found.logits[0])))


# Limits, and options that are refused


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 41), ("eos_token_id", 3), ("decoder_start_token_id", 5)])
def test_models_with_different_vocabularies_are_refused(model, build, name, value):
    ours = getattr(model.config, name)
    with pytest.raises(ValueError, match=rf"one vocabulary, but their values of {name} are \[{ours}, {value}\]"):
        Ensemble([model, build(**{name: value})])


def test_the_shortest_table_of_positions_limits_the_length(model, build_tiny_model):
    with_table = build_tiny_model(position_embedding_type="learned", max_position_embeddings=8)
    found = model.generate(SOURCE[:1, :3], engine=Ensemble([model, with_table]), max_length_offset=50)
    assert found.shape[1] <= 1 + 8


def test_an_ensemble_refuses_encoder_outputs(model):
    encoded = model.get_encoder()(SOURCE[1:2])
    with pytest.raises(ValueError, match="an ensemble cannot use encoder_outputs"):
        model.generate(encoder_outputs=encoded, engine=Ensemble([model]))


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "num_beams": 1, "num_return_sequences": 2},
        {"prompt_lookup_num_tokens": 3, "num_beams": 1},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"custom_generate": lambda *_, **__: None},
    ],
    ids=" ".join,
)
def test_ensembles_and_engines_refuse_options_that_need_a_model(model, options):
    engine = model.build_engine()
    for searcher, argument in ((model, {"engine": Ensemble([model])}), (engine, {})):
        with pytest.raises(ValueError, match=r"an engine cannot decode with .*: call generate"):
            searcher.generate(SOURCE, **argument, **options)
