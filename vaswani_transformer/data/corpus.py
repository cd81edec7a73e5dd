"""Parallel text in: read and align. Nothing here knows about tokens or tensors.

A corpus is an iterator of `(source, target)` sentence pairs, so that one of 36M pairs (English-French of section 5.1)
needs no more memory than one of ten. A missing file is reported at once, a fault in line 3M when line 3M is reached.
"""

import csv
import glob
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from ..files import digest_file, digest_files
from .lines import read_lines

Pair = tuple[str, str]
Columns = tuple[str, str]  # names of source and target where a record names its sides

PAIR_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")  # of files that hold both sides
ACCEPTED_FORMS = (
    "two plain text files, source and target, one sentence per line; one .csv, .tsv, .jsonl, .json or .parquet file; a "
    "folder of .parquet files; a quoted glob; or a dataset of the Hugging Face Hub such as wmt/wmt14:de-en"
)
LANGUAGE = re.compile(r"[a-z]{2}")  # ISO 639-1
HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.+-]+))?")
ROWS_PER_BATCH = 1_000  # of parquet and Hub datasets: row by row takes 4 to 15 times as long


def read_parallel_files(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Read pairs from two text files: line i of one is the translation of line i of the other.

    Different lengths show only when the shorter file ends: by then its pairs have been handed out, so do not use
    them before the iterator is exhausted without error.

    Raises:
        FileNotFoundError: at once, if a file is missing.
        ValueError: if one file has more lines than the other, with both counts; or if a line is not UTF-8.
    """
    sources, targets = (read_lines(path, cut_long=True) for path in (source_path, target_path))
    return _aligned_pairs(source_path, target_path, sources, targets)


def _aligned_pairs(
    source_path: Path, target_path: Path, sources: Iterator[str], targets: Iterator[str]
) -> Iterator[Pair]:
    for num_pairs, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            num_sources = num_pairs + (source is not None) + sum(1 for _ in sources)
            num_targets = num_pairs + (target is not None) + sum(1 for _ in targets)
            raise ValueError(
                f"{source_path} has {num_sources} lines but {target_path} has {num_targets}: line i of one must "
                f"translate line i of the other. A lost or an extra line break is the usual cause."
            )
        yield source, target


def _read_table(path: Path, columns: Columns | None) -> Iterator[Pair]:
    """Read two of the columns that the first line of a table names; without `columns`, all of its two."""
    rows = _rows(path)
    header = next(rows, (1, []))[1] if columns else ["source", "target"]
    columns = columns or tuple(header)
    _check_columns(header, columns, where=str(path))
    places = tuple(map(header.index, columns))
    for number, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number}: expected {len(header)} cells, found {len(row)}.")
        yield row[places[0]], row[places[1]]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the cells of each row of a table, and the number of its last line.

    In .tsv each line is a row, and a `"` is a character like any other. In .csv quoted cells may hold commas and line
    breaks, and empty lines are skipped; a cell of more than 131,072 characters, the limit of the csv module, is
    refused: an open quote must not swallow the file.
    """
    lines = read_lines(path)
    if _suffix(path) == ".tsv":
        yield from ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
        return
    rows = csv.reader((f"{line}\n" for line in lines), strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows if row)
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {rows.line_num}: not .csv ({error}). A cell that holds a comma, a quote or a line break "
            f'stands in quotes, and its own quotes are doubled: "He said ""yes""."'
        ) from error


