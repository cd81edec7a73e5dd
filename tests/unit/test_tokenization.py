import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.tokenization import PIECE_WINDOW, SUBWORD_MODELS, train_tokenizer

TEXTS = ["The law will never be perfect.", "Das Gesetz wird nie vollkommen sein.", "a house, a garden"] * 3
SMALLEST = 260
each_model = pytest.mark.parametrize("subword_model", SUBWORD_MODELS)


@pytest.fixture(scope="module", params=SUBWORD_MODELS)
def tokenizer(request):
    return train_tokenizer(TEXTS, vocab_size=320, subword_model=request.param)


def there_and_back(tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)


# Round trip


@settings(max_examples=100)
@given(st.text(max_size=40))
@example("")
@example(" ")
@example("  two  spaces  ")
@example("\x00\r\n\t\u0085\u2028\ufeff")
@example("e\u0301 \u00e9 \U0001f469\u200d\U0001f469\u200d\U0001f467")
@example("</s> <pad> <s> <unk>")
def test_any_text_comes_back_unchanged(tokenizer, text):
    assert there_and_back(tokenizer, text) == text


@settings(max_examples=50)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_a_batch_comes_back_unchanged_and_has_no_unknown_word(tokenizer, texts):
    ids = tokenizer(texts, padding=True).input_ids
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts
    assert not any(tokenizer.unk_token_id in row for row in ids)


def test_a_very_long_word_comes_back(tokenizer):
    assert there_and_back(tokenizer, "ab" * 3000) == "ab" * 3000


def test_word_pieces_are_looked_for_in_short_parts_of_a_long_word():
    """The search takes cubic time in the length of what it is given."""
    tokenizer = train_tokenizer(TEXTS, vocab_size=320, subword_model="wordpiece").backend_tokenizer
    parts = tokenizer.pre_tokenizer.pre_tokenize_str("ab" * 3000)
    assert len(parts) == 6000 // PIECE_WINDOW
    assert max(len(part) for part, _ in parts) == PIECE_WINDOW == tokenizer.model.max_input_chars_per_word


# Special tokens


def test_special_tokens_have_the_ids_of_the_config(tokenizer):
    config = VaswaniConfig()
    assert tokenizer.bos_token_id == config.bos_token_id == config.decoder_start_token_id
    assert tokenizer.pad_token_id == config.pad_token_id
    assert tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<s>", "<pad>", "</s>", "<unk>"]


@settings(max_examples=50)
@given(st.text(max_size=20))
def test_the_end_is_marked_once_and_at_the_end(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids.index(tokenizer.eos_token_id) == len(ids) - 1
    assert tokenizer.bos_token_id not in ids


@pytest.mark.parametrize("typed", ["<s>", "<pad>", "</s>", "<unk>"])
def test_a_special_token_typed_in_a_text_stays_text(tokenizer, typed):
    text = f"the {typed} law{typed}"
    ids = tokenizer(text).input_ids
    assert not set(ids[:-1]) & {0, 1, 2, 3}
    assert there_and_back(tokenizer, text) == text


def test_the_end_stays_when_a_text_is_cut(tokenizer):
    ids = tokenizer("The law will never be perfect.", truncation=True, max_length=4).input_ids
    assert len(ids) == 4
    assert ids[-1] == tokenizer.eos_token_id


def test_batches_are_padded_and_masked(tokenizer):
    batch = tokenizer(["a", "The law will never be perfect."], padding=True)
    assert list(batch) == ["input_ids", "attention_mask"]
    first, second = batch.input_ids
    assert len(first) == len(second)
    assert [token == tokenizer.pad_token_id for token in first] == [m == 0 for m in batch.attention_mask[0]]
    assert set(batch.attention_mask[1]) == {1}


def test_target_text_becomes_labels(tokenizer):
    encoded = tokenizer("the law", text_target="das Gesetz")
    assert encoded.input_ids == tokenizer("the law").input_ids
    assert encoded["labels"] == tokenizer("das Gesetz").input_ids
    assert encoded["labels"][-1] == tokenizer.eos_token_id


def test_the_collator_of_transformers_makes_batches(tokenizer, tiny_model):
    rows = [tokenizer(s, text_target=t) for s, t in (("the law", "das"), ("a", "das Gesetz wird"))]
    batch = DataCollatorForSeq2Seq(tokenizer, model=tiny_model)(rows)
    labels = rows[0]["labels"]
    assert batch["labels"][0].tolist() == labels + [-100] * (batch["labels"].shape[1] - len(labels))
    assert batch["decoder_input_ids"][0, : len(labels)].tolist() == [0, *labels[:-1]]


def test_a_word_at_the_start_is_the_word_elsewhere(tokenizer):
    assert tokenizer("law law").input_ids[0] == tokenizer("the law").input_ids[-2]


# Training


@each_model
def test_training_is_deterministic_and_texts_may_come_one_by_one(subword_model):
    listed, streamed = (
        train_tokenizer(texts, vocab_size=320, subword_model=subword_model)
        for texts in (TEXTS * 400, iter(TEXTS * 400))
    )
    assert listed.backend_tokenizer.to_str() == streamed.backend_tokenizer.to_str()


@each_model
@pytest.mark.parametrize("vocab_size", [SMALLEST, 275, 300])
def test_the_vocabulary_has_the_size_asked_for(subword_model, vocab_size):
    tokenizer = train_tokenizer(TEXTS, vocab_size=vocab_size, subword_model=subword_model)
    assert len(tokenizer) == tokenizer.vocab_size == vocab_size
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocab_size))


