"""Tokenizers: encoding and decoding, normalisation, and the training of vocabularies."""

import warnings
from unicodedata import normalize

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.normalization import INVISIBLE
from vaswani_transformer.data.preparation import build_encoder
from vaswani_transformer.data.tokenization import PIECE_WINDOW, SUBWORD_MODELS, train_tokenizer, warn_of_lost_tokens

TEXTS = ["The law will never be perfect.", "Das Gesetz wird nie vollkommen sein.", "a house, a garden"] * 3
SMALLEST = 260
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# Words, all kinds of whitespace, and text that looks like a special token.
pieces = st.sampled_from(["law", "laws", "'s", "ä", ",", "</s>", "<s>", *" \t\n\u00a0\u2028\x1c", "  "])
sentences = st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=5), max_size=12).map("".join)
each_subword_model = pytest.mark.parametrize("subword_model", SUBWORD_MODELS)


@pytest.fixture(scope="module", params=SUBWORD_MODELS)
def tokenizer(request):
    return train_tokenizer(TEXTS, vocab_size=320, subword_model=request.param)


@settings(max_examples=100)
@given(st.lists(st.text(max_size=20) | st.sampled_from(SPECIAL), min_size=1, max_size=5))
@example(["", " ", "  two  spaces  ", "\x00\r\n\t\u0085\u2028\ufeff", "</s> <pad> <s> <unk>", "ab" * 3000])
@example(["e\u0301 \u00e9 \U0001f469\u200d\U0001f469\u200d\U0001f467", "the </s> law</s>"])
def test_any_text_is_decoded_to_its_normalised_form(tokenizer, texts):
    rows = tokenizer(texts).input_ids
    clean = [tokenizer.backend_tokenizer.normalizer.normalize_str(text).lstrip(" ") for text in texts]
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == clean
    assert tokenizer(clean).input_ids == rows
    assert [[token for token in row if token < len(SPECIAL)] for row in rows] == [[tokenizer.eos_token_id]] * len(texts)
    assert {row[-1] for row in rows} == {tokenizer.eos_token_id}
    padded = tokenizer(texts, padding=True)
    assert list(padded) == ["input_ids", "attention_mask"]
    width = max(map(len, rows))
    assert padded.input_ids == [row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows]


@pytest.mark.parametrize(
    ("typed", "clean"),
    [
        ("  \tthe\u00a0law \u2028\u3000is\r\n", "the law is"),
        ("\ufeffthe\u200b la\u00adw\u200e\x00\x1b", "the law"),
        ("0 \u0e31 a \u0301b", "0 \u0e31 a \u0301b"),  # a combining mark after a space
        ("\uff35\u0308ber \ufb01\u0301 a\u00a0\u0301\u3000\u0308", "\u00dcber f\u00ed a \u0301 \u0308"),
        ("\u3000\u0301\u0302a", "\u0301\u0302a"),
        ("\u202athe\u202e \u2060la\u206fw", "the law"),  # ends of two ranges of invisible characters
        # A word is not split where an invisible character stood.
        ("a \u200b b Auf\u200clage e\u200d\u0301", "a b Auflage \u00e9"),
        ("Zu\u0308rich A\u030a \u212b \u1100\u1161", "Z\u00fcrich \u00c5 \u00c5 \uac00"),
        ("\uff28\uff45\uff4c\uff4c\uff4f\uff01 coe\ufb03cient", "Hello! coefficient"),
        ("\u200b\u00ad \ufeff\u200d", ""),
    ],
)
def test_a_text_and_its_normalised_form_get_the_same_ids(tokenizer, typed, clean):
    assert tokenizer.decode(tokenizer(typed).input_ids, skip_special_tokens=True) == clean
    assert tokenizer(typed).input_ids == tokenizer(clean).input_ids


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f469\u200d\U0001f4bb \u2764\ufe0f\u200d\U0001f525 \U0001f44d\U0001f3fd 1\ufe0f\u20e3",  # emoji
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # the flag of England
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0915\u094d\u200d\u0937",  # Persian and Hindi with joiners
        "10\u00b2 m\u00b3 1\u00bd H\u2082O \u2122 \u2026 \u201ea\u201c \u2013 \u2019",  # NFKC would change them
    ],
)
def test_visible_characters_are_kept(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@given(
    st.lists(st.text("abcdeXYZ\u00e4\u00e9.,\u4e2d\U0001f600", min_size=1, max_size=5), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_invisible_characters_do_not_change_the_ids(tokenizer, words, random):
    def insert_invisible(word):
        letters = [letter + random.choice(["", *INVISIBLE, "\x00", "\x07"]) for letter in normalize("NFD", word)]
        return random.choice(["", *INVISIBLE]) + "".join(letters)

    spaces = [" ", "  ", "\t", "\u00a0", "\u202f \n", "\r\n", "\u3000"]
    typed = "".join(
        random.choice(spaces if at else ["", *spaces]) + insert_invisible(word) for at, word in enumerate(words)
    )
    assert tokenizer(typed + random.choice(spaces)).input_ids == tokenizer(" ".join(words)).input_ids


def test_special_tokens_have_the_ids_of_the_config_and_truncation_keeps_the_end_token(tokenizer):
    config = VaswaniConfig()
    assert tokenizer.bos_token_id == config.bos_token_id == config.decoder_start_token_id
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (config.pad_token_id, config.eos_token_id)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == SPECIAL
    whole, cut = (tokenizer(TEXTS[0], truncation=True, max_length=length).input_ids for length in (None, 4))
    assert cut == [*whole[:3], tokenizer.eos_token_id]
    # A word has the same id at the start of a text as elsewhere.
    assert tokenizer("law law").input_ids[0] == tokenizer("the law").input_ids[-2]


def test_the_auto_class_loads_the_same_tokenizer_beside_a_model(tokenizer, tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:3], "", "two spaces", "</s> <pad>", "\u00e9\U0001f600"]
    encoded = loaded(texts, text_target=texts)
    assert encoded.data == tokenizer(texts, text_target=texts).data
    assert loaded.batch_decode(encoded.input_ids, skip_special_tokens=True) == texts
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


@given(texts=st.lists(sentences, min_size=1, max_size=8))
@example(texts=["0 \u0e31"])
@example(texts=["a\t \tb", "a \t c", "  ", "", "law", "law law", "law </s>"])
def test_encoding_in_blocks_gives_the_ids_of_single_sentences(tokenizer, texts):
    assert build_encoder(tokenizer)(texts) == tokenizer(texts).input_ids


@each_subword_model
@pytest.mark.parametrize("vocab_size", [SMALLEST, 275, 300])
def test_the_vocabulary_has_the_requested_size_and_is_reproducible(subword_model, vocab_size):
    # A list of texts and an iterator over them give the same vocabulary.
    options = {"vocab_size": vocab_size, "subword_model": subword_model}
    tokenizer = train_tokenizer(TEXTS * 200, **options)
    again = train_tokenizer(iter(TEXTS * 200), **options)
    assert tokenizer.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))


