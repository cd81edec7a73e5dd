import threading
from itertools import chain, islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from vaswani_transformer.data import batching
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


def lengths_of(sides):
    return [np.array(side, dtype=np.int32) for side in zip(*sides, strict=True)]


@pytest.fixture
def pairs():
    sides = [[5, 6, 2], [7, 2], [8, 9, 10, 2]], [[11, 2], [12, 13, 14, 2], [2]]
    return TokenizedPairs(*map(TokenColumn.of, sides), pad_token_id=1)


def test_a_batch_is_padded_and_masked(pairs):
    batch = pairs[np.array([2, 1])]
    assert batch["input_ids"].tolist() == [[8, 9, 10, 2], [7, 2, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[2, -100, -100, -100], [12, 13, 14, 2]]
    assert batch["input_ids"].dtype == torch.int64


def test_pairs_of_equal_longer_sides_are_batched_by_their_targets():
    """Short targets among long ones would be padded."""
    sources, targets = np.full(40, 10), np.array([10, 3] * 20)
    updates = plan_updates(sources, targets, tokens_per_batch=40, seed=0, epoch=0)
    assert [len(set(targets[rows])) for rows in updates] == [1] * 10


@pytest.mark.parametrize(("power", "limit"), [(1, 2_000), (2, 500_000)])
def test_batches_of_like_length_hold_no_more_than_memory_is_set_aside_for(power, limit):
    lengths = [3, 512, 700, 9, 40, 40, 11, 2_500] * 50
    batches = list(plan_batches(lengths, limit=limit, power=power))
    assert sorted(chain.from_iterable(batches)) == list(range(400))
    assert [lengths[row] for rows in batches for row in rows] == sorted(lengths, reverse=True)
    padded = [len(rows) * lengths[rows[0]] ** power for rows in batches]
    assert all(size <= limit or len(rows) == 1 for size, rows in zip(padded, batches, strict=True))
    assert all((len(rows) + 1) * lengths[rows[0]] ** power > limit for rows, _ in pairwise(batches))


@given(rows=st.lists(st.integers(0, 39), min_size=1, max_size=20))
def test_padding_many_rows_at_once_equals_padding_each(rows):
    rng = np.random.default_rng(0)
    sentences = [rng.integers(3, 90, size=rng.integers(1, 9)).tolist() for _ in range(40)]
    pairs = TokenizedPairs(*[TokenColumn.of(sentences)] * 2, pad_token_id=1)
    batch = pairs[rows]
    width = max(len(sentences[row]) for row in rows)
    assert batch["input_ids"].tolist() == [sentences[row] + [1] * (width - len(sentences[row])) for row in rows]


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 5), epoch=st.integers(0, 5), num_parts=st.integers(1, 9))
def test_every_pair_is_in_one_part_of_one_update_and_no_update_is_too_large(lengths, seed, epoch, num_parts):
    source, target = lengths_of(lengths)
    plan = plan_updates(source, target, tokens_per_batch=100, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(source[rows].max(), target[rows].max()) <= 100
        parts = split_update(rows, source, target, num_parts=num_parts)
        assert len(parts) == num_parts
        assert sorted(np.concatenate(parts)) == sorted(rows)


def test_the_plan_depends_on_seed_and_epoch_alone():
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 30, 500), rng.integers(1, 30, 500)
    plans = {
        (seed, epoch): plan_updates(source, target, tokens_per_batch=200, seed=seed, epoch=epoch)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    again = plan_updates(source, target, tokens_per_batch=200, seed=0, epoch=1)
    assert all(np.array_equal(one, other) for one, other in zip(plans[0, 1], again, strict=True))
    orders = {key: tuple(np.concatenate(plan)) for key, plan in plans.items()}
    assert len(set(orders.values())) == 4


def test_short_pairs_come_first_in_the_first_epoch_alone():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 500), rng.integers(1, 30, 500)
    options = {"tokens_per_batch": 200, "seed": 0}
    first, second = (plan_updates(*lengths, epoch=epoch, short_first=True, **options) for epoch in (0, 1))
    longest = np.maximum(*lengths)
    assert (np.diff(longest[np.concatenate(first)]) >= 0).all()
    assert sorted(map(len, first)) == sorted(map(len, plan_updates(*lengths, epoch=0, **options)))
    assert all(map(np.array_equal, second, plan_updates(*lengths, epoch=1, **options)))


def test_a_stream_hands_on_that_short_pairs_come_first(corpus):
    updates = read(corpus, 20, short_first=True)
    updates = updates[: [update.is_last_of_epoch for update in updates].index(True) + 1]
    assert len(updates) > 5
    widths = [max(update.micro_batches[0][side].shape[1] for side in ("input_ids", "labels")) for update in updates]
    assert widths == sorted(widths)


def test_a_pair_longer_than_a_batch_is_refused_with_its_place():
    with pytest.raises(ValueError, match=r"pair 1 has 51 tokens, more than tokens_per_batch=50"):
        plan_updates(np.array([3, 51]), np.array([3, 4]), tokens_per_batch=50, seed=0, epoch=0)


