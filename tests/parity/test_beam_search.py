"""`generate()` finds the same translations as a beam search in plain Python, token for token.

The plain search keeps hypotheses in dictionaries, translates one sentence at a time and calls the model without a
cache. It shares no code with the package's search. With one beam, either search is greedy: it ends as soon as </s> is
the most probable next word.
"""

import copy
from collections.abc import Callable, Sequence
from heapq import nlargest

import pytest
import torch
from shortcuts import END, PAD, SENTENCES, START

from vaswani_transformer.loading import load_translator
from vaswani_transformer.translation.ensemble import Ensemble

SOURCE = torch.tensor([sentence + [PAD] * (7 - len(sentence)) for sentence in SENTENCES])
OFFSET = 8
Hypothesis = tuple[int, ...]
NextWords = Callable[[list[Hypothesis]], list[list[float]]]
WITH_SCORES = {"output_scores": True, "return_dict_in_generate": True}


def search(
    next_words: NextWords,
    *,
    num_beams: int,
    limit: int,
    alpha: float,
    num_best: int = 1,
    stops_early: bool = True,
) -> list[tuple[float, Hypothesis]]:
    """Return the `num_best` translations with the highest log P / ((5 + |Y|) / 6)^alpha, best first.

    Args:
        next_words: returns, for each hypothesis of a list, log P of every word as its next word.
        limit: the largest number of words of a translation, </s> included.
        stops_early: True to stop when no open hypothesis can win any more, False to stop at the limit.
    """
    running: dict[Hypothesis, float] = {(): 0.0}
    finished: dict[Hypothesis, float] = {}
    for length in range(1, limit + 1):
        grown: dict[Hypothesis, float] = {}
        for hypothesis, log_probs in zip(running, next_words(list(running)), strict=True):
            words = nlargest(2 * num_beams, range(len(log_probs)), key=log_probs.__getitem__)
            for word in [END] if length == limit else words:
                grown[(*hypothesis, word)] = running[hypothesis] + log_probs[word]
        best_first = sorted(grown, key=grown.__getitem__, reverse=True)
        for hypothesis in best_first[:num_beams]:
            if hypothesis[-1] == END:
                finished[hypothesis] = grown[hypothesis] / ((5 + length) / 6) ** alpha
        running = {h: grown[h] for h in [h for h in best_first if h[-1] != END][:num_beams]}
        if not running or (num_beams == 1 and finished):
            break
        best_possible = max(running.values()) / ((5 + limit) / 6) ** alpha
        if stops_early and len(finished) >= num_best and nlargest(num_best, finished.values())[-1] >= best_possible:
            break
    return nlargest(num_best, ((score, hypothesis) for hypothesis, score in finished.items()))


def words_of_model(model, source: Sequence[int]) -> NextWords:
    """Return a function `next_words` for translations of `source`. It calls `forward` of `model` without a cache."""
    input_ids = torch.tensor([source], device=model.device)
    encoded = model.get_encoder()(input_ids).last_hidden_state

    @torch.no_grad()
    def next_words(hypotheses: list[Hypothesis]) -> list[list[float]]:
        logits = model(
            encoder_outputs=(encoded.expand(len(hypotheses), -1, -1),),
            decoder_input_ids=torch.tensor([[START, *hypothesis] for hypothesis in hypotheses], device=model.device),
            logits_to_keep=1,
            use_cache=False,
        ).logits
        return logits[:, -1].double().log_softmax(dim=-1).tolist()

    return next_words


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=3.0, max_length_offset=OFFSET, decoder_layers=2)


@pytest.fixture(scope="module")
def other(build_ending_model):
    sizes = {"d_model": 20, "encoder_layers": 2, "decoder_layers": 1}
    return build_ending_model(end_bias=3.0, max_length_offset=OFFSET, seed=5, **sizes)


def words_of(model, source):
    """Return `words_of_model` for a copy of `model` in float64."""
    return words_of_model(copy.deepcopy(model).double(), source)


