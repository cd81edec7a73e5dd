"""Read the lines of UTF-8 text files one by one, with a bound on their length."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

# Longer lines are cut. Otherwise a line without end, such as a gigabyte of zeros in a small .gz, would fill the memory.
MOST_LINE_BYTES = 2**20
UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
COMPRESSED = b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"  # gzip, bzip2, xz, zstd, zip


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 text file or pipe one by one. A file whose name ends in `.gz` is decompressed.

    Only "\\n" or "\\r\\n" ends a line. Text mode of Python would also split at a lone "\\r", and `str.splitlines` at
    U+2028, U+0085 and other characters that occur inside sentences. A byte order mark at the start of the file is
    dropped. A line is cut after `MOST_LINE_BYTES`.

    Raises:
        FileNotFoundError: if the file does not exist. This error is raised by the call, before the first line is read.
        ValueError: if a line is not UTF-8, or if a compressed file is damaged. This error is raised when reading
            reaches the faulty place.
    """
    path.stat()
    return _lines_of_file(path)


def _lines_of_file(path: Path) -> Iterator[str]:
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rb") as file:
        try:
            yield from decode_lines(_bounded_lines(file), name=str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}): download or compress it again.") from error


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MOST_LINE_BYTES):
        yield line
        while len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MOST_LINE_BYTES)


def decode_lines(raw_lines: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Decode lines that were read in binary mode; see `read_lines` for the rules.

    Args:
        name: the name of the file in messages.

    Raises:
        ValueError: if a line is not UTF-8.
    """
    for number, raw_line in enumerate(raw_lines, start=1):
        # A line that was cut may end in the middle of a character. This character is ignored.
        errors = "strict" if len(raw_line) < MOST_LINE_BYTES else "ignore"
        try:
            line = raw_line[:MOST_LINE_BYTES].decode(errors=errors)
        except UnicodeDecodeError as error:
            advice = f"Re-encode the text, for example with `iconv -f CP1252 -t UTF-8 {name} > new`"
            if raw_line.startswith(UTF_16):
                advice = f"The text is UTF-16, so re-encode it: `iconv -f UTF-16 -t UTF-8 {name} > new`"
            elif raw_line.startswith(COMPRESSED):
                advice = (
                    "The text is compressed, and only files named *.gz are decompressed: decompress it, or save it as "
                    "plain text"
                )
            raise ValueError(
                f"{name}, line {number}: not UTF-8 at byte offset {error.start} of the line, counted from 0. {advice}."
            ) from None
        if number == 1:
            line = line.removeprefix("\ufeff")
        yield line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")
