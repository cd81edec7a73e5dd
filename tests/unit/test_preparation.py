import json

import pytest
from transformers import AutoTokenizer

from vaswani_transformer.data.batching import TokenizedPairs
from vaswani_transformer.data.corpus import PairFilter
from vaswani_transformer.data.preparation import prepare

PAIRS = [
    ("a dog runs", "ein hund läuft"),
    ("", "leer"),
    ("a cat", " ".join(map(str, range(150)))),
    ("same", "same"),
] * 3


def test_prepared_tokens_spell_the_pairs_that_were_kept(tmp_path):
    summary = prepare(lambda: PAIRS, lambda: PAIRS[:1], tmp_path, vocab_size=280, max_length=100)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    pairs = TokenizedPairs.load(tmp_path / "train.arrow", pad_token_id=tokenizer.pad_token_id)
    decoded = [tokenizer.decode(pairs.targets[row], skip_special_tokens=True) for row in range(len(pairs))]
    assert decoded == ["ein hund läuft", "same"] * 3
    assert all(pairs.sources[row][-1] == tokenizer.eos_token_id for row in range(len(pairs)))
    train = summary["train"]
    assert (train["read"], train["empty"], train["over_max_length"], train["pairs"]) == (12, 3, 3, 6)
    assert json.loads((tmp_path / "preparation.json").read_text()) == summary


def test_filters_are_counted(tmp_path):
    pair_filter = PairFilter(drop_duplicates=True, drop_identical=True)
    summary = prepare(lambda: PAIRS, lambda: PAIRS[:1], tmp_path, vocab_size=280, pair_filter=pair_filter)
    assert (summary["train"]["duplicate"], summary["train"]["identical"], summary["train"]["kept"]) == (4, 3, 2)


def test_a_given_tokenizer_is_used(tmp_path):
    prepare(lambda: PAIRS, lambda: PAIRS[:1], tmp_path / "first", vocab_size=280)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    other = [("zebra", "zebra zebra")] * 5
    prepare(lambda: other, lambda: other, tmp_path / "second", vocab_size=400, tokenizer=tokenizer)
    second = AutoTokenizer.from_pretrained(tmp_path / "second")
    assert second.get_vocab() == tokenizer.get_vocab()


def test_nothing_left_to_train_on_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"no training pair is left: read 2 pairs, kept 0 .*2 with an empty side"):
        prepare(lambda: [("", "a"), ("b", " ")], lambda: PAIRS, tmp_path, vocab_size=280)
    with pytest.raises(ValueError, match=r"no development pair is left"):
        prepare(lambda: PAIRS, list, tmp_path, vocab_size=280)
