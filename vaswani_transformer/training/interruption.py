"""How runs end: requests to stop (SIGTERM, which schedulers send, and Ctrl+C), and the end of process groups."""

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
    """Remember a signal, so that the present update can be finished; a later signal ends the process at once.

    Signals within a few seconds are one request: a scheduler signals every process, and its launcher signals them
    again. Use it in the main thread: Python delivers signals only there.
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


def ignore_first_sigterm(worker_id: int) -> None:
    """Let a worker of a `DataLoader` ignore the first SIGTERM, so that training can save before its workers end.

    Use it as `worker_init_fn`. Launchers signal process groups, and schedulers every process; the death of a worker
    would end the training before its checkpoint.
    """
    os.setsid()  # out of the process group
    # Only the first: the loader sends the second one to a worker that does not end by itself.
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def destroy_group_at_exit() -> None:
    """Destroy the process group at exit, after the models; each process calls it when its work is done.

    Without it, a thread of gloo may abort the process (PyTorch's pull request 179291). If the model still exists, the
    process may hang: the reducer of the gradients then holds the last reference to the group, and its destructor waits
    for threads of gloo, which may wait for the interpreter (PyTorch's issue 56297).
    """
    atexit.register(_destroy_group)


def _destroy_group() -> None:
    import torch  # late: the command line imports this file for its exit code

    gc.collect()  # models that refer to themselves
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