@each_model
def test_frequent_words_become_one_token(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=400, subword_model=subword_model)
    assert len(tokenizer("Gesetz garden").input_ids) == 2 + 1


@each_model
def test_a_vocabulary_that_comes_out_smaller_than_asked_is_the_next_smaller_multiple_of_8(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=400, subword_model=subword_model)
    assert SMALLEST < len(tokenizer) < 400
    assert len(tokenizer) % 8 == 0
    same = train_tokenizer(TEXTS, vocab_size=len(tokenizer), subword_model=subword_model)
    assert tokenizer.get_vocab() == same.get_vocab()
    assert all(tokenizer(text).input_ids == same(text).input_ids for text in TEXTS)


@each_model
def test_nothing_to_learn_from_leaves_the_bytes(subword_model):
    tokenizer = train_tokenizer([], vocab_size=1000, subword_model=subword_model)
    assert len(tokenizer) == SMALLEST
    assert there_and_back(tokenizer, "Gesetz \u00e9") == "Gesetz \u00e9"


def test_word_pieces_are_the_longest_that_fit():
    tokenizer = train_tokenizer(["abcd"] * 9 + ["abc"] * 8 + ["cde"] * 7, vocab_size=300, subword_model="wordpiece")
    vocabulary = tokenizer.get_vocab()
    rest, pieces = "\u0120abcde", []
    while rest:
        pieces.append(next(rest[:end] for end in range(len(rest), 0, -1) if rest[:end] in vocabulary))
        rest = rest[len(pieces[-1]) :]
    assert tokenizer.convert_ids_to_tokens(tokenizer("abcde").input_ids) == [*pieces, "</s>"]


def test_an_unknown_model_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"subword_model must be one of \('bpe', 'wordpiece'\), got 'unigram'"):
        train_tokenizer(TEXTS, subword_model="unigram")


@each_model
def test_a_vocabulary_without_room_for_the_bytes_is_refused(subword_model):
    with pytest.raises(ValueError, match=rf"vocab_size must be at least {SMALLEST} .*got {SMALLEST - 1}"):
        train_tokenizer(TEXTS, vocab_size=SMALLEST - 1, subword_model=subword_model)


@each_model
def test_transformers_trains_another_of_the_same_kind(subword_model):
    tokenizer = train_tokenizer(TEXTS, vocab_size=320, subword_model=subword_model)
    other = tokenizer.train_new_from_iterator(
        [["zwei ##Sätze", "two sentences"] * 5], 280, continuing_subword_prefix=""
    )
    assert len(other) == 280
    assert other.special_tokens_map == tokenizer.special_tokens_map
    assert there_and_back(other, " zwei ##Häuser </s>") == " zwei ##Häuser </s>"


# Saving


def test_the_auto_class_loads_the_same_tokenizer_beside_a_model(tokenizer, tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:3], "", "  two  spaces ", "</s> <pad>", "\u00e9\u2028\U0001f600"]
    assert loaded(texts, text_target=texts).data == tokenizer(texts, text_target=texts).data
    assert [there_and_back(loaded, text) for text in texts] == texts
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


@pytest.mark.parametrize("name", ["tatoeba_en_de", "tatoeba_en_fr"])
def test_real_sentences_come_back_unchanged(data_folder, tokenizer, name):
    folder = data_folder / name
    if not folder.is_dir():
        pytest.skip(f"needs the corpus {name}")
    for file in sorted(folder.glob("dev.*")):
        lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        assert lines
        assert tokenizer.batch_decode(tokenizer(lines).input_ids, skip_special_tokens=True) == lines
