"""Reading parallel text: which line belongs to which, and what is refused."""

import glob
import gzip
import hashlib
import json
import os
import tempfile
import threading
import tracemalloc
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vaswani_transformer.data import corpus
from vaswani_transformer.data.corpus import describe_source, open_parallel, read_parallel_files
from vaswani_transformer.data.lines import is_too_long, read_lines

PAIRS = [
    ("A dog runs.", "Ein Hund rennt."),
    ("He said \u2028 \x85 hi.", 'Er sagte "hallo".'),
    ("", "Nichts."),
]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def write_tsv(path: Path, pairs: list[tuple[str, str]] = PAIRS) -> Path:
    return write(path, "".join(f"{source}\t{target}\n" for source, target in pairs))


def write_json_lines(path: Path, records: list) -> Path:
    return write(path, "".join(json.dumps(record) + "\n" for record in records))


def write_parquet(path: Path, pairs: list[tuple[str, str]] = PAIRS, *, nested: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"de": target, "en": source} for source, target in pairs]
    columns = [{"translation": row} for row in rows] if nested else rows
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(columns), path)
    return path


def open_en_de(spec, **options) -> list[tuple[str, str]]:
    return list(open_parallel(spec, source_language="en", target_language="de", **options))


@pytest.fixture
def offline_datasets(tmp_path, monkeypatch):
    """Keep the cache of the datasets library inside the test's own folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


# Lines


@given(st.lists(texts), st.booleans())
def test_every_written_line_is_read_back(lines, has_last_end):
    assume(not any(line.endswith("\r") for line in lines) and not "".join(lines[:1]).startswith("\ufeff"))
    assume(has_last_end or (lines and lines[-1]))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "text", "\n".join(lines) + "\n" * (has_last_end and bool(lines)))
        assert list(read_lines(path)) == lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("\n", [""]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\r\nb\rc\n", ["a\r", "b\rc"]),  # one carriage return belongs to the line end, others to the text
        ("a\nb\r", ["a", "b\r"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1cf\n", ["a\u2028b\x85c\x0bd\x0ce\x1cf"]),
        ("\ufeffa\n\ufeffb\n", ["a", "\ufeffb"]),
        ("\ufeff", [""]),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path, content, expected):
    assert list(read_lines(write(tmp_path / "text", content))) == expected


def test_invalid_utf8_is_reported_with_its_place(tmp_path):
    path = write(tmp_path / "train.de", b"\xef\xbb\xbfgut\n" + "schön\n".encode("latin-1"))
    lines = read_lines(path)
    assert next(lines) == "gut"
    with pytest.raises(ValueError, match=r"train\.de, line 2: not UTF-8 at byte offset 3 .*0xf6.*iconv"):
        next(lines)
    with pytest.raises(ValueError, match="line 1: not UTF-8 at byte offset 1"):
        list(read_lines(write(tmp_path / "surrogate", b"a\xed\xa0\x80\n")))


def test_memory_does_not_grow_with_the_file(tmp_path):
    source = write(tmp_path / "train.en", "A dog runs.\n" * 50_000)
    tracemalloc.start()
    num_pairs = sum(1 for _ in read_parallel_files(source, source))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_pairs == 50_000
    assert peak < 1_000_000


@pytest.fixture
def short_limit(monkeypatch):
    """Lines of more than 20 bytes are too long."""
    monkeypatch.setattr("vaswani_transformer.data.lines.MOST_LINE_BYTES", 20)
    monkeypatch.setattr("vaswani_transformer.data.lines.BYTES_OF_LONG_LINE", 24)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_that_is_too_long_is_refused_with_its_place(tmp_path, short_limit, end):
    lines = read_lines(write(tmp_path / "text", f"{'x' * 20}{end}{'x' * 21}{end}"))
    assert next(lines) == "x" * 20
    with pytest.raises(ValueError, match=r"text, line 2: more than 20 bytes, which is no sentence\. .* split it"):
        next(lines)


@pytest.mark.parametrize("num_characters", [*range(7, 20), 6_000])
def test_of_a_line_that_is_too_long_the_beginning_is_read(tmp_path, short_limit, num_characters):
    path = write(tmp_path / "text", "a\n" + "\u2028" * num_characters + "\nb\n")
    first, beginning, last = read_lines(path, cut_long=True)
    assert (first, last) == ("a", "b")
    assert beginning == "\u2028" * min(num_characters, 8)
    assert is_too_long(beginning)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path):
    source = write(tmp_path / "train.en.gz", gzip.compress(b"\0" * 2**26 + b"\nb\n"))
    tracemalloc.start()
    (long, _), pair = read_parallel_files(source, write(tmp_path / "train.de", "a\nb\n"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pair == ("b", "b")
    assert is_too_long(long)
    assert peak < 16 * 2**20


def test_a_long_line_of_any_form_is_a_pair_that_is_too_long(tmp_path, short_limit):
    tsv = write(tmp_path / "a.tsv", f"a\tb\n{'x' * 30}\tc\nd\te\n")
    records = ['{"en":"a","de":"b"}', json.dumps({"en": "x" * 30, "de": "c"}), '{"en":"d","de":"e"}']
    lines = write(tmp_path / "a.jsonl", "\n".join(records))
    for path in (tsv, lines):
        first, long, last = open_en_de(path)
        assert (first, last) == (("a", "b"), ("d", "e"))
        assert all(map(is_too_long, long))


def test_a_missing_file_or_a_folder_is_reported_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.txt does not exist: expected a file\. Check the path"):
        read_lines(tmp_path / "absent.txt")
    with pytest.raises(ValueError, match=r"is a folder: expected a file\. Give a file in it"):
        read_lines(tmp_path)
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(ValueError, match=r"a\.parquet is a folder: expected a file"):
        open_en_de(str(tmp_path / "*.parquet"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_lines_come_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write, args=(tmp_path / "pipe", "a\nb\n"))
    writer.start()
    assert list(read_lines(tmp_path / "pipe")) == ["a", "b"]
    writer.join()


def test_a_compressed_file_is_read_as_if_it_were_not(tmp_path):
    source = write(tmp_path / "train.en.gz", gzip.compress("a\r\nb\u2028c\n\n".encode()))
    assert list(read_lines(source)) == ["a", "b\u2028c", ""]


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-9], lambda packed: b"plain text", lambda packed: packed[:10] + b"\xff" * 9]
)
def test_a_damaged_compressed_file_is_refused_with_its_name(tmp_path, damage):
    path = write(tmp_path / "train.en.gz", damage(gzip.compress(b"a dog runs\n" * 99)))
    with pytest.raises(ValueError, match=r"train\.en\.gz is not a whole gzip file \(.+\): download or compress it"):
        list(read_lines(path))


# Two files


def test_two_files_are_aligned_by_line(tmp_path):
    source = write(tmp_path / "train.en", "".join(f"{source}\n" for source, _ in PAIRS))
    target = write(tmp_path / "train.de", "\r\n".join(target for _, target in PAIRS))
    assert list(read_parallel_files(source, target)) == PAIRS
    assert open_en_de([str(source), str(target)]) == PAIRS


@pytest.mark.parametrize(("num_sources", "num_targets"), [(2, 5), (5, 2), (0, 1), (4, 3)])
def test_files_of_unequal_length_are_refused_with_both_counts(tmp_path, num_sources, num_targets):
    source = write(tmp_path / "train.en", "a\n" * num_sources)
    target = write(tmp_path / "train.de", "b\n" * num_targets)
    expected = rf"train\.en has {num_sources} lines but \S+train\.de has {num_targets}: .*Find where they part"
    with pytest.raises(ValueError, match=expected):
        list(read_parallel_files(source, target))


# Both sides in one file


def test_columns_named_in_a_header_are_read(tmp_path):
    rows = [("7", source, target) for source, target in PAIRS]
    quoted = "\r\n".join(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows)
    table = write(tmp_path / "a.csv", f'\ufeffid,en,de\r\n{quoted}\r\n\r\n8,"c\r\nd",e\n')
    assert open_en_de(table) == [*PAIRS, ("c\nd", "e")]
    names = {"source_column": "english", "target_column": "german"}
    lines = "\n".join("\t".join(row) for row in [("id", "english", "german"), *rows])
    assert open_en_de(write(tmp_path / "a.tsv", lines), **names) == PAIRS
    records = [{"english": source, "german": target} for source, target in PAIRS]
    assert open_en_de(write_json_lines(tmp_path / "a.jsonl", records), **names) == PAIRS


def test_two_sides_of_one_name_are_refused(tmp_path):
    table = write(tmp_path / "a.csv", "en,de\nHi,Hallo\n")
    with pytest.raises(ValueError, match=r"a\.csv: 'en' is the name of both sides\. Give two languages, or"):
        open_en_de(table, target_column="en")


def test_json_lines_are_nested_or_flat_and_empty_lines_are_skipped(tmp_path):
    flat = [{"id": 7, "de": target, "en": source} for source, target in PAIRS]
    for name, records in (("flat", flat), ("nested", [{"translation": record} for record in flat])):
        path = write_json_lines(tmp_path / f"{name}.jsonl", records)
        assert open_en_de(write(path, f"\n{path.read_text()} \n")) == PAIRS


def test_a_column_of_text_may_be_called_translation(tmp_path, offline_datasets):
    columns = {"source_column": "source", "target_column": "translation"}
    records = [{"source": source, "translation": target} for source, target in PAIRS]
    assert open_en_de(write_json_lines(tmp_path / "a.jsonl", records), **columns) == PAIRS
    (tmp_path / "data").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "data" / "train.parquet")
    assert open_en_de(tmp_path / "data" / "train.parquet", **columns) == PAIRS
    names = ("source", "translation")
    assert list(corpus._read_hub_dataset(str(tmp_path / "data"), None, "train", names, streaming=False)) == PAIRS


JSON = '{"en": "a", "de": "b"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\nalone\n", r"line 2: expected 2 tab-separated .* found 1\. .*cut -f1,2"),
        ("a.tsv", "a\tb\na\tb\tCC-BY\n", r"line 2: expected 2 tab-separated .* found 3\."),
        ("a.tsv", "a\tb\n\n", r"line 2: expected 2 tab-separated .* found 1\."),
        (
            "a.csv",
            "id,english\n",
            r"expected 'en' and 'de', found id, english\. Give the names used there as source_col",
        ),
        ("a.csv", "", r"expected 'en' and 'de', found nothing\. Give"),
        ("a.csv", "en,de\na,b\nc,d,e\n", r"line 3: expected 2 cells, as in the first line, found 3\."),
        ("a.csv", 'en,de\na,b\n"c\n', r"line 3: not \.csv \(unexpected end of data\)\. .* quotes are doubled"),
        ("a.csv", 'en,de\n"a"b,c\n', r"line 2: not \.csv \(',' expected after '\"'\)"),
        ("a.csv", 'en,de\n"' + "a\n" * 70_000, r"line \d+: not \.csv \(field larger than field limit \(131072\)\)"),
        ("a.parquet", "no parquet here", "expected a complete parquet file"),
        ("a.jsonl", JSON + "[", r"line 2, column 2: not a JSON object .*jq"),
        ("a.jsonl", JSON + "3", r"line 2: expected 'en' and 'de', found a value of type int\."),
        ("a.jsonl", JSON + '["a", "b"]', r"line 2: expected 'en' and 'de', found a value of type list"),
        ("a.jsonl", JSON + '{"translation": "a"}', r"line 2: expected 'en' and 'de', found translation\."),
        (
            "a.jsonl",
            JSON + '{"translation": {"en": "a", "cs": "b"}}',
            r"line 2: expected 'en' and 'de', found en, cs\. Give",
        ),
        ("a.jsonl", JSON + "{}", r"line 2: expected 'en' and 'de', found nothing"),
        (
            "a.jsonl",
            JSON + '{"en": "a", "de": null}',
            r"line 2: expected text on both sides, found str and NoneType\. Remove",
        ),
        ("a.jsonl", JSON + '{"translation":' * 50_000, r"line 2: not a JSON object \(maximum recursion depth"),
        ("a.jsonl", JSON + '{"en": ' + "7" * 5_000, r"line 2: not a JSON object \(Exceeds the limit \(4300"),
        (
            "a.jsonl",
            JSON + '{"en": "a", "de": "\\ud83d"}',
            r"line 2: the text holds half of a surrogate pair, '\\ud83d'",
        ),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=rf"{name}(:|,) {message}"):
        open_en_de(write(tmp_path / name, content))


@pytest.mark.parametrize("nested", [True, False])
def test_parquet_is_read_across_batches(tmp_path, monkeypatch, nested):
    monkeypatch.setattr(corpus, "ROWS_PER_BATCH", 2)
    path = write_parquet(tmp_path / "a.parquet", nested=nested)
    assert open_en_de(path) == PAIRS
    with pytest.raises(ValueError, match=r"a\.parquet: expected 'en' and 'fr', found de, en\."):
        open_en_de(path, target_column="fr")


@pytest.mark.parametrize("missing", [None, {"en": "a", "de": None}])
def test_a_parquet_row_without_text_is_refused(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(corpus, "ROWS_PER_BATCH", 2)
    rows = [{"translation": {"en": "a", "de": "b"}}] * 2 + [{"translation": missing}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet, row 3: expected text on both sides, .* NoneType"):
        open_en_de(tmp_path / "train.parquet")


# The hub


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_dataset_is_read_by_split(tmp_path, offline_datasets, streaming, nested):
    write_parquet(tmp_path / "wmt" / "train-00000-of-00002.parquet", PAIRS[:2], nested=nested)
    write_parquet(tmp_path / "wmt" / "train-00001-of-00002.parquet", PAIRS[2:], nested=nested)
    write_parquet(tmp_path / "wmt" / "test-00000-of-00001.parquet", PAIRS[:1], nested=nested)
    name = str(tmp_path / "wmt")
    assert list(corpus._read_hub_dataset(name, None, "train", ("en", "de"), streaming=streaming)) == PAIRS
    assert list(corpus._read_hub_dataset(name, None, "test", ("de", "en"), streaming=streaming)) == [PAIRS[0][::-1]]
    with pytest.raises(ValueError, match=r"split 'dev' cannot be loaded: .*Choose a config and a split"):
        corpus._read_hub_dataset(name, None, "dev", ("en", "de"), streaming=streaming)
    with pytest.raises(ValueError, match=r"split 'train', row 1: expected 'en' and 'fr', found"):
        next(corpus._read_hub_dataset(name, None, "train", ("en", "fr"), streaming=streaming))


@pytest.mark.parametrize(
    ("error", "cause", "expected", "message"),
    [
        (ConnectionError("offline"), None, FileNotFoundError, "was not found .*Check"),
        (datasets.exceptions.DatasetNotFoundError("no"), None, FileNotFoundError, "was not found .*Check"),
        (
            datasets.exceptions.DatasetGenerationError("failed"),
            OSError("no space left"),
            OSError,
            r"could not be downloaded to the cache, .*: no space left\. Make room",
        ),
    ],
)
def test_a_dataset_that_cannot_be_loaded_is_reported_with_its_name(monkeypatch, error, cause, expected, message):
    def refuse(*args, **kwargs):
        raise error from cause

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(expected, match=rf"dataset 'wmt/wmt14', config 'de-en', .* {message}"):
        open_en_de("wmt/wmt14:de-en")


# One entry for all


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wmt/wmt14:de-en", ("wmt/wmt14", "de-en", "test")),
        ("Helsinki-NLP/opus_books", ("Helsinki-NLP/opus_books", None, "test")),
        ("some.one/data-v1.0", ("some.one/data-v1.0", None, "test")),
    ],
)
def test_a_hub_name_is_taken_apart(monkeypatch, name, expected):
    asked = []
    monkeypatch.setattr(
        corpus, "_read_hub_dataset", lambda *args, streaming: asked.append((*args, streaming)) or iter(PAIRS)
    )
    assert open_en_de(name, split="test") == open_en_de(name, split="test", streaming=True) == PAIRS
    assert asked == [(*expected, ("en", "de"), False), (*expected, ("en", "de"), True)]


def test_one_file_is_read_by_its_ending_or_by_that_before_gz(tmp_path):
    records = [{"en": source, "de": target} for source, target in PAIRS]
    texts = [
        write_tsv(tmp_path / "a.tsv"),
        write_json_lines(tmp_path / "a.jsonl", records),
        write_json_lines(tmp_path / "a.json", records),
    ]
    packed = [write(file.with_name(f"{file.name}.gz"), gzip.compress(file.read_bytes())) for file in texts]
    for file in (*texts, *packed, write_parquet(tmp_path / "a.parquet")):
        assert open_en_de(file) == open_en_de(str(file)) == open_en_de([str(file)]) == PAIRS
    sides = [write(tmp_path / f"a.{name}.gz", gzip.compress(f"{name}\n".encode())) for name in ("en", "de")]
    assert open_en_de(sides) == [("en", "de")]


def test_shards_are_read_in_the_order_of_their_names(tmp_path, monkeypatch):
    # Folders are listed in any order; here in the wrong one.
    own_glob, find = Path.glob, glob.glob
    monkeypatch.setattr(Path, "glob", lambda *args: sorted(own_glob(*args), reverse=True))
    monkeypatch.setattr(glob, "glob", lambda name: sorted(find(name), reverse=True))
    for number in (1, 0, 2):
        write_parquet(tmp_path / f"part-{number}.parquet", [PAIRS[number]])
    assert open_en_de(tmp_path) == open_en_de(str(tmp_path / "part-*.parquet")) == PAIRS


def test_a_folder_gives_one_split_only(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00001.parquet", PAIRS[:1])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", PAIRS[1:])
    assert open_en_de(tmp_path) == PAIRS[:1]
    assert open_en_de(tmp_path, split="test") == PAIRS[1:]
    with pytest.raises(ValueError, match=r"has no split 'validation', only test, train\. Choose"):
        open_en_de(tmp_path, split="validation")


def test_a_folder_without_shards_says_what_it_holds(tmp_path):
    write_parquet(tmp_path / "de-en" / "train.parquet")
    with pytest.raises(FileNotFoundError, match=r"has no \.parquet files, it holds de-en\. Give the folder"):
        open_en_de(tmp_path)


def test_an_existing_name_with_brackets_is_not_a_glob(tmp_path):
    assert open_en_de(write_tsv(tmp_path / "train[1].tsv")) == PAIRS


@pytest.mark.parametrize(
    "name", ["absent.tsv", "data/absent.tsv", "train.de", "data/train.txt.gz", "./data", "data/", "a/b/c"]
)
def test_a_missing_file_is_not_looked_for_on_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpus, "_read_hub_dataset", lambda *args, **kwargs: pytest.fail("asked the hub"))
    with pytest.raises(FileNotFoundError, match=rf"^{name} does not exist\. .*Accepted: two plain text files"):
        open_en_de(name)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("absent/*.parquet", FileNotFoundError, r"no file matches absent/\*\.parquet\. Accepted"),
        ("phrasebook", ValueError, r"'phrasebook' is neither a file nor the name of a dataset\. Accepted"),
        ("wmt/wmt14:de en", ValueError, r"'wmt/wmt14:de en' is neither a file nor the name of a dataset"),
        ([], ValueError, "expected one or two names of parallel text, got"),
        (["a", "b", "c"], ValueError, "expected one or two names of parallel text, got"),
        ("", ValueError, "expected one or two names of parallel text, got"),
    ],
)
def test_names_that_stand_for_nothing_are_refused(spec, error, message):
    with pytest.raises(error, match=message):
        open_en_de(spec)


def test_a_file_for_one_side_and_files_for_both_are_not_confused(tmp_path):
    with pytest.raises(ValueError, match=r"train\.en holds one side or is of unknown form: expected a name"):
        open_en_de(write(tmp_path / "train.en", "a\n"))
    files = [write_tsv(tmp_path / name) for name in ("train.tsv", "dev.tsv")]
    with pytest.raises(ValueError, match=r"two names mean one text file per side, but \S+train\.tsv holds both"):
        open_en_de(files)


# What is read, for a fingerprint


def test_a_source_is_described_by_what_its_files_hold_wherever_they_lie(tmp_path):
    files = [write(tmp_path / f"train.{language}", f"text {language}\n") for language in ("en", "de")]
    described = describe_source(files, split="train")
    assert [source["file"] for source in described] == ["train.en", "train.de"]
    assert described[1]["sha256"] == hashlib.sha256(b"text de\n").hexdigest()
    assert describe_source([f"{tmp_path}/train.*"], split="train") == described[::-1]
    json.dumps(described)
    copy = write(tmp_path / "copy" / "train.de", "text de\n")
    os.utime(copy, ns=(0, 7))
    assert describe_source([copy], split="train") == described[1:]
    assert describe_source([write(copy, "another\n")], split="train") != described[1:]


def test_a_folder_is_described_by_its_parquet_files_of_the_split(tmp_path, monkeypatch):
    for name in ("train-1.parquet", "train-0.parquet", "test-0.parquet", "notes.txt"):
        write(tmp_path / name, "")
    own_glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: sorted(own_glob(*args), reverse=True))
    described = describe_source([tmp_path], split="train")
    assert [source["file"] for source in described] == ["train-0.parquet", "train-1.parquet"]


def test_a_hub_dataset_is_described_by_name_and_split():
    assert describe_source(["wmt/wmt14:de-en"], split="train") == [{"dataset": "wmt/wmt14:de-en", "split": "train"}]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_cannot_be_described_because_it_can_be_read_once_only(tmp_path):
    os.mkfifo(tmp_path / "train.en")
    with pytest.raises(ValueError, match=r"train\.en is not a regular file, .* reads the text several times\. .*\.gz"):
        describe_source([tmp_path / "train.en"], split="train")


# Real data


def test_a_real_corpus_is_read_to_its_end(data_folder):
    folder = data_folder / "tatoeba_en_de"
    pairs = open_en_de([folder / "dev.en", folder / "dev.de"])
    num_pairs = sum(1 for _ in pairs)
    assert num_pairs == (folder / "dev.en").read_bytes().count(b"\n") > 1000
