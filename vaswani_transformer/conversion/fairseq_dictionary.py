"""Build a tokenizer from a dictionary of fairseq, for text that is already cut into pieces.

Models of fairseq read text that was tokenised by Moses and then cut by subword-nmt. A piece ends in "@@" if its word
continues. The tokenizer looks up the pieces, as `binarize` of fairseq does. In its output it joins the pieces again, as
`--remove-bpe` does.

The tokenizer does not cut words itself by the codes of subword-nmt. These codes can make pieces that are not in the
dictionary, and fairseq reads such a piece as <unk>. Byte-pair encoding in the library `tokenizers` cannot make such a
piece, because there each piece must have an id.
"""

from collections import Counter
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..data.lines import read_lines
from ..data.tokenization import SPECIAL_TOKENS, wrap_tokenizer


def find_dictionary(folder: Path) -> list[str]:
    """Return the words of the dictionaries `dict.*.txt` in `folder`, special tokens first.

    Raises:
        FileNotFoundError: if there is no dictionary.
        ValueError: if the dictionaries of the two languages differ, or if a dictionary is damaged (see
            `read_dictionary`).
    """
    files = sorted(folder.glob("dict*.txt"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no dict.*.txt: copy the dictionaries beside the checkpoint.")
    dictionaries = [read_dictionary(file) for file in files]
    if any(words != dictionaries[0] for words in dictionaries):
        raise ValueError(
            f"{', '.join(map(str, files))} differ, but a Vaswani model has one vocabulary: convert a model that was "
            f"trained with --joined-dictionary."
        )
    return dictionaries[0]


def read_dictionary(path: Path) -> list[str]:
    """Return the words of a dictionary in the order of their ids, special tokens first.

    Args:
        path: a file whose lines are a word, a space and a count.

    Raises:
        ValueError: if a line has another form or is not UTF-8, or if a word occurs twice.
    """
    words = list(SPECIAL_TOKENS.values())
    for number, line in enumerate(read_lines(path), start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdecimal():
            raise ValueError(f"{path}, line {number}: expected a word, a space and a count, got {line!r}.")
        words.append(word)
    for word, count in Counter(words).items():
        if count > 1:
            raise ValueError(f"{path}: {word!r} occurs twice, so its id is ambiguous. Copy the dictionary again.")
    return words


def build_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that looks up the pieces between spaces, and appends `</s>`.

    Args:
        words: the pieces, in the order of their ids.
    """
    ids = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence(
        [
            # This decoder puts a space before each piece except the first, unless the piece begins with the prefix. The
            # prefix is a space here, and no piece begins with a space.
            decoders.WordPiece(prefix=" ", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex("@@( |$)"), ""),
        ]
    )
    return wrap_tokenizer(tokenizer)
