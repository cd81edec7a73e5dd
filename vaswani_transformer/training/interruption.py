"""Being asked to stop: SIGTERM, which schedulers send before they take a machine away."""

import signal
from types import FrameType

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again


class Interrupted(Exception):
    """The run was asked to stop, and has saved where it stands."""


class StopRequest:
    """Remembers that SIGTERM came, so that the update under way can be finished; a second one ends at once.

    Use it in the main thread: Python hands signals to no other.
    """

    def __init__(self):
        self.received = False

    def __enter__(self) -> "StopRequest":
        self._previous = signal.signal(signal.SIGTERM, self._remember)
        return self

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
