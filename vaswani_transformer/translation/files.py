"""Translate text that does not fit into memory, from file to file or as a stream.

The translation of a file can be stopped and continued, and any number of processes can share it. The file is translated
in windows of lines. While FILE is being written, a folder lies beside it:

    FILE.partial/
        settings.json         digests of the text and of the models, and the search options
        lines-000000000001    the translations of the window that begins with this line, and their seal
        lock                  held by the process that works here

The file of a window appears when the window is complete. The last 32 bytes of the file are a seal: a digest of the
translations, of their sentences, of the place of the window, and of the settings. So a restarted run translates only
the windows that are missing or damaged, or whose sentences have changed. At the end the text is read again, and if all
seals fit it, the windows are joined into FILE, which replaces an older FILE in one step. Then the folder is removed.
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
from .translator import Translator

# Larger windows need less padding, because they have more sentences of similar lengths for a batch. A window of a long
# text has this number of lines, or as many lines as a batch may have tokens, if that is more. With batches of 2,000
# tokens, windows of 4,096 lines need 2 % padding for long sentences and 5 % for short sentences. Windows four times as
# large would need 1 % and 2 %.
LEAST_LINES_PER_WINDOW = 4_096
# A short text has four smaller windows, so that two or four processes share it evenly. For a text of 1,272 lines, four
# windows take 1 to 2 % more processor time than one window. Windows below 256 lines would cost more.
LEAST_LINES_TO_SHARE = 256
# The windows of a stream are smaller, because a reader may wait for the output. With batches of 2,000 tokens, 7 % of
# the tokens are then padding.
LINES_PER_STREAM_WINDOW = 1_024
BYTES_PER_READ = 65_536  # The capacity of a pipe.
SETTINGS_FILE = "settings.json"
WINDOW_FILES = "lines-*"

SEAL_BYTES = hashlib.sha256().digest_size


def find_processes() -> PartialState:
    """Return the processes of `accelerate launch`, or this process alone.

    Raises:
        ValueError: if the processes of a launch are not connected.
    """
    # The timeout is long: at the end all processes wait for the slowest one, perhaps for hours. If a process dies, the
    # launcher ends the others.
    processes = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(weeks=3))
    check_processes(processes.num_processes)
    return processes


def translate_file(
    translator: Translator,
    source: Path,
    output: Path,
    *,
    to_lines: Callable,
    settings: dict[str, object],
    processes: PartialState,
) -> None:
    """Translate the lines of `source` into `output`, and continue where an earlier call was stopped.

    Each process translates a share of the missing windows. The number of processes may change between calls, and has no
    effect on the output.

    Args:
        output: the file to write. If it is a symbolic link, the file it points to is written. If its name ends in
            `.gz`, it is compressed.
        to_lines: (the hypotheses of a sentence, its number from 1 on) -> lines of the file.
        settings: everything on which the output depends, except the text; as JSON values.
        processes: from `find_processes`. Processes on several machines must all see the folder of `output`.

    Raises:
        FileNotFoundError: if `source` does not exist, or if a process on another machine does not see the
            folder of `output`.
        ValueError: in each of these cases:
            - A line is not UTF-8. This error comes before the first translation.
            - The text or the settings differ from the text or settings of the earlier call.
            - A process of another call writes `output` at the same time.
            - The text changed, or a window was damaged, during the translation.
            - FILE.partial holds files with the names of windows, but no settings.json.
    """

    def read_text() -> Iterator[str]:
        translator.num_joined = 0  # The text is read several times.
        return translator.join_lines(read_lines(source))

    num_lines, digest = _survey(read_text())
    output = output.resolve() if output.is_symlink() else output
    folder = output.with_name(f"{output.name}.partial")
    largest_size = max(LEAST_LINES_PER_WINDOW, translator.tokens_per_batch)
    size = min(largest_size, max(LEAST_LINES_TO_SHARE, num_lines // 4 + 1))
    windows = {start: folder / f"lines-{start + 1:012d}" for start in range(0, num_lines, size)}
    settings = {"format": 4, "lines_per_window": size, "text": digest, **settings}  # 4: version of this format
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
        missing = [start for start, _, _, lines in _read_windows(read_text(), windows, size, key) if lines is None]
        processes.wait_for_everyone()  # All processes must list the missing windows before any window is written.
        share = set(missing[processes.process_index :: processes.num_processes])
        with tqdm(
            total=num_lines,
            initial=num_lines - sum(min(size, num_lines - start) for start in missing),
            unit=" sentences",
            smoothing=0,  # The longest sentences of a window come first, so only the mean rate predicts the end.
            file=sys.stderr,
            disable=None if processes.is_main_process else True,
        ) as bar:

            def show(num_sentences: int) -> None:
                # This estimate assumes that the other processes translate as fast as this one.
                bar.update(min(num_sentences * processes.num_processes, num_lines - bar.n))

            for start, path, sentences, _ in _read_windows(read_text(), windows, size, key):
                if start in share:
                    translated = enumerate(translator(sentences, on_batch=show), start=start + 1)
                    window = "".join(to_lines(hypotheses, number) for number, hypotheses in translated).encode()
                    with write_whole(path) as file:
                        file.write(window + _seal(path, sentences, window, key))
        processes.wait_for_everyone()
        if processes.is_main_process:
            if _survey(read_text()) != (num_lines, digest):
                raise ValueError(f"{source} changed while it was translated: repeat the command.")
            _join(_read_windows(read_text(), windows, size, key), folder, output)


def _survey(lines: Iterable[str]) -> tuple[int, str]:
    """Return the number of lines of a text and its digest.

    Raises:
        ValueError: if a line is not UTF-8.
    """
    digest = hashlib.sha256()
    num_lines = 0
    for num_lines, line in enumerate(lines, start=1):  # noqa: B007 - the last number is the count
        digest.update(f"{line}\n".encode())
    return num_lines, digest.hexdigest()[:16]


def _seal(path: Path, sentences: Sequence[str], lines: bytes, key: str) -> bytes:
    """Return a digest of the place of a window (its file name), its sentences, its translations, and the settings."""
    return hashlib.sha256(json.dumps([path.name, key, sentences]).encode() + lines).digest()


def _read_windows(
    lines: Iterator[str], windows: Mapping[int, Path], size: int, key: str
) -> Iterator[tuple[int, Path, list[str], bytes | None]]:
    """Yield start, path, sentences and translations of each window of a text.

    The translations are `None` if the window is missing or damaged, or if it was made from other sentences or with
    another `key`.
    """
    for start, path in windows.items():
        sentences = list(islice(lines, size))
        content = path.read_bytes() if path.is_file() else b""
        window = content[:-SEAL_BYTES]
        yield start, path, sentences, window if content == window + _seal(path, sentences, window, key) else None


def _join(windows: Iterable, folder: Path, output: Path) -> None:
    """Write all windows in order to `output`, then remove the files that the translation left in `folder`.

    Raises:
        ValueError: if a window is missing or damaged, or if the text has changed.
    """
    joined = folder / "lines-joined"
    with write_whole(joined) as file:
        writer = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if output.suffix == ".gz" else file
        for _, path, _, lines in windows:
            if lines is None:
                raise ValueError(
                    f"{path} was damaged during the translation, or its text was changed: repeat the command to "
                    f"translate it again."
                )
            writer.write(lines)
        if writer is not file:
            writer.close()
    joined.replace(output)
    # The windows are removed before the settings: windows without settings would look like files of the user.
    for path in (*folder.glob(WINDOW_FILES), folder / SETTINGS_FILE, folder / LOCK_FILE):
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def translate_stream(
    translator: Translator, windows: Iterable[Sequence[str]], output: TextIO, *, to_lines: Callable
) -> None:
    """Translate `windows` of sentences as they arrive. Write the translations of a window before the next is read.

    Args:
        to_lines: see `translate_file`.
    """
    numbers = count(1)
    hides_bar = True if output.isatty() else None  # On a terminal, bar and translations would overwrite each other.
    with tqdm(unit=" sentences", smoothing=0, disable=hides_bar) as bar:
        for sentences in windows:
            for hypotheses in translator(list(translator.join_lines(sentences)), on_batch=bar.update):
                output.write(to_lines(hypotheses, next(numbers)))
            output.flush()


def read_windows(path: Path | None) -> Iterator[list[str]]:
    """Yield windows of lines from the file or pipe `path`, or from standard input if it is `None`.

    A file may be compressed (see `data.lines.read_lines`). For a pipe, see `read_pipe`.
    """
    if path is None:
        yield from read_pipe(sys.stdin.buffer, name="standard input")
    elif path.is_file():
        lines = read_lines(path)
        yield from iter(lambda: list(islice(lines, LINES_PER_STREAM_WINDOW)), [])
    else:
        with path.open("rb") as file:
            yield from read_pipe(file, name=str(path))


def read_pipe(file: BinaryIO, *, name: str) -> Iterator[list[str]]:
    """Yield windows of the lines that a pipe holds at the moment, without waiting for further lines.

    Args:
        file: a binary file with a buffer.
        name: the name of the file in error messages.

    Raises:
        ValueError: at the first line that is not UTF-8.
    """
    ready: deque[bytes] = deque()  # whole lines that were not yielded yet
    lines = decode_lines(iter(ready.popleft, None), name=name)
    rest = b""  # the beginning of a line whose end has not arrived
    while block := file.read1(BYTES_PER_READ):
        *whole, rest = (rest + block).split(b"\n")
        rest = rest[:MOST_LINE_BYTES]  # A line that never ends must not fill the memory.
        ready.extend(line + b"\n" for line in whole)
        if ready:
            yield list(islice(lines, len(ready)))
    if rest:
        ready.append(rest)
        yield [next(lines)]
