"""Parse a sentence into a tree, by beam search for the symbols of the tree (section 6.3).

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
from .vocabulary import find_brackets
from .well_formed import WellFormed

# The limit of a sentence, in sub-words. The longest sentence of our treebanks has 859 sub-words (327 words). A limit is
# needed, because the memory for the prefixes of a search grows with the square of its steps: 2,700 sub-words with 21
# beams took 1.6 GB.
MOST_TOKENS = 1_000
LENGTH_OFFSET = 300  # how many more tokens the output may have than the sentence (section 6.3)
WORD_BEGIN = "Ġ"  # what the tokenizer writes for the space before a word
# Only ASCII white space separates words, because some words of treebanks hold a no-break space.
WORD = re.compile(r"[^ \t\n\r\f\v]+")
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


class Parser:
    """A model that writes linearised trees, with its tokenizer and its search.

    Args:
        tokens_per_batch: see `Translator`.
        is_constrained: if True, search only among trees whose leaves are exactly the words of the sentence. If False,
            the output may be any sequence, as in the paper, and `rebuild` repairs it.
        generate_kwargs: further arguments of `Translator`.

    Attributes:
        num_repaired: the number of sentences so far whose output had to be repaired.

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
        self.tokenizer = tokenizer
        self.is_constrained = is_constrained
        options = {"max_length_offset": LENGTH_OFFSET} | generate_kwargs
        self.length_offset = options["max_length_offset"]
        self._translator = Translator(model, tokenizer, tokens_per_batch=tokens_per_batch, **options)
        # The token that stands for every word, or `None` if the output repeats the words.
        self._normalised = tokenizer.get_added_vocab().get(NORMALISED)
        self._brackets = find_brackets(tokenizer)
        self.num_repaired = 0

    def __call__(
        self,
        sentences: str | Sequence[str],
        *,
        on_batch: Callable[[int], object] = lambda num_sentences: None,
    ) -> Tree | list[Tree | None] | None:
        """Return the tree of one sentence, or a list with the trees of several sentences.

        All part-of-speech tags are XX. The tree of a sentence without words is `None`.

        Args:
            sentences: one sentence or several. Spaces separate the words as in the treebank, where a punctuation mark
                is a word. Parentheses become -LRB- and -RRB-.
            on_batch: called after each batch with its number of sentences.

        Raises:
            ValueError: if a sentence has more than `MOST_TOKENS` tokens. Then no sentence is parsed.
        """
        if isinstance(sentences, str):
            return self([sentences])[0]
        for sentence in sentences:
            check_sentence(sentence)
        words = [split_words(sentence) for sentence in sentences]
        trees: list[Tree | None] = [None] * len(sentences)
        batches = self._translator.plan([" ".join(sentence_words) for sentence_words in words])
        for batch in batches:
            for row, ids in zip(batch.rows, batch.ids, strict=True):
                if len(ids) > MOST_TOKENS:
                    raise ValueError(
                        f"sentence {row + 1} has {len(ids):,} tokens (sub-words), more than the limit of "
                        f"{MOST_TOKENS:,}: split it, or leave it out."
                    )
        for batch in batches:
            if batch.ids[0]:  # `plan` puts all sentences without words into one batch. They have no tree.
                for row, symbols in zip(batch.rows, self._search(batch), strict=True):
                    leaves = [Leaf("XX", word) for word in words[row]]
                    trees[row] = rebuild(symbols, leaves)
                    self.num_repaired += symbols != linearise(trees[row])
            on_batch(len(batch.rows))
        return trees

    def _search(self, batch: Batch) -> list[list[str]]:
        """Return the symbols that the search finds for each sentence of `batch`."""
        allowed = None
        if self.is_constrained:
            allowed = WellFormed(
                [self._words_of(ids) for ids in batch.ids],
                brackets=self._brackets,
                end_id=self.tokenizer.eos_token_id,
                limits=[len(ids) + self.length_offset for ids in batch.ids],
            )
        found = self._translator.search(batch.ids, num_return_sequences=1, prefix_allowed_tokens_fn=allowed)
        return [self._to_symbols(ids) for ids in found.sequences.tolist()]

    def _words_of(self, ids: list[int]) -> list[list[int]]:
        """Return for each word of the sentence `ids` the tokens that the output must have for this word."""
        words: list[list[int]] = []
        for token_id in ids[:-1]:
            if self._begins_word(token_id):
                words.append([])
            words[-1].append(token_id)
        return words if self._normalised is None else [[self._normalised]] * len(words)

    def _to_symbols(self, ids: list[int]) -> list[str]:
        """Return the symbols of an output: its brackets, and XX for each word."""
        return [
            self._brackets.get(token_id, NORMALISED)
            for token_id in ids
            if token_id in self._brackets or self._begins_word(token_id)
        ]

    def _begins_word(self, token_id: int) -> bool:
        return token_id == self._normalised or self.tokenizer.convert_ids_to_tokens(token_id).startswith(WORD_BEGIN)


def split_words(sentence: str) -> list[str]:
    """Return the words of a sentence, with parentheses as treebanks write them."""
    return WORD.findall(sentence.translate(ESCAPES))


def load_parser(folder: str | Path, **options) -> Parser:
    """Return the parser of a model folder, a run folder or a Hub id.

    Args:
        options: arguments of `Parser`.

    Raises:
        FileNotFoundError, ValueError: see `load_translator`.
    """
    return Parser(*load_translator(folder), **options)
