"""Preparation of data: the files of a prepared folder, kept and dropped pairs, and interrupted preparations."""

import shutil
import sys
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from shortcuts import change_json, read_json, vaswani, write_lines
from tokenizers import processors
from transformers import AutoTokenizer

from vaswani_transformer.data import preparation
from vaswani_transformer.data.batching import TokenizedPairs, UpdateStream
from vaswani_transformer.data.preparation import Corpus, prepare, read_preparation
from vaswani_transformer.data.tokenization import train_tokenizer
from vaswani_transformer.files import find_damage

LONG = ("a cat", " ".join(map(str, range(150))))
PAIRS = [("a dog runs", "ein hund läuft"), ("", "leer"), LONG, ("same", "same")] * 3
# 64 pairs. CORPORA divides them into two corpora. The last 16 pairs repeat pairs of the first corpus.
CORPUS = [(f"a dog runs {number % 48} times", f"ein hund läuft  {number % 48} mal") for number in range(64)]
SETTINGS = {"vocab_size": 280, "drop_duplicates": True}
read_dev = partial(iter, CORPUS[:9])
CORPORA = [Corpus(lambda: iter(CORPUS[:40]), weight=2), Corpus(lambda: iter(CORPUS[40:]))]


def load(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Return the token ids (source, target) of the pairs of a prepared set, in order."""
    pairs = TokenizedPairs.load(folder, pad_token_id=1)
    batches = (pairs[[row]] for row in range(len(pairs)))
    return [(batch["input_ids"][0].tolist(), batch["labels"][0].tolist()) for batch in batches]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of each file in a folder, with its path as the key."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """Return the files that an uninterrupted preparation of CORPORA writes."""
    folder = tmp_path_factory.mktemp("never_stopped")
    prepare(CORPORA, read_dev, folder, **SETTINGS)
    return files_of(folder)


def test_prepared_tokens_encode_the_kept_pairs(tmp_path):
    summary = prepare([Corpus(lambda: PAIRS)], lambda: PAIRS[:1], tmp_path, vocab_size=280, max_length=100)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    pairs = load(tmp_path / "train")
    assert pairs == [tuple(tokenizer([source, target]).input_ids) for source, target in (PAIRS[0], PAIRS[3])] * 3
    source_tokens, target_tokens = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    counts = {"read": 12, "empty": 3, "over max_length": 3, "pairs": 6}
    assert summary["train"] == counts | {"source_tokens": source_tokens, "target_tokens": target_tokens}
    assert read_preparation(tmp_path) == summary
    assert set(summary["files"]) == files_of(tmp_path).keys() - {"preparation.json"}


@pytest.mark.parametrize(("max_length", "num_kept"), [(6, 2), (5, 1)])
def test_pairs_of_exactly_max_length_are_kept(tmp_path, max_length, num_kept):
    alphabet = train_tokenizer([], vocab_size=260)
    # Each text is encoded as one token for each letter, one for a space in front, and </s>.
    pairs = [("abc", "def"), ("abcd", "abc"), ("a", "abcde"), ("abcdef", "a")]
    corpora = [Corpus(lambda: pairs)]
    summary = prepare(corpora, lambda: pairs, tmp_path, vocab_size=400, max_length=max_length, tokenizer=alphabet)
    for name in ("train", "dev"):
        assert [max(map(len, pair)) for pair in load(tmp_path / name)] == [5, 6][:num_kept]
        assert (summary[name]["pairs"], summary[name]["over max_length"]) == (num_kept, 4 - num_kept)
    assert read_json(tmp_path / "dev.json") == [list(pair) for pair in pairs[:num_kept]]
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert (saved.get_vocab(), saved.model_max_length) == (alphabet.get_vocab(), max_length)
    assert alphabet.model_max_length > 256  # the tokenizer that was passed is not changed


def test_a_given_tokenizer_does_not_truncate_or_pad_and_must_end_each_sentence(tmp_path):
    tokenizer = train_tokenizer([], vocab_size=260)
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.backend_tokenizer.post_processor = template
    pairs = [("a </s> b", "c\t \u2028<s>"), ("a  b", "c")]
    expected = [tuple(tokenizer(list(pair)).input_ids) for pair in pairs]
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding()
    prepare([Corpus(lambda: pairs)], lambda: pairs, tmp_path / "a", vocab_size=400, tokenizer=tokenizer)
    assert load(tmp_path / "a" / "train") == load(tmp_path / "a" / "dev") == expected
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ValueError, match=r"must end every sentence with its eos_token, '</s>', but encodes 'a' as "):
        prepare([Corpus(lambda: pairs)], lambda: pairs, tmp_path / "b", vocab_size=400, tokenizer=tokenizer)


def test_an_epoch_holds_each_pair_as_often_as_the_weight_of_its_corpus_says(tmp_path):
    train = prepare(CORPORA, read_dev, tmp_path, **SETTINGS)["train"]
    assert (train["read"], train["duplicate"], train["pairs"]) == (64, 16, 48)
    assert read_preparation(tmp_path)["weights"] == [2, 1]
    assert read_json(tmp_path / "train" / "corpora.json") == [[40, 2], [8, 1]]
    encoded = AutoTokenizer.from_pretrained(tmp_path)([target for _, target in CORPUS[:48]]).input_ids
    expected = encoded[:40] * 2 + encoded[40:]
    assert [labels for _, labels in load(tmp_path / "train")] == expected
    found = Counter()
    for update in UpdateStream(TokenizedPairs.load(tmp_path / "train", pad_token_id=1), tokens_per_batch=90, seed=0):
        rows = chain.from_iterable(batch["labels"].tolist() for batch in update.micro_batches)
        found.update(tuple(token for token in row if token >= 0) for row in rows)
        if update.is_last_of_epoch:
            break
    assert found == Counter(map(tuple, expected))


def test_a_vocabulary_is_learnt_from_a_sample_of_a_large_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "VOCABULARY_PAIRS", 30)
    log = []
    prepare(CORPORA, read_dev, tmp_path, vocab_size=300, log=log.append)
    assert "learning up to 300 vocabulary entries from 16 of 64 pairs" in log
    expected = train_tokenizer((side for pair in CORPUS[::4] for side in pair), vocab_size=300)
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == expected.get_vocab()


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ([("", "a"), ("b", " ")], PAIRS, r"set train is left: read 2 pairs, dropped 2 empty"),
        (PAIRS, [], r"no pair of the set dev is left: read 0 pairs"),
        (PAIRS, [LONG], r"no pair of the set dev is left: read 1 pairs, dropped 1 over max_length"),
    ],
)
def test_an_empty_set_is_an_error_and_leaves_no_files(tmp_path, train, dev, message):
    with pytest.raises(ValueError, match=message):
        prepare([Corpus(lambda: train)], lambda: dev, tmp_path / "data", vocab_size=280, max_length=30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_read", [1, 50, 65, 127])
def test_a_stopped_preparation_leaves_no_files_and_can_be_repeated(tmp_path, never_stopped, num_read):
    # The training text is read twice: to learn the vocabulary, and to tokenise it.
    allowed = iter(range(num_read))

    def read_until_stopped(corpus):
        for pair in corpus.read():
            if next(allowed, None) is None:
                raise KeyboardInterrupt
            yield pair

    stopped = [Corpus(lambda corpus=corpus: read_until_stopped(corpus), corpus.weight) for corpus in CORPORA]
    with pytest.raises(KeyboardInterrupt):
        prepare(stopped, read_dev, tmp_path / "data", **SETTINGS)
    assert list(tmp_path.iterdir()) == []
    prepare(CORPORA, read_dev, tmp_path / "data", **SETTINGS)
    assert files_of(tmp_path / "data") == never_stopped


def test_the_block_size_changes_no_file_and_a_complete_folder_is_not_prepared_again(
    tmp_path, monkeypatch, never_stopped
):
    monkeypatch.setattr(preparation, "PAIRS_PER_BLOCK", 7)
    summary = prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    log = []
    assert files_of(tmp_path) == never_stopped
    unreadable = [Corpus(None, corpus.weight) for corpus in CORPORA]
    assert prepare(unreadable, None, tmp_path, **SETTINGS, log=log.append) == summary
    assert log == [f"{tmp_path} is complete: nothing to do"]


def test_existing_files_are_never_overwritten(tmp_path, monkeypatch):
    (tmp_path / "dev.json").write_text("{}")
    with pytest.raises(ValueError, match=r"dev\.json would be overwritten"):
        prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is the current folder, a mount point"):
        prepare(CORPORA, read_dev, tmp_path, **SETTINGS)
    assert files_of(tmp_path) == {"dev.json": b"{}"}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"max_length": 90}, r"max_length was 256, is 90"),
        ({"max_length_ratio": 3}, r"max_length_ratio was not set, is 3"),
        ({"vocab_size": 290}, r"vocabulary\.vocab_size was 280, is 290"),
        ({"inputs": {"train": []}}, r"inputs\.train was \[\{\"size\": 5\}\], is \[\]"),
    ],
)
def test_different_settings_for_the_same_folder_are_refused(tmp_path, change, difference):
    settings = SETTINGS | {"inputs": {"train": [{"size": 5}]}}
    first = prepare(CORPORA, read_dev, tmp_path / "data", **settings)
    before = files_of(tmp_path / "data")
    with pytest.raises(ValueError, match=rf"was begun with other settings: .*{difference}"):
        prepare(CORPORA, read_dev, tmp_path / "data", **settings | change)
    assert files_of(tmp_path / "data") == before
    assert prepare(CORPORA, read_dev, tmp_path / "b", **settings | change)["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"train": 3}', '{"fingerprint": "", "files": {}}'])
def test_a_damaged_summary_is_refused(tmp_path, content):
    (tmp_path / "preparation.json").write_text(content)
    with pytest.raises(ValueError, match=r"preparation\.json (is damaged|was not written by this version)"):
        read_preparation(tmp_path)


@pytest.fixture
def command(tmp_path):
    """Return a function that runs `vaswani prepare` on files of CORPUS and checks its exit status."""
    options = ""
    for option, name, pairs in (("train", "text", CORPUS), ("dev", "dev", CORPUS[:9])):
        files = [tmp_path / f"{name}.{language}" for language in ("en", "de")]
        for file, sentences in zip(files, zip(*pairs, strict=True), strict=True):
            write_lines(file, sentences)
        options += " ".join([f" --{option}", *map(str, files)])
    return lambda more, output="data", status=0: vaswani(
        f"prepare{options} --output {tmp_path}/{output} {more}", status=status
    )


def test_a_repeated_command_does_nothing_unless_the_text_has_changed(command, tmp_path, capsys):
    command("--vocab_size 280")
    assert "280 vocabulary entries from 64 of 64 pairs\ntokenising\ntrain: read 64" in capsys.readouterr().out
    command("--vocab_size 280")
    assert "data is complete: nothing to do\ntrain: read 64 pairs, dropped none, " in capsys.readouterr().out
    for language in ("en", "de"):
        with open(tmp_path / f"text.{language}", "a", encoding="utf-8") as file:
            file.write("noch eine\n")
    command("--vocab_size 280", status=1)
    assert "inputs.train was " in capsys.readouterr().err


def test_a_text_that_changes_while_it_is_read_is_refused(command, tmp_path, capsys, monkeypatch):
    build_encoder = preparation.build_encoder

    def change(tokenizer):
        write_lines(tmp_path / "dev.en", ["new"] * 9)
        return build_encoder(tokenizer)

    monkeypatch.setattr(preparation, "build_encoder", change)
    command("--vocab_size 280", status=1)
    assert "the text changed while it was read: repeat the command" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_the_recipe_belongs_to_the_finished_data_and_a_repeated_command_may_replace_it(command, tmp_path):
    folder = tmp_path / "data"
    for dropout in (0.1, 0.3):
        command(f"--vocab_size 280 --set model.dropout={dropout}")
        assert read_json(folder / "recipe.json")["recipe"]["model"] == {"dropout": dropout}
        assert not find_damage(folder, read_preparation(folder)["files"])
    change_json(folder / "recipe.json", recipe={})
    assert "recipe.json is damaged" in find_damage(folder, read_preparation(folder)["files"])


@pytest.mark.parametrize(("option", "times"), [("--vocab_size 280", 4), ("--keep_vocabulary {}/kept", 3)])
def test_the_command_reads_a_text_four_times_and_with_a_kept_vocabulary_three_times(command, tmp_path, option, times):
    command("--vocab_size 280", output="kept")
    opened = []
    is_watching = True
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if is_watching and event == "open" else None)
    command(option.format(tmp_path))
    is_watching = False
    assert [opened.count(str(tmp_path / f"text.{language}")) for language in ("en", "de")] == [times, times]


def test_the_command_can_keep_the_vocabulary_of_prepared_data_or_a_run(command, tmp_path, capsys):
    command("--vocab_size 280")
    shutil.copytree(tmp_path / "data", tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    for name in ("data", "run"):
        command(f"--keep_vocabulary {tmp_path}/{name}", output="second")
    assert capsys.readouterr().out.count("second is complete: nothing to do") == 1
    first, second = ((tmp_path / folder / "tokenizer.json").read_bytes() for folder in ("data", "second"))
    assert first == second
    for name in ("absent", "run/checkpoints"):
        command(f"--keep_vocabulary {tmp_path}/{name}", output="third", status=1)
        assert f"there is no folder {tmp_path}/{name}, and the Hub gave no model" in capsys.readouterr().err
    command(f"--keep_vocabulary {tmp_path}/run --task parsing", output="third", status=1)
    assert "the model's vocabulary has no brackets such as '(NP': " in capsys.readouterr().err


def test_the_command_reports_kept_and_dropped_pairs_of_all_corpora(command, tmp_path, capsys):
    rows = [*CORPUS[60:], ("a, b", 'say ""no""'), ("", "leer")]
    table = tmp_path / "more.csv"
    table.write_text("id,english,german\n" + "".join(f'7,"{source}","{target}"\n' for source, target in rows))
    more = f"--vocab_size 280 --train {table} --weights 1 4 --source_column english --target_column german"
    command(f"{more} --drop_duplicates")
    printed = capsys.readouterr().out
    sources, targets = zip(*load(tmp_path / "data" / "train"), strict=True)
    # With weight 4, pair 48 stands in the set four times. The command counts its tokens once.
    num_tokens = [sum(map(len, side)) - 3 * len(side[48]) for side in (sources, targets)]
    tokens = f"{num_tokens[0]:,} source and {num_tokens[1]:,} target tokens"
    assert f"train: read 70 pairs, dropped 1 empty, 20 duplicate, kept 49 pairs with {tokens}\ndev: read 9" in printed
    assert len(targets) == 52
    target = targets[51]
    assert AutoTokenizer.from_pretrained(tmp_path / "data").decode(target[:-1]) == 'say "no"'


def test_a_development_set_that_is_part_of_the_training_set_is_refused(command, tmp_path, capsys):
    for language in ("en", "de"):
        (tmp_path / f"link.{language}").symlink_to(tmp_path / f"text.{language}")
    for name in ("text", f"../{tmp_path.name}/text", "link"):
        command(f"--dev {tmp_path}/{name}.en {tmp_path}/{name}.de", status=1)
        assert "the development set must not be part of the training set, but " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pair", "remedy"),
    [
        (("the hou@@ se", "das Ha@@ us"), "sed 's/@@ //g' joins the sub-words again"),
        (("\u2581the \u2581house", "\u2581das \u2581Haus"), "spm_decode joins the sub-words again"),
        (("mail a@@b.c", "an a@@b.c"), None),
    ],
)
def test_a_warning_says_how_to_remove_marks_of_sub_words_that_most_lines_have(tmp_path, recwarn, pair, remedy):
    corpora = [Corpus(lambda: [("a", "b")] * 9), Corpus(lambda: [pair] * 9)]
    prepare(corpora, lambda: [pair] * 3 + [("a", "b")], tmp_path / "data", vocab_size=270)
    messages = {str(warning.message) for warning in recwarn if "a mark of sub-words" in str(warning.message)}
    assert {text.split()[5] for text in messages} == ({"dev", "train"} if remedy else set())
    assert all(remedy in text for text in messages)
