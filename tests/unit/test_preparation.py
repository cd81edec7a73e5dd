"""What lies in a prepared folder, what becomes of each pair, and that a preparation which was stopped goes on."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from vaswani_transformer import cli
from vaswani_transformer.data import preparation
from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.filtering import PairFilter
from vaswani_transformer.data.preparation import Corpus, prepare, read_preparation
from vaswani_transformer.data.tokenization import train_tokenizer

PAIRS = [
    ("a dog runs", "ein hund läuft"),
    ("", "leer"),
    ("a cat", " ".join(map(str, range(150)))),
    ("same", "same"),
] * 3
# 64 pairs in two corpora; the last 16 repeat pairs of the first corpus.
CORPUS = [(f"a dog runs {number % 48} times", f"ein hund läuft  {number % 48} mal") for number in range(64)]
SETTINGS = {"vocab_size": 280, "pair_filter": PairFilter(drop_duplicates=True)}
CORPORA = [Corpus(lambda: iter(CORPUS[:40]), weight=2), Corpus(lambda: iter(CORPUS[40:]))]


def read_dev():
    return iter(CORPUS[:9])


def load(folder: Path) -> dict[str, list[list[int]]]:
    """The token ids of a set, in their order."""
    pairs = TokenizedPairs.load(folder, pad_token_id=1)
    sides = {"input_ids": pairs.sources, "labels": pairs.targets}
    return {name: [side[row].tolist() for row in range(len(side))] for name, side in sides.items()}


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder, with their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The files of CORPORA prepared in one go."""
    folder = tmp_path_factory.mktemp("never_stopped")
    prepare(CORPORA, read_dev, folder, **SETTINGS)
    return files_of(folder)


def test_prepared_tokens_spell_the_pairs_that_were_kept(tmp_path):
    summary = prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:1], tmp_path, vocab_size=280, max_length=100)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    train = load(tmp_path / "train")
    assert tokenizer.batch_decode(train["labels"], skip_special_tokens=True) == ["ein hund läuft", "same"] * 3
    assert all(ids[-1] == tokenizer.eos_token_id for ids in train["input_ids"])
    counts = summary["train"]
    assert (counts["read"], counts["empty"], counts["over_max_length"], counts["pairs"]) == (12, 3, 3, 6)
    assert counts["source_tokens"] == sum(map(len, train["input_ids"]))
    assert counts["target_tokens"] == sum(map(len, train["labels"]))
    assert json.loads((tmp_path / "preparation.json").read_text()) == summary


@pytest.mark.parametrize(("max_length", "num_kept"), [(6, 2), (5, 1)])
def test_pairs_of_exactly_the_longest_length_are_kept_in_both_sets(tmp_path, max_length, num_kept):
    alphabet = train_tokenizer([], vocab_size=260)
    pairs = [("abc", "def"), ("abcd", "abc"), ("a", "abcde"), ("abcdef", "a")]  # with a space before, </s> after
    summary = prepare(
        [Corpus(lambda: pairs)], lambda: pairs, tmp_path, vocab_size=260, max_length=max_length, tokenizer=alphabet
    )
    for name in ("train", "dev"):
        assert [max(map(len, row)) for row in zip(*load(tmp_path / name).values(), strict=True)] == [5, 6][:num_kept]
        assert (summary[name]["pairs"], summary[name]["over_max_length"]) == (num_kept, 4 - num_kept)
    assert json.loads((tmp_path / "dev.json").read_text()) == [list(pair) for pair in pairs[:num_kept]]


