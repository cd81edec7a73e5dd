"""Write, check and lock files and folders of work that may be stopped at any moment."""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

LOCK_FILE = "lock"
WITHOUT_LOCKS = errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS  # errors of file systems that have no locks
RENAME_EXCHANGE, CURRENT_FOLDER = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file. When it is whole and on disk, it replaces the file at `path`.

    Until then, the new file has the name of `path` with `.partial` after it. If a link has this name, it is removed and
    not followed.

    Raises:
        OSError: if the file cannot be written, see `naming`.
    """
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.unlink(missing_ok=True)
    try:
        with naming(path), open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error about a failed write name `path`, also where the error of Python or of a library does not."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if "(os error " in str(error):  # from the code of safetensors or tokenizers in Rust
            raise OSError(f"{path} could not be written: {error}") from error
        raise


def remove(path: Path) -> None:
    """Remove the file, link or folder at `path`, if there is one. A link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def write_folder(folder: Path, *, stale: Collection[str] = ()) -> Iterator[Path]:
    """Yield a new folder. When it is whole and on disk, it takes the place of `folder`, see `_swap`.

    Other files in `folder`, such as files of the user, are copied into the new folder. Pipes and sockets are not.

    Args:
        stale: names of files in `folder` that are not copied.

    Raises:
        ValueError: if `folder` cannot be replaced, see `check_replaceable`.
        OSError: if a file cannot be written, see `naming`.
    """
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder)
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    # A process may have been killed between the two steps of `_swap`.
    if old.exists() and not (old.is_symlink() or folder.exists()):
        old.rename(folder)
    for leftover in (new, old):
        remove(leftover)
    try:
        new.mkdir(parents=True)
        with naming(folder):
            yield new
        reset_modes(new)
        if folder.exists():
            left_out = {*stale, *(path.name for path in (*new.iterdir(), *filter(is_special, folder.iterdir())))}

            def leave_out(place: str, names: list[str]) -> Collection[str]:
                return left_out.intersection(names) if Path(place) == folder else ()

            shutil.copytree(folder, new, symlinks=True, dirs_exist_ok=True, ignore=leave_out)
        for path in (*new.rglob("*"), new):
            if not path.is_symlink():
                sync(path)
        _swap(new, folder, old)
        sync(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # `new` is unfinished, or `_swap` left the old folder there.


def check_replaceable(folder: Path) -> None:
    """Raise a ValueError if a new folder cannot take the place of `folder`, or should not, because it is a link."""
    is_else = folder.is_symlink() or (folder.exists() and not folder.is_dir())
    if is_else or folder.is_mount() or folder.resolve() == Path.cwd():
        raise ValueError(
            f"{folder} is the current folder, a mount point, a link or a file, which a new folder cannot replace: move "
            f"it away, or name another folder."
        )


def reset_modes(folder: Path) -> None:
    """Let all files below `folder`, which this process has made, have the mode of new files (see `umask`).

    safetensors and others give their files the mode 0600, so that only their owner could read the weights.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


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
    """Return "FILE is missing" or "FILE is damaged" for the first file that differs from `digests`; "" if none does."""
    found = digest_files(folder, [folder / name for name in digests])
    for name, digest in digests.items():
        if found.get(name) != digest:
            return f"{folder / name} is {'damaged' if name in found else 'missing'}"
    return ""


def is_special(path: Path) -> bool:
    """Return True if `path` is a pipe, a socket or a device. To read it might take for ever."""
    return path.exists() and not (path.is_file() or path.is_dir())


def read_bytes(path: Path) -> bytes:
    """Return the content of the file at `path`. If it is a pipe, a socket or a device, raise a ValueError."""
    if is_special(path):
        raise ValueError(f"{path} is a pipe or a device, not a file: remove it.")
    return path.read_bytes()


def read_object(path: Path) -> dict:
    """Return the JSON object in the file at `path`. If it holds no JSON object, raise a ValueError that names it."""
    content = read_bytes(path)
    with blaming(path):
        return dict(**json.loads(content))


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn the block's errors about damaged content into a ValueError that names `path`, the damaged file."""
    try:
        yield
    except (OSError, MemoryError):  # These errors do not concern the content.
        raise
    except Exception as error:
        reason = f"{type(error).__name__} {error}".replace("\n", " ")
        message = f"{path} was not written by this version of the package, or is damaged: {reason}. Copy it again."
        raise ValueError(message) from error


def find_changes(recorded: object, given: object, name: str = "", defaults: Mapping | None = None) -> Iterator[str]:
    """Yield a line such as `path.to.value was 1, is 2` for each difference between two JSON values.

    Args:
        name: the beginning of all paths.
        defaults: the values of settings that may be missing, by their paths.
    """
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in sorted(recorded.keys() | given.keys()):
            path = f"{name}.{key}" if name else key
            values = (settings.get(key, (defaults or {}).get(path)) for settings in (recorded, given))
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
    """Record the settings of a folder in its JSON file at `path`. If the file exists, compare `settings` with it.

    Args:
        settings: JSON values on which the results depend. Other entries of the file are not compared.
        advice: the end of the error message if settings differ: what the user can do.
        owned: names or patterns of the other files that the caller will write into the folder or remove from it.
        free: settings that may change, by their paths as in `find_changes`.
        defaults: see `find_changes`.

    Returns:
        the content of the file.

    Raises:
        ValueError: if the file is damaged or has other settings; the message names the differences. Also if the file is
            missing, but one of the `owned` files exists, because that may be a file of the user.
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
    """Lock `folder` until the block or this process ends. If the file system has no locks, warn, and do not lock.

    Raises:
        ValueError: if another process has locked the folder.
    """
    lock = FileLock(folder / LOCK_FILE, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"another process writes in {folder}: wait until it ends, or name another output.") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"the file system of {folder} has no locks ({error.strerror}): let no other process write there.",
            stacklevel=1,
        )
    try:
        yield
    finally:
        lock.release()
