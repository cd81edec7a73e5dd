"""Parallel text in: read and align. Nothing here knows about tokens or tensors.

A corpus is an iterator of `(source, target)` sentence pairs, so that one of 36M pairs (English-French of section 5.1)
needs no more memory than one of ten. A missing file is reported at once, a fault in line 3M when line 3M is reached.
"""

import csv
import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from ..files import digest_file, digest_files
from .lines import read_lines

Pair = tuple[str, str]
Columns = tuple[str, str]  # names of source and target where a record names its sides

ACCEPTED_FORMS = (
    "two plain text files, source and target, one sentence per line; one .csv, .tsv, .jsonl, .json or .parquet file; a "
    "folder of .parquet files; a quoted glob; or a dataset of the Hugging Face Hub such as wmt/wmt14:de-en"
)
LANGUAGE = re.compile(r"[a-z]{2}")  # ISO 639-1
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.+-]+)?")
SPLITS = ("train", "validation", "dev", "test")  # with which names of parquet files may begin
ROWS_PER_BATCH = 1_000  # of parquet and Hub datasets: row by row takes 4 to 15 times as long


def read_parallel_files(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Read pairs from two text files: line i of one is the translation of line i of the other.

    Different lengths show only when the shorter file ends: by then its pairs have been handed out.

    Raises:
        FileNotFoundError: at once, if a file is missing.
        ValueError: if one file has more lines than the other, with both counts; or if a line is not UTF-8.
    """
    paths = (source_path, target_path)
    return _aligned_pairs(paths, [read_lines(path, cut_long=True) for path in paths])


def _aligned_pairs(paths: tuple[Path, Path], sides: Sequence[Iterator[str]]) -> Iterator[Pair]:
    for number, pair in enumerate(zip_longest(*sides)):
        if None in pair:
            lines = [number + (line is not None) + sum(1 for _ in side) for line, side in zip(pair, sides, strict=True)]
            raise ValueError(
                f"{paths[0]} has {lines[0]} lines but {paths[1]} has {lines[1]}: line i of one must translate line i "
                f"of the other. A lost or an extra line break is the usual cause."
            )
        yield pair


def _parse_table(rows: Iterable[list[str]], header: Sequence[str] | None = None) -> Iterator[dict]:
    """Name the cells of each row; the first row holds the names if there is no `header`."""
    rows = iter(rows)
    header = header or next(rows, [])
    for row in rows:
        if len(row) != len(header):
            raise LookupError(f"expected {len(header)} cells, found {len(row)}")
        yield dict(zip(header, row, strict=True))


def _parse_tsv(lines: Iterable[str], header: Sequence[str] | None = None) -> Iterator[dict]:
    """Read a row from each line; a `"` is a character like any other."""
    return _parse_table((line.split("\t") for line in lines), header)


def _parse_csv(lines: Iterable[str]) -> Iterator[dict]:
    """Read rows whose quoted cells may hold commas and line breaks; empty lines are skipped.

    The csv module refuses a cell of more than 131,072 characters, so that an open quote does not swallow the file.
    """
    return _parse_table(filter(None, csv.reader((f"{line}\n" for line in lines), strict=True)))


def _parse_json(lines: Iterable[str]) -> Iterator[object]:
    return (json.loads(line) for line in lines if line.strip())


PARSERS = {".csv": _parse_csv, ".tsv": _parse_tsv, ".jsonl": _parse_json, ".json": _parse_json}
PAIR_SUFFIXES = (*PARSERS, ".parquet")  # of files that hold both sides


def _read_records(
    items: Iterable, parse: Callable[[Iterable], Iterable[object]], columns: Columns, *, place: str
) -> Iterator[Pair]:
    """Read a pair from each record that `parse` makes of `items`; errors tell the `place` and number of the item."""
    number = 0

    def counted() -> Iterator:
        nonlocal number
        for number, item in enumerate(items, start=1):  # noqa: B007 - the last one is told
            yield item

    try:
        for record in parse(counted()):
            yield _pair_of_record(record, columns)
    except (LookupError, csv.Error, json.JSONDecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"{place} {number}: {error}") from error


def _pair_of_record(record: object, columns: Columns) -> Pair:
    """Return both sides of `{"translation": {"en": ..., "de": ...}}`, or of the inner object alone."""
    inner = record.get("translation") if isinstance(record, dict) else None
    texts = inner if isinstance(inner, dict) else record
    source, target = map(texts.get, columns) if isinstance(texts, dict) else (None, None)
    if columns[0] == columns[1] or not (isinstance(source, str) and isinstance(target, str)):
        raise LookupError(
            f"expected text in columns {' and '.join(map(repr, columns))}, found {texts!r:.200}. Give the two names "
            f"used there as source_column and target_column."
        )
    f"{source}{target}".encode()  # fails for half of a surrogate pair, which JSON can spell
    return source, target


def _read_dataset(name: str, split: str, columns: Columns, cache: Path | None) -> Iterator[Pair]:
    """Read a parquet file, a folder of them, or a dataset of the Hub, as `datasets` does."""
    import datasets  # takes a second, and text needs none of it

    path, options = Path(name), {"split": split, "streaming": True, "cache_dir": cache and str(cache)}
    is_on_hub = not path.exists()
    source, _, config = name.partition(":") if is_on_hub else ("parquet", "", "")
    if not is_on_hub:
        # By names here: `datasets` would look for splits in all folders below.
        shards = [path] if path.is_file() else sorted(path.glob("*.parquet"))
        if any(shard.name.startswith(SPLITS) for shard in shards):
            shards = [shard for shard in shards if path.is_file() or shard.name.startswith(split)]
        options["data_files"] = {split: list(map(str, shards))}
    try:
        dataset = datasets.load_dataset(source, config or None, **options)
        if cache is not None and is_on_hub:  # downloaded once, and never to the user's home
            kept = {"cache_dir": str(cache), "fingerprint": f"{name}-{split}".replace("/", "-")}
            dataset = datasets.Dataset.from_generator(dataset.__iter__, features=dataset.features, **kept)
    except (OSError, ValueError, RuntimeError) as error:  # of other causes than the name too
        raise ValueError(f"{name}, split {split!r}: no such file or dataset can be read ({error}).") from error
    batches = dataset.iter(batch_size=ROWS_PER_BATCH)
    records = (dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True))
    return _read_records(records, iter, columns, place=f"{name}, row")


def open_parallel(
    spec: str | Path | Sequence[str | Path],
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
        spec: two text files, source first; or one of the other `ACCEPTED_FORMS`, of which a .tsv file has a header
            only if `source_column` or `target_column` is given.
        source_language, target_language: names of the two sides.
        source_column, target_column: other names of theirs in records and headers; not used for two text files.
        split: of a Hub dataset, or of a folder whose files are named by split (`train-00000-of-00003.parquet`).
        cache: folder where a Hub dataset is kept for further readings; each reading downloads it if not given.

    Raises:
        FileNotFoundError: at once, if a file is missing.
        ValueError: at once, if `spec` fits no form; later, if there is no such dataset, or if a line or row is no pair.
    """
    names = [str(part) for part in ([spec] if isinstance(spec, str | Path) else spec)]
    files = [file for name in names for file in find_files(name)]
    if len(names) == len(files) == 2 and not any(_suffix(file) in PAIR_SUFFIXES for file in files):
        return read_parallel_files(*files)
    if len(names) != 1 or not all(_suffix(file) in PAIR_SUFFIXES or file.is_dir() for file in files):
        raise ValueError(f"{' '.join(names)!r} is no parallel text: expected {ACCEPTED_FORMS}.")
    columns = (source_column or source_language, target_column or target_language)
    has_header = bool(source_column or target_column)

    def read(file: Path) -> Iterator[Pair]:
        parse = PARSERS.get(_suffix(file))
        if parse is None:
            return _read_dataset(str(file), split, columns, cache)
        if parse is _parse_tsv and not has_header:
            sides = ("source", "target")
            return _read_records(read_lines(file), partial(parse, header=sides), sides, place=f"{file}, line")
        return _read_records(read_lines(file), parse, columns, place=f"{file}, line")

    return chain.from_iterable(map(read, files or map(Path, names)))


def find_files(name: str) -> list[Path]:
    """Return the files that a name stands for, in the order in which they are read; none for a Hub dataset.

    Raises:
        FileNotFoundError: if there is none, and the name is not one of the Hub, or ends like that of a file.
    """
    path = Path(name)
    files = [path] if name and path.exists() else [Path(match) for match in sorted(glob.glob(name))]
    if not files and (path.suffix[1:].isalpha() or HUB_ID.fullmatch(name) is None):
        raise FileNotFoundError(f"{name!r} does not exist: expected {ACCEPTED_FORMS}.")
    return files


def describe_source(spec: Sequence[str | Path], *, split: str) -> list[dict]:
    """Identify the text that `open_parallel` reads from `spec` and `split`, as JSON values.

    Name and SHA-256 of each file, wherever it lies; name and split of a Hub dataset, but not its revision.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a name is that of a pipe, which can be read once only.
    """
    described: list[dict] = []
    for name in map(str, spec):
        files = find_files(name)
        for file in files:
            if file.is_dir():
                digests = digest_files(file, file.rglob("*.parquet"))
                described.append({"folder": file.name, "split": split, "files": digests})
            elif file.is_file():
                described.append({"file": file.name, "sha256": digest_file(file)})
            else:
                raise ValueError(f"{file} is not a regular file, but text is read several times: write it to one.")
        if not files:
            described.append({"dataset": name, "split": split})
    return described


def find_languages_by_ending(names: Sequence[str]) -> tuple[str, str] | None:
    """Return source and target language of two text files by their endings, as of train.en and train.de.gz."""
    endings = [_suffix(Path(name)).removeprefix(".") for name in names]
    is_told = len(set(endings)) == 2 and all(LANGUAGE.fullmatch(ending) for ending in endings)
    return (endings[0], endings[1]) if is_told else None


def _suffix(path: Path) -> str:
    """Return the ending that tells how to read a file: `.tsv` of `train.tsv`, and of `train.tsv.gz` too."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
