"""The progress of a run: sums over updates and processes, speed, epochs and evaluations."""

import math
from types import SimpleNamespace

import pytest
import torch

from vaswani_transformer.training import progress
from vaswani_transformer.training.progress import Progress, Tally, perplexity

UPDATE = SimpleNamespace(target_tokens=10)
CPU = torch.device("cpu")
ALONE = SimpleNamespace(device=CPU, is_main_process=True, reduce=lambda tensor, how: tensor)


def test_the_perplexity_of_a_diverging_run_is_infinite():
    assert perplexity(math.log(5)) == pytest.approx(5)
    assert perplexity(710.0) == math.inf
    assert perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_a_restored_tally_counts_the_sum_of_all_processes_once():
    def reduce(tensor, how):  # each process receives the sum over all processes
        return sum(tally._losses for tally in tallies)

    processes = [SimpleNamespace(device=CPU, is_main_process=is_main, reduce=reduce) for is_main in (True, False)]
    tallies = [Tally(process) for process in processes]
    for tally, losses in zip(tallies, ([40.0, 30.0], [20.0, 10.0]), strict=True):
        tally.add(torch.tensor(losses), torch.tensor(True), UPDATE)
    assert tallies[0].compute_means()["loss"] == 6.0
    state = tallies[0].state_dict()
    tallies = [Tally(process) for process in processes]
    for tally in tallies:
        tally.load_state_dict(state)
    assert [tally.compute_means()["loss"] for tally in tallies] == [6.0, 6.0]


def test_updates_that_are_skipped_in_a_row_are_counted():
    tally = Tally(ALONE)
    seen = []
    for is_finite in (False, False, True, False, True):
        tally.add(torch.zeros(2), torch.tensor(is_finite), UPDATE)
        seen.append(tally.count_skipped_in_a_row())
    assert seen == [1, 2, 0, 1, 0]
    assert tally.updates == len(seen)


def test_the_speed_excludes_pauses_and_includes_the_time_before_a_resumption(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    before = Tally(ALONE)
    clock.now += 4.0
    with before.pause():
        clock.now += 3.0
    before.add(torch.zeros(2), torch.tensor(True), UPDATE)
    assert before.compute_means()["target_tokens_per_second"] == 10 / 4
    state = before.state_dict()
    clock.now = 9.0  # the clock of the resumed process has another origin
    after = Tally(ALONE)
    after.load_state_dict(state)
    clock.now += 1.0
    after.add(torch.zeros(2), torch.tensor(True), UPDATE)
    assert after.compute_means()["target_tokens_per_second"] == 20 / 5


def test_progress_counts_epochs_and_evaluations_and_is_restored():
    done = Progress()
    for is_last_of_epoch in (False, True, False):
        done.count(SimpleNamespace(is_last_of_epoch=is_last_of_epoch))
    without_gain = []
    for dev_loss in (3.0, 3.0, 2.0, 2.5):
        done.note_evaluation(dev_loss)
        without_gain.append(done.evaluations_without_gain)
    assert (done.update, done.epoch, done.updates_of_epoch, done.seconds) == (3, 1, 1, 0.0)
    assert (done.best_dev_loss, without_gain) == (2.0, [0, 1, 0, 1])
    restored = Progress()
    restored.load_state_dict(done.state_dict())
    assert restored == done
