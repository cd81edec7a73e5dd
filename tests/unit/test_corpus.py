"""Reading parallel text in every file format, and refusing wrong input."""

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.corpus import describe_source, open_parallel
from vaswani_transformer.data.lines import read_lines

# A reader of tables may mistake these texts for numbers, dates, missing values or line ends.
PAIRS = [("A dog.", 'Er sagte "ja", oder'), ("2024-01-01", "1.50"), ("NA", "null"), ("True", "7"), ("", "None")]
PAIRS += [("a\rb", "\x85\u2028")]

MOST_LINE_BYTES = 2**20

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n\t"), max_size=20)


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, compressed if its name ends in .gz, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_pairs(path: Path, pairs=PAIRS, *, names: tuple[str, str] = ("en", "de"), nested: bool = False) -> Path:
    """Write both sides into one file, in the format that its name asks for, and return its path.

    If `nested`, each record of JSON or parquet is `{"translation": record}`.
    """
    records = [dict(zip(names, pair, strict=True)) for pair in pairs]
    if nested:
        records = [{"translation": record} for record in records]
    match path.suffixes[0]:
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
            return path
        case ".csv":
            table = io.StringIO()
            csv.writer(table, quoting=csv.QUOTE_ALL).writerows([names, *pairs])
            return write(path, table.getvalue())
        case ".tsv":
            return write(path, "".join("\t".join(row) + "\n" for row in pairs))
        case _:
            return write(path, "".join(json.dumps(record) + "\n" for record in records))


def read(spec, columns: tuple[str, str] = ("en", "de"), **options) -> list[tuple[str, str]]:
    """Return the pairs of one file, or of a list of files."""
    files = [spec] if isinstance(spec, str | Path) else spec
    return list(open_parallel(files, columns, **options))


