"""Signals that ask a run to stop."""

import multiprocessing
import os
import signal
import time

import pytest

from vaswani_transformer.training import interruption
from vaswani_transformer.training.interruption import StopRequest, ignore_first_sigterm


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_within_the_first_seconds_count_as_one_request(number):
    # The first signal comes from a scheduler or from Ctrl+C. The launcher then sends SIGTERM as well.
    before = [signal.getsignal(each) for each in interruption.SIGNALS]
    with StopRequest() as request:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.received
    assert [signal.getsignal(each) for each in interruption.SIGNALS] == before


def test_a_second_request_ends_the_process_at_once(monkeypatch):
    kills = []
    monkeypatch.setattr(interruption, "SECONDS_OF_ONE_REQUEST", -1.0)  # so that the second signal is a second request
    monkeypatch.setattr(interruption.os, "kill", lambda *call: kills.append((*call, signal.getsignal(signal.SIGTERM))))
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
        assert not kills
        signal.raise_signal(signal.SIGTERM)
    assert kills == [(os.getpid(), signal.SIGTERM, signal.SIG_DFL)]


def wait(connection):
    """Ignore the first SIGTERM, report to `connection`, and wait."""
    ignore_first_sigterm(0)
    connection.send("ready")
    time.sleep(600)


def test_a_worker_leaves_the_process_group_of_its_parent_and_survives_only_the_first_sigterm():
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=wait, args=(theirs,), daemon=True)
    process.start()
    ours.recv()
    assert os.getpgid(process.pid) == process.pid != os.getpgrp()
    process.terminate()
    process.join(0.2)
    assert process.is_alive()
    for _ in range(600):  # signals that arrive while the process sleeps may be merged into one
        process.terminate()
        process.join(0.1)
        if process.exitcode is not None:
            break
    assert process.exitcode == -signal.SIGTERM


@pytest.fixture(autouse=True)
def default_handler():
    """Give SIGTERM its default handler. Processes that a test forks inherit the handler."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, previous)
