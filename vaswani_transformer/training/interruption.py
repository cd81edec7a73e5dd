"""How runs end: requests to stop (SIGTERM, which schedulers send, and Ctrl+C), and processes that part."""

import atexit
import gc
import os
import signal
import time
from types import FrameType

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again
SECONDS_OF_ONE_REQUEST = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """The run was asked to stop, and has saved its state."""


class StopRequest:
    """Remembers a signal, so that the update under way can be finished; a later one ends the process at once.

    Signals of the first seconds are one request: a scheduler signals every process, and its launcher signals them
    again. Use it in the main thread: Python hands signals to no other.
    """

    def __init__(self):
        self.received = False

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > SECONDS_OF_ONE_REQUEST:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def outlive_stop_request(worker_id: int) -> None:
    """A `worker_init_fn` of a `DataLoader`, whose workers then live until the process they read for has saved.

    Launchers signal process groups, schedulers every process; the death of a worker would end the training before its
    checkpoint.
    """
    os.setsid()  # out of the process group
    # The first only: the second is the loader's, for a worker that does not end by itself.
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def part_at_exit() -> None:
    """Part from the other processes when this one ends, after its models are gone; each calls it when it is done.

    A process that ends without parting may be aborted by a thread of gloo (PyTorch's pull request 179291). One that
    parts while it has its model may hang: what gathers the gradients is then the last to hold the group of processes,
    and when it goes it waits for gloo's threads, which may wait for the interpreter (PyTorch's issue 56297).
    """
    atexit.register(_part)


def _part() -> None:
    import torch  # late: the command line imports this file for its exit code

    gc.collect()  # models that refer to themselves
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
