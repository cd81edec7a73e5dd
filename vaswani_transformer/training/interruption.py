"""How a run ends: requests to stop (SIGTERM, Ctrl+C), and the end of its processes."""

import atexit
import gc
import os
import signal
import time

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again
SECONDS_OF_ONE_REQUEST = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """The run was asked to stop, and has saved its state."""


class StopRequest:
    """Remember a signal, so that the present update can be finished. A later signal ends the process at once.

    Further signals within `SECONDS_OF_ONE_REQUEST` belong to the first one and are ignored: a scheduler signals every
    process, the launcher included, and then the launcher signals its processes again. Use this class in the main
    thread, because Python delivers signals only there.
    """

    received = False

    def __enter__(self) -> "StopRequest":
        self._previous = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: object) -> None:
        if not self.received:
            self.received = True
            self._since = time.monotonic()
        elif time.monotonic() - self._since > SECONDS_OF_ONE_REQUEST:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def destroy_group_at_exit() -> None:
    """Destroy the process group of PyTorch at exit. Each process calls this function when its work is done.

    Without this function, a thread of gloo, PyTorch's library for communication between CPUs, may abort the process
    (PyTorch's pull request 179291). The models are deleted first, because the reducer of a model's gradients also
    refers to the group. If a model outlived this function, the group's destructor would run only when Python deletes
    that model. The destructor waits for threads of gloo. These threads may wait for the interpreter, and then the
    process hangs (PyTorch's issue 56297).
    """
    atexit.register(_destroy_group)


def _destroy_group() -> None:
    import torch  # Imported late, because the command line needs only `EXIT_CODE`, and PyTorch takes seconds.

    gc.collect()  # deletes models that refer to themselves
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
