"""Learn the shared vocabulary of section 6.3: sub-words for the sentences, and one token per bracket."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken
from tokenizers.normalizers import NFC, Prepend, Sequence
from transformers import PreTrainedTokenizerFast

from ..data.corpus import Pair
from ..data.filtering import filter_pairs
from ..data.tokenization import train_tokenizer
from .linearisation import NORMALISED


def learn_vocabulary(pairs: Iterable[Pair], *, vocab_size: int, subword_model: str = "bpe") -> PreTrainedTokenizerFast:
    """Return a tokenizer for sentences and their linearised trees that never splits a bracket.

    Sub-words are learnt from the sentences alone. Then the brackets of the training trees are added. Sentences contain
    no brackets, because treebanks write -LRB- and -RRB-. XX is added if the trees have XX in place of all words.

    Args:
        pairs: sentences and trees from `linearisation.read_pairs`. They are read once, and all sentences are kept in
            memory: the number of sub-words to learn depends on the brackets of all trees.
        vocab_size: the number of entries, with brackets.
        subword_model: see `train_tokenizer`.
    """
    sentences: list[str] = []
    found: set[str] = set()
    for sentence, tree in filter_pairs(pairs, Counter()):
        sentences.append(sentence)
        found.update(tree.split(" "))
    brackets = set(filter(is_bracket, found))
    symbols = sorted(brackets) + [NORMALISED] * (found - brackets <= {NORMALISED})
    tokenizer = train_tokenizer(sentences, vocab_size=vocab_size - len(symbols), subword_model=subword_model)
    # A word of a treebank may contain a no-break space. The normaliser of `train_tokenizer` would turn it into a space,
    # and so change the number of words. The normaliser below only composes characters and prepends a space.
    tokenizer.backend_tokenizer.normalizer = Sequence([NFC(), Prepend(" ")])
    # normalized=True: a symbol is normalised like the text, so "(NP" becomes " (NP". So it is found only at the start
    # of a word, and takes the space before it along.
    tokenizer.add_tokens([AddedToken(symbol, normalized=True) for symbol in symbols])
    return tokenizer


def find_brackets(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Return a dictionary from token id to bracket, for the brackets of a vocabulary.

    Raises:
        ValueError: if the vocabulary has no brackets.
    """
    brackets = {token_id: symbol for symbol, token_id in tokenizer.get_added_vocab().items() if is_bracket(symbol)}
    if not brackets:
        raise ValueError(
            "the model's vocabulary has no brackets such as '(NP': it was not trained to parse. Give a model that was "
            "trained on data of `vaswani prepare --task parsing`."
        )
    return brackets


def check_vocabulary(tokenizer: PreTrainedTokenizerFast, *, copy_words: bool) -> None:
    """Raise a ValueError if a vocabulary cannot write linearised trees of the form that `copy_words` chooses.

    Args:
        copy_words: True for trees with copied words, False for trees with XX for each word.
    """
    find_brackets(tokenizer)
    has_normalised = NORMALISED in tokenizer.get_added_vocab()
    if has_normalised and copy_words:
        raise ValueError("the model's vocabulary is for trees with XX for each word: leave --copy_words out.")
    if not has_normalised and not copy_words:
        raise ValueError("the model's vocabulary is for trees with copied words: add --copy_words.")


def is_bracket(symbol: str) -> bool:
    """Return True if a symbol of a linearised tree is a bracket."""
    return symbol.startswith(("(", ")"))