def draw_corpus(num_pairs):
    """Lengths like those of sentences and their translations."""
    rng = np.random.default_rng(0)
    source = rng.gamma(5, 3, num_pairs).astype(np.int32) + 2
    target = np.maximum(2, (source * rng.normal(1, 0.2, num_pairs)).astype(np.int32))
    return source, target


def padded_tokens(rows, source, target):
    return len(rows) * int(source[rows].max() + target[rows].max())


@pytest.mark.parametrize("num_parts", [2, 8])
def test_micro_batches_carry_equal_work_and_pad_less_than_the_whole(num_parts):
    source, target = draw_corpus(20_000)
    plan = plan_updates(source, target, tokens_per_batch=25_000, seed=0, epoch=0)
    whole = sum(padded_tokens(rows, source, target) for rows in plan)
    slowest = total = 0
    for rows in plan:
        work = [padded_tokens(part, source, target) for part in split_update(rows, source, target, num_parts=num_parts)]
        if len(rows) > 100 * num_parts:  # of a handful of pairs each, one more is more than 5 %
            assert max(work) <= 1.05 * sum(work) / num_parts
        slowest, total = slowest + max(work), total + sum(work)
    assert slowest <= 1.01 * total / num_parts
    assert total < whole * (0.95 if num_parts == 8 else 1)


@pytest.fixture(scope="module")
def corpus():
    source, target = draw_corpus(300)
    sides = ([[row] * length for row, length in enumerate(side)] for side in (source, target))
    return TokenizedPairs(*map(TokenColumn.of, sides), pad_token_id=1)


def read(corpus, num_updates, **place):
    stream = iter(UpdateStream(corpus, tokens_per_batch=400, seed=3, **place))
    return [next(stream) for _ in range(num_updates)]


def pairs_of(updates):
    """The pairs of each update, read from its tensors."""
    return [
        sorted(i for batch in update.micro_batches for i in batch["labels"][:, 0].tolist() if i != IGNORE_INDEX)
        for update in updates
    ]


@pytest.mark.parametrize(("num_processes", "accumulation_steps"), [(1, 1), (8, 1), (1, 8), (2, 4)])
def test_an_update_holds_the_same_pairs_however_it_is_split(corpus, num_processes, accumulation_steps):
    expected = read(corpus, 40)
    found = [[] for _ in expected]
    for process_index in range(num_processes):
        place = {"process_index": process_index, "accumulation_steps": accumulation_steps}
        updates = read(corpus, 40, num_processes=num_processes, **place)
        assert [len(update.micro_batches) for update in updates] == [accumulation_steps] * 40
        assert [update.target_tokens for update in updates] == [update.target_tokens for update in expected]
        found = [sorted(one + other) for one, other in zip(found, pairs_of(updates), strict=True)]
    assert found == pairs_of(expected)


def test_a_stream_from_the_middle_goes_on_as_one_from_the_start(corpus):
    whole = read(corpus, 60)
    end_of_epoch = [update.is_last_of_epoch for update in whole].index(True)
    assert end_of_epoch < 50
    assert sorted(chain.from_iterable(pairs_of(whole[: end_of_epoch + 1]))) == list(range(300))
    rest = read(corpus, 62 - end_of_epoch, epoch=0, updates_of_epoch=end_of_epoch - 2)
    assert pairs_of(rest) == pairs_of(whole)[end_of_epoch - 2 :]
    later = read(corpus, 59 - end_of_epoch, epoch=1)
    assert pairs_of(later) == pairs_of(whole)[end_of_epoch + 1 :]


def test_a_worker_of_the_loader_reads_the_same_updates(corpus):
    stream = UpdateStream(corpus, tokens_per_batch=400, seed=3)
    loader = DataLoader(stream, batch_size=None, num_workers=1, prefetch_factor=4)
    updates = list(islice(loader, 60))
    assert sum(update.is_last_of_epoch for update in updates) >= 1
    assert pairs_of(updates) == pairs_of(read(corpus, 60))


def test_the_next_epoch_is_planned_while_the_present_one_is_read(corpus, monkeypatch):
    is_planned = {epoch: threading.Event() for epoch in range(4)}

    def plan_and_tell(*lengths, epoch, **options):
        is_planned[epoch].set()
        return plan_updates(*lengths, epoch=epoch, **options)

    monkeypatch.setattr(batching, "plan_updates", plan_and_tell)
    updates = iter(UpdateStream(corpus, tokens_per_batch=400, seed=3, epoch=1))
    next(updates)
    assert is_planned[2].wait(timeout=10)
    assert not is_planned[3].is_set()
    updates.close()


def test_a_process_without_pairs_gets_one_that_does_not_count(pairs):
    stream = UpdateStream(pairs, tokens_per_batch=100, seed=0, num_processes=5, process_index=4)
    (batch,) = next(iter(stream)).micro_batches
    assert batch["input_ids"].shape[0] == 1
    assert (batch["labels"] == IGNORE_INDEX).all()


def test_an_update_knows_the_tokens_of_all_processes(pairs):
    update = next(iter(UpdateStream(pairs, tokens_per_batch=100, seed=0, num_processes=3)))
    assert update.target_tokens == 7
    assert update.tokens == 16
    assert update.padded_tokens == (3 + 2) + (2 + 4) + (4 + 1)
    assert update.is_last_of_epoch
