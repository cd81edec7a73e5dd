"""Vocabularies from other programs: models of SentencePiece and files `tokenizer.json`."""

import warnings

import pytest
import sentencepiece
from tokenizers import Tokenizer, models

from vaswani_transformer import train_tokenizer
from vaswani_transformer.data.given_vocabulary import read_vocabulary

TEXTS = ["The dog runs, and the cats run.", "Der Hund rennt; die Katzen rennen.", "Wo laufen sie hin?", "ab 12 Uhr"] * 5


def train_sentencepiece(folder, **options):
    """Train a model of SentencePiece on TEXTS and return its path."""
    (folder / "text").write_text("\n".join(TEXTS), encoding="utf-8")
    files = {"input": str(folder / "text"), "model_prefix": str(folder / "m"), "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(**files, **options)
    return folder / "m.model"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_model_of_sentencepiece_keeps_its_ids_and_gets_the_missing_special_tokens(tmp_path, kind):
    path = train_sentencepiece(tmp_path, vocab_size=60, hard_vocab_limit=False, model_type=kind)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = read_vocabulary(path, TEXTS)
    for text in (*TEXTS, "The  dogs\trun", " Zebra ½ $"):
        ids = ours(text).input_ids
        assert ids == [*theirs.encode(text), ours.eos_token_id]
        # SentencePiece writes an unknown piece as " \u2047 ". Our tokenizer leaves an unknown piece out.
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(theirs.encode(text)).replace(" \u2047 ", "")
    assert len(ours) == len(theirs) + 1
    assert ours.pad_token_id == len(theirs)
    assert ours("</s>").input_ids.count(ours.eos_token_id) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"treat_whitespace_as_suffix": True},
        {"user_defined_symbols": ["run"]},
    ],
)
def test_a_model_of_sentencepiece_that_would_be_cut_otherwise_is_refused(tmp_path, options):
    path = train_sentencepiece(tmp_path, vocab_size=60, hard_vocab_limit=False, **options)
    with warnings.catch_warnings(action="ignore"), pytest.raises(ValueError, match=r"cuts .* into .*, but its conv"):
        read_vocabulary(path, TEXTS)


def test_prepare_compares_a_given_vocabulary_with_sentencepiece_on_the_training_text(tmp_path, error_of):
    path = train_sentencepiece(tmp_path, vocab_size=60, hard_vocab_limit=False, user_defined_symbols=["Hund"])
    (tmp_path / "dev").write_text("Wo\n")
    files = f"--train {tmp_path}/text {tmp_path}/text --dev {tmp_path}/dev {tmp_path}/dev --output {tmp_path}/data"
    assert "m.model cuts 'Der Hund rennt" in error_of(f"prepare {files} --keep_vocabulary {path}")
    assert not (tmp_path / "data").exists()


def test_a_warning_names_the_user_defined_symbols_of_sentencepiece(tmp_path):
    path = train_sentencepiece(tmp_path, vocab_size=60, hard_vocab_limit=False, user_defined_symbols=["<2de>"])
    with pytest.warns(UserWarning, match=r"m\.model has user-defined symbols \(<2de>\)\. These symbols stay whole"):
        tokens = read_vocabulary(path)("<2de> The dog").tokens()
    assert tokens[0] == "<2de>"


def test_a_tokenizer_json_keeps_its_pieces(tmp_path):
    expected = train_tokenizer(TEXTS, vocab_size=300)
    expected.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_vocabulary(tmp_path / "tokenizer.json")(TEXTS).input_ids == expected(TEXTS).input_ids
    plain = Tokenizer(models.WordLevel({"dog": 0, "[UNK]": 1}, unk_token="[UNK]"))
    plain.save(str(tmp_path / "tokenizer.json"))
    ours = read_vocabulary(tmp_path / "tokenizer.json")
    assert ours.convert_ids_to_tokens(ours("dog").input_ids) == ["dog", "</s>"]
    assert ours.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"model_type": "char"}, "char"), ({"vocab_size": 290, "byte_fallback": True}, "unigram with byte_fallback")],
)
def test_the_error_about_an_unsupported_kind_of_sentencepiece_model_names_the_kind(tmp_path, options, kind):
    path = train_sentencepiece(tmp_path, **options)
    with pytest.raises(ValueError, match=f"m.model is a {kind} model of SentencePiece, which cannot be converted"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\nt h\n", "holds BPE codes of subword-nmt"),
        (b'{"a": 1}', "is neither a tokenizer.json nor a model of SentencePiece"),
        (b"the\ndog\n", "is neither a tokenizer.json nor a model of SentencePiece"),
        (b"", "is neither a tokenizer.json nor a model of SentencePiece"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_vocabulary(tmp_path / "file")