def test_a_word_or_line_without_end_is_dropped_from_both_sets_and_said(tmp_path, capsys):
    lines = ["a dog runs", "x" * 5_000_000, "y" * 5_000, "a cat"]
    for name, some_lines in (("train", lines), ("dev", lines[::-1])):
        (tmp_path / name).write_text("\n".join(some_lines) + "\n")
    train, dev = ([f"--{name}", *[str(tmp_path / name)] * 2] for name in ("train", "dev"))
    assert cli.main(["prepare", *train, *dev, "--output", str(tmp_path / "data"), "--vocab_size", "270"]) == 0
    printed = capsys.readouterr().out
    for name in ("train", "dev"):
        assert f"{name}: read 4 pairs, kept 2 (50.00%), dropped 2 with a line over 1,048,576 or a word over" in printed
        assert f"{name}: 2 pairs of" in printed


def test_a_folder_in_which_another_process_writes_is_refused(tmp_path, another_process_in):
    message = "another process is writing in .*name another output"
    work = preparation.work_folder(tmp_path / "data")
    work.mkdir()
    with another_process_in(work), pytest.raises(ValueError, match=message):
        prepare(CORPORA, read_dev, tmp_path / "data", **SETTINGS)
    prepare(CORPORA, read_dev, tmp_path / "data", **SETTINGS)


@pytest.mark.parametrize("name", ["preparation.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_of_a_finished_folder_is_named(tmp_path, name, content):
    prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        prepare(CORPORA, read_dev, tmp_path, **SETTINGS)


@pytest.mark.parametrize("content", ["{}", '{"train": 3}'])
def test_a_summary_without_its_values_is_named(tmp_path, content):
    (tmp_path / "preparation.json").write_text(content)
    with pytest.raises(ValueError, match=r"preparation\.json was not written by this version"):
        read_preparation(tmp_path)


def test_an_epoch_holds_a_corpus_as_often_as_its_weight_says_and_no_other_duplicates(tmp_path):
    train = prepare(CORPORA, read_dev, tmp_path, **SETTINGS)["train"]
    first, second = train.pop("corpora")
    assert (first["kept"], first["duplicate"], first["pairs"]) == (40, 0, 80)
    assert (second["kept"], second["duplicate"], second["pairs"]) == (8, 16, 8)
    assert train == {name: first[name] + second[name] for name in first}
    found = load(tmp_path / "train")["labels"]
    spelt = AutoTokenizer.from_pretrained(tmp_path)([target for _, target in CORPUS[:48]]).input_ids
    assert found == spelt[:40] * 2 + spelt[40:]
    assert (train["pairs"], train["target_tokens"]) == (88, sum(map(len, found)))


def test_a_given_tokenizer_is_used_and_left_as_it_was(tmp_path):
    prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:1], tmp_path / "first", vocab_size=280)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    other = [("zebra", "zebra zebra")] * 5
    prepare(
        [Corpus(lambda: other)], lambda: other, tmp_path / "second", vocab_size=400, max_length=99, tokenizer=tokenizer
    )
    second = AutoTokenizer.from_pretrained(tmp_path / "second")
    assert second.get_vocab() == tokenizer.get_vocab()
    assert (tokenizer.model_max_length, second.model_max_length) == (256, 99)


def test_a_vocabulary_is_learnt_from_every_kth_pair_of_a_large_corpus(tmp_path, monkeypatch):
    learnt_from = []

    def learn(texts, **options):
        learnt_from.extend(texts)
        return train_tokenizer(learnt_from, **options)

    monkeypatch.setattr(preparation, "train_tokenizer", learn)
    log = []
    prepare(CORPORA, read_dev, tmp_path, vocab_size=280, vocabulary_pairs=30, log=log.append)
    assert "learning a vocabulary of 280 from 22 of 64 pairs" in log
    assert learnt_from == [side for pair in CORPUS[::3] for side in pair]


