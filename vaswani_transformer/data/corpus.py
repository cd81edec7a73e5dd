"""Parallel text in: read and align. Nothing here knows about tokens or tensors.

A corpus is an iterator of `(source, target)` sentence pairs, so that one of 36M pairs (English-French of section 5.1)
needs no more memory than one of ten. A missing file is reported at once, a fault in line 3M when line 3M is reached.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, zip_longest
from pathlib import Path

import pyarrow.parquet

from ..files import digest_file, digest_files
from .lines import read_lines

Pair = tuple[str, str]
Columns = tuple[str, str]  # names of source and target where a record names its sides

ACCEPTED_FORMS = (
    "two plain text files, source and target, one sentence per line; one .csv, .tsv, .jsonl, .json or .parquet file; a "
    "folder of .parquet files; or a dataset of the Hugging Face Hub such as wmt/wmt14:de-en"
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.+-]+)?")
PAIR_ENDINGS = {".csv", ".tsv", ".jsonl", ".json", ".parquet"}  # of files that hold both sides
SPLITS = {"train", "validation", "valid", "val", "dev", "test"}  # with which names of parquet files may begin
ROWS_PER_BATCH = 1_000  # of parquet and Hub datasets: row by row takes 4 to 15 times as long


def read_parallel_files(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Read pairs from two text files: line i of one is the translation of line i of the other.

    Different lengths show only when the shorter file ends: by then its pairs have been handed out.

    Raises:
        FileNotFoundError: at once, if a file is missing.
        ValueError: if one file has more lines than the other, with both counts; or if a line is not UTF-8.
    """
    paths = (source_path, target_path)
    sides = [read_lines(path) for path in paths]

    def read() -> Iterator[Pair]:
        for number, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                lengths = [number + (line is not None) for line in pair]
                lengths = [length + sum(1 for _ in side) for length, side in zip(lengths, sides, strict=True)]
                found = f"{paths[0]} has {lengths[0]} lines but {paths[1]} has {lengths[1]}"
                raise ValueError(f"{found}: line i of one must translate line i of the other.")
            yield pair

    return read()


def _parse(lines: Iterable[str], ending: str, header: Sequence[str] | None) -> Iterator[object]:
    """Read records from the lines of a file; the first row of a table holds the names if there is no `header`.

    In .tsv each line is a row, and a `"` a character like any other. In .csv quoted cells may hold commas and line
    breaks; the csv module refuses more than 131,072 characters, so that an open quote does not swallow the file.
    """
    if ending in (".jsonl", ".json"):
        yield from (json.loads(line) for line in lines if line.strip())
        return
    if ending == ".tsv":
        rows = (line.split("\t") for line in lines)
    else:
        rows = filter(None, csv.reader((f"{line}\n" for line in lines), strict=True))
    header = header or next(rows, [])
    for row in rows:
        if len(row) != len(header):
            raise LookupError(f"expected {len(header)} cells, found {len(row)}")
        yield dict(zip(header, row, strict=True))


def _read_records(
    items: Iterable, parse: Callable[[Iterable], Iterable[object]], columns: Columns, *, place: str
) -> Iterator[Pair]:
    """Read a pair from each record that `parse` makes of `items`; errors tell the `place` and number of the item."""
    numbers = count()
    try:
        for record in parse(item for item, _ in zip(items, numbers, strict=False)):
            yield _pair_of_record(record, columns)
    except (LookupError, csv.Error, json.JSONDecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"{place} {next(numbers)}: {error}") from error


def _pair_of_record(record: object, columns: Columns) -> Pair:
    """Return both sides of `{"translation": {"en": ..., "de": ...}}`, or of the inner object alone."""
    inner = record.get("translation") if isinstance(record, dict) else None
    texts = inner if isinstance(inner, dict) else record
    source, target = map(texts.get, columns) if isinstance(texts, dict) else (None, None)
    if columns[0] == columns[1] or not (isinstance(source, str) and isinstance(target, str)):
        expected = f"expected text in columns {' and '.join(map(repr, columns))}, found {texts!r:.200}"
        raise LookupError(f"{expected}. Give the two names used there as source_column and target_column.")
    f"{source}{target}".encode()  # fails for half of a surrogate pair, which JSON can spell
    return source, target


