"""Sentences to token ids, block by block, for corpora of millions."""

import json
from array import array
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .corpus import Pair
from .tokenization import SPECIAL_TOKENS, SUBWORD_MODELS, train_tokenizer

TEXTS_PER_CALL = 10_000  # the tokenizer's answer takes some 100 bytes per token
END_OF_TEXT = 0  # its number among the words


class BlockEncoder:
    """Encodes blocks of sentences as `tokenizer` does, each different word of a block once.

    Tokenizers of `train_tokenizer` never join words, so a word has the same ids in every sentence, and most words
    are repetitions: in blocks of 100,000 sentences this takes a third of the time of whole sentences. Sentences with
    other whitespace than single spaces are encoded whole, and so is everything if `tokenizer` was made otherwise.

    Raises:
        ValueError: if the tokenizer does not end a sentence with `</s>`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.encode_special_tokens = tokenizer.split_special_tokens
        # A tokenizer's file can hold both, and a cut sentence would go unnoticed.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end_id, self._max_length = tokenizer.eos_token_id, tokenizer.model_max_length
        example = self._tokenizer.encode("a")
        if example.ids[-1] != self._end_id:
            end = f"the tokenizer must end every sentence with its eos_token, {tokenizer.eos_token!r}"
            raise ValueError(f"{end}, but makes {example.tokens} of 'a'. Let `prepare` learn a vocabulary instead.")
        self.has_independent_words = _stages(self._tokenizer) in [
            _stages(train_tokenizer([], vocab_size=256 + len(SPECIAL_TOKENS), subword_model=model).backend_tokenizer)
            for model in SUBWORD_MODELS
        ]

    def encode_pairs(self, pairs: Sequence[Pair]) -> tuple[list[pa.ListArray], list[bool]]:
        """Return ids of sources and targets of those of B pairs that fit, and (B,) values, true for these.

        The longer side of a pair that fits has at most the tokenizer's `model_max_length` tokens.
        """
        columns = [self.encode([pair[side] for pair in pairs]) for side in (0, 1)]
        longer_side = pc.max_element_wise(*map(pc.list_value_length, columns))
        fits = pc.less_equal(longer_side, self._max_length)
        return [column.filter(fits) for column in columns], fits.to_pylist()

    def encode(self, texts: Sequence[str]) -> pa.ListArray:
        """Return the ids of B sentences, `</s>` included: (B,) lists of int32."""
        if not self.has_independent_words:
            return self._encode_each(texts, add_special_tokens=True)
        number_of: dict[str, int] = defaultdict(count(END_OF_TEXT + 1).__next__)  # a new word gets the next number
        numbers = array("i")  # of the words of all sentences
        text_offsets = [0]
        for text in texts:
            words = text.split()
            numbers.extend(map(number_of.__getitem__, words if " ".join(words) == text else [text]))
            numbers.append(END_OF_TEXT)
            text_offsets.append(len(numbers))
        end = pa.array([[self._end_id]], type=pa.list_(pa.int32()))
        ids_of_number = pa.concat_arrays([end, self._encode_each(list(number_of), add_special_tokens=False)])
        ids_of_words = ids_of_number.take(pa.array(np.asarray(numbers)))
        return pa.ListArray.from_arrays(ids_of_words.offsets.take(pa.array(text_offsets)), ids_of_words.values)

    def _encode_each(self, texts: Sequence[str], *, add_special_tokens: bool) -> pa.ListArray:
        ids, offsets = array("i"), array("i", [0])
        for start in range(0, len(texts), TEXTS_PER_CALL):
            some_texts = texts[start : start + TEXTS_PER_CALL]
            for encoding in self._tokenizer.encode_batch_fast(some_texts, add_special_tokens=add_special_tokens):
                ids.extend(encoding.ids)
                offsets.append(len(ids))
        return pa.ListArray.from_arrays(np.asarray(offsets), np.asarray(ids))


def _stages(tokenizer: Tokenizer) -> dict:
    """Return the configuration of a tokenizer, without the words that it has learnt."""
    stages = json.loads(tokenizer.to_str())
    for learned in ("vocab", "merges"):
        stages["model"].pop(learned, None)
    return stages
