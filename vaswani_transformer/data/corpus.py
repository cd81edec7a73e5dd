"""Parallel text in: read and align. Nothing here knows about tokens or tensors.

A corpus is an iterator of `(source, target)` sentence pairs, so that one of 36M pairs (English-French of section 5.1)
needs no more memory than one of ten. A missing file is reported at once, a fault in line 3M when line 3M is reached.

    pairs = open_parallel(["train.en", "train.de"], source_language="en", target_language="de")
    for source, target in pairs:
        ...
"""

import csv
import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from ..files import digest_file
from .lines import is_too_long, read_lines, require_file

Pair = tuple[str, str]
Columns = tuple[str, str]  # names of source and target where a record names its sides

ACCEPTED_FORMS = (
    "two plain text files, source and target, one sentence per line; "
    "one .csv, .tsv, .jsonl, .json or .parquet file; a folder of .parquet files; "
    "a quoted glob such as 'data/*.parquet'; or a dataset of the Hugging Face Hub such as wmt/wmt14:de-en. "
    "Text, tables and JSON may be compressed (.gz)"
)

# A name that ends like this means a file: if there is none, it is missing, not a dataset of the hub.
FILE_SUFFIXES = frozenset(
    {".tsv", ".jsonl", ".json", ".parquet", ".txt", ".csv", ".arrow", ".xml", ".sgm", ".tmx"}
    | {".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip"}
)
PAIR_SUFFIXES = frozenset({".csv", ".tsv", ".jsonl", ".json", ".parquet"})  # both sides in one file
SPLIT_NAMES = frozenset({"train", "validation", "valid", "val", "dev", "test"})
LANGUAGE = re.compile(r"[a-z]{2}")  # ISO 639-1
HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.+-]+))?")
ROWS_PER_BATCH = 1_000  # of parquet and hub datasets: ten times as many are a tenth faster


def read_parallel_files(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Pairs from two text files: line i of one is the translation of line i of the other.

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
                f"{source_path} has {num_sources} lines but {target_path} has {num_targets}: line i of one "
                f"must translate line i of the other. Find where they part; a lost or an extra line break "
                f"is the usual cause."
            )
        yield source, target


def _read_tsv(path: Path) -> Iterator[Pair]:
    """Source, tab, target on each line. A `"` is a character like any other: there is no quoting."""
    for number, line in enumerate(read_lines(path, cut_long=True), start=1):
        if is_too_long(line):
            yield line, line
            continue
        cells = line.split("\t")
        if len(cells) != 2:
            raise ValueError(
                f"{path}, line {number}: expected 2 tab-separated columns, source and target, "
                f"found {len(cells)}. If these two come first, keep them alone: `cut -f1,2 {path}`."
            )
        yield cells[0], cells[1]


def _read_table(path: Path, columns: Columns, **dialect) -> Iterator[Pair]:
    """Two of the columns that the first line names; empty lines are skipped.

    Quoted cells of .csv may hold commas and line breaks. A cell of more than 131,072 characters, the limit of the csv
    module, is refused: an open quote must not swallow the file.
    """
    rows = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True, **dialect)
    try:
        header = next(rows, [])
        _check_columns(header, columns, where=str(path))
        places = tuple(map(header.index, columns))
        for row in filter(None, rows):
            if len(row) != len(header):
                raise ValueError(
                    f"{path}, line {rows.line_num}: expected {len(header)} cells, as in the first line, found "
                    f"{len(row)}. A cell that holds a separator must stand in quotes."
                )
            yield row[places[0]], row[places[1]]
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {rows.line_num}: not {_suffix(path)} ({error}). In .csv a cell that holds a comma, a quote "
            f'or a line break stands in quotes, and its own quotes are doubled: "He said ""yes""."'
        ) from error


