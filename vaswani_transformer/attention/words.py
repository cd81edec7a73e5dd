"""The words of a sentence and their tokens, as readable text. A token may be part of a word, or of a character.

Words are runs of letters and digits or runs of other signs, as in tensor2tensor.
"""

import re
import unicodedata
from collections.abc import Callable
from itertools import groupby

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

CONTINUATION = "·"  # shown before a piece that continues the word of the piece before it

Words = list[tuple[str, int]]  # the words of a sentence: text, number of tokens


def is_word(text: str) -> bool:
    """Return True for a word of the language, False for punctuation, signs and special tokens."""
    return any(c.isalnum() for c in text) and not re.fullmatch(r"<[^<>]*>", text)


# GPT-2's printable symbol of every byte -> the byte.
_BYTE_SYMBOLS = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


def split_words(tokens: list[str], verbatim: list[bool], read_token: Callable[[str], bytes]) -> tuple[list[str], Words]:
    """Return the readable text of every token, and the words they form.

    A piece that continues a word is shown after `CONTINUATION`. Special and added tokens stand `verbatim`, as words.
    """
    pieces: list[str] = []
    words: Words = []
    for is_verbatim, run in groupby(zip(verbatim, tokens, strict=True), key=lambda pair: pair[0]):
        run_tokens = [token for _, token in run]
        if is_verbatim:
            pieces += run_tokens
            words += [(token, 1) for token in run_tokens]
            continue
        for word in _group_by_word(list(map(read_token, run_tokens))):
            first, *rest = map(_readable, word)
            pieces += [first, *(CONTINUATION + piece for piece in rest)]
            words.append((_readable(b"".join(word)), len(word)))
    return pieces, words


def choose_reader(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bytes]:
    """Return the function from a token to its bytes, with the spaces at its ends."""
    vocabulary = tokenizer.get_vocab()
    if _BYTE_SYMBOLS.keys() <= vocabulary.keys():
        return lambda token: bytes(_BYTE_SYMBOLS[symbol] for symbol in token)
    if any("\u2581" in token for token in vocabulary):  # SentencePiece's sign for a space
        return lambda token: token.replace("\u2581", " ").encode()
    # fairseq's tokens are the text between spaces, with @@ at the end if the word continues.
    return lambda token: f"{token} ".replace("@@ ", "").encode()


def _group_by_word(pieces: list[bytes]) -> list[list[bytes]]:
    """Group consecutive pieces by the word of their first byte after spaces."""
    # By bytes, because a piece may end inside a character. A byte of no character becomes one surrogate.
    text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
    word_of_byte: list[int] = []
    index = 0
    for kind, run in groupby(text, key=_character_class):
        word_of_byte += [index] * len("".join(run).encode("utf-8", errors="surrogateescape"))
        index += kind != "space"  # spaces belong to the word after them
    grouped: dict[int, list[bytes]] = {}
    end = 0
    for piece in pieces:
        end += len(piece)
        first = end - max(1, len(piece.lstrip(b" ")))
        grouped.setdefault(word_of_byte[first], []).append(piece)
    return list(grouped.values())


def _character_class(character: str) -> str:
    """Return "word" for letters, marks and digits, "sign" for other signs, "space" for what separates words."""
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    return "word" if category[0] in "LMN" or category in ("Cf", "Cs") else "sign"  # Cf: joiners inside words


def _readable(piece: bytes) -> str:
    """Return bytes as text without outer spaces, with codes for invalid bytes and invisible characters."""
    text = piece.decode("utf-8", errors="backslashreplace")
    text = text.strip(" ") or "␣" * len(text)
    # Joiners inside words stay.
    return "".join(c if c.isprintable() or c in "\u200c\u200d" else c.encode("unicode_escape").decode() for c in text)
