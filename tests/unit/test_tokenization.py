"""A vocabulary of either kind: any text comes back, also in blocks of sentences, and learning is deterministic."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.preparation import build_encoder
from vaswani_transformer.data.tokenization import PIECE_WINDOW, SUBWORD_MODELS, train_tokenizer

TEXTS = ["The law will never be perfect.", "Das Gesetz wird nie vollkommen sein.", "a house, a garden"] * 3
SMALLEST = 260
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# Words, all kinds of whitespace, and what looks like a special token.
pieces = st.sampled_from(["law", "laws", "'s", "ä", ",", "</s>", "<s>", *" \t\n\u00a0\u2028\x1c", "  "])
sentences = st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=5), max_size=12).map("".join)
each_model = pytest.mark.parametrize("subword_model", SUBWORD_MODELS)


@pytest.fixture(scope="module", params=SUBWORD_MODELS)
def tokenizer(request):
    return train_tokenizer(TEXTS, vocab_size=320, subword_model=request.param)


@settings(max_examples=100)
@given(st.lists(st.text(max_size=20) | st.sampled_from(SPECIAL), min_size=1, max_size=5))
@example(["", " ", "  two  spaces  ", "\x00\r\n\t\u0085\u2028\ufeff", "</s> <pad> <s> <unk>", "ab" * 3000])
@example(["e\u0301 \u00e9 \U0001f469\u200d\U0001f469\u200d\U0001f467", "the </s> law</s>"])
def test_any_text_comes_back_unchanged_and_ends_once_without_unknown_words(tokenizer, texts):
    rows = tokenizer(texts).input_ids
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == texts
    assert [[token for token in row if token < len(SPECIAL)] for row in rows] == [[tokenizer.eos_token_id]] * len(texts)
    assert {row[-1] for row in rows} == {tokenizer.eos_token_id}
    padded = tokenizer(texts, padding=True)
    assert list(padded) == ["input_ids", "attention_mask"]
    width = max(map(len, rows))
    assert padded.input_ids == [row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows]
    assert padded.attention_mask == [[1] * len(row) + [0] * (width - len(row)) for row in rows]


def test_special_tokens_have_the_ids_of_the_config_and_the_end_stays_when_a_text_is_cut(tokenizer):
    config = VaswaniConfig()
    assert tokenizer.bos_token_id == config.bos_token_id == config.decoder_start_token_id
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (config.pad_token_id, config.eos_token_id)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == SPECIAL
    whole, cut = (tokenizer(TEXTS[0], truncation=True, max_length=length).input_ids for length in (None, 4))
    assert cut == [*whole[:3], tokenizer.eos_token_id]
    assert tokenizer("law law").input_ids[0] == tokenizer("the law").input_ids[-2]  # at the start as elsewhere


def test_the_auto_class_loads_the_same_tokenizer_beside_a_model(tokenizer, tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:3], "", "  two  spaces ", "</s> <pad>", "\u00e9\u2028\U0001f600"]
    encoded = loaded(texts, text_target=texts)
    assert encoded.data == tokenizer(texts, text_target=texts).data
    assert loaded.batch_decode(encoded.input_ids, skip_special_tokens=True) == texts
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


@given(texts=st.lists(sentences, min_size=1, max_size=8))
@example(texts=["a\t \tb", "a \t c", "  ", "", "law", "law law", "law </s>"])
def test_a_block_has_the_ids_of_each_sentence_by_itself_also_if_encoded_by_words(tokenizer, texts):
    for by_words in (True, False):
        assert build_encoder(tokenizer, by_words=by_words)(texts) == tokenizer(texts).input_ids


@each_model
@pytest.mark.parametrize("vocab_size", [SMALLEST, 275, 300])
def test_the_vocabulary_has_the_requested_size_and_is_the_same_each_time(subword_model, vocab_size):
    """Also if the texts come one by one."""
    options = {"vocab_size": vocab_size, "subword_model": subword_model}
    tokenizer, again = train_tokenizer(TEXTS * 200, **options), train_tokenizer(iter(TEXTS * 200), **options)
    assert tokenizer.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))


@each_model
def test_a_vocabulary_smaller_than_requested_is_the_next_smaller_multiple_of_8(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=400, subword_model=subword_model)
    assert SMALLEST < len(tokenizer) < 400
    assert len(tokenizer) % 8 == 0
    same = train_tokenizer(TEXTS, vocab_size=len(tokenizer), subword_model=subword_model)
    assert tokenizer.get_vocab() == same.get_vocab()
    assert tokenizer(TEXTS).input_ids == same(TEXTS).input_ids
    assert len(tokenizer("Gesetz garden").input_ids) == 2 + 1
    assert len(train_tokenizer([], vocab_size=1000, subword_model=subword_model)) == SMALLEST


def test_word_pieces_are_the_longest_that_fit_in_short_parts_of_a_long_word():
    """The search takes cubic time in the length of what it is given."""
    tokenizer = train_tokenizer(["abcd"] * 9 + ["abc"] * 8 + ["cde"] * 7, vocab_size=300, subword_model="wordpiece")
    vocabulary = tokenizer.get_vocab()
    rest, pieces = "\u0120abcde", []
    while rest:
        pieces.append(next(rest[:end] for end in range(len(rest), 0, -1) if rest[:end] in vocabulary))
        rest = rest[len(pieces[-1]) :]
    assert tokenizer.convert_ids_to_tokens(tokenizer("abcde").input_ids) == [*pieces, "</s>"]
    parts = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("ab" * 3000)
    assert len(parts) == 6000 // PIECE_WINDOW
    assert max(len(part) for part, _ in parts) == PIECE_WINDOW == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subword_model": "unigram"}, r"subword_model must be one of \('bpe', 'wordpiece'\), got 'unigram'"),
        ({"vocab_size": SMALLEST - 1}, rf"vocab_size must be at least {SMALLEST} .*got {SMALLEST - 1}"),
    ],
)
def test_an_invalid_option_is_refused_with_the_choices(options, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(TEXTS, **options)


@each_model
def test_transformers_trains_another_of_the_same_kind(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=320, subword_model=subword_model)
    texts = [" zwei ##Häuser </s>", "two sentences"] * 5
    other = tokenizer.train_new_from_iterator([texts], 280, continuing_subword_prefix="")
    assert (len(other), other.special_tokens_map) == (280, tokenizer.special_tokens_map)
    assert other.batch_decode(other(texts).input_ids, skip_special_tokens=True) == texts
