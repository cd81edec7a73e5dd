import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.batching import TokenizedPairs, plan_updates, split_update

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


@pytest.fixture
def pairs():
    rows = {"input_ids": [[5, 6, 2], [7, 2], [8, 9, 10, 2]], "labels": [[11, 2], [12, 13, 14, 2], [2]]}
    return TokenizedPairs(Dataset.from_dict(rows), pad_token_id=1)


def test_a_batch_is_padded_and_masked(pairs):
    batch = pairs[np.array([2, 1])]
    assert batch["input_ids"].tolist() == [[8, 9, 10, 2], [7, 2, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[2, -100, -100, -100], [12, 13, 14, 2]]
    assert batch["input_ids"].dtype == torch.int64


def test_lengths_are_read_without_reading_tokens(pairs):
    assert pairs.sources.lengths.tolist() == [3, 2, 4]
    assert pairs.targets.lengths.tolist() == [2, 4, 1]


def test_columns_in_several_chunks_are_one_column():
    parts = [Dataset.from_dict({"input_ids": [[i, 2]] * (i + 1), "labels": [[2]] * (i + 1)}) for i in range(3)]
    from datasets import concatenate_datasets

    pairs = TokenizedPairs(concatenate_datasets(parts), pad_token_id=1)
    assert [pairs.sources[row].tolist() for row in range(len(pairs))] == [[0, 2]] + [[1, 2]] * 2 + [[2, 2]] * 3


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_every_pair_is_in_exactly_one_batch_and_no_batch_is_too_large(lengths, seed, epoch):
    source, target = (np.array(side, dtype=np.int32) for side in zip(*lengths, strict=True))
    plan = plan_updates(source, target, tokens_per_batch=100, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(source[rows].max(), target[rows].max()) <= 100


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


def test_a_pair_longer_than_a_batch_is_refused_with_its_place():
    with pytest.raises(ValueError, match=r"pair 1 has 51 tokens, more than tokens_per_batch=50"):
        plan_updates(np.array([3, 51]), np.array([3, 4]), tokens_per_batch=50, seed=0, epoch=0)


@given(size=st.integers(0, 50), parts=st.integers(1, 9))
def test_micro_batches_share_out_an_update(size, parts):
    shares = split_update(np.arange(size), parts)
    assert len(shares) == parts
    assert sorted(np.concatenate(shares)) == list(range(size))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