def test_nothing_left_to_train_on_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"set train is left: read 2 pairs, kept 0 .*2 with an empty side"):
        prepare([Corpus(lambda: [("", "a"), ("b", " ")])], lambda: PAIRS, tmp_path / "empty", vocab_size=280)
    with pytest.raises(ValueError, match=r"no pair of the set train is left: read 1 pairs, kept 1 .*, 1 too long"):
        prepare([Corpus(lambda: PAIRS[2:3])], lambda: PAIRS, tmp_path / "long", vocab_size=280, max_length=9)
    with pytest.raises(ValueError, match=r"no pair of the set dev is left: read 0 pairs"):
        prepare([Corpus(lambda: PAIRS)], list, tmp_path / "dev", vocab_size=280)
    with pytest.raises(ValueError, match=r"no pair of the set dev is left: read 1 pairs, kept 1 .*, 1 too long"):
        prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[2:3], tmp_path / "long_dev", vocab_size=280, max_length=30)


# Stopped and started again


def test_stopped_at_any_block_it_leaves_nothing_and_then_makes_the_same_bytes(tmp_path, monkeypatch, never_stopped):
    append, calls = preparation._append, []

    def stop(path, column):
        calls.append(path)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return append(path, column)

    monkeypatch.setattr(preparation, "_append", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPORA, read_dev, tmp_path / "data", **SETTINGS)
    assert list(tmp_path.iterdir()) == []
    left = preparation.work_folder(tmp_path / "data") / "train"  # by a kill
    left.mkdir(parents=True)
    (left / "labels.tokens").write_text("half")
    prepare(CORPORA, read_dev, tmp_path / "data", **SETTINGS)
    assert files_of(tmp_path / "data") == never_stopped
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_blocks_of_any_size_give_the_same_tokens(tmp_path, monkeypatch, never_stopped):
    monkeypatch.setattr(preparation, "PAIRS_PER_BLOCK", 7)
    prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == never_stopped


def test_a_complete_folder_is_not_read_for_again(tmp_path):
    summary = prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    log = []
    unreadable = [Corpus(None, corpus.weight) for corpus in CORPORA]
    assert prepare(unreadable, None, tmp_path, **SETTINGS, log=log.append) == summary
    assert log == [f"{tmp_path} is complete: nothing to do"]


def test_a_folder_that_holds_anything_else_is_left_as_it_is(tmp_path):
    (tmp_path / "dev.json").write_text("{}")
    with pytest.raises(ValueError, match=r"dev\.json would be overwritten"):
        prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == {"dev.json": b"{}"}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"pair_filter": PairFilter(max_length_ratio=3)}, r"filter\.max_length_ratio was null, is 3"),
        ({"max_length": 99}, r"max_length was 256, is 99"),
        ({"vocab_size": 290}, r"vocabulary\.vocab_size was 280, is 290"),
        ({"inputs": {"train": [{"size": 6}]}}, r"inputs\.train\[0\]\.size was 5, is 6"),
        ({"inputs": {"train": []}}, r"inputs\.train was \[\{\"size\": 5\}\], is \[\]"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused_with_what_differs(tmp_path, change, difference):
    settings = SETTINGS | {"inputs": {"train": [{"size": 5}]}}
    prepare(CORPORA, read_dev, tmp_path, **settings)
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match=rf"was begun with other settings: .*{difference}"):
        prepare(CORPORA, read_dev, tmp_path, **settings | change)
    assert files_of(tmp_path) == before


def test_the_fingerprint_tells_what_the_tokens_are_made_from(tmp_path):
    summaries = [
        prepare(CORPORA, read_dev, tmp_path / str(number), **SETTINGS, inputs={"train": number}) for number in (0, 1)
    ]
    assert summaries[0]["fingerprint"] != summaries[1]["fingerprint"]
    assert summaries[0]["tokenizer"] == summaries[1]["tokenizer"]


# The command


@pytest.fixture
def command(tmp_path):
    """A function that runs `vaswani prepare` on files of CORPUS, and returns its exit code."""
    for name, pairs in (("text", CORPUS), ("dev", CORPUS[:9])):
        for language, sentences in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    train, dev = (
        [f"--{option}", *(f"{tmp_path}/{name}.{language}" for language in ("en", "de"))]
        for option, name in (("train", "text"), ("dev", "dev"))
    )

    def run(*options: str, output: str = "data") -> int:
        return cli.main(["prepare", *train, *dev, "--output", str(tmp_path / output), *options])

    return run


