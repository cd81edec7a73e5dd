"""Lines of UTF-8 text files, one at a time in memory, and a bound on their length."""

import gzip
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

# No sentence is longer; a line without end, such as a gigabyte of zeros in a small .gz, must not fill the memory.
MOST_LINE_BYTES = 2**20
# So much of a longer line is read: it is over the limit even if its last character is cut in two.
BYTES_OF_LONG_LINE = MOST_LINE_BYTES + 4


def read_lines(path: Path, *, cut_long: bool = False) -> Iterator[str]:
    """Lines of a UTF-8 text file, one at a time in memory.

    Only "\\n" or "\\r\\n" ends a line. Text mode also splits at a lone "\\r", and `str.splitlines` at U+2028, U+0085
    and others; all occur inside sentences of web text, and each such split would shift all later lines against the
    other language. A byte order mark at the start of the file is dropped.

    Args:
        path: a text file, or a pipe; compressed with gzip if the name ends in `.gz`.
        cut_long: cut a line of more than `MOST_LINE_BYTES`, to a little more than that, instead of refusing it.

    Raises:
        FileNotFoundError: at once, if there is no such file.
        ValueError: at the first line that is not UTF-8 or too long, or where a compressed file is damaged.
    """
    require_file(path)
    return _lines_of_file(path, cut_long=cut_long)


def _lines_of_file(path: Path, *, cut_long: bool) -> Iterator[str]:
    # Iterating in binary splits at b"\n" only, and no other UTF-8 character contains that byte.
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            yield from decode_lines(_bounded_lines(file), name=str(path), cut_long=cut_long)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}): download or compress it again.") from error


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file read in binary, each cut to its first `BYTES_OF_LONG_LINE`."""
    while line := file.readline(BYTES_OF_LONG_LINE):
        yield line
        while len(line) == BYTES_OF_LONG_LINE and not line.endswith(b"\n"):
            line = file.readline(BYTES_OF_LONG_LINE)


def decode_lines(raw_lines: Iterable[bytes], *, name: str, cut_long: bool = False) -> Iterator[str]:
    """The text of lines read in binary, see `read_lines`; messages call their file `name`."""
    for number, raw_line in enumerate(raw_lines, start=1):
        is_long = len(raw_line) > MOST_LINE_BYTES and len(raw_line.rstrip(b"\r\n")) > MOST_LINE_BYTES
        if is_long and not cut_long:
            raise ValueError(
                f'{name}, line {number}: more than {MOST_LINE_BYTES:,} bytes, which is no sentence. Only "\\n" ends a '
                f"line: split it, or remove it."
            )
        try:
            # The last character of a line that is cut may be cut too.
            decode = getincrementaldecoder("utf-8")().decode if is_long else bytes.decode
            line = decode(raw_line[:BYTES_OF_LONG_LINE])
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: not UTF-8 at byte offset {error.start} of the line, counted "
                f"from 0 ({error.reason}: 0x{raw_line[error.start]:02x}). Text must be UTF-8: re-encode "
                f"it, for example `iconv -f LATIN1 -t UTF-8 {name}`, or unpack the file first if it is "
                f"compressed."
            ) from None
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.endswith("\n"):
            line = line[:-2] if line.endswith("\r\n") else line[:-1]
        yield line


def is_too_long(text: str) -> bool:
    """True for a line, or a sentence from JSON or parquet, of more than `MOST_LINE_BYTES`."""
    return 4 * len(text) > MOST_LINE_BYTES and len(text.encode("utf-8", "surrogatepass")) > MOST_LINE_BYTES


def require_file(path: Path) -> None:
    """Refuse a missing file or a folder; a pipe, such as the shell's `<(zcat train.en.gz)`, may be read."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist: expected a file. Check the path.")
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder: expected a file. Give a file in it.")