def _read_json_lines(path: Path, columns: Columns) -> Iterator[Pair]:
    """One JSON object per line, see `_pair_of_record`; empty lines are skipped."""
    for number, line in enumerate(read_lines(path, cut_long=True), start=1):
        if not line.strip():
            continue
        if is_too_long(line):
            yield line, line
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and deep brackets
            place = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            raise ValueError(
                f"{where}{place}: not a JSON object ({getattr(error, 'msg', error)}). Expected one object on each "
                f"line; a file that is one large array becomes that with `jq -c '.[]' {path}`."
            ) from None
        source, target = _pair_of_record(record, columns, where=where)
        try:
            (source + target).encode("utf-8")
        except UnicodeEncodeError as error:
            # Only JSON can spell one. It would pass here and stop the tokenizer, far from its cause.
            raise ValueError(
                f"{where}: the text holds half of a surrogate pair, {error.object[error.start]!a}, which is "
                f"no character. Repair or remove the line."
            ) from None
        yield source, target


def _read_parquet(path: Path, columns: Columns) -> Iterator[Pair]:
    """A column `translation` of structs, or one text column per language, by batches of rows."""
    # Imported here because it takes 0.3 s, and plain text needs none of it.
    import pyarrow
    import pyarrow.parquet

    require_file(path)
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: expected a complete parquet file, but it cannot be read: {error}") from error
    with file:
        schema = file.schema_arrow
        is_nested = "translation" in schema.names and pyarrow.types.is_struct(schema.field("translation").type)
        found = [field.name for field in schema.field("translation").type] if is_nested else schema.names
        _check_columns(found, columns, where=str(path))
        fields = [f"translation.{column}" if is_nested else column for column in columns]
        first_row = 1
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=fields):
            if is_nested:
                batch = pyarrow.RecordBatch.from_struct_array(batch.column("translation"))
            sources, targets = (batch.column(column).to_pylist() for column in columns)
            for row, (source, target) in enumerate(zip(sources, targets, strict=True), start=first_row):
                yield _checked_pair(source, target, where=f"{path}, row {row}")
            first_row += len(sources)


def _read_hub_dataset(
    name: str, config: str | None, split: str, columns: Columns, *, streaming: bool
) -> Iterator[Pair]:
    """A dataset that `datasets.load_dataset` knows by `name`, and by `config` if it has several subsets."""
    # Imported here because it takes a second, and files need none of it.
    import datasets

    given = f"dataset {name!r}, config {config!r}, split {split!r}"
    try:
        dataset = datasets.load_dataset(name, config, split=split, streaming=streaming)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"{given} was not found on the Hugging Face Hub, or the hub cannot be reached; nor is there a "
            f"local file or folder of that name ({error}). Check the spelling and the connection; private "
            f"datasets need `hf auth login`."
        ) from error
    except datasets.exceptions.DatasetGenerationError as error:
        raise OSError(
            f"{given} could not be downloaded to the cache, {datasets.config.HF_DATASETS_CACHE}: "
            f"{error.__cause__ or error}. Make room there, or set HF_HOME to another folder."
        ) from error
    except (ValueError, RuntimeError) as error:  # RuntimeError: the dataset is a script, no longer supported
        raise ValueError(f"{given} cannot be loaded: {error} Choose a config and a split that it has.") from error
    # Row by row took 15 times as long from the cache, 4 times as long when streaming.
    records = chain.from_iterable(map(_records_of_batch, dataset.iter(batch_size=ROWS_PER_BATCH)))
    rows = enumerate(records, start=1)
    return (_pair_of_record(record, columns, where=f"{given}, row {number}") for number, record in rows)


def _records_of_batch(batch: dict[str, list]) -> Iterable[object]:
    """Rows of a batch of columns."""
    return (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))


def _pair_of_record(record: object, columns: Columns, *, where: str) -> Pair:
    """The two sides of `{"translation": {"en": ..., "de": ...}}`, or of the inner object alone; other keys may be."""
    inner = record.get("translation") if isinstance(record, dict) else None
    texts = inner if isinstance(inner, dict) else record
    found = texts if isinstance(texts, dict) else [f"a value of type {type(texts).__name__}"]
    _check_columns(found, columns, where=where)
    return _checked_pair(*(texts[column] for column in columns), where=where)