def compare(model, expected_of, *, num_best: int, **options) -> None:
    """Fail unless `model` finds, for each sentence i, the (score, tokens) of each translation in `expected_of(i)`."""
    found = model.generate(SOURCE, num_return_sequences=num_best, **WITH_SCORES, **options)
    for i in range(len(SENTENCES)):
        expected = expected_of(i)
        rows = range(num_best * i, num_best * (i + 1))
        for row, (score, tokens) in zip(rows, expected, strict=True):
            actual = found.sequences[row, 1:].tolist()
            assert tuple(actual[: len(tokens)]) == tokens
            assert set(actual[len(tokens) :]) <= {PAD}
            assert found.sequences_scores[row].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("num_beams", "alpha", "stops_early"),
    [
        *((num_beams, 0.6, True) for num_beams in (1, 2, 3, 5, 8, 13, 21)),
        *((4, alpha, stops_early) for alpha in (0.0, 0.3, 1.0) for stops_early in (False, True)),
    ],
)
def test_searches_of_all_widths_agree_with_the_plain_search(model, num_beams, alpha, stops_early):
    # `stops_early` concerns the plain search alone. `generate` stops early, and this must change no translation.
    num_best = min(3, num_beams)

    def expected_of(i):
        return search(
            words_of(model, SENTENCES[i]),
            num_beams=num_beams,
            limit=len(SENTENCES[i]) + OFFSET,
            alpha=alpha,
            num_best=num_best,
            stops_early=stops_early,
        )

    compare(model, expected_of, num_best=num_best, num_beams=num_beams, length_penalty=alpha)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_an_ensemble_agrees_with_the_plain_search_over_mean_probabilities(model, other, num_beams):
    def expected_of(i):
        members = [words_of(member, SENTENCES[i]) for member in (model, other)]

        def mean(hypotheses):
            log_probs = torch.tensor([next_words(hypotheses) for next_words in members], dtype=torch.float64)
            return log_probs.exp().mean(dim=0).log().tolist()

        return search(
            mean, num_beams=num_beams, limit=len(SENTENCES[i]) + OFFSET, alpha=0.6, num_best=min(2, num_beams)
        )

    compare(
        model,
        expected_of,
        num_best=min(2, num_beams),
        num_beams=num_beams,
        engine=Ensemble([model.build_engine(), other]),
    )


@pytest.mark.parametrize("bias", [-2.0, 6.0])
def test_a_search_with_a_bias_agrees_with_a_plain_search_that_stops_at_the_limit(build_ending_model, bias):
    # With the bias of 6, log P of word 25 after word 25 is above 0, so each repetition of 25 raises the score. A
    # hypothesis that repeats 25 can win at the limit, although a finished hypothesis had a far better score before.
    model = build_ending_model(end_bias=6.0, max_length_offset=OFFSET, decoder_layers=2)

    def expected_of(i):
        words = words_of(model, SENTENCES[i])

        def biased(hypotheses):
            rows = words(hypotheses)
            for hypothesis, row in zip(hypotheses, rows, strict=True):
                if hypothesis[-1:] == (25,):
                    row[25] += bias
            return rows

        limit = len(SENTENCES[i]) + OFFSET
        return search(biased, num_beams=4, limit=limit, alpha=0.6, stops_early=False)

    compare(model, expected_of, num_best=1, num_beams=4, sequence_bias={(25, 25): bias})


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_translations_of_a_trained_model_agree_with_the_plain_search(bundled_model, num_beams):
    model, tokenizer = load_translator(bundled_model, dtype="float64")
    found = []
    sentences = ["The girl does not know whether he bought the house.", "Hello!", "Where is the next station, please?"]
    sources = tokenizer(sentences).input_ids
    for source in sources:
        limit = len(source) + model.generation_config.max_length_offset
        words = words_of_model(model, source)
        [(_, best)] = search(words, num_beams=num_beams, limit=limit, alpha=0.6)
        found.append(list(best))
    inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(model.device)
    rows = model.generate(**inputs, num_beams=num_beams, length_penalty=0.6, early_stopping="never")
    assert [[token for token in row[1:] if token != PAD] for row in rows.tolist()] == found
