"""Signals that ask a run to stop."""

import multiprocessing
import os
import signal
import time

import pytest

from vaswani_transformer.training import interruption
from vaswani_transformer.training.interruption import StopRequest, ignore_first_sigterm


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_within_the_first_seconds_are_one_request(number):
    # The first signal comes from a scheduler or from Ctrl+C. The launcher then sends SIGTERM as well.
    before = [signal.getsignal(each) for each in interruption.SIGNALS]
    with StopRequest() as request:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.received
    assert [signal.getsignal(each) for each in interruption.SIGNALS] == before


def wait(connection, prepare):
    """Call `prepare`, report to `connection`, and wait."""
    prepare()
    connection.send("ready")
    time.sleep(600)


def start_waiting(prepare):
    """Return a new process that has called `prepare` and now waits."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=wait, args=(theirs, prepare), daemon=True)
    process.start()
    ours.recv()
    return process


@pytest.mark.parametrize("prepare", [StopRequest().__enter__, lambda: ignore_first_sigterm(0)], ids=["main", "worker"])
def test_a_process_survives_the_first_signal_but_not_a_later_one(monkeypatch, prepare):
    monkeypatch.setattr(interruption, "SECONDS_OF_ONE_REQUEST", -1.0)  # every signal is a request of its own
    process = start_waiting(prepare)
    process.terminate()
    process.join(0.2)
    assert process.is_alive()
    for _ in range(600):  # The system merges signals until the process runs again, so one may be lost.
        process.terminate()
        process.join(0.1)
        if process.exitcode is not None:
            break
    assert process.exitcode == -signal.SIGTERM


def test_a_worker_leaves_the_process_group():
    process = start_waiting(lambda: ignore_first_sigterm(0))
    assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    process.kill()


@pytest.fixture(autouse=True)
def default_handler():
    """Give SIGTERM its default handler. Processes that a test forks inherit it."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, previous)
