import copy

import pytest
import torch
from torch import nn

PAD, END = 1, 2
SOURCE = torch.tensor([[9, 2, 1, 1, 1], [5, 6, 7, 8, 2], [21, 9, 30, 2, 1]])
SHORTLIST = [30, 4, 5, 9, 13, 20, 21, 25, 25]
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=2.0, max_length_offset=5, decoder_layers=2)


@pytest.fixture(scope="module")
def forbidding(model):
    """The same model with the logits of all other words at -inf."""
    forbidding = copy.deepcopy(model)
    others = [word for word in range(37) if word not in {*SHORTLIST, END}]
    with torch.no_grad():
        forbidding.lm_head.bias[others] = -torch.inf
    return forbidding


@pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 4},
        {"num_beams": 1},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 4},
        {"decoder_input_ids": torch.tensor([[0, 7, 11]] * 3)},
        {"forced_bos_token_id": 33},
        {"forced_eos_token_id": END},
        {"prefix_allowed_tokens_fn": lambda _, tokens: [END, 5, 9, 25]},
        {"use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=" ".join,
)
def test_a_shortlist_equals_forbidding_all_other_words(model, forbidding, options):
    expected = forbidding.generate(SOURCE, **WITH_SCORES, **options)
    with_scores = model.generate(SOURCE, shortlist=torch.tensor(SHORTLIST), **WITH_SCORES, **options)
    brief = model.generate(SOURCE, shortlist=SHORTLIST, **options)
    assert torch.equal(with_scores.sequences, expected.sequences)
    assert torch.equal(brief, expected.sequences)
    if expected.get("sequences_scores") is not None:
        torch.testing.assert_close(with_scores.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-5)


def test_scores_are_over_the_whole_vocabulary(model):
    found = model.generate(SOURCE, shortlist=SHORTLIST, output_logits=True, **WITH_SCORES)
    limit = (SOURCE[0] != PAD).sum() + model.generation_config.max_length_offset
    for length in range(1, limit + 1):
        scores, logits = (step[length - 1][0] for step in (found.scores, found.logits))
        assert len(scores) == len(logits) == 37
        assert logits.isfinite().nonzero()[:, 0].tolist() == sorted({*SHORTLIST, END})
        assert scores.isfinite().nonzero()[:, 0].tolist() == (sorted({*SHORTLIST, END}) if length < limit else [END])
    transitions = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    lengths = (found.beam_indices >= 0).sum(dim=-1)
    expected = found.sequences_scores * ((5 + lengths) / 6) ** 0.6
    torch.testing.assert_close(transitions.sum(dim=-1), expected, rtol=0, atol=1e-5)


def test_the_product_is_made_for_the_shortlist_alone(model, monkeypatch):
    widths, engine = [], model.build_engine()
    own = nn.functional.linear

    def counted(x, weight, bias=None):
        widths.append(weight.shape[0])
        return own(x, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", counted)
    model.generate(SOURCE, shortlist=SHORTLIST, engine=engine)
    assert 37 not in widths
    assert 9 in widths


@pytest.mark.parametrize(
    ("shortlist", "message"),
    [
        ([], r"shortlist must be token ids, one row of at least one integer, got a \(0,\) of torch.float32"),
        ([[4, 5]], r"got a \(1, 2\) of torch.int64"),
        ([0.5, 1.5], r"got a \(2,\) of torch.float32"),
        (torch.ones(37, dtype=torch.bool), r"got a \(37,\) of torch.bool"),
        ([4, 37], "shortlist must hold ids from 0 to 36, got 4 to 37"),
        ([-1, 4], "shortlist must hold ids from 0 to 36, got -1 to 4"),
    ],
    ids=str,
)
def test_what_is_no_shortlist_is_refused(model, shortlist, message):
    with pytest.raises(ValueError, match=message):
        model.generate(SOURCE, shortlist=shortlist)
