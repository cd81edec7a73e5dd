"""Read parallel text as sentence pairs.

Parallel text is an iterator of `(source, target)` pairs. So the 36M pairs of English-French (section 5.1) need no more
memory than ten pairs. An error in a line is raised when this line is reached.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

import pyarrow.parquet

from ..files import digest_file
from .lines import read_lines

Pair = tuple[str, str]
Columns = tuple[str, str]  # The names of the columns of source and target.

ACCEPTED_FORMS = (
    "two plain text files, source and target, one sentence per line; one .csv, .tsv, .jsonl, .json or .parquet file; a "
    "folder of .parquet files; or a dataset of the Hugging Face Hub with its configuration, such as wmt/wmt14:de-en"
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+:[\w.+-]+")
PAIR_ENDINGS = {".csv", ".tsv", ".jsonl", ".json", ".parquet"}  # Files with these endings hold both sides.
ROWS_PER_BATCH = 1_000  # Reading parquet files and Hub datasets row by row takes 4 to 15 times as long.


def read_parallel_files(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Read pairs from two text files: line i of one is the translation of line i of the other.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if both files are the same pipe, if a line is not UTF-8, or if one file has more lines than the
            other. The last error is raised after the last pair.
    """
    if source_path.exists() and not source_path.is_file() and source_path.samefile(target_path):
        raise ValueError(
            f"source and target are both {source_path}, which can be read only once: write one of them to a file."
        )
    sides = zip_longest(read_lines(source_path), read_lines(target_path))
    for number, (source, target) in enumerate(sides, start=1):
        if source is None or target is None:
            longer, shorter = (target_path, source_path) if source is None else (source_path, target_path)
            raise ValueError(
                f"{longer} has a line {number}, but {shorter} has not: line i of one file must be the translation of "
                f"line i of the other."
            )
        yield source, target


def _parse(lines: Iterable[str], ending: str, columns: Columns) -> Iterator[object]:
    """Yield a record for each pair in the lines of a file.

    A line of .tsv is a source, a tab and a target, and `"` is an ordinary character. If the first line holds the names
    of the columns, it is no pair, and says which columns there are. The first row of .csv names the columns, and quoted
    cells may contain commas and line breaks. The csv module refuses cells of more than 131,072 characters. So a quote
    that is never closed cannot turn the whole file into one cell.

    Raises:
        LookupError: if a row has too many or too few cells, if a column occurs twice, or if the first line of .tsv
            seems to name other columns.
    """
    if ending in (".jsonl", ".json"):
        yield from (json.loads(line) for line in lines if line.strip())
        return
    advice = ""
    if ending == ".tsv":
        rows = (line.split("\t") for line in lines)
        first = next(rows, [])
        header = first
        if not set(columns) <= set(first):
            # This import takes a second, and the other forms of text do not need it.
            from transformers.models.whisper.tokenization_whisper import LANGUAGES

            if len(first) > 1 and set(map(str.casefold, first)) <= {"source", "target", *LANGUAGES.values()}:
                raise LookupError(
                    f"the first line seems to name the columns {first!r:.200}. Give the names of two of them by "
                    f"--source_column and --target_column, or remove the line"
                )
            header = columns
            rows = chain([first] * bool(first), rows)
            advice = ". Keep two columns (cut -f 1,2), or name all columns in the first line"
    else:
        rows = filter(None, csv.reader((f"{line}\n" for line in lines), strict=True))
        header = next(rows, [])
        if any(separator in name for name in header for separator in ";\t") and not set(columns) <= set(header):
            raise LookupError(f"separate the columns of a .csv by commas, found {header!r:.200}")
    _check_names(header)
    for row in rows:
        if len(row) != len(header):
            raise LookupError(f"expected {len(header)} cells, found {len(row)}{advice}")
        yield dict(zip(header, row, strict=True))


def _check_names(names: Sequence[str]) -> None:
    """Raise a LookupError if two columns have the same name."""
    if len(set(names)) < len(names):
        raise LookupError(f"a column occurs twice: {', '.join(names)!r:.200}")


def _read_records(
    items: Iterable, columns: Columns, place: str, parse: Callable[[Iterable], Iterable[object]] = iter
) -> Iterator[Pair]:
    """Yield a pair for each record that `parse` finds in `items`.

    Args:
        items: lines or rows.
        columns: the names of source and target in a record.
        place: the text before the number of an item in messages, such as "train.csv, line".
        parse: items -> records. By default the items are the records.

    Raises:
        ValueError: if an item is not a pair.
    """
    number = 0
    item: object = None

    def read() -> Iterator:
        nonlocal number, item
        for number, item in enumerate(items, start=1):  # noqa: B007 - an error names them
            yield item

    try:
        for record in parse(read()):
            yield _pair_of_record(record, columns)
    except (json.JSONDecodeError, LookupError, csv.Error, UnicodeEncodeError, RecursionError) as error:
        advice = " Write one JSON object per line." if isinstance(error, json.JSONDecodeError) else ""
        if isinstance(item, str) and "\r" in item:
            advice = " This line holds a lone \\r, which ends no line: replace each by \\n (tr '\\r' '\\n')."
        raise ValueError(f"{place} {number}: {str(error).removesuffix('.')}.{advice}") from error


