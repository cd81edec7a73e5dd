"""Locks of folders, and a check that the processes which a launcher has started know of each other."""

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
    """Refuse to work where the launcher started more processes than Accelerate has found: each would do all the work.

    Raises:
        ValueError: if the launcher started another number than `num_processes`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) != num_processes:
        raise ValueError(
            f"the launcher started {os.environ['WORLD_SIZE']} processes, but each takes itself for one of "
            f"{num_processes}. Without GPUs, set ACCELERATE_USE_CPU=true for the launcher."
        )


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for the duration of the block; the system frees it whenever this process ends.

    The lock belongs to the process (POSIX): one of the open file would stay with the workers that outlive a killed
    process. Where the platform or the file system has no locks, a warning says so.

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