def _read_json_lines(path: Path, columns: Columns) -> Iterator[Pair]:
    """Read one JSON object per line, see `_pair_of_record`; empty lines are skipped."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            pair = _pair_of_record(json.loads(line), columns, where=where)
            "".join(pair).encode("utf-8")
        except UnicodeEncodeError as error:  # half of a surrogate pair: only JSON can spell one
            raise ValueError(f"{where}: {error.object[error.start]!a} is no character. Remove the line.") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: not a JSON object ({error}). Expected one object on each line.") from None
        yield pair


def _read_dataset(name: str, split: str, columns: Columns, cache: Path | None) -> Iterator[Pair]:
    """Read a parquet file, a folder of them, or a dataset of the Hub, as `datasets` does."""
    import datasets  # takes a second, and text needs none of it

    hub_id = None if Path(name).exists() else HUB_ID.fullmatch(name)
    source = (hub_id["name"], hub_id["config"]) if hub_id else (name, None)
    options = {"split": split, "streaming": True, "cache_dir": cache and str(cache)}
    if Path(name).is_file():
        source, options = ("parquet", None), options | {"data_files": name, "split": "train"}
    try:
        dataset = datasets.load_dataset(*source, **options)
        if cache is not None and hub_id:  # downloaded once, and never to the user's home
            fingerprint = f"{name}-{split}".replace("/", "-")
            dataset = datasets.Dataset.from_generator(
                dataset.__iter__, features=dataset.features, cache_dir=str(cache), fingerprint=fingerprint
            )
    except (OSError, ValueError, RuntimeError) as error:  # of other causes than the name too
        raise ValueError(f"{name}, split {split!r}: no such file or dataset can be read ({error}).") from error
    batches = dataset.iter(batch_size=ROWS_PER_BATCH)
    records = (dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True))
    for number, record in enumerate(records, start=1):
        yield _pair_of_record(record, columns, where=f"{name}, row {number}")


def _pair_of_record(record: object, columns: Columns, *, where: str) -> Pair:
    """Return both sides of `{"translation": {"en": ..., "de": ...}}`, or of the inner object alone."""
    inner = record.get("translation") if isinstance(record, dict) else None
    texts = inner if isinstance(inner, dict) else record
    _check_columns(texts if isinstance(texts, dict) else [], columns, where=where)
    source, target = (texts[column] for column in columns)
    if not (isinstance(source, str) and isinstance(target, str)):
        found = f"{type(source).__name__} and {type(target).__name__}"
        raise ValueError(f"{where}: expected text on both sides, found {found}. Remove it, or write '' for no text.")
    return source, target


def _check_columns(found: Iterable[str], columns: Columns, *, where: str) -> None:
    """Refuse one column for both sides, and columns that are not among those `found`."""
    if len(set(columns) & set(found)) < 2:
        raise ValueError(
            f"{where}: expected columns {' and '.join(map(repr, columns))}, found {', '.join(found) or 'none'}. Give "
            f"the two names used there as source_column and target_column."
        )


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
    """Read pairs from whatever holds parallel text; the name tells how.

        ["train.en", "train.de"]        two text files, source first
        "train.tsv"                     source, tab, target; with source_column or target_column a header and columns
        "train.csv"                     a header and columns, as the csv module reads them
        "train.jsonl", "train.json"     one object per line, {"translation": {"en": ..., "de": ...}} or the inner one
        "train.tsv.gz", ...             any of these compressed
        "train.parquet"                 a column `translation` of such structs, or one text column per language
        "wmt14/de-en"                   an existing folder of .parquet files, which `datasets` reads
        "shards/*.jsonl"                a glob: the files it matches in the order of their names
        "wmt/wmt14:de-en"               a dataset of the Hub and its config, with such columns

    Sentences of JSON, parquet and the Hub may contain line breaks. Of two text files a line of more than
    `lines.MOST_LINE_BYTES` is cut, and `filter_pairs` drops and counts it; in other files it is refused.

    Args:
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
    if len(names) == 2 and not any(_suffix(file) in PAIR_SUFFIXES for file in files):
        return read_parallel_files(*files)
    if len(names) != 1 or not all(_suffix(file) in PAIR_SUFFIXES or file.is_dir() for file in files):
        raise ValueError(f"{' '.join(names)!r} is no parallel text: expected {ACCEPTED_FORMS}.")
    columns = (source_column or source_language, target_column or target_language)
    has_header = bool(source_column or target_column)
    readers = {".csv": _read_table, ".tsv": _read_table, ".jsonl": _read_json_lines, ".json": _read_json_lines}
    return chain.from_iterable(
        reader(file, columns if has_header or _suffix(file) != ".tsv" else None)
        if (reader := readers.get(_suffix(file)))
        else _read_dataset(str(file), split, columns, cache)
        for file in files or map(Path, names)
    )


def find_files(name: str) -> list[Path]:
    """Return the files that a name stands for, in the order in which they are read; none for a Hub dataset.

    Raises:
        FileNotFoundError: if there is none, and the name is not one of the Hub.
    """
    path = Path(name)
    files = [path] if name and path.exists() else [Path(match) for match in sorted(glob.glob(name))]
    ending = _suffix(path)
    is_file_name = ending in (*PAIR_SUFFIXES, ".txt") or LANGUAGE.fullmatch(ending.removeprefix("."))
    if not files and (is_file_name or HUB_ID.fullmatch(name) is None):
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