@each_subword_model
def test_too_little_text_gives_a_smaller_vocabulary(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=400, subword_model=subword_model)
    assert SMALLEST < len(tokenizer) < 400
    requested = train_tokenizer(TEXTS, vocab_size=len(tokenizer), subword_model=subword_model)
    assert tokenizer.backend_tokenizer.to_str() == requested.backend_tokenizer.to_str()
    assert len(tokenizer("Gesetz garden").input_ids) == 2 + 1
    assert len(train_tokenizer([], vocab_size=1000, subword_model=subword_model)) == SMALLEST


def test_word_pieces_are_the_longest_possible_and_long_words_are_split():
    # Long words are split because the search for pieces takes cubic time in the length of its input.
    tokenizer = train_tokenizer(["abcd"] * 9 + ["abc"] * 8 + ["cde"] * 7, vocab_size=300, subword_model="wordpiece")
    vocabulary = tokenizer.get_vocab()
    rest = "\u0120abcde"
    pieces = []
    while rest:
        pieces.append(next(rest[:end] for end in range(len(rest), 0, -1) if rest[:end] in vocabulary))
        rest = rest[len(pieces[-1]) :]
    assert tokenizer.convert_ids_to_tokens(tokenizer("abcde").input_ids) == [*pieces, "</s>"]
    parts = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("ab" * 3000)
    assert len(parts) == 6000 // PIECE_WINDOW + 1  # the space before the first word makes one more
    assert max(len(part) for part, _ in parts) == PIECE_WINDOW == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subword_model": "unigram"}, r"subword_model must be one of \('bpe', 'wordpiece'\), got 'unigram'"),
        ({"vocab_size": SMALLEST - 1}, rf"vocab_size must be at least {SMALLEST} .*got {SMALLEST - 1}"),
    ],
)
def test_the_error_about_an_invalid_option_names_the_valid_values(options, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(TEXTS, **options)


def test_train_new_from_iterator_gives_a_tokenizer_of_the_same_kind(tokenizer):
    texts = [" zwei ##Häuser </s>", "two sentences"] * 5
    other = tokenizer.train_new_from_iterator([texts], 280, continuing_subword_prefix="")
    assert (len(other), other.special_tokens_map) == (280, tokenizer.special_tokens_map)
    clean = list(map(str.strip, texts))
    assert other.batch_decode(other(texts).input_ids, skip_special_tokens=True) == clean


@pytest.mark.parametrize("text", ["<2de> the law", "the <2de> law", "the<2de>law <2de><2de> law", "law <2de>"])
def test_an_added_token_is_recognised_and_the_text_around_it_is_kept(text, tmp_path):
    tokenizer = train_tokenizer(TEXTS, vocab_size=320)
    tokenizer.add_tokens(["<2de>"])
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        ids = loaded(f"{text} \u00a0").input_ids
        assert ids.count(loaded.convert_tokens_to_ids("<2de>")) == text.count("<2de>")
        assert loaded.decode(ids, skip_special_tokens=True) == text
        assert loaded("law </s> law").input_ids.count(loaded.eos_token_id) == 1


@pytest.mark.parametrize(
    ("token", "splits", "fault"),
    [
        ("<2de>", True, None),
        (AddedToken("<2de>", special=True), True, "never finds it: use tokenizer.add_tokens"),
        (AddedToken("<2de>", special=True, normalized=False), False, "loses the space before it: .*normalized=True"),
        (AddedToken("<2de>", normalized=False), True, "loses the space before it"),
        (AddedToken("<2de>", special=True, normalized=True), False, None),
    ],
)
def test_a_warning_names_an_added_token_that_is_not_found_in_text_or_loses_its_space(token, splits, fault):
    tokenizer = train_tokenizer(TEXTS, vocab_size=320)
    tokenizer.split_special_tokens = splits
    tokenizer.add_tokens([token])
    with warnings.catch_warnings(action="error"):
        for use in (warn_of_lost_tokens, build_encoder):
            if fault is None:
                use(tokenizer)
                assert tokenizer.decode(tokenizer("the <2de> law").input_ids[:-1]) == "the <2de> law"
            else:
                with pytest.raises(UserWarning, match=f"'<2de>' was added to the tokenizer, which in text {fault}"):
                    use(tokenizer)
