"""Write, check and lock files and folders of work that may be stopped at any moment."""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

OF_LIBRARIES = (StrictDataclassError, SafetensorError)  # Libraries raise them over a damaged file.
LOCK_FILE = "lock"
RENAME_EXCHANGE, CURRENT_FOLDER = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


@contextlib.contextmanager
def write_whole(path: Path, unfinished: Path | None = None) -> Iterator[BinaryIO]:
    """Open a new file. When it is whole and on disk, it replaces the file at `path`.

    Args:
        unfinished: the name of the new file until then, on the same file system; by default `path` with `.partial`.

    Raises:
        OSError: if the file cannot be written. The error names the file, also if the disk is full.
    """
    unfinished = unfinished or path.with_name(f"{path.name}.partial")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    unfinished.replace(path)


@contextlib.contextmanager
def write_folder(folder: Path, *, stale: Collection[str] = ()) -> Iterator[Path]:
    """Yield a new folder. When it is whole and on disk, it takes the place of `folder` in one step.

    Other files in `folder`, such as files of the user, are copied into the new folder.

    Args:
        stale: names of files in `folder` that are not copied.
    """
    folder = folder.resolve()
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    if old.exists() and not folder.exists():  # A process was killed between the two steps of `_swap`.
        old.rename(folder)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        yield new
        if folder.exists():
            left_out = {*stale, *(path.name for path in new.iterdir())}

            def leave_out(place: str, names: list[str]) -> Collection[str]:
                return left_out.intersection(names) if Path(place) == folder else ()

            shutil.copytree(folder, new, symlinks=True, dirs_exist_ok=True, ignore=leave_out)
        for path in (*new.rglob("*"), new):
            if not path.is_symlink():
                sync(path)
        _swap(new, folder, old)
        sync(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # It is unfinished, or has the earlier content of `folder`.


def _swap(new: Path, folder: Path, old: Path) -> None:
    """Let `new` and `folder` exchange their names. Where the system cannot do this, rename them in two steps."""
    if not folder.exists():
        new.rename(folder)
        return
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    places = CURRENT_FOLDER, os.fsencode(new), CURRENT_FOLDER, os.fsencode(folder)
    if exchange is None or exchange(*places, RENAME_EXCHANGE):  # Some file systems cannot exchange names.
        folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old)


def sync(path: Path) -> None:
    """Wait until the file or folder at `path` is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Write `value` to `path` as JSON, whole or not at all."""
    with write_whole(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2).encode())


def digest_files(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file among `paths`, by its name below `folder`. A GB takes 0.6 to 2 s on a core."""
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in sorted(paths) if path.is_file()}


def digest_file(path: Path) -> str:
    """Return the SHA-256 of the file at `path`."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(folder: Path, digests: Mapping[str, str]) -> str:
    """Return "FILE is missing" or "FILE is damaged" for the first file that is not as in `digests`, or ""."""
    found = digest_files(folder, [folder / name for name in digests])
    for name, digest in digests.items():
        if found.get(name) != digest:
            return f"{folder / name} is {'damaged' if name in found else 'missing'}"
    return ""


def read_object(path: Path) -> dict:
    """Return the JSON object in a file. Raise a ValueError with the name of the file if it holds something else."""
    with blaming(path):
        return dict(**json.loads(path.read_text(encoding="utf-8")))


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn errors of the block over damaged content into a ValueError that names `path`, the file that caused them."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, *OF_LIBRARIES) as error:
        reason = f"{type(error).__name__} {error}".replace("\n", " ")
        message = f"{path} was not written by this version of the package, or is damaged: {reason}. Copy it again."
        raise ValueError(message) from error


def find_changes(recorded: object, given: object, name: str = "", defaults: Mapping | None = None) -> Iterator[str]:
    """Yield a line such as `path.to.it was 1, is 2` for each difference between two JSON values.

    Args:
        name: the beginning of all paths.
        defaults: path -> value, for settings that may be missing.
    """
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in sorted(recorded.keys() | given.keys()):
            path = f"{name}.{key}" if name else key
            values = (it.get(key, (defaults or {}).get(path)) for it in (recorded, given))
            yield from find_changes(*values, path, defaults)
    elif recorded != given:
        was, now = ("not set" if value is None else json.dumps(value) for value in (recorded, given))
        yield f"{name} was {was}, is {now}"


def claim(
    path: Path,
    settings: Mapping[str, object],
    *,
    advice: str,
    owned: Iterable[str] = (),
    free: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
) -> dict:
    """Record the settings of a folder in its JSON file at `path`. If the file exists, compare the settings with it.

    Args:
        settings: JSON values on which the results depend. Other entries of the file are not compared.
        advice: sentences for a user whose settings differ.
        owned: names or patterns of further files that will be written into the folder, or removed from it.
        free: paths of settings that may change.
        defaults: see `find_changes`.

    Returns:
        the content of the file.

    Raises:
        ValueError: if the file has other settings (the message names the differences), or if it is damaged. Also if it
            does not exist, but one of the `owned` files does, because that is a file of the user.
    """
    settings = json.loads(json.dumps(settings))
    if not path.exists():
        for found in sorted(found for pattern in owned for found in path.parent.glob(pattern)):
            raise ValueError(
                f"{found} would be overwritten, and no {path.name} beside it tells how it was made: name another "
                f"output folder, or remove {found.name}."
            )
        write_json(path, settings)
    recorded = read_object(path)
    changes = find_changes({name: recorded.get(name) for name in settings}, settings, defaults=defaults)
    if changes := [change for change in changes if change.split(" ")[0] not in free]:
        raise ValueError(f"{path.parent} was begun with other settings: {'; '.join(changes)}. {advice}")
    return recorded


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` until the block or this process ends. Raise a ValueError if another process has locked it."""
    try:
        with FileLock(folder / LOCK_FILE, blocking=False):
            yield
    except Timeout:
        raise ValueError(f"another process is writing in {folder}: wait for it, or name another output.") from None
