"""What processes must know of each other before they work: those that a launcher has started, and any others."""

import contextlib
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK_FILE = "lock"


def check_processes(num_processes: int) -> None:
    """Refuse to work where the processes do not know of each other: each would do all the work.

    Args:
        num_processes: how many Accelerate has found.

    Raises:
        ValueError: if the launcher started another number.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but each takes itself for one of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from writing in `folder` meanwhile; the system frees it whenever this process ends.

    A lock of the process (POSIX): one of the open file would stay with the workers that outlive a killed process.
    Where the platform or the file system has no locks, a warning says so.

    Raises:
        ValueError: if a process is at work there already; the message names it.
    """
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        try:
            if fcntl is None:
                raise OSError("this platform has no file locks")
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # what "held by another" is called depends on the system
            file.seek(0)
            raise ValueError(
                f"{file.read() or 'another process'} is writing in {folder}; two would overwrite each other's files. "
                f"Wait for it or end it, or name another output."
            ) from None
        except OSError as error:
            warnings.warn(f"{folder} cannot be locked ({error}): start nothing else there.", stacklevel=2)
        file.truncate(0)
        file.write(f"process {os.getpid()} on host {socket.gethostname()}")
        file.flush()
        yield
