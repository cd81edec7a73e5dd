import copy
import math

import pytest
import torch

from vaswani_transformer.model.coverage_vaswani import BeamCoverage, compute_coverage, coverage_penalty

PAD, END = 1, 2
SOURCE = torch.tensor([[9, 2, 1, 1, 1], [5, 6, 7, 8, 2], [21, 9, 30, 2, 1]])
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=3.0, max_length_offset=6, decoder_layers=2)


def test_the_penalty_by_hand():
    coverage = torch.tensor([[0.5, 2.0, 0.25, 0.1], [1.0, 1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    expected = torch.tensor([math.log(0.5) + math.log(0.25), 0.0])
    torch.testing.assert_close(coverage_penalty(coverage, mask), expected)


def test_a_word_without_attention_costs_much_but_not_everything():
    penalty = coverage_penalty(torch.tensor([0.0, 1.0]), torch.tensor([True, True]))
    assert -90 < penalty < -80


def test_coverage_is_that_of_the_last_layer_s_mean_head():
    first, last = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    expected = last.mean(dim=1).sum(dim=1)
    torch.testing.assert_close(compute_coverage((first, last), None), expected)
    expected[1] = last[1].mean(dim=0)[1:].sum(dim=0)
    torch.testing.assert_close(compute_coverage((first, last), mask), expected)


def test_coverage_follows_its_hypothesis():
    coverage = BeamCoverage(torch.ones(2, 3, dtype=torch.bool), num_beams=2, beta=1.0)
    steps = [torch.rand(4, 1, 1, 3) for _ in range(2)]
    coverage.add([(steps[0],)])
    coverage.follow(torch.tensor([[1, 1], [1, 0]]), torch.tensor([1]))
    coverage.add([(steps[1][2:],)])
    expected = torch.stack([steps[0][3] + steps[1][2], steps[0][2] + steps[1][3]]).view(1, 2, 3)
    torch.testing.assert_close(coverage.coverage, expected)


@pytest.mark.parametrize("early_stopping", ["never", False, True])
def test_without_a_weight_nothing_changes(model, early_stopping):
    options = {"early_stopping": early_stopping, **WITH_SCORES}
    given = ({}, {"coverage_penalty": 0.0}, {"coverage_penalty": None})
    expected, *others = (model.generate(SOURCE, **options, **more) for more in given)
    for actual in others:
        assert torch.equal(actual.sequences, expected.sequences)
        assert torch.equal(actual.sequences_scores, expected.sequences_scores)


def test_the_penalty_makes_translations_cover_more(model):
    covered = []
    for beta in (0.0, 5.0):
        found = model.generate(SOURCE, num_beams=8, coverage_penalty=beta)
        with_penalty = model.score(SOURCE, found[:, 1:], length_penalty=0.0, coverage_penalty=1.0)
        covered.append((with_penalty.scores - with_penalty.log_probs).sum().item())
    assert covered[0] < covered[1] <= 0


def test_padding_of_the_source_costs_nothing(model):
    options = {"coverage_penalty": 0.5, **WITH_SCORES}
    together = model.generate(SOURCE, **options).sequences_scores
    sources = [row[row != PAD][None] for row in SOURCE]
    alone = torch.cat([model.generate(source, **options).sequences_scores for source in sources])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_asking_for_coverage_records_no_attention(model):
    found = model.generate(SOURCE, coverage_penalty=0.5, return_dict_in_generate=True)
    assert found.get("cross_attentions") is None
    full = model.generate(SOURCE, coverage_penalty=0.5, return_dict_in_generate=True, output_attentions=True)
    assert torch.equal(found.sequences, full.sequences)
    assert full.cross_attentions[0][0].shape == (12, 3, 1, 5)


def test_the_words_of_a_prompt_cover_something(model):
    prompt = torch.tensor([[0, 5, 6]] * 3)
    found = model.generate(SOURCE, decoder_input_ids=prompt, coverage_penalty=0.5, **WITH_SCORES)
    for i, row in enumerate(found.sequences):
        words = row[1:]
        scores = model.score(SOURCE[i : i + 1], words[None], length_penalty=0.0, coverage_penalty=0.5)
        length = int(scores.lengths) - 2
        log_prob = scores.token_log_probs[0, 2:].sum()
        expected = log_prob / ((5 + length) / 6) ** 0.6 + (scores.scores - scores.log_probs)[0]
        assert found.sequences_scores[i].item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_padding_of_a_prompt_covers_nothing(model):
    prompt, options = torch.tensor([[PAD, 0, 5], [0, 8, 6], [PAD, PAD, 0]]), {"coverage_penalty": 0.5, **WITH_SCORES}
    together = model.generate(SOURCE, decoder_input_ids=prompt, decoder_start_token_id=[0, 0, 0], **options)
    for i, row in enumerate(prompt):
        alone = model.generate(SOURCE[i : i + 1], decoder_input_ids=row[row != PAD][None], **options)
        assert together.sequences_scores[i].item() == pytest.approx(alone.sequences_scores.item(), abs=1e-5)


def test_a_kernel_without_weights_is_refused(build_tiny_model):
    model = build_tiny_model()
    encoded = model.get_encoder()(SOURCE[1:2])
    model.config._attn_implementation = "flex_attention"
    message = "coverage_penalty counts attention weights, and attn_implementation='flex_attention' cannot give them"
    with pytest.raises(ValueError, match=message):
        model.generate(encoder_outputs=encoded, coverage_penalty=0.5)
    with pytest.raises(ValueError, match=message):
        model.score(SOURCE, SOURCE, coverage_penalty=0.5)


def test_a_model_in_float64_is_searched_with_coverage_too(model):
    options = {"coverage_penalty": 0.4, **WITH_SCORES}
    found, expected = copy.deepcopy(model).double().generate(SOURCE, **options), model.generate(SOURCE, **options)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


def test_an_engine_keeps_its_precision_when_its_model_changes_and_can_encode_for_coverage(model):
    model = copy.deepcopy(model)
    engine = model.build_engine()
    expected = model.generate(SOURCE, engine=engine, **WITH_SCORES).sequences_scores
    model.bfloat16()
    assert torch.equal(model.generate(SOURCE, engine=engine, **WITH_SCORES).sequences_scores, expected)
    tokens = model.generate(SOURCE, coverage_penalty=0.4, engine=engine)
    assert torch.equal(tokens, model.generate(SOURCE, coverage_penalty=0.4))
