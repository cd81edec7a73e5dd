"""The search without a model: logits come from a table, and results are compared with all possible translations."""

import itertools

import pytest
import torch

from vaswani_transformer.engine.search import FastBeamSearch
from vaswani_transformer.model.search_vaswani import BeamSearch, SearchOptions, find_distance, run_search

START, PAD, END, VOCAB_SIZE = 0, 1, 2, 5
LIMITS = (1, 3, 4)  # for each of three sentences, the most tokens of a translation, </s> included
OPTIONS = {"early_stopping": "never", "eos_token_id": END, "pad_token_id": PAD}
ENOUGH_BEAMS = 4**3  # enough that no hypothesis is ever dropped


def build_table(seed: int) -> dict[tuple, torch.Tensor]:
    """Return {(sentence, *prefix): logits (VOCAB_SIZE,) of the next word} for each sentence and each prefix."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = [p for length in range(max(LIMITS)) for p in itertools.product(range(VOCAB_SIZE), repeat=length)]
    return {
        (sentence, *prefix): 2 * torch.randn(VOCAB_SIZE, generator=generator)
        for sentence in range(len(LIMITS))
        for prefix in prefixes
    }


class TableSteps:
    """Steps of a search that read logits from a table instead of computing them with a model.

    Like a model with a cache, they use only the last word of each hypothesis, and remember the words before it.
    """

    outputs = None

    def __init__(self, table, num_beams: int):
        self.table, self.num_beams = table, num_beams
        self.prefixes = [[(sentence,)] * num_beams for sentence in range(len(LIMITS))]
        self.batch_sizes = []

    def __call__(self, tokens):
        if tokens.shape[1] > 1:
            words = tokens[:, -1].unflatten(0, (-1, self.num_beams)).tolist()
            self.prefixes = [
                [(*prefix, word) for prefix, word in zip(*rows, strict=True)]
                for rows in zip(self.prefixes, words, strict=True)
            ]
        logits = torch.stack([self.table[prefix] for rows in self.prefixes for prefix in rows])
        self.batch_sizes.append(len(tokens))
        return logits

    def reorder(self, beams, staying):
        moved = [[rows[beam] for beam in row] for rows, row in zip(self.prefixes, beams.tolist(), strict=True)]
        self.prefixes = moved if staying is None else [moved[place] for place in staying.tolist()]


def start_search(limits, *, num_beams, num_best, alpha=0.6, search_class=BeamSearch):
    """Return a search in which each sentence must end within its limit."""
    limits = torch.tensor(limits)
    return search_class(
        torch.full((len(limits), 1), START),
        SearchOptions(num_beams=num_beams, num_return_sequences=num_best, length_penalty=alpha, **OPTIONS),
        limits=limits,
        must_end=torch.ones_like(limits, dtype=torch.bool),
    )


def translate(table, *, num_beams=ENOUGH_BEAMS, num_best=3, may_evict=True, **options):
    """Return the best translations, and the number of hypotheses at each step."""
    search = start_search(LIMITS, num_beams=num_beams, num_best=num_best, **options)
    steps = TableSteps(table, num_beams)
    run_search(search, steps, steps(search.flat_tokens), may_evict=may_evict)
    return search.best(), steps.batch_sizes


def list_best(table, sentence: int, *, alpha: float) -> list[tuple[float, tuple[int, ...]]]:
    """Return the three best of all possible translations of a sentence, best first, as (score, words)."""
    found = []
    words = [word for word in range(VOCAB_SIZE) if word != END]
    for length in range(LIMITS[sentence]):
        for prefix in itertools.product(words, repeat=length):
            translation = (*prefix, END)
            log_probs = (table[sentence, *translation[:i]].log_softmax(-1)[word] for i, word in enumerate(translation))
            found.append((float(sum(log_probs)) / ((6 + length) / 6) ** alpha, translation))
    return sorted(found, reverse=True)[:3]


def test_a_beam_search_keeps_the_best_continuations():
    torch.manual_seed(0)
    log_probs = torch.randn(40, 50).log_softmax(-1)
    log_probs[:, END] = -torch.inf
    search = start_search([5] * 20, num_beams=2, num_best=2)
    search.advance(log_probs, None)
    assert torch.equal(search.flat_tokens[:, 1].view(20, 2), log_probs[::2].topk(2).indices)


def test_a_search_ends_as_soon_as_no_open_hypothesis_can_win():
    table = {prefix: torch.nn.functional.one_hot(torch.tensor(END), VOCAB_SIZE) * 20.0 for prefix in build_table(0)}
    _, batch_sizes = translate(table, num_beams=2, num_best=1)
    assert len(batch_sizes) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("may_evict", [True, False])
@pytest.mark.parametrize("search_class", [BeamSearch, FastBeamSearch])
def test_a_beam_search_that_drops_no_hypothesis_finds_the_best_of_all_translations(
    seed, alpha, may_evict, search_class
):
    table = build_table(seed)
    (sequences, scores, _), _ = translate(table, alpha=alpha, may_evict=may_evict, search_class=search_class)
    for sentence in range(len(LIMITS)):
        for row, (score, words) in enumerate(list_best(table, sentence, alpha=alpha), start=3 * sentence):
            tokens = sequences[row, 1:].tolist()
            assert tuple(tokens[: len(words)]) == words
            assert set(tokens[len(words) :]) <= {PAD}
            assert scores[row].item() == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("may_evict", [True, False])
@pytest.mark.parametrize("search_class", [BeamSearch, FastBeamSearch])
def test_finished_sentences_leave_the_batch_if_allowed(may_evict, search_class):
    table = build_table(0)
    found, batch_sizes = translate(table, num_beams=2, num_best=1, may_evict=may_evict, search_class=search_class)
    assert len(batch_sizes) <= max(LIMITS)
    assert (batch_sizes[-1] < batch_sizes[0]) == may_evict
    stayed, _ = translate(table, num_beams=2, num_best=1, may_evict=False)
    assert torch.equal(found[0], stayed[0])


def test_words_that_both_logits_exclude_do_not_change_the_distance_of_the_logits():
    logits = torch.tensor([[1.0, 2.0, -torch.inf]])
    expected = torch.tensor([[1.5, 2.0, -torch.inf]])
    distances = [find_distance(logits[:, :count], expected[:, :count]) for count in (2, 3)]
    assert distances == pytest.approx([0.2, 0.2])
