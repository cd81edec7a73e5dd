"""`generate()` finds what a beam search in plain Python finds, token for token.

That search is the one of `scripts/check_beam_search.py`, which does the same with trained models and real sentences.
"""

import copy

import check_beam_search
import pytest
import torch

from vaswani_transformer import train_tokenizer
from vaswani_transformer.translation.ensemble import Ensemble

START, PAD, END = 0, 1, 2
SENTENCES = [[9, 2], [5, 6, 7, 8, 2], [21, 9, 30, 4, 12, 35, 2], [8, 3, 21, 2]]
SOURCE = torch.tensor([sentence + [PAD] * (7 - len(sentence)) for sentence in SENTENCES])
OFFSET = 8
SIZES = {"noise": 0.4, "encoder_layers": 1, "decoder_layers": 2, "output_bias": True}
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


def build(build_tiny_model, **changes):
    """A model that ends hypotheses of many lengths."""
    model = build_tiny_model(**SIZES | changes)
    model.generation_config.max_length_offset = OFFSET
    with torch.no_grad():
        model.lm_head.bias[END] += 3.0
    return model


@pytest.fixture(scope="module")
def model(build_tiny_model):
    return build(build_tiny_model)


@pytest.fixture(scope="module")
def other(build_tiny_model):
    return build(build_tiny_model, seed=5, d_model=20, encoder_layers=2, decoder_layers=1)


def words_of(model, source):
    return check_beam_search.words_of_model(copy.deepcopy(model).double(), source)


def compare(model, expected_of, *, num_best: int, **options) -> None:
    """`expected_of(i)` is (score, tokens) of the best translations of sentence i."""
    found = model.generate(SOURCE, num_return_sequences=num_best, **WITH_SCORES, **options)
    for i in range(len(SENTENCES)):
        expected, rows = expected_of(i), range(num_best * i, num_best * (i + 1))
        for row, (score, tokens) in zip(rows, expected, strict=True):
            actual = found.sequences[row, 1:].tolist()
            assert tuple(actual[: len(tokens)]) == tokens
            assert set(actual[len(tokens) :]) <= {PAD}
            if found.get("sequences_scores") is not None:
                assert found.sequences_scores[row].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("num_beams", "alpha", "stops_early"),
    [
        *((num_beams, 0.6, True) for num_beams in (1, 2, 3, 5, 8, 13, 21)),
        *((4, alpha, stops_early) for alpha in (0.0, 0.3, 1.0) for stops_early in (False, True)),
    ],
)
def test_every_beam_agrees_with_the_plain_search(model, num_beams, alpha, stops_early):
    num_best = min(3, num_beams)

    def expected_of(i):
        return check_beam_search.search(
            words_of(model, SENTENCES[i]),
            num_beams=num_beams,
            limit=len(SENTENCES[i]) + OFFSET,
            alpha=alpha,
            end=END,
            num_best=num_best,
            stops_early=stops_early,
        )

    compare(model, expected_of, num_best=num_best, num_beams=num_beams, length_penalty=alpha)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_ensemble_agrees_with_the_plain_search_over_mean_probabilities(model, other, num_beams):
    def expected_of(i):
        both = [words_of(member, SENTENCES[i]) for member in (model, other)]

        def mean(hypotheses):
            log_probs = torch.tensor([words(hypotheses) for words in both], dtype=torch.float64)
            return log_probs.exp().mean(dim=0).log().tolist()

        return check_beam_search.search(
            mean, num_beams=num_beams, limit=len(SENTENCES[i]) + OFFSET, alpha=0.6, end=END, num_best=min(2, num_beams)
        )

    compare(
        model,
        expected_of,
        num_best=min(2, num_beams),
        num_beams=num_beams,
        engine=Ensemble([model.build_engine(), other]),
    )


@pytest.mark.parametrize("bias", [-2.0, 6.0])
def test_a_bias_agrees_with_the_plain_search_to_the_limit(build_tiny_model, bias):
    # With 6, log P rises above 0 where 25 follows 25: a hypothesis far behind one that ended at once wins in the end.
    model = build(build_tiny_model)
    with torch.no_grad():
        model.lm_head.bias[END] += 3.0

    def expected_of(i):
        words = words_of(model, SENTENCES[i])

        def biased(hypotheses):
            rows = words(hypotheses)
            for hypothesis, row in zip(hypotheses, rows, strict=True):
                if hypothesis[-1:] == (25,):
                    row[25] += bias
            return rows

        limit = len(SENTENCES[i]) + OFFSET
        return check_beam_search.search(biased, num_beams=4, limit=limit, alpha=0.6, end=END, stops_early=False)

    compare(model, expected_of, num_best=1, num_beams=4, sequence_bias={(25, 25): bias})


def test_the_check_of_trained_models_says_how_many_agree(build_tiny_model, tmp_path, capsys):
    lines = ["a dog runs", "two cats sleep", "the big dog"]
    tokenizer = train_tokenizer(lines * 3, vocab_size=290)
    model = build_tiny_model(vocab_size=len(tokenizer), noise=0.2)
    model.generation_config.max_length_offset = 3
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    source = tmp_path / "test.en"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    check_beam_search.main(["--model", str(tmp_path), "--source", str(source), "--beams", "1", "3", "--nbest", "2"])
    printed = capsys.readouterr().out
    assert "beam 1, 1 best: 3 of 3 agree token for token" in printed
    assert "beam 3, 2 best: 3 of 3 agree token for token" in printed
