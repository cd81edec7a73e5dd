"""What an update and a search ask of a GPU, counted on a device that is only pretended.

The bounds are today's counts: a change that lowers a count lowers its bound.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "pretended_gpu"
# The device is defined for a whole process, so it is one of its own.
PROGRAM = """
import json
from count import count_search, count_update
result = {name: count_update("base_en_de", is_padded=name == "padded").summary() for name in ("padded", "unpadded")}
for name in ("going", "leaving"):
    _, steps, num_steps = count_search(num_sentences=24, num_beams=4, num_steps=14, ends=name == "leaving")
    result[name] = {what: number / num_steps for what, number in steps.summary().items()}
print(json.dumps(result))
"""
MOST_OPERATIONS = 1270  # of an update of 6 + 6 layers in bfloat16, 422 of them casts
MOST_MASKED_ATTENTION = 12  # of 18 calls: causal queries of the target never see its padding, on their right
MOST_OPERATIONS_OF_STEP = {"going": 35, "leaving": 43}  # that the host starts, a graph being one
MOST_OPERATIONS_IN_GRAPHS = 87  # of a step of 6 layers

# Of an epoch; of 4.5M pairs 188 and 93.8 %.
MOST_SHAPES, LEAST_REAL_SHARE = 170, 0.93


@pytest.fixture(scope="module")
def counts():
    """The counts of updates, and of a step of searches in which all go on or some leave; the tokens are checked."""
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("batch", ["padded", "unpadded"])
def test_host_never_waits_for_the_gpu_in_an_update(counts, batch):
    update = counts[batch]
    assert update["waits"] == update["mixed devices"] == update["blocking copies to the device"] == 0
    assert update["copies to the device"] == 3


@pytest.mark.parametrize("batch", ["padded", "unpadded"])
def test_update_takes_no_more_operations_than_it_did(counts, batch):
    update = counts[batch]
    assert 0 < update["operations"] <= MOST_OPERATIONS
    assert update["attention with a mask"] + update["attention without a mask"] == 18
    assert update["attention with a mask"] <= MOST_MASKED_ATTENTION


@pytest.mark.parametrize("kind", ["going", "leaving"])
def test_step_of_a_search_takes_no_more_operations_than_it_did_and_the_host_never_waits(counts, kind):
    step = counts[kind]
    assert 0 < step["operations"] <= MOST_OPERATIONS_OF_STEP[kind]
    assert 0 < step["operations in graphs"] <= MOST_OPERATIONS_IN_GRAPHS
    assert step["waits"] == step["mixed devices"] == step["blocking copies to the device"] == 0


def test_shapes_are_counted_per_process_and_padding_over_all(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from shapes import count_shapes

    sources, targets = np.array([2, 2, 2, 2, 4, 4], np.int32), np.array([3, 3, 3, 3, 4, 2], np.int32)
    options = {"tokens_per_batch": 8, "bucketed": False}
    one = count_shapes(sources, targets, **options, num_processes=1)
    two = count_shapes(sources, targets, **options, num_processes=2)
    # Updates of 2, 2 and 2 pairs, of which only the last holds padding: two target tokens.
    assert (one.updates, one.shapes, one.real_share) == (3, 2, 34 / 36)
    assert (two.updates, two.real_share) == (3, 1.0)


def test_an_epoch_in_buckets_has_few_shapes_and_little_padding(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from shapes import count_shapes, draw_lengths

    lengths = draw_lengths(1_000_000)
    for num_processes in (1, 8):
        found = count_shapes(*lengths, tokens_per_batch=25_000, num_processes=num_processes, bucketed=True)
        assert found.shapes <= MOST_SHAPES
        assert found.real_share >= LEAST_REAL_SHARE
