"""The words of a sentence and their tokens, as readable text. A token may be a part of a word, or of a character.

A word is a run of letters and digits, or a run of other signs, as in tensor2tensor.
"""

import re
import unicodedata
from collections.abc import Callable
from itertools import groupby

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

CONTINUATION = "·"  # stands before a token that continues a word

Words = list[tuple[str, int]]  # the words of a sentence: text, number of tokens


def mark_words(texts: list[str]) -> np.ndarray:
    """Return True for each word of the language, False for punctuation, signs and special tokens."""
    return np.array([any(map(str.isalnum, text)) and not re.fullmatch(r"<[^<>]*>", text) for text in texts], bool)


# GPT-2 writes each byte as a printable symbol. This dictionary gives the byte of a symbol.
_BYTE_SYMBOLS = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


def split_words(tokens: list[str], verbatim: list[bool], read_token: Callable[[str], bytes]) -> tuple[list[str], Words]:
    """Return the readable text of every token, and the words that the tokens form.

    A token that continues a word has `CONTINUATION` before its text.

    Args:
        tokens: the tokens, as the vocabulary spells them.
        verbatim: True for special and added tokens. Their text is kept as it is, and each of them is a word.
        read_token: see `choose_reader`.
    """
    pieces = []
    words = []
    for is_verbatim, run in groupby(zip(verbatim, tokens, strict=True), key=lambda pair: pair[0]):
        run_tokens = [token for _, token in run]
        if is_verbatim:
            pieces += run_tokens
            words += [(token, 1) for token in run_tokens]
            continue
        for word in _group_by_word(list(map(read_token, run_tokens))):
            first, *rest = map(_readable, word)
            pieces += [first, *(f"{CONTINUATION}{piece}" for piece in rest)]
            words.append((_readable(b"".join(word)), len(word)))
    return pieces, words


def choose_reader(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bytes]:
    """Return a function that turns a token into its bytes, spaces at its ends included."""
    vocabulary = tokenizer.get_vocab()
    if _BYTE_SYMBOLS.keys() <= vocabulary.keys():
        return lambda token: bytes(map(_BYTE_SYMBOLS.get, token))
    if any("\u2581" in token for token in vocabulary):  # The sign of SentencePiece for a space.
        return lambda token: token.replace("\u2581", " ").encode()
    # In fairseq a token is the text between two spaces. It ends in @@ if the word continues.
    return lambda token: f"{token} ".replace("@@ ", "").encode()


def _group_by_word(pieces: list[bytes]) -> list[list[bytes]]:
    """Group consecutive pieces by words. A piece belongs to the word of its first byte that is not a space."""
    # Bytes are counted, because a piece may end inside a character. Each byte that is not valid UTF-8 becomes one
    # surrogate here, and one byte again when it is encoded, so the count stays right.
    text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
    word_of_byte = []
    index = 0
    for kind, run in groupby(text, key=_character_class):
        word_of_byte += [index] * len("".join(run).encode("utf-8", errors="surrogateescape"))
        index += kind != "space"  # Spaces belong to the word after them.
    grouped: dict[int, list[bytes]] = {}
    end = 0
    for piece in pieces:
        end += len(piece)
        first = end - max(1, len(piece.lstrip(b" ")))
        grouped.setdefault(word_of_byte[first], []).append(piece)
    return list(grouped.values())


def _character_class(character: str) -> str:
    """Return "word" for letters, marks and digits, "space" for white space, and "sign" for other characters."""
    if character.isspace():
        return "space"
    category = unicodedata.category(character)
    # Cf: joiners inside words. Cs: bytes that are not valid UTF-8, such as parts of a character.
    return "word" if category[0] in "LMN" or category in ("Cf", "Cs") else "sign"


def _readable(piece: bytes) -> str:
    """Return bytes as text without spaces at the ends. Invalid bytes and invisible characters become escapes."""
    text = piece.decode("utf-8", errors="backslashreplace")
    text = text.strip(" ") or "␣" * len(text)
    # Joiners (U+200C, U+200D) are kept, because they change how the letters around them look.
    return "".join(c if c.isprintable() or c in "\u200c\u200d" else c.encode("unicode_escape").decode() for c in text)
