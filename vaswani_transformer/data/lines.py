"""Lines of UTF-8 text files, one at a time in memory, and a bound on their length."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

# No sentence is longer; a line without end, such as a gigabyte of zeros in a small .gz, must not fill the memory.
MOST_LINE_BYTES = 2**20
# So much of a longer line is read: it is over the limit even if its last character is cut in two.
BYTES_OF_LONG_LINE = MOST_LINE_BYTES + 4


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 text file or pipe, one at a time in memory; of gzip if its name ends in `.gz`.

    Only "\\n" or "\\r\\n" ends a line. Text mode also splits at a lone "\\r", and `str.splitlines` at U+2028, U+0085
    and others, which occur inside sentences. A byte order mark at the start of the file is dropped. A line of more than
    `MOST_LINE_BYTES` is cut to a little more than that.

    Raises:
        FileNotFoundError: at once, if there is no such file.
        ValueError: at the first line that is not UTF-8, or where a compressed file is damaged.
    """
    Path(path).stat()
    return _lines_of_file(Path(path))


def _lines_of_file(path: Path) -> Iterator[str]:
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            yield from decode_lines(_bounded_lines(file), name=str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}): download or compress it again.") from error


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Read the lines of a file in binary, each cut to its first `BYTES_OF_LONG_LINE`; only b"\\n" ends one."""
    while line := file.readline(BYTES_OF_LONG_LINE):
        yield line
        while len(line) == BYTES_OF_LONG_LINE and not line.endswith(b"\n"):
            line = file.readline(BYTES_OF_LONG_LINE)


def decode_lines(raw_lines: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Decode lines that were read in binary, see `read_lines`; messages call their file `name`."""
    for number, raw_line in enumerate(raw_lines, start=1):
        # The last character of a line that is cut may be cut too.
        errors = "strict" if len(raw_line) < BYTES_OF_LONG_LINE else "ignore"
        try:
            line = raw_line[:BYTES_OF_LONG_LINE].decode(errors=errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 at byte offset {error.start} of the line, counted from 0 "
                f"(0x{raw_line[error.start]:02x}). Re-encode it, for example with `iconv -f LATIN1 -t UTF-8 {name}`."
            ) from None
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")
