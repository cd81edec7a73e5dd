"""What a run tells: lines of JSON in its folder, the same to TensorBoard where that is installed, text to the user."""

import json
import os
import sys
from pathlib import Path

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:  # TensorBoard is not installed
    SummaryWriter = None

LOG_FILE = "log.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class Log:
    """The log of a run folder, closed by `with`. All processes have one, the main process alone writes.

    Args:
        folder: of the run.
        is_main_process: whether this is the one that writes.
    """

    def __init__(self, folder: Path, *, is_main_process: bool):
        self.folder = folder
        self.is_main_process = is_main_process
        self._tensorboard = None

    def open(self, *, update: int, num_bytes: int) -> None:
        """Go on after `update` updates: what was logged after them will be logged again, and is taken away.

        Args:
            num_bytes: what `sync` returned then.
        """
        if not self.is_main_process:
            return
        with (self.folder / LOG_FILE).open("ab") as log:
            log.truncate(num_bytes)
        if SummaryWriter is not None:
            self._tensorboard = SummaryWriter(str(self.folder / TENSORBOARD_FOLDER), purge_step=update + 1)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()

    def sync(self) -> int:
        """Bring the log to the disk; returns its length in bytes, in the main process."""
        path = self.folder / LOG_FILE
        with path.open("ab") as log:
            os.fsync(log.fileno())
        return path.stat().st_size

    def write(self, line: dict) -> None:
        """Add a line; it has an `update`, and values that are `None` where there is nothing to say."""
        if self.is_main_process:
            with (self.folder / LOG_FILE).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        if self._tensorboard is not None:
            for name in line.keys() - {"update"}:
                if line[name] is not None:
                    self._tensorboard.add_scalar(name, line[name], line["update"])

    def print(self, text: str, *, live: bool = False) -> None:
        """A line on standard error; on a terminal a `live` one is written over by the next."""
        if not self.is_main_process:
            return
        if sys.stderr.isatty():
            print(f"\r{text}\x1b[K", end="" if live else "\n", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def read_log(folder: Path) -> list[dict]:
    """The lines of the log in a run folder, in their order.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if a line is damaged.
    """
    path = folder / LOG_FILE
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {LOG_FILE}; name a folder that `vaswani train` has written.")
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}). Take the line out.") from error
        if not isinstance(line, dict):
            raise ValueError(f"{path}, line {number}: expected an object, found {text[:20]!r}. Take the line out.")
        if fault := _find_fault(line):
            raise ValueError(f"{path}, line {number}: {fault}. Take the line out.")
        lines.append(line)
    return lines


def _find_fault(line: dict) -> str:
    """What is wrong with a line of the log; empty if nothing is."""
    for name, value in line.items():
        if not isinstance(value, int | float | None):
            return f"expected numbers, found {name} {value!r:.20}"
    if not isinstance(line.get("update"), int):
        return "expected the number of its update"
    if "seconds" in line and None in (line["seconds"], line.get("target_tokens_per_second")):
        return "expected seconds and target_tokens_per_second, found one of them"
    return ""