def _check_columns(found: Iterable[str], columns: Columns, *, where: str) -> None:
    """Refuse one column for both sides, and columns that are not among those `found`."""
    if columns[0] == columns[1]:
        raise ValueError(
            f"{where}: {columns[0]!r} is the name of both sides. Give two languages, or the names used there as "
            f"source_column and target_column."
        )
    if not set(columns).issubset(found):
        raise ValueError(
            f"{where}: expected {' and '.join(map(repr, columns))}, found {', '.join(found) or 'nothing'}. Give the "
            f"names used there as source_column and target_column."
        )


def _checked_pair(source: object, target: object, *, where: str) -> Pair:
    """Both sides, if they are text; JSON, parquet and the hub can hold nulls and numbers too."""
    if isinstance(source, str) and isinstance(target, str):
        return source, target
    raise ValueError(
        f"{where}: expected text on both sides, found {type(source).__name__} and {type(target).__name__}. "
        f"Remove the row, or write a missing side as '', which the filter skips and counts."
    )


def open_parallel(
    spec: str | Path | Sequence[str | Path],
    *,
    source_language: str,
    target_language: str,
    source_column: str | None = None,
    target_column: str | None = None,
    split: str = "train",
    streaming: bool = False,
) -> Iterator[Pair]:
    """Pairs from whatever holds parallel text; the name tells how to read it.

        ["train.en", "train.de"]        two text files, source first
        "train.tsv"                     source, tab, target; with source_column or target_column a header and columns
        "train.csv"                     a header and columns, as the csv module reads them
        "train.jsonl", "train.json"     one object per line, {"translation": {"en": ..., "de": ...}} or the inner one
        "train.tsv.gz", ...             any of these compressed
        "train.parquet"                 a column `translation` of such structs, or one text column per language
        "wmt14/de-en"                   an existing folder: its .parquet files in the order of their names
        "shards/*.jsonl"                a glob: the files it matches in the order of their names
        "wmt/wmt14:de-en"               a dataset of the hub and its config, with such columns

    A name that looks like a path (an ending such as `.tsv` or `.en`, more than one `/`, or `.`, `~` or `/` in front)
    is never looked for on the hub. Sentences of JSON, parquet and the hub may contain line breaks. A line of more than
    `lines.MOST_LINE_BYTES` is cut, and `filter_pairs` drops and counts it; below a header it is refused.

    Args:
        source_language, target_language: names of the two sides.
        source_column, target_column: other names of theirs in records and headers; not used for two text files.
        split: of a hub dataset, or of a folder whose shards are named by split (`train-00000-of-00003.parquet`).
        streaming: read a hub dataset while downloading and keep nothing, for a small split that is read once. Without
            it all splits are first downloaded to the cache.

    Raises:
        FileNotFoundError: at once, if a file, folder or dataset is missing.
        OSError: at once, if a dataset cannot be written to the cache.
        ValueError: at once, if `spec` fits no form, or a dataset has no such split; later, if a line or row is no pair.
    """
    parts = [spec] if isinstance(spec, str | Path) else list(spec)
    if len(parts) == 2:
        paths = [Path(part).expanduser() for part in parts]
        for path in paths:
            if _suffix(path) in PAIR_SUFFIXES:
                raise ValueError(
                    f"two names mean one text file per side, but {path} holds both sides. Give one such file, "
                    f"or a folder or a quoted glob for several."
                )
        return read_parallel_files(*paths)
    if len(parts) != 1 or not str(parts[0]):
        raise ValueError(f"expected one or two names of parallel text, got {parts}: {ACCEPTED_FORMS}.")
    name = str(parts[0])
    columns = (source_column or source_language, target_column or target_language)
    if files := _find_files(name, split):
        return _read_shards(files, columns, tsv_has_header=bool(source_column or target_column))
    if glob.has_magic(name):
        raise FileNotFoundError(f"no file matches {name}. Accepted: {ACCEPTED_FORMS}.")
    if _looks_like_path(name, (source_language, target_language)):
        raise FileNotFoundError(f"{name} does not exist. Check the path. Accepted: {ACCEPTED_FORMS}.")
    if (hub_id := HUB_ID.fullmatch(name)) is None:
        raise ValueError(f"{name!r} is neither a file nor the name of a dataset. Accepted: {ACCEPTED_FORMS}.")
    return _read_hub_dataset(hub_id["name"], hub_id["config"], split, columns, streaming=streaming)