def _read_parquet(path: Path, split: str, columns: Columns) -> Iterator[Pair]:
    """Read a parquet file, or those of a folder: of `split`, if the name of any begins with a split."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not SPLITS.isdisjoint(map(_first_part, files)):
        files = [file for file in files if _first_part(file) == split]
    if not files:
        raise FileNotFoundError(f"{path} holds no .parquet file of the split {split!r}.")
    for file in files:
        try:
            batches = pyarrow.parquet.ParquetFile(file).iter_batches(ROWS_PER_BATCH)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from _read_records(rows, iter, columns, place=f"{file}, row")
        except (OSError, pyarrow.ArrowException) as error:
            raise ValueError(f"{file} cannot be read as parquet: {error}") from error


def _first_part(path: Path) -> str:
    return re.split(r"[-_.]", path.name)[0]


def _read_hub(name: str, split: str, columns: Columns, cache: Path | None) -> Iterator[Pair]:
    import datasets  # takes a second, and text needs none of it

    source, _, config = name.partition(":")
    options = {"split": split, "streaming": True, "cache_dir": cache and str(cache)}
    try:
        dataset = datasets.load_dataset(source, config or None, **options)
        if cache is not None:  # downloaded once, and never to the user's home
            kept = {"cache_dir": str(cache), "fingerprint": f"{name}-{split}".replace("/", "-")}
            dataset = datasets.Dataset.from_generator(dataset.__iter__, features=dataset.features, **kept)
    except (OSError, ValueError, RuntimeError) as error:  # of other causes than the name too
        raise ValueError(f"{name}, split {split!r}: no such file or dataset can be read ({error}).") from error
    batches = dataset.iter(batch_size=ROWS_PER_BATCH)
    records = (dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True))
    yield from _read_records(records, iter, columns, place=f"{name}, row")


def open_parallel(
    spec: Sequence[str | Path],
    *,
    source_language: str,
    target_language: str,
    source_column: str | None = None,
    target_column: str | None = None,
    split: str = "train",
    cache: Path | None = None,
) -> Iterator[Pair]:
    """Read pairs from whatever holds parallel text; the name tells how, see the README beside this file.

    Args:
        spec: two text files, source first; or one of the other `ACCEPTED_FORMS`.
        source_language, target_language: names of the two sides.
        source_column, target_column: other names in records and headers. Only with one of them a .tsv has a header.
        split: of a Hub dataset, or of a folder whose files are named by split (`train-00000-of-00003.parquet`).
        cache: folder where a Hub dataset is kept for further readings; each reading downloads it if not given.

    Raises:
        FileNotFoundError: at once, if a file is missing.
        ValueError: at once, if `spec` fits no form; later, if there is no such dataset, or if a line or row is no pair.
    """
    endings = [None if _is_on_hub(str(name)) else _suffix(Path(name)) for name in spec]
    if len(spec) == 2 and None not in endings and PAIR_ENDINGS.isdisjoint(endings):
        return read_parallel_files(*map(Path, spec))
    path, ending = Path(spec[0]), endings[0]
    if len(spec) != 1 or not (ending is None or path.is_dir() or ending in PAIR_ENDINGS):
        raise ValueError(f"{' '.join(map(str, spec))!r} is no parallel text: expected {ACCEPTED_FORMS}.")
    columns, header = (source_column or source_language, target_column or target_language), None
    if ending is None:
        return _read_hub(str(path), split, columns, cache)
    if ending == ".parquet" or path.is_dir():
        return _read_parquet(path, split, columns)
    if ending == ".tsv" and not (source_column or target_column):
        columns = header = ("source", "target")
    parse = partial(_parse, ending=ending, header=header)
    return _read_records(read_lines(path), parse, columns, place=f"{path}, line")


def _is_on_hub(name: str) -> bool:
    """Return whether a name is not that of a file or folder, but may be one of a dataset of the Hub.

    Raises:
        FileNotFoundError: if it is neither: not formed like one of the Hub, or with an ending as of a file.
    """
    path = Path(name)
    if name and path.exists():
        return False
    if path.suffix[1:].isalpha() or HUB_ID.fullmatch(name) is None:
        raise FileNotFoundError(f"{name!r} does not exist: expected {ACCEPTED_FORMS}.")
    return True


def describe_source(spec: Sequence[str | Path], *, split: str) -> list[dict]:
    """Identify the text that `open_parallel` reads from `spec` and `split`, as JSON values.

    Name and SHA-256 of each file, wherever it lies; name and split of a Hub dataset, but not its revision.

    Raises:
        FileNotFoundError: if there is no such file.
    """

    def describe(name: str) -> dict:
        path = Path(name)
        if _is_on_hub(name):
            return {"dataset": name, "split": split}
        if path.is_dir():
            return {"folder": path.name, "split": split, "files": digest_files(path, path.rglob("*.parquet"))}
        return {"file": path.name, "sha256": digest_file(path)}

    return [describe(str(name)) for name in spec]


def find_languages_by_ending(names: Sequence[str]) -> tuple[str, str] | None:
    """Return source and target language of two text files by their endings, as of train.en and train.de.gz."""
    endings = [_suffix(Path(name)).removeprefix(".") for name in names]
    is_told = len(set(endings)) == 2 and all(re.fullmatch("[a-z]{2}", ending) for ending in endings)  # ISO 639-1
    return (endings[0], endings[1]) if is_told else None


def _suffix(path: Path) -> str:
    """Return the ending that tells how to read a file: `.tsv` of `train.tsv`, and of `train.tsv.gz` too."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