@settings(max_examples=40)
@given(st.lists(st.tuples(texts, texts), min_size=1), st.booleans())
def test_both_sides_of_any_text_stay_aligned_in_every_file_format(pairs, ends_with_line_feed):
    # The number before each text identifies its pair. The bar after each text keeps a final \r out of the line end.
    numbered = [(f"{n} {source}|", f"{n} {target}|") for n, (source, target) in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("a", "b.gz")]
        for file, side in zip(files, zip(*numbered, strict=True), strict=True):
            write(file, "\n".join(side) + "\n" * ends_with_line_feed)
        assert read(files) == numbered
        for name in ("a.csv", "a.tsv.gz", "a.jsonl"):
            assert read(write_pairs(Path(folder, name), numbered)) == numbered


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("\n", [""]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\r\nb\rc\n", ["a\r", "b\rc"]),  # only the carriage return just before \n is part of the line end
        ("a\nb\r", ["a", "b\r"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1cf\n", ["a\u2028b\x85c\x0bd\x0ce\x1cf"]),
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
        ("\ufeff", [""]),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path, content, expected):
    for name in ("text", "text.gz"):
        assert list(read_lines(write(tmp_path / name, content))) == expected


ENDINGS = [f"{ending}{packed}" for ending in (".csv", ".tsv", ".jsonl", ".json") for packed in ("", ".gz")]


@pytest.mark.parametrize("name", [*(f"a{ending}" for ending in ENDINGS), "a.parquet", "b[1]*.parquet", "train[1].tsv"])
def test_one_file_with_both_sides_is_read_unchanged(tmp_path, name):
    file = write_pairs(tmp_path / name)
    assert read(file) == read([str(file)]) == PAIRS
    if ".tsv" not in name:
        file = write_pairs(tmp_path / name, names=("German", "English"))
        assert read(file, ("English", "German")) == [pair[::-1] for pair in PAIRS]
    if "json" in name:
        write(file, "\n" + write_pairs(tmp_path / "nested.json", nested=True).read_text() + " \n")
        assert read(file) == PAIRS


def test_the_names_of_the_columns_in_the_first_line_of_tsv_are_no_pair(tmp_path):
    table = write(tmp_path / "a.tsv", "German\tid\tEnglish\nb\t7\ta\n")
    assert read(table, ("English", "German")) == [("a", "b")]
    assert read(write(table, "en\tde\na\tb\n")) == [("a", "b")]
    assert read(write(table, "")) == []


def test_line_breaks_in_quoted_cells_of_csv_are_kept_and_empty_lines_between_rows_are_skipped(tmp_path):
    table = write(tmp_path / "a.csv", '\ufeffid,de,en\r\n7,a,b\r\n\r\n8,"c\r\nd","e ""f"""\n')
    assert read(table) == [("b", "a"), ('e "f"', "c\nd")]
    with pytest.raises(ValueError, match=r"expected .*columns 'de' and 'de'"):
        read(table, ("de", "de"))


@pytest.mark.parametrize("nested", [True, False])
def test_a_folder_of_parquet_is_read_by_split_in_the_order_of_names(tmp_path, nested):
    for number, pairs in enumerate((PAIRS[:2], PAIRS[2:])):
        write_pairs(tmp_path / f"train-0000{number}-of-00002.parquet", pairs, nested=nested)
    write_pairs(tmp_path / "test-00000-of-00001.parquet", PAIRS[:1], nested=nested)
    assert read(tmp_path) == PAIRS
    assert read(tmp_path, split="test") == PAIRS[:1]
    assert [source["file"] for source in describe_source([tmp_path], split="test")] == ["test-00000-of-00001.parquet"]
    with pytest.raises(FileNotFoundError, match=r"holds no file dev\*\.parquet"):
        read(tmp_path, split="dev")


def test_a_hub_dataset_is_loaded_by_split_and_stored_in_the_given_cache(tmp_path, monkeypatch):
    records = [{"translation": {"en": en, "de": de}} for en, de in PAIRS]
    dataset = datasets.Dataset.from_list(records)
    load = mock.Mock(side_effect=[dataset, dataset.to_iterable_dataset()])
    monkeypatch.setattr(datasets, "load_dataset", load)
    with_colon = write_pairs(tmp_path / "a:b.jsonl")  # the path of a file, although a Hub dataset also has a colon
    monkeypatch.chdir(tmp_path)
    assert read(f"../{tmp_path.name}/{with_colon.name}") == PAIRS
    assert read("wmt/wmt14:de-en", cache=tmp_path, split="test") == PAIRS
    assert read("wmt/wmt14:de-en") == PAIRS
    assert load.call_args_list == [
        mock.call("wmt/wmt14", "de-en", split="test", streaming=False, cache_dir=str(tmp_path)),
        mock.call("wmt/wmt14", "de-en", split="train", streaming=True, cache_dir=None),
    ]
    assert describe_source(["wmt/wmt14:de-en"], split="train") == [{"dataset": "wmt/wmt14:de-en", "split": "train"}]


def test_overlong_lines_are_cut_between_characters_and_stay_aligned(tmp_path):
    long = ["x" * shift + "\u2028" * (MOST_LINE_BYTES // 3 + 9) for shift in range(3)]
    source = write(tmp_path / "a", "\r\n".join([*long, "d" * MOST_LINE_BYTES * 2, "end"]))
    pairs = read([source, write(tmp_path / "b", "1\n2\n3\n4\n5\n")])
    assert [target for _, target in pairs] == list("12345")
    assert [MOST_LINE_BYTES - len(line.encode()) for line, _ in pairs[:4]] == [1, 0, 2, 0]
    assert pairs[4][0] == "end"
    assert all(line.startswith(found) for line, (found, _) in zip(long, pairs, strict=False))


def test_a_very_long_line_does_not_fill_the_memory(tmp_path):
    files = write(tmp_path / "a.gz", b"\0" * 2**26 + b"\nb\n"), write(tmp_path / "b", "a\nb\n")
    tracemalloc.start()
    assert read(files)[1] == ("b", "b")
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()


PACKED = gzip.compress(b"a dog\truns\n" * 99)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a.en": b"a\n" * 2, "a.de": b"b\n" * 5}, r"a\.de has a line 3, but \S+a\.en has not"),
        ({"a.en": b"a\n" * 5, "a.de": b"b\n" * 2}, r"a\.en has a line 3, but \S+a\.de has not"),
        ({"a.tsv": b"\xef\xbb\xbfa\tb\nc\tsch\xf6n\n"}, r"line 2: not UTF-8 at byte offset 5 of the line.*iconv"),
        ({"a.tsv.gz": PACKED[:-9]}, r"a\.tsv\.gz is not a whole gzip file \(.+\): download or compress it"),
        ({"a.tsv.gz": PACKED[:10] + b"\xff" * 9}, r"a\.tsv\.gz is not a whole gzip file"),
        ({"a.tsv": b"a\tb\na\tb\tc\n"}, r"a\.tsv, line 2: expected 2 cells, found 3\. Keep two columns \(cut"),
        ({"a.tsv": b"English\tGerman\na\tb\n"}, r"line 1: .* name the columns .*English.*Give .*--source_column"),
        ({"a.tsv": b"source\ttarget\tid\n"}, r"line 1: expected 2 cells, found 3\. .*name all columns in the first"),
        ({"a.tsv": b"a\tb\ra\tb\r"}, r"line 1: expected 2 cells, found 3.* This line holds a lone \\r"),
        ({"a.csv": b"en,de\ra,b\r"}, r"line 1: .* This line holds a lone \\r, .*: replace each by \\n \(tr"),
        ({"a.csv": b"id,english\n7,a\n"}, r"a\.csv.*: expected .*columns 'en' and 'de', found .*english"),
        ({"a.csv": b"en,de\na,b\nc,d,e\n"}, r"a\.csv, line 3: expected 2 cells, found 3"),
        ({"a.csv": b'en,de\na,b\n"c\n'}, r"a\.csv, line 3: .*unexpected end of data"),
        ({"a.parquet": b"no parquet here"}, r"a\.parquet cannot be read as parquet"),
        ({"a.jsonl": b'{"en": "a", "de": "b"}\n['}, r"a\.jsonl, line 2: "),
        ({"a.jsonl": b'{"translation":' * 50_000}, r"a\.jsonl, line 1: "),
        *(({"a.jsonl": line}, "line 1: expected one JSON object per") for line in (b"3", b"null", b'"x"', b"[[1]]")),
        ({"a.json": b'[\n {"en": "a", "de": "b"}\n]'}, r"a\.json, line 1: .*Write one JSON object per line"),
        ({"a.json": b'{"data": [{"en": "a", "de": "b"}]}'}, r"a\.json, line 1: expected one JSON object per line"),
        ({"a.jsonl": b'{"translation": {"en": "a", "cs": "b"}}'}, r"line 1: expected .*columns .*, found .*cs"),
        ({"a.jsonl": b'{"en": "a", "de": null}'}, r"line 1: column 'de' holds None, no text: remove the pair, or"),
        ({"a.jsonl": b'{"en": 5, "de": "a"}'}, r"line 1: column 'en' holds 5, no text: remove the pair, or give it a"),
        ({"a.json": b'{"en": "a", "de": NaN}'}, r"line 1: column 'de' holds nan, no text"),
        ({"a.csv": b"en,de,de\na,b,c"}, r"line 1: a column occurs twice"),
        ({"a.csv": b"English;German\na, b;c, d\n"}, r"line 1: separate the columns of a \.csv by commas, found"),
        ({"a.csv": b"en\tde\na\tb"}, r"line 1: separate the columns of a \.csv by commas, found"),
        ({"a.jsonl": b'{"en": "a", "de": "\\ud83d"}'}, r"line 1: .*\\ud83d"),
        ({"a.tsv": b"", "b.tsv": b""}, r"is no parallel text: expected two plain"),
        ({"a.en": b""}, r"is no parallel text: expected two plain"),
    ],
)
def test_the_error_about_wrong_input_says_where_the_fault_is(tmp_path, contents, message):
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read([tmp_path / name for name in contents])


def test_a_folder_beside_a_file_is_refused(tmp_path):
    (tmp_path / "a.de").write_text("ein Hund\n", encoding="utf-8")
    with pytest.raises(IsADirectoryError):
        read([tmp_path, tmp_path / "a.de"])


@pytest.mark.parametrize("name", ["data/absent.tsv", "data/train", "a/b/c.csv:d", "C:/a/b.jsonl"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name):
    with pytest.raises((FileNotFoundError, ValueError), match=rf"No such file .*{name}|'{name}' is no parallel text"):
        read(name)
    with pytest.raises(FileNotFoundError, match=name):
        describe_source([name], split="train")


def test_the_description_of_a_source_depends_on_contents_and_not_on_folders(tmp_path):
    files = [write(tmp_path / f"train.{language}", f"text {language}\n") for language in ("en", "de")]
    described = describe_source(files, split="train")
    assert [source["file"] for source in described] == ["train.en", "train.de"]
    assert described[1]["sha256"] == hashlib.sha256(b"text de\n").hexdigest()
    copy = write(tmp_path / "copy" / "train.de", "text de\n")
    assert describe_source([copy], split="train") == described[1:]
    assert describe_source([write(copy, "another\n")], split="train") != described[1:]


def test_the_error_about_wrong_parquet_names_the_file(tmp_path):
    cells = pyarrow.StringArray.from_buffers(1, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe"))
    for name, columns in (("no_utf_8.parquet", ["en", "de"]), ("twice.parquet", ["en", "en"])):
        table = pyarrow.table([cells, pyarrow.array(["b"])], names=columns)
        pyarrow.parquet.write_table(table, tmp_path / name)
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("Über".encode("utf-16"), "The text is UTF-16, so re-encode it: `iconv -f UTF-16"),
        (bz2.compress(b"a"), "The text is compressed, and only files named"),
        (lzma.compress(b"a"), "The text is compressed, and only files named"),
        (gzip.compress(b"a", mtime=0), "The text is compressed, and only files named"),
        ("Über".encode("latin-1"), "iconv -f CP1252"),
    ],
)
def test_the_error_about_text_that_is_not_utf_8_says_how_to_convert_it(tmp_path, content, advice):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(ValueError, match=advice):
        list(read_lines(tmp_path / "text"))


def test_a_name_that_could_mean_a_folder_or_a_hub_dataset_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "set").mkdir(parents=True)
    for function in (read, describe_source):
        with pytest.raises(ValueError, match="own/set:default could mean the folder own/set or a dataset of the Hub"):
            function(["own/set:default"], split="train")


def test_a_pipe_is_refused_where_text_is_read_several_times(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is no regular file, but its text is read several times"):
        describe_source([tmp_path / "pipe", tmp_path / "pipe"], split="train")
    with pytest.raises(ValueError, match=r"source and target are both .*pipe, which can be read only once"):
        read([tmp_path / "pipe", tmp_path / "pipe"])
