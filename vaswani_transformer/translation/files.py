"""Translate text that does not fit into memory: file to file, resumable, by any number of processes; or as a stream.

While FILE is being written there is a folder beside it:

    FILE.partial/
        settings.json       digests of text and model, the search; written first, removed last
        finished.log        translations of earlier runs, one window per line
        process-00000.log   translations of one process of this run, one batch per line
        unfinished          a file that is being written; never read
        lock                names the process that works here

The text is read in windows of `LINES_PER_WINDOW`; batches are made inside a window, so memory does not grow with the
text. A batch is done when its line in the log is whole: a run that was killed and is started again translates only
the batches that no log holds. When all are done, their lines are put in order into FILE, which replaces an older FILE
at once, and the folder is removed. A FILE.partial that holds other files belongs to the user, and is refused.
"""

import contextlib
import hashlib
import heapq
import json
import os
import select
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import count, islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, TextIO

from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from tqdm import tqdm

from ..data.lines import BYTES_OF_LONG_LINE, decode_lines, read_lines
from ..devices import check_processes
from ..files import LOCK_FILE, find_changes, lock_folder, read_object, write_json, write_whole
from .translator import Hypothesis, Translator

FORMAT = 2  # of the folder's files
LINES_PER_WINDOW = 16_384  # padding is 1 % of batches of 2,000 tokens, 3 % of 10,000; with 4,096 lines 2 % and 10 %
LINES_PER_STREAM_WINDOW = 1_024  # 7 % at 2,000 tokens, but a reader may wait for the output
SECONDS_TO_WAIT = 0.05  # for the next line of a stream
BYTES_PER_READ = 65_536  # as much as a pipe holds
SETTINGS_FILE = "settings.json"
FINISHED_FILE = "finished.log"
PROCESS_FILES = "process-*.log"
UNFINISHED_FILE = "unfinished"

ToLines = Callable[[Sequence[Hypothesis], int], str]  # hypotheses of a sentence, its number from 1 -> its lines


def find_processes() -> PartialState:
    """The processes of `accelerate launch`, or this one alone; raises ValueError if they do not know of each other."""
    # They meet when all are done, and one may need hours more: the launcher ends them if one dies.
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
    """Translate the lines of `source` into `output`; go on where an earlier call was stopped.

    Any number of processes gives the same bytes, and a run may go on with another number than it was begun with.
    Windows are dealt to the processes in turn. If the last ones are fewer than the processes, their batches are dealt.

    Args:
        output: if it is a symbolic link, the file it points to is written.
        settings: everything except the text on which the output depends, as JSON values.
        processes: from `find_processes`; on several machines all must see the folder of `output`.

    Raises:
        FileNotFoundError: if there is no such file, or if a process does not see the folder.
        ValueError: if a line is not UTF-8, before anything is translated; if the work was begun with another text or
            other settings, with the differences; if `output` is `source`; if another process is writing it; if its
            folder holds files that no translation writes.
    """
    if output.exists() and output.samefile(source):
        raise ValueError(f"{output} is the text to translate, and would be replaced: name another output.")
    num_lines, digest = _survey(source)
    settings = {"format": FORMAT, "lines_per_window": LINES_PER_WINDOW, "text": digest, **settings}
    job = _Job(output.resolve() if output.is_symlink() else output, num_lines)
    with contextlib.ExitStack() as stack:
        num_finished = 0
        if processes.is_main_process:
            job.folder.mkdir(parents=True, exist_ok=True)
            job.refuse_other_files()
            stack.enter_context(lock_folder(job.folder))
            num_finished = job.begin(settings)
        processes.wait_for_everyone()
        job.check_shared()
        with tqdm(
            total=job.num_lines,
            initial=num_finished,
            unit=" sentences",
            smoothing=0,  # windows begin with their longest sentences: only the mean over all tells how long it takes
            file=sys.stderr,
            disable=None if processes.is_main_process else True,
        ) as bar:

            def show(num_sentences: int) -> None:
                # The work of the others is estimated from that of this one.
                bar.update(min(num_sentences * processes.num_processes, job.num_lines - bar.n))

            job.work(translator, source, to_lines, processes, on_batch=show)
        processes.wait_for_everyone()
        if processes.is_main_process:
            job.finish()


def _survey(path: Path) -> tuple[int, str]:
    """Number of lines and a digest of the text; refuses a line that is not UTF-8 before the long work."""
    digest, num_lines = hashlib.sha256(), 0
    for num_lines, line in enumerate(read_lines(path, cut_long=True), start=1):  # noqa: B007 - the last one is the count
        digest.update(f"{line}\n".encode())
    return num_lines, digest.hexdigest()[:16]


