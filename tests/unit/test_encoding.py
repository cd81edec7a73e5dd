"""Blocks of sentences get the ids that the tokenizer gives to each sentence."""

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from vaswani_transformer.data.encoding import BlockEncoder
from vaswani_transformer.data.tokenization import SUBWORD_MODELS, train_tokenizer

TEXTS = ["a dog runs", "the dogs run , and  run", " ein hund läuft", "don't tell the dog", "2024 : 10 000 \u00a0 %"] * 3

# Words, all kinds of whitespace, and what looks like a special token.
pieces = st.sampled_from(["dog", "dogs", "'s", "ä", ",", "</s>", "<s>", *" \t\n\u00a0\u2028\x1c", "  "])
sentences = st.lists(pieces | st.text(st.characters(codec="utf-8"), max_size=5), max_size=12).map("".join)


@pytest.fixture(scope="module", params=SUBWORD_MODELS)
def tokenizer(request, tmp_path_factory):
    """A learnt tokenizer, as it comes from its folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, vocab_size=320, subword_model=request.param).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@given(texts=st.lists(sentences, min_size=1, max_size=8))
@example(texts=["a\t \tb", "a \t c", "  ", "", "dog", "dog dog", "dog </s>"])
def test_a_block_has_the_ids_of_each_sentence_by_itself(tokenizer, texts):
    assert BlockEncoder(tokenizer).encode(texts).to_pylist() == tokenizer(texts).input_ids


def test_also_if_words_are_joined_or_the_tokenizer_cuts_and_fills_up(tokenizer):
    joining, cutting = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    joining.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cutting.backend_tokenizer.enable_truncation(3)
    cutting.backend_tokenizer.enable_padding()
    assert BlockEncoder(joining).encode(TEXTS).to_pylist() == joining(TEXTS).input_ids
    assert BlockEncoder(cutting).encode(TEXTS).to_pylist() == tokenizer(TEXTS).input_ids


def test_a_tokenizer_without_an_end_is_refused(tokenizer):
    endless = copy.deepcopy(tokenizer)
    endless.backend_tokenizer.post_processor = None
    with pytest.raises(ValueError, match=r"must end every sentence with its eos_token, '</s>', but makes .* of 'a'"):
        BlockEncoder(endless)
