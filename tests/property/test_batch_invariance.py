"""The translation of a sentence depends neither on the other sentences of its batch, nor on their order or number."""

import pytest
import torch
from shortcuts import END, PAD

from vaswani_transformer.model.search_vaswani import BeamSearch

SEARCHES = {
    "beam": {"num_beams": 4},
    "forced end": {"num_beams": 3, "forced_eos_token_id": END},
    "greedy": {"num_beams": 1},
}


@pytest.fixture(scope="module")
def model(build_ending_model):
    """Return an engine, with which a sentence leaves the batch when its search is over."""
    return build_ending_model(end_bias=2.0, max_length_offset=3, decoder_layers=1).build_engine()


@pytest.fixture(scope="module")
def sentences():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (70,), generator=generator).tolist()
    return [[*torch.randint(3, 37, (length,), generator=generator).tolist(), END] for length in lengths]


def translate(model, sentences, order, batch_size, options) -> dict[int, tuple[list[int], float | None]]:
    """Return a map from the number of a sentence to the words and the score of its translation."""
    results = {}
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        longest = max(len(sentences[number]) for number in numbers)
        source = torch.tensor([sentences[number] + [PAD] * (longest - len(sentences[number])) for number in numbers])
        found = model.generate(source, return_dict_in_generate=True, **options)
        scores = found.get("sequences_scores")
        scores = [None] * len(numbers) if scores is None else scores.tolist()
        for number, tokens, score in zip(numbers, found.sequences[:, 1:].tolist(), scores, strict=True):
            results[number] = (tokens[: tokens.index(END) + 1], score)
    return results


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_neither_batch_size_nor_order_changes_a_translation(model, sentences, options, monkeypatch):
    evictions = []
    evict = BeamSearch.evict
    monkeypatch.setattr(BeamSearch, "evict", lambda *args: evictions.append(evict(*args)))
    # For a forced end 16 sentences are enough, because "beam" tests the beam search with all 70.
    count = 16 if "forced_eos_token_id" in options else 70
    in_order = list(range(count))
    by_length = sorted(in_order, key=lambda number: -len(sentences[number]))
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    alone = translate(model, sentences, in_order, 1, options)
    assert len({tuple(words) for words, _ in alone.values()}) > 3
    for order, batch_size in ((by_length, 7), (shuffled, 7), (by_length, 64), (shuffled, 64)):
        together = translate(model, sentences, order, batch_size, options)
        for number, (words, score) in alone.items():
            assert together[number][0] == words
            assert together[number][1] == (None if score is None else pytest.approx(score, abs=1e-4))
    assert evictions  # Otherwise no sentence left a batch before the others, and that case was not tested.
