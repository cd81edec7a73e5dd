"""What work that may be stopped at any moment keeps on disk: whole files, and settings that may not change."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def write_whole(path: Path, unfinished: Path | None = None) -> Iterator[BinaryIO]:
    """A new file that takes its place at `path` when it is whole and on disk.

    Args:
        unfinished: where it is written until then, on the same file system; `path` with `.partial` if not given.
    """
    unfinished = unfinished or path.with_name(f"{path.name}.partial")
    with open(unfinished, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def read_object(path: Path) -> dict:
    """The JSON object in a file.

    Raises:
        ValueError: if it holds something else; the message names it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: expected a JSON object ({error}). Copy it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}. Copy it again.")
    return value


def find_changes(recorded: object, given: object, name: str) -> Iterator[str]:
    """What differs between two JSON values, each difference as `path.to.it was 1, is 2`.

    Args:
        name: of the values, where their paths begin.
    """
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in recorded.keys() | given.keys():
            yield from find_changes(recorded.get(key), given.get(key), f"{name}.{key}")
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        for place, (old, new) in enumerate(zip(recorded, given, strict=True)):
            yield from find_changes(old, new, f"{name}[{place}]")
    elif recorded != given:
        yield f"{name} was {json.dumps(recorded)}, is {json.dumps(given)}"
