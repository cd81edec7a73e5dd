"""Translate text that does not fit into memory: file to file, resumable, by any number of processes; or as a stream.

A file is translated in windows of lines. While FILE is being written there is a folder beside it:

    FILE.partial/
        settings.json         digests of text and models, the search
        lines-000000000001    the translations of the window that begins with this line, and their seal
        lock                  held by the process that works here

The file of a window appears when it is complete. Its last 32 bytes are a digest of what precedes them, of its place and
of the settings, so a restarted run translates only the windows that are missing or damaged. At the end all windows are
joined into FILE, which replaces an older FILE in one step, and the folder is removed.
"""

import contextlib
import gzip
import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, TextIO

from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from tqdm import tqdm

from ..data.lines import MOST_LINE_BYTES, decode_lines, read_lines
from ..devices import check_processes
from ..files import LOCK_FILE, claim, lock_folder, write_whole
from .translator import Hypothesis, Translator

FORMAT = 4  # of the folder's files
# A window has as many lines as a batch has tokens, but at least this number. Padding is then 2 % for long sentences and
# 5 % for short ones at 2,000 tokens; with four times as many lines it would be 1 % and 2 %.
LEAST_LINES_PER_WINDOW = 4_096
LINES_PER_STREAM_WINDOW = 1_024  # 7 % padding at 2,000 tokens, but a reader may wait for the output
BYTES_PER_READ = 65_536  # as much as a pipe holds
SETTINGS_FILE = "settings.json"
WINDOW_FILES = "lines-*"

SEAL_BYTES = hashlib.sha256().digest_size

ToLines = Callable[[Sequence[Hypothesis], int], str]  # hypotheses of a sentence, its number from 1 -> its lines


def find_processes() -> PartialState:
    """Return the processes of `accelerate launch`, or this one alone.

    Raises:
        ValueError: if the processes of a launch are not connected.
    """
    # The others wait for the slowest process at the end, perhaps for hours. If one dies, the launcher ends all.
    processes = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(weeks=3))
    check_processes(processes.num_processes)
    return processes


def translate_file(
    translator: Translator,
    source: Path,
    output: Path,
    *,
    to_lines: ToLines,
    settings: dict[str, object],
    processes: PartialState,
) -> None:
    """Translate the lines of `source` into `output`; continue where an earlier call was stopped.

    The processes translate the missing windows in turn. Their number may change between calls and does not change the
    bytes of the output.

    Args:
        output: if it is a symbolic link, the file it points to is written; compressed if its name ends in `.gz`.
        settings: everything except the text on which the output depends, as JSON values.
        processes: from `find_processes`; on several machines all must see the folder of `output`.

    Raises:
        FileNotFoundError: if there is no such file, or if a process on another machine does not see the folder.
        ValueError: if a line is not UTF-8, before the first translation; if text or settings differ from those of the
            earlier call; if `output` is `source`; if another process writes it; if a window was damaged after it was
            checked; if files have the names of windows and no settings lie beside them.
    """
    if output.exists() and output.samefile(source):
        raise ValueError(f"{output} is the text to translate, and would be replaced: name another output.")
    num_lines, digest = _survey(source)
    output = output.resolve() if output.is_symlink() else output
    folder = output.with_name(f"{output.name}.partial")
    size = max(LEAST_LINES_PER_WINDOW, translator.tokens_per_batch)
    windows = {start: folder / f"lines-{start + 1:012d}" for start in range(0, num_lines, size)}
    settings = {"format": FORMAT, "lines_per_window": size, "text": digest, **settings}
    key = json.dumps(settings, sort_keys=True)
    with contextlib.ExitStack() as stack:
        if processes.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_folder(folder))
            claim(
                folder / SETTINGS_FILE,
                settings,
                advice="Give the same text and settings to continue, or remove that folder to start again.",
                owned=[WINDOW_FILES],
            )
        processes.wait_for_everyone()
        missing = [start for start, path in windows.items() if _read_window(path, f"{start}{key}") is None]
        processes.wait_for_everyone()  # before any window is written, all processes have listed the missing ones
        own = set(missing[processes.process_index :: processes.num_processes])
        with tqdm(
            total=num_lines,
            initial=num_lines - sum(min(size, num_lines - start) for start in missing),
            unit=" sentences",
            smoothing=0,  # each window begins with its longest sentences, so only the mean rate predicts the end
            file=sys.stderr,
            disable=None if processes.is_main_process else True,
        ) as bar:

            def show(num_sentences: int) -> None:
                # The progress of the other processes is estimated by that of this one.
                bar.update(min(num_sentences * processes.num_processes, num_lines - bar.n))

            lines = read_lines(source)
            for start, path in windows.items():
                sentences = list(islice(lines, size))
                if start in own:
                    translated = enumerate(translator(sentences, on_batch=show), start=start + 1)
                    window = "".join(to_lines(hypotheses, number) for number, hypotheses in translated).encode()
                    with write_whole(path) as file:
                        file.write(window + _seal(window, f"{start}{key}"))
        processes.wait_for_everyone()
        if processes.is_main_process:
            _join({path: f"{start}{key}" for start, path in windows.items()}, folder, output)