def _pair_of_record(record: object, columns: Columns) -> Pair:
    """Return both sides of a record, which is `{"translation": {"en": ..., "de": ...}}` or the inner object alone.

    Raises:
        LookupError: if the record has no text in both columns.
        UnicodeEncodeError: if the text cannot be written as UTF-8.
    """
    inner = record.get("translation") if isinstance(record, dict) else None
    texts = inner if isinstance(inner, dict) else record
    if not isinstance(texts, dict) or any(isinstance(value, list) for value in texts.values()):
        raise LookupError(f"expected one JSON object per line, with a pair of sentences, found {texts!r:.200}")
    source, target = map(texts.get, columns)
    for name in columns:
        if name in texts and not isinstance(texts[name], str):
            raise LookupError(f"column {name!r} holds {texts[name]!r:.50}, no text: remove the pair, or give it a text")
    if columns[0] == columns[1] or source is None or target is None:
        raise LookupError(
            f"expected text in columns {columns[0]!r} and {columns[1]!r}, found {texts!r:.200}. Give the names of "
            f"existing columns by --source_column and --target_column, which apply to all corpora"
        )
    f"{source}{target}".encode()  # This fails for half of a surrogate pair, which JSON can contain.
    return source, target


def _read_parquet(path: Path) -> Iterator[dict]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_names(file.schema_arrow.names)
        for batch in file.iter_batches(ROWS_PER_BATCH):
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from error


def _read_hub(name: str, split: str, cache: Path | None) -> Iterator[dict]:
    import datasets  # This import takes a second, and the other forms of text do not need it.

    source, _, config = name.partition(":")
    try:
        dataset = datasets.load_dataset(
            source, config, split=split, streaming=cache is None, cache_dir=cache and str(cache)
        )
    except (OSError, ValueError, RuntimeError) as error:  # The name may be wrong, or the connection missing.
        raise ValueError(
            f"the dataset {name} with split {split!r} cannot be read: {error}. Check its name and the connection."
        ) from error
    for batch in dataset.with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
        yield from batch.to_pylist()


def open_parallel(
    spec: Sequence[str | Path], columns: Columns, *, split: str = "train", cache: Path | None = None
) -> Iterator[Pair]:
    """Read pairs from parallel text in any of `ACCEPTED_FORMS`, which the README beside this file explains.

    Args:
        spec: two text files (source first), or one file, folder or dataset. The names show which form it is.
        columns: the names of source and target in records and headers.
        split: the part to read of a Hub dataset, or of a folder with files such as `train-00000-of-00003.parquet`.
        cache: a folder that keeps a Hub dataset for later readings. By default each reading downloads the dataset.

    Raises:
        FileNotFoundError: if a folder has no file of `split`, or if a file is missing. A missing file may be noticed
            only when the first pair is read.
        ValueError: if `spec` has none of the forms. While the pairs are read: if a dataset does not exist, or if a line
            or row is not a pair.
    """
    if _is_on_hub(spec):
        return _read_records(_read_hub(spec[0], split, cache), columns, f"{spec[0]}, row")
    files = _find_files(spec, split)
    endings = {Path(file.name.removesuffix(".gz")).suffix for file in files}
    if len(spec) == 2 and PAIR_ENDINGS.isdisjoint(endings):
        return read_parallel_files(*files)
    if len(spec) != 1 or not endings <= PAIR_ENDINGS:
        raise ValueError(f"{' '.join(map(str, spec))!r} is no parallel text: expected {ACCEPTED_FORMS}.")
    if endings == {".parquet"}:
        return chain.from_iterable(_read_records(_read_parquet(file), columns, f"{file}, row") for file in files)
    parse = partial(_parse, ending=endings.pop(), columns=columns)
    return _read_records(read_lines(files[0]), columns, f"{files[0]}, line", parse)


def describe_source(spec: Sequence[str | Path], *, split: str) -> list[dict]:
    """Return JSON objects that identify the text that `open_parallel` reads from `spec` and `split`.

    For each file, an object holds the file's name without the folder, and its SHA-256. For a Hub dataset, one object
    holds its name and split, but not its revision.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a file is no regular file, such as a pipe, or if `spec` could mean a folder or a Hub dataset.
    """
    if _is_on_hub(spec):
        return [{"dataset": spec[0], "split": split}]
    files = _find_files(spec, split)
    for file in files:
        if file.exists() and not file.is_file():
            raise ValueError(
                f"{file} is no regular file, but its text is read several times: write it to a file first."
            )
    return [{"file": file.name, "sha256": digest_file(file)} for file in files]


def _is_on_hub(spec: Sequence[str | Path]) -> bool:
    if len(spec) > 1 or HUB_ID.fullmatch(str(spec[0])) is None or Path(spec[0]).exists():
        return False
    if (folder := Path(str(spec[0]).partition(":")[0])).exists():
        raise ValueError(
            f"{spec[0]} could mean the folder {folder} or a dataset of the Hub: move the folder, or name its files."
        )
    return True


def _find_files(spec: Sequence[str | Path], split: str) -> list[Path]:
    """Return the files of `spec`. Of a folder, return the parquet files whose names begin with `split`, sorted.

    Raises:
        FileNotFoundError: if a folder has no such file.
    """
    path = Path(spec[0])
    if len(spec) > 1 or not path.is_dir():
        return [Path(name) for name in spec]
    if not (files := sorted(path.glob(f"{split}*.parquet"))):
        raise FileNotFoundError(
            f"{path} holds no file {split}*.parquet: rename its files, so that their names begin with {split}."
        )
    return files
