"""The log of a run: lines of JSON in its folder, the same to the trackers asked for, text for the user."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from ..files import blaming, write_whole

LOG_FILE = "log.jsonl"
TRACKER_FOLDER = "trackers"
PROJECT = "vaswani_transformer"


class Log:
    """The log of a run folder, closed by `with`. All processes have one, the main process alone writes.

    `accelerator` reports to the trackers it was made for (`log_with`).
    """

    def __init__(self, folder: Path, accelerator: Accelerator):
        self.path, self.accelerator = folder / LOG_FILE, accelerator
        self.is_main_process = accelerator.is_main_process

    def open(self, *, update: int, num_bytes: int) -> None:
        """Go on after `update` updates; later lines are removed, because they will be logged again.

        A warning tells if lines have been lost since `sync` returned `num_bytes`.
        """
        if not self.is_main_process:
            return
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        kept = b"".join(line for line in lines if _is_up_to(line, update))
        if len(kept) != num_bytes:
            self.print(f"WARNING: {self.path} has lost lines up to update {update}; it goes on after what is left")
        with write_whole(self.path) as file:
            file.write(kept)
        options = {"tensorboard": {"purge_step": update + 1}, "wandb": {"name": self.path.parent.name}}
        self.accelerator.init_trackers(PROJECT, init_kwargs=options)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_) -> None:
        # Not `end_training`, which would also part the processes.
        while self.accelerator.trackers:
            self.accelerator.trackers.pop().finish()

    def sync(self) -> int:
        """Sync the log to the disk, in the main process; return its length in bytes."""
        if not self.is_main_process:
            return 0
        with self.path.open("ab") as log:
            os.fsync(log.fileno())
        return self.path.stat().st_size

    def write(self, line: dict) -> None:
        """Add a line: numbers by their names, one of them `update`, and `None` for those that are not known."""
        if self.is_main_process:
            with self.path.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        known = {name: value for name, value in line.items() if name != "update" and value is not None}
        self.accelerator.log(known, step=line["update"])

    def print(self, text: str) -> None:
        """Print a line on standard error."""
        if self.is_main_process:
            print(text, file=sys.stderr, flush=True)


def check_trackers(names: Sequence[str]) -> None:
    """Raise a ValueError for a tracker whose package is missing, which Accelerate would leave out without a word."""
    for name in names:
        if name not in map(str, get_available_trackers()):
            raise ValueError(f"there is no tracker {name} here: install its package (pip install {name}).")


def read_log(folder: Path) -> list[dict]:
    """Return the lines of the log in a run folder.

    Raises:
        FileNotFoundError: if there is no log.
        ValueError: if a line is damaged.
    """
    path = folder / LOG_FILE
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {LOG_FILE}; name a folder that `vaswani train` has written.")
    with blaming(path):
        return [json.loads(text) for text in path.read_bytes().splitlines()]


def _is_up_to(text: bytes, update: int) -> bool:
    """Return True for a whole line of the log about one of the first `update` updates."""
    try:
        return text.endswith(b"\n") and json.loads(text)["update"] <= update
    except ValueError:
        return False
