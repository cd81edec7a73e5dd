"""The shared vocabulary of section 6.3: sub-words of the sentences, and one token per bracket."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken
from tokenizers.normalizers import NFC, Prepend, Sequence
from transformers import PreTrainedTokenizerFast

from ..data.corpus import Pair
from ..data.filtering import filter_pairs
from ..data.tokenization import train_tokenizer
from .linearisation import NORMALISED


def learn_vocabulary(pairs: Iterable[Pair], *, vocab_size: int, subword_model: str = "bpe") -> PreTrainedTokenizerFast:
    """Learn a tokenizer for sentences and their linearised trees that never splits a bracket.

    Sub-words are learned from the sentences alone. The brackets of the training trees are added to them; sentences
    contain none, because treebanks write -LRB- and -RRB-. XX is added if it stands for all words.

    Args:
        pairs: those of `linearisation.read_pairs`; read once.
        vocab_size: entries, brackets included.
    """
    found: set[str] = set()
    symbols: list[str] = []  # known when all trees are read

    def note_symbols() -> Iterator[Pair]:
        for sentence, tree in pairs:
            found.update(tree.split(" "))
            yield sentence, tree
        brackets = set(filter(is_bracket, found))
        symbols.extend(sorted(brackets) + [NORMALISED] * (found - brackets <= {NORMALISED}))

    sentences = (sentence for sentence, _ in filter_pairs(note_symbols(), Counter()))
    tokenizer = train_tokenizer(sentences, vocab_size=vocab_size, subword_model=subword_model, reserved=symbols)
    # Words are those of the treebank, also if one is a no-break space: only composition leaves their number as it is.
    tokenizer.backend_tokenizer.normalizer = Sequence([NFC(), Prepend(" ")])
    # normalized: matched with the space before them, which is how every word of this tokenizer begins.
    tokenizer.add_tokens([AddedToken(symbol, normalized=True) for symbol in symbols])
    return tokenizer


def find_brackets(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Return the brackets of a vocabulary by their ids; raises ValueError if there is none."""
    brackets = {token_id: symbol for symbol, token_id in tokenizer.get_added_vocab().items() if is_bracket(symbol)}
    if not brackets:
        raise ValueError(
            "the model's vocabulary has no brackets such as '(NP': it was not trained to parse. Give a model that was "
            "trained on data of `vaswani prepare --task parsing`."
        )
    return brackets


def check_vocabulary(tokenizer: PreTrainedTokenizerFast, *, copy_words: bool) -> None:
    """Refuse a given vocabulary in which trees cannot be written, with their words copied or with XX for each."""
    find_brackets(tokenizer)
    if (NORMALISED in tokenizer.get_added_vocab()) == copy_words:
        raise ValueError(
            f"the model's vocabulary is of trees with {'XX for each word' if copy_words else 'their words'}: "
            f"{'leave --copy_words out' if copy_words else 'add --copy_words'}."
        )


def is_bracket(symbol: str) -> bool:
    """Return True if a symbol of a linearised tree is a bracket."""
    return symbol.startswith(("(", ")"))