def find_languages_by_ending(names: Sequence[str]) -> tuple[str, str] | None:
    """Return source and target language of two text files by their endings, as of train.en and train.de.gz."""
    endings = [_suffix(Path(name)).removeprefix(".") for name in names]
    is_told = len(set(endings)) == 2 and all(LANGUAGE.fullmatch(ending) for ending in endings)
    return (endings[0], endings[1]) if is_told else None


def _suffix(path: Path) -> str:
    """The ending that tells how to read a file: `.tsv` of `train.tsv`, and of `train.tsv.gz` too."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _looks_like_path(name: str, languages: tuple[str, str]) -> bool:
    """True if a name that is not on disk was meant to be."""
    suffix = Path(name).suffix
    is_file_name = suffix in FILE_SUFFIXES or suffix.removeprefix(".") in languages
    return is_file_name or name.count("/") > 1 or name.startswith((".", "~", "/")) or name.endswith("/")


def _find_files(name: str, split: str) -> list[Path]:
    """The files that a name stands for, in the order in which they are read; none for a hub dataset."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _shards_of_split(path, split)
    return [path] if path.exists() else [Path(match) for match in sorted(glob.glob(str(path)))]


def _shards_of_split(folder: Path, split: str) -> list[Path]:
    """The .parquet files of a folder, sorted; if their names begin with a split, only those of `split`."""
    shards = sorted(folder.glob("*.parquet"))
    if not shards:
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise FileNotFoundError(
            f"folder {folder} has no .parquet files, it holds {inside}. Give the folder that has them, "
            f"or the files themselves: {ACCEPTED_FORMS}."
        )
    split_of = {path: re.split(r"[-_.]", path.name)[0] for path in shards}
    if split in split_of.values():
        return [path for path in shards if split_of[path] == split]
    # Reading all of them would put the test set into the training data.
    if named := sorted(SPLIT_NAMES.intersection(split_of.values())):
        raise ValueError(f"folder {folder} has no split {split!r}, only {', '.join(named)}. Choose one of these.")
    return shards


def _read_shards(paths: Sequence[Path], columns: Columns, *, tsv_has_header: bool) -> Iterator[Pair]:
    """The pairs of several files one after the other, each opened when its turn comes."""
    read_table = partial(_read_table, columns=columns)
    readers: dict[str, Callable[[Path], Iterator[Pair]]] = {
        ".csv": read_table,
        ".tsv": partial(read_table, delimiter="\t", quoting=csv.QUOTE_NONE) if tsv_has_header else _read_tsv,
        ".jsonl": partial(_read_json_lines, columns=columns),
        ".json": partial(_read_json_lines, columns=columns),
        ".parquet": partial(_read_parquet, columns=columns),
    }
    for path in paths:
        if _suffix(path) not in readers:
            raise ValueError(
                f"{path} holds one side or is of unknown form: expected a name that ends in "
                f"{', '.join(sorted(readers))}. Accepted: {ACCEPTED_FORMS}."
            )
    return chain.from_iterable(readers[_suffix(path)](path) for path in paths)


def describe_source(spec: Sequence[str | Path], *, split: str) -> list[dict]:
    """Identify the text that `open_parallel` reads from `spec` and `split`, as JSON values.

    Name and SHA-256 of each file, wherever it lies; name and split of a hub dataset, but not its revision. A missing
    file is left for `open_parallel` to report.

    Raises:
        FileNotFoundError, ValueError: if a folder has no parquet files of the split.
        ValueError: if a name is that of a pipe, which can be read once only.
    """
    described: list[dict] = []
    for name in map(str, spec):
        files = _find_files(name, split)
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"{file} is not a regular file, and a pipe can be read once only, but preparing reads the text "
                    f"several times. Write it to a file first; one compressed with gzip is read as it is if its name "
                    f"ends in .gz."
                )
            described.append({"file": file.name, "sha256": digest_file(file)})
        if not files:
            described.append({"dataset": name, "split": split})
    return described