class _Job:
    """An unfinished file, and the folder that holds its translated batches."""

    def __init__(self, output: Path, num_lines: int):
        self.output, self.num_lines = output, num_lines
        self.folder = output.with_name(f"{output.name}.partial")
        self.unfinished = self.folder / UNFINISHED_FILE
        self.num_windows = -(-num_lines // LINES_PER_WINDOW)

    def refuse_other_files(self) -> None:
        """Refuse a folder with files that no translation writes."""
        own = [SETTINGS_FILE, UNFINISHED_FILE, LOCK_FILE]
        if (self.folder / SETTINGS_FILE).exists():  # it is written first and removed last
            own += [path.name for path in self._logs()]
        if others := sorted({path.name for path in self.folder.iterdir()}.difference(own)):
            raise ValueError(
                f"{self.folder}, where unfinished work is kept, holds other files: {', '.join(others[:5])}. Move them "
                f"elsewhere, or name another output."
            )

    def begin(self, settings: dict[str, object]) -> int:
        """Write the settings, or compare them; gather all logs in one. Returns the number of finished lines."""
        path, finished = self.folder / SETTINGS_FILE, self.folder / FINISHED_FILE
        if path.exists():
            if changes := list(find_changes(read_object(path), settings)):
                raise ValueError(
                    f"{self.folder} holds work that was begun with another text or other settings: "
                    f"{'; '.join(changes)}. Give what it was begun with to go on, or remove that folder to start again."
                )
        else:
            write_json(path, settings, self.unfinished)
        logs, num_finished = self._logs(), 0
        with write_whole(finished, self.unfinished) as file:
            for window, lines in enumerate(self._windows_of(logs)):
                if lines:
                    file.write(_to_record(window, lines))
                    num_finished += len(lines)
        for log in logs:
            if log != finished:
                log.unlink()
        return num_finished

    def check_shared(self) -> None:
        """Refuse to work where the folder of the first process cannot be seen."""
        if not (self.folder / FINISHED_FILE).exists():
            raise FileNotFoundError(
                f"{self.folder}, which the first process has made, cannot be seen by all. Processes on several "
                f"machines need an output folder that they share."
            )

    def work(
        self,
        translator: Translator,
        source: Path,
        to_lines: ToLines,
        processes: PartialState,
        *,
        on_batch: Callable[[int], object],
    ) -> None:
        """Translate and log the batches of this process that no earlier run has finished."""
        own, num_processes = processes.process_index, processes.num_processes
        num_dealt_whole = self.num_windows // num_processes * num_processes
        finished = self._windows_of([self.folder / FINISHED_FILE])
        with open(self.folder / PROCESS_FILES.replace("*", f"{own:05d}"), "wb") as log:
            for window, (sentences, done) in enumerate(zip(_windows(source), finished, strict=True)):
                is_dealt_whole = window < num_dealt_whole
                if len(done) == len(sentences) or (is_dealt_whole and window % num_processes != own):
                    continue
                for number, batch in enumerate(translator.plan(sentences)):
                    if done.keys() >= set(batch.rows) or not (is_dealt_whole or number % num_processes == own):
                        continue
                    first = window * LINES_PER_WINDOW + 1
                    translated = zip(batch.rows, translator.translate(batch), strict=True)
                    lines = {row: to_lines(hypotheses, first + row) for row, hypotheses in translated}
                    log.write(_to_record(window, lines))
                    log.flush()
                    on_batch(len(lines))

    def finish(self) -> None:
        """Put the lines of all logs in order into the output, and remove the folder."""
        with write_whole(self.output, self.unfinished) as file:
            for window, lines in enumerate(self._windows_of(self._logs())):
                num_rows = min(LINES_PER_WINDOW, self.num_lines - window * LINES_PER_WINDOW)
                if len(lines) != num_rows:
                    raise ValueError(
                        f"{self.folder} holds {len(lines)} of the {num_rows} sentences from line "
                        f"{window * LINES_PER_WINDOW + 1} on, although all processes are done. If another machine's "
                        f"files are only late, or are copied here, the same command goes on."
                    )
                file.writelines(lines[row].encode() for row in range(num_rows))
        for log in self._logs():
            log.unlink()
        (self.folder / SETTINGS_FILE).unlink()  # last: without it the logs would pass for files of the user
        (self.folder / LOCK_FILE).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _logs(self) -> list[Path]:
        return [path for name in (FINISHED_FILE, PROCESS_FILES) for path in sorted(self.folder.glob(name))]

    def _windows_of(self, logs: Iterable[Path]) -> Iterator[dict[int, str]]:
        """For each window of the text its lines in `logs`, by row; one window at a time in memory."""
        records = heapq.merge(*map(_read_log, logs), key=itemgetter(0))
        record = next(records, None)
        for window in range(self.num_windows):
            lines: dict[int, str] = {}
            while record is not None and record[0] == window:
                lines |= record[1]
                record = next(records, None)
            yield lines


def _windows(path: Path) -> Iterator[list[str]]:
    lines = read_lines(path, cut_long=True)
    return iter(lambda: list(islice(lines, LINES_PER_WINDOW)), [])


def _to_record(window: int, lines: dict[int, str]) -> bytes:
    """A line of a log: a checksum, and the output `lines` of some rows of a window."""
    record = json.dumps({"window": window, "lines": lines}, ensure_ascii=False).encode()
    return b"%08x %b\n" % (zlib.crc32(record), record)


def _read_log(path: Path) -> Iterator[tuple[int, dict[int, str]]]:
    """Window and lines of each record of a log, in the order of the windows."""
    with open(path, "rb") as file:
        for line in file:
            # A killed process leaves the beginning of a record, a failing machine or disk may leave anything.
            checksum, _, record = line.removesuffix(b"\n").partition(b" ")
            if checksum == b"%08x" % zlib.crc32(record):
                values = json.loads(record)
                yield values["window"], {int(row): text for row, text in values["lines"].items()}


def translate_stream(
    translator: Translator, windows: Iterable[Sequence[str]], output: TextIO, *, to_lines: ToLines
) -> None:
    """Translate `windows` of sentences as they come, and write each as soon as it is done."""
    numbers = count(1)
    hides_bar = True if output.isatty() else None  # on a terminal bar and translations would overwrite each other
    with tqdm(unit=" sentences", smoothing=0, file=sys.stderr, disable=hides_bar) as bar:
        for sentences in windows:
            for hypotheses in translator(sentences, on_batch=bar.update):
                output.write(to_lines(hypotheses, next(numbers)))
            output.flush()


def read_file_windows(path: Path) -> Iterator[list[str]]:
    """Windows of the lines of a file, which may be compressed; see `data.lines.read_lines`."""
    return _in_windows(read_lines(path, cut_long=True))


def read_windows(file: BinaryIO, *, name: str) -> Iterator[list[str]]:
    """Windows of the lines of `file` that are there already, so that no reader waits for lines yet to be written.

    Args:
        file: open in binary, with a file descriptor.
        name: for messages.

    Raises:
        ValueError: at the first line that is not UTF-8, after a window of the lines before it.
    """
    raw_lines = _ReadyLines(file.fileno())
    return _in_windows(decode_lines(raw_lines, name=name, cut_long=True), is_ready=raw_lines.is_ready)


def _in_windows(lines: Iterator[str], is_ready: Callable[[], bool] = lambda: True) -> Iterator[list[str]]:
    """Windows of `lines`; one ends where the next line is not ready, and before a line that is refused."""
    window: list[str] = []
    try:
        for line in lines:
            window.append(line)
            if len(window) == LINES_PER_STREAM_WINDOW or not is_ready():
                yield window
                window = []
    except ValueError:
        if window:
            yield window
        raise
    if window:
        yield window


class _ReadyLines:
    """Lines of a stream in binary; `is_ready` tells if the next line can be read without blocking."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.lines: deque[bytes] = deque()
        self.rest: list[bytes] = []  # of a line whose end has not come
        self.num_bytes = 0  # of the rest
        self.has_ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self.lines:
            if self.has_ended:
                raise StopIteration
            self._read()
        return self.lines.popleft()

    def is_ready(self) -> bool:
        while not (self.lines or self.has_ended) and select.select([self.descriptor], [], [], SECONDS_TO_WAIT)[0]:
            self._read()
        return bool(self.lines)

    def _read(self) -> None:
        block = os.read(self.descriptor, BYTES_PER_READ)
        self.has_ended = not block
        *ends, rest = block.split(b"\n")
        for end in ends:
            self._keep(end)
            self.lines.append(b"".join([*self.rest, b"\n"]))
            self.rest, self.num_bytes = [], 0
        self._keep(rest)
        if self.has_ended and self.rest:
            self.lines.append(b"".join(self.rest))
            self.rest = []

    def _keep(self, piece: bytes) -> None:
        """Add to the rest, unless the line is too long already."""
        if piece and self.num_bytes < BYTES_OF_LONG_LINE:
            self.rest.append(piece)
            self.num_bytes += len(piece)
