"""Sentence in, tree out: beam search of the symbols of a tree (section 6.3).

parser = load_parser("runs/parsing/model")
print(format_tree(parser("The dog barks .")))
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from ..loading import load_translator
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import check_sentence
from ..translation.translator import Batch, Translator
from .linearisation import NORMALISED, linearise, rebuild
from .trees import Leaf, Tree
from .vocabulary import find_brackets, is_bracket
from .well_formed import WellFormed

# Sub-words of a sentence; the longest in our treebanks has 859, in 327 words. The search may have `LENGTH_OFFSET` more
# steps, and the memory for its prefixes is quadratic in them: 1.6 GB for 2,700 sub-words with 21 beams.
MOST_TOKENS = 1_000
LENGTH_OFFSET = 300  # section 6.3: the output may be this much longer than the sentence, in tokens
WORD_BEGIN = "Ġ"  # how the tokenizer writes the space before a word
UNKNOWN_TAG = "XX"
WHITESPACE = re.compile(r"[ \t\n\r\f\v]+")  # of ASCII: some words of treebanks hold a no-break space
ESCAPES = {"(": "-LRB-", ")": "-RRB-"}


class Parser:
    """A model of linearised trees with its tokenizer and its search.

    Args:
        tokens_per_batch: padded source tokens of a batch, before beams.
        is_constrained: search only among the trees over exactly the words of the sentence. If False, as in the paper,
            the output may be anything, and `rebuild` repairs it.
        generate_kwargs: for `Translator`.

    Attributes:
        num_repaired: sentences so far whose output was not as `linearise` writes the tree.

    Raises:
        ValueError: if the tokenizer has no brackets, because the model was not trained to parse.
    """

    def __init__(
        self,
        model: VaswaniForConditionalGeneration,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tokens_per_batch: int = 1_000,
        is_constrained: bool = True,
        **generate_kwargs,
    ):
        self.tokenizer, self.is_constrained = tokenizer, is_constrained
        options = {"max_length_offset": LENGTH_OFFSET} | generate_kwargs
        self.length_offset = options["max_length_offset"]
        self._translator = Translator(model, tokenizer, tokens_per_batch=tokens_per_batch, **options)
        self._normalised = tokenizer.get_added_vocab().get(NORMALISED)  # for every word; None where words are copied
        self._brackets = find_brackets(tokenizer)
        self.num_repaired = 0

    def __call__(
        self,
        sentences: str | Sequence[str],
        *,
        on_batch: Callable[[int], object] = lambda num_sentences: None,
    ) -> Tree | list[Tree | None] | None:
        """Return the tree of a sentence, or of each of several, with XX for tags; `None` for a sentence without words.

        Args:
            sentences: words separated by spaces, as the treebank separates them: punctuation is a word. Parentheses
                become -LRB- and -RRB-.
            on_batch: called with the number of sentences after each batch.

        Raises:
            ValueError: if a sentence has more than `MOST_TOKENS` tokens; none is parsed then.
        """
        if isinstance(sentences, str):
            return self([sentences])[0]
        for sentence in sentences:
            check_sentence(sentence)
        words = [split_words(sentence) for sentence in sentences]
        trees: list[Tree | None] = [None] * len(sentences)
        batches = self._translator.plan([" ".join(of_sentence) for of_sentence in words])
        for row, ids in (pair for batch in batches for pair in zip(batch.rows, batch.ids, strict=True)):
            if len(ids) > MOST_TOKENS:
                raise ValueError(
                    f"sentence {row + 1} has {len(ids):,} tokens (sub-words), more than the limit of "
                    f"{MOST_TOKENS:,}: split it, or leave it out."
                )
        for batch in batches:
            if batch.ids[0]:  # else lines without a word
                for row, symbols in zip(batch.rows, self._search(batch), strict=True):
                    leaves = [Leaf(UNKNOWN_TAG, word) for word in words[row]]
                    trees[row] = rebuild(symbols, leaves)
                    shape = [symbol if is_bracket(symbol) else NORMALISED for symbol in symbols]
                    self.num_repaired += shape != linearise(trees[row])
            on_batch(len(batch.rows))
        return trees

    def _search(self, batch: Batch) -> list[list[str]]:
        """Return the symbols found for each sentence of `batch`."""
        options = {}
        if self.is_constrained:
            options["prefix_allowed_tokens_fn"] = WellFormed(
                [self._words_of(ids) for ids in batch.ids],
                brackets=self._brackets,
                end_id=self.tokenizer.eos_token_id,
                limits=[len(ids) + self.length_offset for ids in batch.ids],
            )
        found = self._translator.search(batch.ids, num_return_sequences=1, **options)
        return [self._to_symbols(ids) for ids in found.sequences.tolist()]

    def _words_of(self, ids: list[int]) -> list[list[int]]:
        """Return the tokens that each word of the encoded sentence `ids` must become in the output."""
        words: list[list[int]] = []
        for token_id, token in zip(ids[:-1], self.tokenizer.convert_ids_to_tokens(ids[:-1]), strict=True):
            if self._begins_word(token_id, token):
                words.append([])
            words[-1].append(token_id)
        return words if self._normalised is None else [[self._normalised]] * len(words)

    def _to_symbols(self, ids: list[int]) -> list[str]:
        """Return the brackets, and for each word the token that begins it."""
        tokens = zip(ids, self.tokenizer.convert_ids_to_tokens(ids), strict=True)
        return [
            self._brackets.get(token_id, token)
            for token_id, token in tokens
            if token_id in self._brackets or self._begins_word(token_id, token)
        ]

    def _begins_word(self, token_id: int, token: str) -> bool:
        return token_id == self._normalised or token.startswith(WORD_BEGIN)


def split_words(sentence: str) -> list[str]:
    """Return the words of a sentence as treebanks write them."""
    for bracket, escape in ESCAPES.items():
        sentence = sentence.replace(bracket, escape)
    return [word for word in WHITESPACE.split(sentence) if word]


def load_parser(folder: str | Path, **options) -> Parser:
    """Load a `Parser` with its `options` from a model folder, a run folder or a Hub id; raises as `load_translator`."""
    return Parser(*load_translator(folder), **options)
