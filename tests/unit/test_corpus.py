"""Reading parallel text: which line belongs to which, and what is refused."""

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

from vaswani_transformer.data.corpus import describe_source, open_parallel, read_parallel_files
from vaswani_transformer.data.lines import read_lines

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


@pytest.fixture(autouse=True)
def offline_datasets(tmp_path_factory):
    """Show no progress of the datasets library."""
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
    assert len(beginning.encode()) > 20


def test_a_line_without_end_does_not_fill_the_memory(tmp_path):
    source = write(tmp_path / "train.en.gz", gzip.compress(b"\0" * 2**26 + b"\nb\n"))
    tracemalloc.start()
    (long, _), pair = read_parallel_files(source, write(tmp_path / "train.de", "a\nb\n"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pair == ("b", "b")
    assert len(long) > 2**20
    assert peak < 16 * 2**20


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
    expected = rf"train\.en has {num_sources} lines but \S+train\.de has {num_targets}: line i"
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


def test_json_lines_are_nested_or_flat_and_empty_lines_are_skipped(tmp_path):
    flat = [{"id": 7, "de": target, "en": source} for source, target in PAIRS]
    for name, records in (("flat", flat), ("nested", [{"translation": record} for record in flat])):
        path = write_json_lines(tmp_path / f"{name}.jsonl", records)
        assert open_en_de(write(path, f"\n{path.read_text()} \n")) == PAIRS


JSON = '{"en": "a", "de": "b"}\n'


# One entry for all


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


def test_an_existing_name_with_brackets_is_not_a_glob(tmp_path):
    assert open_en_de(write_tsv(tmp_path / "train[1].tsv")) == PAIRS


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


def test_a_hub_dataset_is_described_by_name_and_split():
    assert describe_source(["wmt/wmt14:de-en"], split="train") == [{"dataset": "wmt/wmt14:de-en", "split": "train"}]


# Real data


def test_a_real_corpus_is_read_to_its_end(data_folder):
    folder = data_folder / "tatoeba_en_de"
    pairs = open_en_de([folder / "dev.en", folder / "dev.de"])
    num_pairs = sum(1 for _ in pairs)
    assert num_pairs == (folder / "dev.en").read_bytes().count(b"\n") > 1000


@given(st.lists(st.tuples(texts, texts), min_size=1), st.booleans())
def test_two_files_of_any_characters_stay_aligned(pairs, has_last_end):
    """A number in front of each line tells where it came from; two further characters keep \\r and BOM inside."""
    with tempfile.TemporaryDirectory() as folder:
        numbered = [(f"{n} {source}|", f"{n} {target}|") for n, (source, target) in enumerate(pairs)]
        files = [Path(folder, name) for name in ("a", "b.gz")]
        for file, side, pack in zip(files, zip(*numbered, strict=True), (bytes, gzip.compress), strict=True):
            file.write_bytes(pack(("\n".join(side) + "\n" * has_last_end).encode()))
        assert list(read_parallel_files(*files)) == numbered


WORDS = [("2024-01-01", "1.50"), ("NA", "null"), ("True", "7"), ("", "None"), ("a\rb", "\x85\u2028")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_text_of_tables_stays_the_text_it_is(tmp_path, name):
    if name.endswith("parquet"):
        path = write_parquet(tmp_path / name, WORDS)
    elif "json" in name:
        path = write_json_lines(tmp_path / name, [{"en": en, "de": de} for en, de in WORDS])
    elif name.endswith("tsv"):
        path = write_tsv(tmp_path / name, WORDS)
    else:
        path = write(tmp_path / name, "en,de\n" + "".join(f'"{en}","{de}"\n' for en, de in WORDS))
    assert open_en_de(path) == WORDS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\na\tb\tc\n", r"line 2: expected 2 cells, found 3"),
        ("a.csv", "id,english\n", r"expected columns 'en' and 'de', found id, english\. Give"),
        ("a.csv", "", r"expected columns 'en' and 'de', found none"),
        ("a.csv", "en,de\na,b\nc,d,e\n", r"line 3: expected 2 cells, found 3"),
        ("a.csv", 'en,de\na,b\n"c\n', r"line 3: not \.csv \(unexpected end of data\)"),
        ("a.parquet", "no parquet here", "no such file or dataset can be read"),
        ("a.jsonl", '{"en": "a", "de": "b"}\n[', r"line 2: not a JSON object"),
        ("a.jsonl", "3", r"line 1: expected columns 'en' and 'de', found none"),
        ("a.jsonl", '{"translation": {"en": "a", "cs": "b"}}', r"line 1: expected columns .*, found en, cs"),
        ("a.jsonl", '{"en": "a", "de": null}', r"line 1: expected text on both sides, found str and NoneType"),
        ("a.jsonl", '{"translation":' * 50_000, r"line 1: not a JSON object"),
        ("a.jsonl", '{"en": "a", "de": "\\ud83d"}', r"line 1: '\\ud83d' is no character"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused_with_its_place(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=rf"{name}(:|,) .*{message}"):
        open_en_de(write(tmp_path / name, content))


@pytest.mark.parametrize("nested", [True, False])
def test_a_folder_of_parquet_is_read_by_split(tmp_path, nested):
    for number, pairs in enumerate((PAIRS[:2], PAIRS[2:])):
        write_parquet(tmp_path / f"train-0000{number}-of-00002.parquet", pairs, nested=nested)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", PAIRS[:1], nested=nested)
    assert open_en_de(tmp_path) == PAIRS
    assert open_en_de(tmp_path, split="test") == PAIRS[:1]
    assert open_en_de(str(tmp_path / "train-*.parquet")) == PAIRS
    with pytest.raises(ValueError, match="split 'dev': no such file or dataset"):
        open_en_de(tmp_path, split="dev")


def test_a_hub_dataset_is_downloaded_once_for_a_preparation(tmp_path, monkeypatch):
    asked = []

    def load(name, config, **options):
        asked.append((name, config, options["split"]))
        records = [{"translation": {"en": en, "de": de}} for en, de in PAIRS]
        return datasets.Dataset.from_list(records).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    read = []
    generate = datasets.Dataset.from_generator

    def keep(*args, **options):
        read.append(options["cache_dir"])
        return generate(*args, **options)

    monkeypatch.setattr(datasets.Dataset, "from_generator", keep)
    assert open_en_de("wmt/wmt14:de-en", cache=tmp_path, split="test") == PAIRS
    assert open_en_de("wmt/wmt14:de-en") == PAIRS
    assert asked == [("wmt/wmt14", "de-en", "test"), ("wmt/wmt14", "de-en", "train")]
    assert read == [str(tmp_path)]


@pytest.mark.parametrize(
    "name", ["absent.tsv", "data/absent.tsv", "data/train.de", "data/train.txt.gz", "a/b/c", "", "x"]
)
def test_a_missing_file_is_not_looked_for_on_the_hub(name):
    with pytest.raises(FileNotFoundError, match=r"does not exist: expected two plain text files"):
        open_en_de(name)


def test_names_that_do_not_go_together_are_refused(tmp_path):
    files = [write_tsv(tmp_path / name) for name in ("train.tsv", "dev.tsv")]
    for spec in (files, [], [write(tmp_path / "a.en", "a")], [*files, files[0]]):
        with pytest.raises(ValueError, match="is no parallel text: expected two plain"):
            open_en_de(spec)
    os.mkfifo(tmp_path / "pipe.en")
    with pytest.raises(ValueError, match="is not a regular file"):
        describe_source([tmp_path / "pipe.en"], split="train")