def test_the_command_given_again_says_that_nothing_is_to_do(command, capsys):
    assert command("--vocab_size", "280") == 0
    first = capsys.readouterr().out
    assert "learning a vocabulary of 280 from 64 of 64 pairs\ntokenising\ntrain: read 64 pairs, kept 64" in first
    assert command("--vocab_size", "280") == 0
    again = capsys.readouterr().out
    assert "data is complete: nothing to do\ntrain: read 64 pairs, kept 64" in again
    assert "learning" not in again


def test_a_text_that_has_changed_since_is_refused(command, tmp_path, capsys):
    assert command("--vocab_size", "280") == 0
    with open(tmp_path / "text.de", "a", encoding="utf-8") as file:
        file.write("noch eine\n")
    assert command("--vocab_size", "280") == 1
    error = capsys.readouterr().err
    assert "inputs.train[0][1].sha256 was " in error
    assert "inputs.train[0][0]" not in error


def test_the_command_keeps_the_vocabulary_of_prepared_data_or_of_a_run(command, tmp_path, capsys):
    assert command("--vocab_size", "280") == 0
    shutil.copytree(tmp_path / "data", tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    for name in ("data", "data", "run"):
        assert command("--keep_vocabulary", str(tmp_path / name), output="second") == 0
    assert capsys.readouterr().out.count("second is complete: nothing to do") == 2
    tokenizers = [(tmp_path / folder / "tokenizer.json").read_bytes() for folder in ("data", "second")]
    assert tokenizers[0] == tokenizers[1]
    for name in ("absent", "run/checkpoints"):
        assert command("--keep_vocabulary", str(tmp_path / name), output="third") == 1
        assert f"--keep_vocabulary: {tmp_path}/{name} holds no tokenizer.json. Name" in capsys.readouterr().err
    assert command("--keep_vocabulary", str(tmp_path / "run"), "--task", "parsing", output="third") == 1
    assert "the model's vocabulary has no brackets such as '(NP': " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command("--vocab_size", "280", "--keep_vocabulary", "data")
    assert "not allowed with argument --vocab_size" in capsys.readouterr().err


def test_the_command_counts_each_corpus(command, tmp_path, capsys):
    rows = [*CORPUS[60:], ("a, b", 'say ""no""'), ("", "leer")]
    table = tmp_path / "more.csv"
    table.write_text("id,english,german\n" + "".join(f'7,"{source}","{target}"\n' for source, target in rows))
    columns = ["--source_column", "english", "--target_column", "german"]
    more = ["--train", str(table), "--weights", "1", "4", *columns, "--drop_duplicates"]
    assert command("--vocab_size", "280", *more) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/text.de, weight 1: read 64 pairs, kept 48 (75.00%), dropped 16 seen before" in printed
    assert "more.csv, weight 4: read 6 pairs, kept 1 (16.67%), dropped 1 with an empty side, 4 seen before" in printed
    assert "more.csv, weight 4: 4 pairs of" in printed
    assert "train: read 70 pairs, kept 49" in printed
    assert "train: 52 pairs of" in printed
    pairs = TokenizedPairs.load(tmp_path / "data" / "train", pad_token_id=1)
    assert AutoTokenizer.from_pretrained(tmp_path / "data").decode(pairs.targets[51][:-1]) == 'say "no"'


def test_a_development_set_among_the_training_text_is_refused_by_what_it_holds(command, tmp_path, capsys):
    for language in ("en", "de"):
        (tmp_path / f"link.{language}").symlink_to(tmp_path / f"text.{language}")
    for name in ("text", f"../{tmp_path.name}/text", "link"):
        dev = [str(tmp_path / f"{name}.{language}") for language in ("en", "de")]
        assert command("--dev", *dev) == 1
        error = capsys.readouterr().err
        assert "the development set must not be part of the training set, but " in error
        assert error.count("\n") == 1
