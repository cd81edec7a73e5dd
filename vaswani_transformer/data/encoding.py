"""Sentences to token ids, block by block, for corpora of millions."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .corpus import Pair
from .tokenization import SPECIAL_TOKENS, SUBWORD_MODELS, train_tokenizer

TEXTS_PER_CALL = 10_000  # the tokenizer's answer takes some 100 bytes per token


class BlockEncoder:
    """Encodes blocks of sentences as `tokenizer` does, each different word of a block once.

    Tokenizers of `train_tokenizer` never join words, so a word has the same ids in every sentence: in blocks of 100,000
    sentences this takes a third of the time of whole sentences. Sentences with other whitespace than single spaces are
    encoded whole, and so is everything if `tokenizer` was made otherwise.

    Raises:
        ValueError: if the tokenizer does not end a sentence with `</s>`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        # A tokenizer's file can hold both, and a cut sentence would go unnoticed.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end_id = tokenizer.eos_token_id
        example = self._tokenizer.encode("a")
        if example.ids[-1] != self._end_id:
            raise ValueError(
                f"the tokenizer must end every sentence with its eos_token, {tokenizer.eos_token!r}, but makes "
                f"{example.tokens} of 'a'. Give it a post-processor that does, or let `prepare` learn a vocabulary."
            )
        self.has_independent_words = _stages(self._tokenizer) in [
            _stages(train_tokenizer([], vocab_size=256 + len(SPECIAL_TOKENS), subword_model=model).backend_tokenizer)
            for model in SUBWORD_MODELS
        ]

    def encode_pairs(self, pairs: Sequence[Pair], max_length: int) -> list[tuple[Pair, list[int], list[int]]]:
        """Return those of `pairs` whose longer side has at most `max_length` tokens, with the ids of both sides."""
        encoded = zip(pairs, *map(self.encode, zip(*pairs, strict=True)), strict=True)
        return [row for row in encoded if max(map(len, row[1:])) <= max_length]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, `</s>` included."""
        if not self.has_independent_words:
            return list(self._encode_each(texts, add_special_tokens=True))
        words_of_texts = []
        for text in texts:
            words = text.split()
            words_of_texts.append(words if " ".join(words) == text else [text])
        words = list(dict.fromkeys(chain.from_iterable(words_of_texts)))
        ids_of_word = dict(zip(words, self._encode_each(words, add_special_tokens=False), strict=True))
        end = [self._end_id]
        return [[*chain(*map(ids_of_word.__getitem__, words), end)] for words in words_of_texts]

    def _encode_each(self, texts: Sequence[str], *, add_special_tokens: bool) -> Iterator[list[int]]:
        for start in range(0, len(texts), TEXTS_PER_CALL):
            some_texts = texts[start : start + TEXTS_PER_CALL]
            for encoding in self._tokenizer.encode_batch_fast(some_texts, add_special_tokens=add_special_tokens):
                yield encoding.ids


def _stages(tokenizer: Tokenizer) -> dict:
    """Return the configuration of a tokenizer, without the words that it has learnt."""
    stages = json.loads(tokenizer.to_str())
    stages["model"] |= {"vocab": None, "merges": None}
    return stages
