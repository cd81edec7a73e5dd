"""Signals that ask a run to stop."""

import os
import signal

import pytest

from vaswani_transformer.training import interruption
from vaswani_transformer.training.interruption import StopRequest


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
