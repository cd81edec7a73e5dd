"""The translation of a sentence depends neither on the other sentences of its batch, nor on their order or number."""

import pytest
import torch

PAD, END = 1, 2
SEARCHES = {
    "beam": {"num_beams": 4},
    "forced end": {"num_beams": 3, "forced_eos_token_id": END},
    "greedy": {"num_beams": 1},
}


@pytest.fixture(scope="module")
def model(build_ending_model):
    return build_ending_model(end_bias=2.0, max_length_offset=3, decoder_layers=1)


@pytest.fixture(scope="module")
def sentences():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (70,), generator=generator).tolist()
    return [[*torch.randint(3, 37, (length,), generator=generator).tolist(), END] for length in lengths]


def translate(model, sentences, order, batch_size, options) -> dict[int, tuple[list[int], float | None]]:
    """Return, for the number of each sentence, the words and the score of its translation."""
    results = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = max(len(sentences[row]) for row in rows)
        source = torch.tensor([sentences[row] + [PAD] * (longest - len(sentences[row])) for row in rows])
        # `output_scores` is not asked for, because with it sentences would stay in the batch after their end.
        found = model.generate(source, return_dict_in_generate=True, **options)
        scores = found.get("sequences_scores")
        scores = [None] * len(rows) if scores is None else scores.tolist()
        for row, tokens, score in zip(rows, found.sequences[:, 1:].tolist(), scores, strict=True):
            results[row] = (tokens[: tokens.index(END) + 1], score)
    return results


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_neither_batch_size_nor_order_changes_a_translation(model, sentences, options):
    count = 70 if options in ({"num_beams": 4}, {"num_beams": 1}) else 16  # fewer for a search like the beam search
    in_order = list(range(count))
    by_length = sorted(in_order, key=lambda row: -len(sentences[row]))
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    alone = translate(model, sentences, in_order, 1, options)
    assert len({tuple(words) for words, _ in alone.values()}) > 3
    for order, batch_size in ((by_length, 7), (shuffled, 7), (by_length, 64), (shuffled, 64)):
        together = translate(model, sentences, order, batch_size, options)
        for row, (words, score) in alone.items():
            assert together[row][0] == words
            assert together[row][1] == (None if score is None else pytest.approx(score, abs=1e-4))
