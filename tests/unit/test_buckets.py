import tracemalloc
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data import counting_sort
from vaswani_transformer.data.batching import TokenizedPairs, UpdateStream, plan_updates
from vaswani_transformer.data.buckets import GRAIN, Buckets
from vaswani_transformer.model.loss_vaswani import IGNORE_INDEX

LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=300)
VOCAB_SIZE = 50


def draw_lengths(num_pairs):
    rng = np.random.default_rng(0)
    sources = np.clip(rng.lognormal(2.5, 0.5, num_pairs), 2, 60).astype(np.int32)
    targets = np.clip(sources * rng.lognormal(0, 0.3, num_pairs), 2, 60).astype(np.int32)
    return sources, targets


@pytest.mark.parametrize("num_keys", [1, 7, 400])
def test_counting_sorts_as_a_stable_sort_does(monkeypatch, num_keys):
    monkeypatch.setattr(counting_sort, "CHUNK", 64)
    rng = np.random.default_rng(0)
    rows, keys = rng.permutation(1000).astype(np.int32), rng.integers(0, num_keys, 1000).astype(np.uint16)
    found = counting_sort.sort_by_key(rows, keys)
    assert found.dtype == rows.dtype
    assert np.array_equal(found, rows[np.argsort(keys[rows], kind="stable")])


def test_no_rows_are_sorted_too():
    assert len(counting_sort.sort_by_key(np.zeros(0, np.int32), np.zeros(0, np.uint16))) == 0


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, limit=st.integers(90, 2_000), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_every_pair_is_in_one_bucketed_update_that_is_not_too_large(lengths, limit, seed, epoch):
    sources, targets = (np.array(side, dtype=np.int32) for side in zip(*lengths, strict=True))
    buckets = Buckets(sources, targets, tokens_per_batch=limit)
    plan = plan_updates(sources, targets, tokens_per_batch=limit, seed=seed, epoch=epoch, bucketed=True)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    for rows in plan:
        num_rows, source_width, target_width = buckets.shape_of(sources[rows], targets[rows])
        assert len(rows) <= num_rows
        assert num_rows * max(source_width, target_width) <= limit
        assert (sources[rows] <= source_width).all()
        assert (targets[rows] <= target_width).all()


def test_a_length_is_rounded_up_by_little():
    longest = np.array([300], dtype=np.int32)
    buckets = Buckets(longest, longest, tokens_per_batch=25_000)
    widths = [buckets.round_up(length) for length in range(1, 301)]
    assert all(0 <= width - length < max(GRAIN, length / 6) for length, width in enumerate(widths, start=1))
    assert widths == sorted(widths)
    assert widths[-1] == 300


def test_the_order_of_bucketed_updates_depends_on_seed_and_epoch_their_shapes_do_not():
    sources, targets = draw_lengths(3_000)
    buckets = Buckets(sources, targets, tokens_per_batch=1_000)
    orders, shapes = set(), set()
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 1)):
        plan = plan_updates(sources, targets, tokens_per_batch=1_000, seed=seed, epoch=epoch, bucketed=True)
        orders.add(tuple(np.concatenate(plan)))
        shapes.add(tuple(sorted(buckets.shape_of(sources[rows], targets[rows]) for rows in plan)))
    assert len(orders) == 3
    assert len(shapes) == 1


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_plan_takes_little_memory(monkeypatch, bucketed):
    """600 MiB of 36M pairs are 17.5 bytes of each."""
    monkeypatch.setattr(counting_sort, "CHUNK", 2**12)  # temporary arrays, which count for nothing among millions
    lengths = draw_lengths(200_000)
    tracemalloc.start()
    try:
        plan_updates(*lengths, tokens_per_batch=25_000, seed=0, epoch=1, bucketed=bucketed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 17.5 * 200_000


def test_short_pairs_come_first_in_bucketed_updates_too():
    sources, targets = draw_lengths(3_000)
    options = {"tokens_per_batch": 1_000, "seed": 0, "epoch": 0, "bucketed": True}
    plan = plan_updates(sources, targets, short_first=True, **options)
    longest = [max(sources[rows].max(), targets[rows].max()) for rows in plan]
    buckets = Buckets(sources, targets, tokens_per_batch=1_000)
    widths = [buckets.round_up(int(length)) for length in longest]
    assert widths == sorted(widths)


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    sides = ([rng.integers(3, VOCAB_SIZE, n).tolist() for n in lengths] for lengths in draw_lengths(200))
    return TokenizedPairs(pa.table(dict(zip(("input_ids", "labels"), sides, strict=True))), pad_token_id=0)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = VaswaniConfig(
        vocab_size=VOCAB_SIZE, d_model=16, d_ff=24, num_heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    return VaswaniForConditionalGeneration(config).double().train()


def read(pairs, **place):
    """The updates of the first epoch."""
    stream = UpdateStream(pairs, tokens_per_batch=600, seed=1, bucketed=True, **place)
    num_updates = len(stream.plan(epoch=0))
    return list(islice(stream, num_updates))


def compute_gradients(model, batches, num_tokens):
    """Loss of all micro-batches, and the gradient of each parameter."""
    model.zero_grad()
    loss = 0.0
    for batch in batches:
        own = model(**batch, num_items_in_batch=num_tokens).loss
        own.backward()
        loss += own.item()
    return loss, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("num_processes", "accumulation_steps"), [(1, 1), (3, 2), (8, 1)])
def test_loss_and_gradients_are_those_of_the_pairs_without_buckets(model, pairs, num_processes, accumulation_steps):
    place = {"num_processes": num_processes, "accumulation_steps": accumulation_steps}
    processes = [read(pairs, process_index=index, **place) for index in range(num_processes)]
    seen = []
    for update in zip(*processes, strict=True):
        rows = np.concatenate([part for own in update for part in own.rows])
        seen += rows.tolist()
        batches = [batch for own in update for batch in own.micro_batches]
        assert len({tuple(tensor.shape for tensor in batch.values()) for batch in batches}) == 1
        numbers = {(own.target_tokens, own.tokens, own.padded_tokens, own.is_last_of_epoch) for own in update}
        ((num_tokens, _, padded_tokens, _),) = numbers  # the same for all processes
        assert padded_tokens == sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
        assert num_tokens == sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)
        loss, gradients = compute_gradients(model, batches, num_tokens)
        expected_loss, expected = compute_gradients(model, [pairs[rows]], num_tokens)
        assert loss == pytest.approx(expected_loss, abs=1e-12)
        assert len(gradients) == len(expected)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert sorted(seen) == list(range(len(pairs)))


def test_a_bucketed_update_holds_the_same_pairs_however_it_is_split(pairs):
    whole = [sorted(np.concatenate(update.rows)) for update in read(pairs)]
    parts = [read(pairs, num_processes=4, accumulation_steps=2, process_index=index) for index in range(4)]
    updates = zip(*parts, strict=True)
    split = [sorted(np.concatenate([part for own in update for part in own.rows])) for update in updates]
    assert split == whole
