"""The log of a run: lines of JSON in its folder, text for the user, curves in a tracker such as TensorBoard."""

import json
import os
import sys
from pathlib import Path

from accelerate import Accelerator
from tqdm import tqdm

from ..files import blaming, write_whole
from ..runs import LOG_FILE


class Log:
    """The log of a run folder. All processes have one, only the main process writes.

    Its numbers also go to the trackers of `accelerator`, if it has any.
    """

    def __init__(self, folder: Path, accelerator: Accelerator):
        self.path = folder / LOG_FILE
        self.accelerator = accelerator
        self.is_main_process = accelerator.is_main_process

    def open(self, *, update: int) -> None:
        """Continue after `update` updates; later lines are removed, because they will be logged again."""
        if not self.is_main_process:
            return
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        lines = [line for line in lines if _is_up_to(line, update)]
        with write_whole(self.path) as file:
            file.writelines(lines)
        if self.accelerator.log_with:
            # The curves begin again from the log, so that no step stands twice after a stop.
            for events in self.path.parent.glob("events.out.tfevents.*"):
                events.unlink()
            self.accelerator.init_trackers(self.path.parent.resolve().name)
            for line in map(json.loads, lines):
                self._track(line)

    def close(self) -> None:
        """End the curves."""
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _track(self, line: dict) -> None:
        self.accelerator.log({name: value for name, value in line.items() if name != "update"}, step=line["update"])

    def write(self, line: dict, **told: object) -> None:
        """Write numbers by their names, one of them `update`, to the disk; print them, and `told` after them."""
        if self.is_main_process:
            with self.path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
                log.flush()
                os.fsync(log.fileno())
            self._track(line)
        numbers = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in line.items()}
        self.print("  ".join(f"{name} {value}" for name, value in (numbers | told).items()))

    def print(self, text: str) -> None:
        """Print a line on standard error, above a bar of tqdm."""
        if self.is_main_process:
            with tqdm.external_write_mode(file=sys.stderr):
                print(text, file=sys.stderr, flush=True)


def read_log(folder: Path) -> list[dict]:
    """Return the lines of the log in a run folder.

    Raises:
        FileNotFoundError: if there is no log.
        ValueError: if a line is damaged.
    """
    path = folder / LOG_FILE
    with blaming(path):
        return [json.loads(text) for text in path.read_bytes().splitlines()]


def _is_up_to(text: bytes, update: int) -> bool:
    """Return True for a whole line of the log about one of the first `update` updates."""
    try:
        return text.endswith(b"\n") and json.loads(text)["update"] <= update
    except ValueError:
        return False
