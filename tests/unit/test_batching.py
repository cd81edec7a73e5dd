"""Batches: plans of updates, the division of updates into micro-batches, and streams of updates."""

from itertools import chain, islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.batching import (
    TokenColumn,
    TokenizedPairs,
    UpdateStream,
    plan_batches,
    plan_updates,
    split_update,
)
from vaswani_transformer.model.loss_vaswani import IGNORE_INDEX

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


def tokenize(*sides) -> TokenizedPairs:
    """Return pairs from two lists of sentences, one list for each side. A sentence is a list of token ids."""
    columns = [TokenColumn(np.concatenate(side), np.cumsum([0, *map(len, side)])) for side in sides]
    return TokenizedPairs(*columns, pad_token_id=1)


def draw_lengths(num_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths (num_pairs,) of sources and targets, distributed as in real translations."""
    rng = np.random.default_rng(0)
    source = rng.gamma(5, 3, num_pairs).astype(np.int32) + 2
    return source, np.maximum(2, (source * rng.normal(1, 0.2, num_pairs)).astype(np.int32))


def padded_tokens(rows, source, target):
    """Return the number of tokens in a batch of `rows`, both sides together, with padding."""
    return len(rows) * int(source[rows].max() + target[rows].max())


@given(rows=st.lists(st.integers(0, 39), min_size=1, max_size=20))
def test_a_batch_is_padded_and_masked(rows):
    rng = np.random.default_rng(0)
    sides = [[rng.integers(3, 90, size=rng.integers(1, 9)).tolist() for _ in range(40)] for _ in range(2)]
    batch = tokenize(*sides)[rows]
    chosen = [[side[row] for row in rows] for side in sides]
    for name, sentences, value in (("input_ids", chosen[0], 1), ("labels", chosen[1], IGNORE_INDEX)):
        width = max(map(len, sentences))
        assert batch[name].tolist() == [sentence + [value] * (width - len(sentence)) for sentence in sentences]
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] != 1).long())
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_sentences_of_similar_length_share_batches_within_the_limit():
    lengths = [3, 512, 700, 9, 40, 40, 11, 2_500] * 50
    batches = list(plan_batches(lengths, limit=2_000))
    assert sorted(chain.from_iterable(batches)) == list(range(400))
    assert [lengths[row] for rows in batches for row in rows] == sorted(lengths, reverse=True)
    padded = [len(rows) * lengths[rows[0]] for rows in batches]
    assert all(size <= 2_000 or len(rows) == 1 for size, rows in zip(padded, batches, strict=True))
    assert all((len(rows) + 1) * lengths[rows[0]] > 2_000 for rows, _ in pairwise(batches))


@settings(max_examples=60)
@given(lengths=LENGTHS, seed=st.integers(0, 5), epoch=st.integers(0, 5), num_parts=st.integers(1, 9))
def test_every_pair_is_in_exactly_one_update_and_no_update_is_too_large(lengths, seed, epoch, num_parts):
    source, target = (np.array(side, dtype=np.int32) for side in zip(*lengths, strict=True))
    plan = plan_updates(source, target, tokens_per_batch=100, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    longest = np.maximum(source, target)
    plan.sort(key=lambda rows: (longest[rows].max(), longest[rows].min(), -len(rows)))
    for rows, later in pairwise([*plan, None]):
        assert len(rows) * longest[rows].max() <= 100
        # Even the shortest pair of the next update would have made this update too large.
        assert later is None or (len(rows) + 1) * longest[later].min() > 100
        parts = split_update(rows, source, target, num_parts=num_parts)
        assert len(parts) == num_parts
        assert sorted(np.concatenate(parts)) == sorted(rows)


def test_pairs_with_sources_of_equal_length_are_batched_by_target_length_and_too_long_pairs_are_refused():
    # All sources have 10 tokens, so only a mixture of short and long targets would need padding.
    sources = np.full(40, 10)
    targets = np.array([10, 3] * 20)
    updates = plan_updates(sources, targets, tokens_per_batch=40, seed=0, epoch=0)
    assert [len(set(targets[rows])) for rows in updates] == [1] * 10
    assert len(plan_updates(sources, targets, tokens_per_batch=10, seed=0, epoch=0)) == 40
    with pytest.raises(ValueError, match="a pair has 12 tokens, more than tokens_per_batch=11"):
        plan_updates(np.array([3, 12]), np.array([4, 9]), tokens_per_batch=11, seed=0, epoch=0)


def test_the_plan_depends_on_seed_and_epoch_and_only_the_first_epoch_may_be_sorted():
    lengths = draw_lengths(500)

    def plan(seed=0, epoch=0, **options):
        return plan_updates(*lengths, tokens_per_batch=400, seed=seed, epoch=epoch, **options)

    orders = {tuple(np.concatenate(plan(seed, epoch))) for seed in (0, 1) for epoch in (0, 1) for _ in range(2)}
    assert len(orders) == 4
    short_first = plan(short_first=True)
    assert (np.diff(np.maximum(*lengths)[np.concatenate(short_first)]) >= 0).all()
    assert {tuple(rows) for rows in short_first} == {tuple(rows) for rows in plan()}
    assert list(map(tuple, short_first)) != list(map(tuple, plan()))
    assert all(map(np.array_equal, plan(epoch=1, short_first=True), plan(epoch=1)))


@pytest.mark.parametrize("num_parts", [2, 8])
def test_micro_batches_have_equal_work_and_less_padding_than_the_update(num_parts):
    source, target = draw_lengths(20_000)
    plan = plan_updates(source, target, tokens_per_batch=25_000, seed=0, epoch=0)
    whole = sum(padded_tokens(rows, source, target) for rows in plan)
    slowest = total = 0
    for rows in plan:
        work = [padded_tokens(part, source, target) for part in split_update(rows, source, target, num_parts=num_parts)]
        # With fewer than 100 pairs in a part, one long pair may be more than 5 % of the part's work.
        if len(rows) > 100 * num_parts:
            assert max(work) <= 1.05 * sum(work) / num_parts
        slowest += max(work)
        total += sum(work)
    assert slowest <= 1.01 * total / num_parts
    assert total < whole * (0.95 if num_parts == 8 else 1)


@pytest.fixture(scope="module")
def corpus():
    """Return 300 pairs. Every token of pair i is the number i."""
    return tokenize(*([[row] * length for row, length in enumerate(side)] for side in draw_lengths(300)))


def read(corpus, num_updates, **options):
    """Return the first `num_updates` updates of a stream."""
    return list(islice(UpdateStream(corpus, tokens_per_batch=400, seed=3, **options), num_updates))


def pairs_of(updates):
    """Return, for each update, the sorted numbers of its pairs, which its labels hold."""
    return [
        sorted(i for batch in update.micro_batches for i in batch["labels"][:, 0].tolist() if i != IGNORE_INDEX)
        for update in updates
    ]


@settings(max_examples=10)
@given(num_processes=st.integers(1, 9), accumulation_steps=st.integers(1, 8))
def test_processes_divide_the_same_updates_among_themselves(corpus, num_processes, accumulation_steps):
    expected = read(corpus, 25)
    found = [[]] * 25
    for process_index in range(num_processes):
        options = {"process_index": process_index, "accumulation_steps": accumulation_steps}
        updates = read(corpus, 25, num_processes=num_processes, **options)
        assert [len(update.micro_batches) for update in updates] == [accumulation_steps] * 25
        for name in ("target_tokens", "is_last_of_epoch"):
            assert [getattr(update, name) for update in updates] == [getattr(update, name) for update in expected]
        found = [sorted(earlier + new) for earlier, new in zip(found, pairs_of(updates), strict=True)]
    assert found == pairs_of(expected)


@settings(max_examples=15)
@given(done=st.integers(0, 59))
def test_a_stream_can_be_resumed_at_any_update(corpus, done):
    whole = read(corpus, 70)
    epoch_length = [update.is_last_of_epoch for update in whole].index(True) + 1
    assert sorted(chain.from_iterable(pairs_of(whole[:epoch_length]))) == list(range(300))
    assert whole[2 * epoch_length - 1].is_last_of_epoch
    rest = read(corpus, 70 - done, epoch=done // epoch_length, updates_of_epoch=done % epoch_length)
    assert pairs_of(rest) == pairs_of(whole)[done:]


def test_a_process_without_pairs_gets_a_pair_without_labels():
    pairs = tokenize([[5, 6, 2], [7, 2], [8, 9, 10, 2]], [[11, 2], [12, 13, 14, 2], [2]])
    for index in range(5):
        stream = UpdateStream(pairs, tokens_per_batch=100, seed=0, num_processes=5, process_index=index)
        update = next(iter(stream))
        assert update.target_tokens == 7
        assert update.is_last_of_epoch
        (batch,) = update.micro_batches
        assert batch["input_ids"].shape[0] == 1
        assert (batch["labels"] == IGNORE_INDEX).all() == (index >= 3)
