"""The log of a run: lines of JSON in its folder, text for the user, curves in a tracker such as TensorBoard."""

import json
import os
import sys
from pathlib import Path

from accelerate import Accelerator
from tqdm import tqdm

from ..files import blaming, read_bytes, write_whole
from ..runs import LOG_FILE


class Log:
    """The log of a run folder. All processes have a `Log`, but only the main process writes.

    The numbers also go to the trackers of `accelerator`, if it has any.
    """

    def __init__(self, folder: Path, accelerator: Accelerator):
        self.path = folder / LOG_FILE
        self.accelerator = accelerator

    def open(self, *, update: int) -> None:
        """Continue the log of a run that has done `update` updates. Lines about later updates are removed."""
        if not self.accelerator.is_main_process:
            return
        lines = read_bytes(self.path).splitlines(keepends=True) if self.path.exists() else []
        lines = [line for line in lines if _is_up_to(line, update)]
        with write_whole(self.path) as file:
            file.writelines(lines)
        if self.accelerator.log_with:
            # TensorBoard gets all lines of the log again in a new file. Its old files are deleted. Otherwise it would
            # draw some updates of a resumed run twice.
            for events in self.path.parent.glob("events.out.tfevents.*"):
                events.unlink()
            self.accelerator.init_trackers(self.path.parent.resolve().name)
            for line in map(json.loads, lines):
                self._track(line)

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _track(self, line: dict) -> None:
        """Pass the numbers in a line of the log to the trackers."""
        self.accelerator.log({name: value for name, value in line.items() if name != "update"}, step=line["update"])

    def write(self, line: dict, **facts: object) -> None:
        """Write a line of the log to the disk and print it.

        Args:
            line: name -> number. One of the names is `update`.
            facts: name -> value. They are printed after the numbers, but not written to the disk.
        """
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as log:
                log.write(f"{json.dumps(line)}\n")
                log.flush()
                os.fsync(log.fileno())
            self._track(line)
        numbers = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in line.items()}
        self.print("  ".join(f"{name} {value}" for name, value in (numbers | facts).items()))

    def print(self, text: str) -> None:
        """Print a line on standard error, above the progress bar if there is one."""
        if self.accelerator.is_main_process:
            tqdm.write(text, file=sys.stderr)


def read_log(folder: Path) -> list[dict]:
    """Return the lines of the log in a run folder.

    Raises:
        FileNotFoundError: if there is no log.
        ValueError: if a line of the log is damaged.
    """
    path = folder / LOG_FILE
    content = read_bytes(path)
    with blaming(path):
        return list(map(_parse, content.splitlines()))


def _parse(text: bytes) -> dict[str, float | None]:
    """Return the numbers in a line of the log. Raise an error if it holds something else, or no number of updates."""
    line = json.loads(text)
    if not isinstance(line["update"], int) or not all(isinstance(value, int | float | None) for value in line.values()):
        raise TypeError(f"expected numbers, one of them the update, found {text!r:.80}")
    return line


def _is_up_to(text: bytes, update: int) -> bool:
    """Return True if `text` is a whole line of the log, and the number of its update is at most `update`."""
    try:
        return text.endswith(b"\n") and _parse(text)["update"] <= update
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