def _survey(path: Path) -> tuple[int, str]:
    """Return the number of lines of a text and its digest; raise a ValueError for a line that is not UTF-8."""
    digest, num_lines = hashlib.sha256(), 0
    for num_lines, line in enumerate(read_lines(path), start=1):  # noqa: B007 - the last one is the count
        digest.update(f"{line}\n".encode())
    return num_lines, digest.hexdigest()[:16]


def _seal(lines: bytes, key: str) -> bytes:
    """Return a digest of the `lines` of a window, and of its place and settings, the `key`."""
    return hashlib.sha256(key.encode() + lines).digest()


def _read_window(path: Path, key: str) -> bytes | None:
    """Return the lines of a window; `None` if it is missing, damaged, or of another place or other settings."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    lines, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    return lines if seal == _seal(lines, key) else None


def _join(keys: Mapping[Path, str], folder: Path, output: Path) -> None:
    """Write the windows, given with their `keys`, in order to `output`; then remove what translations leave there."""
    with write_whole(output, folder / WINDOW_FILES.replace("*", "joined")) as file:
        writer = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if output.suffix == ".gz" else file
        for path, key in keys.items():
            if (lines := _read_window(path, key)) is None:
                raise ValueError(
                    f"{path} was damaged during the translation: repeat the command to translate it again."
                )
            writer.write(lines)
        if writer is not file:
            writer.close()
    # Windows first: without the settings beside them they would look like files of the user.
    for path in (*folder.glob(WINDOW_FILES), folder / SETTINGS_FILE, folder / LOCK_FILE):
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def translate_stream(
    translator: Translator, windows: Iterable[Sequence[str]], output: TextIO, *, to_lines: ToLines
) -> None:
    """Translate `windows` of sentences as they arrive, and write each window at once."""
    numbers = count(1)
    hides_bar = True if output.isatty() else None  # they would overwrite each other on a terminal
    with tqdm(unit=" sentences", smoothing=0, file=sys.stderr, disable=hides_bar) as bar:
        for sentences in windows:
            for hypotheses in translator(sentences, on_batch=bar.update):
                output.write(to_lines(hypotheses, next(numbers)))
            output.flush()


def read_file_windows(path: Path) -> Iterator[list[str]]:
    """Yield windows of the lines of a file, which may be compressed; see `data.lines.read_lines`."""
    lines = read_lines(path)
    return iter(lambda: list(islice(lines, LINES_PER_STREAM_WINDOW)), [])


def read_windows(file: BinaryIO, *, name: str) -> Iterator[list[str]]:
    """Yield windows of the lines that a pipe holds, without waiting for further lines.

    Args:
        file: open in binary, with a buffer.
        name: for messages.

    Raises:
        ValueError: at the first line that is not UTF-8.
    """
    ready: deque[bytes] = deque()  # whole lines
    lines = decode_lines(iter(ready.popleft, None), name=name)
    rest = b""  # the beginning of a line whose end has not arrived
    while block := file.read1(BYTES_PER_READ):
        *whole, rest = (rest + block).split(b"\n")
        rest = rest[:MOST_LINE_BYTES]  # bounds the memory for a line without end
        ready.extend(line + b"\n" for line in whole)
        if ready:
            yield list(islice(lines, len(ready)))
    if rest:
        ready.append(rest)
        yield [next(lines)]
