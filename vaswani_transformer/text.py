"""Sentences in a text, and hints about text whose translation may be poor."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import groupby, islice, pairwise

from sentencex import segment
from transformers import PreTrainedTokenizerBase

from .model.pipeline_vaswani import LINE_BREAK, is_blank

# Hints, each of which follows "a line has", or "3 lines (the first begins ...) with".
SEVERAL = (
    "several sentences, one of which may be missing in the translation. Write one sentence per line, or let "
    "--split_sentences (in Python split_sentences=True) find them"
)
WRAPPED = (
    "a break inside a sentence, whose parts are translated one by one. Join such lines, or let --split_sentences (in "
    "Python split_sentences=True) join them"
)
FOREIGN = "letters of a script that the vocabulary does not know. Leave such lines out, or train on such text"
BROKEN = "bytes in the translation that form no character, such as half of an emoji. They were left out"
HINTS = (SEVERAL, WRAPPED, FOREIGN, BROKEN)

CHARACTERS_FOR_HINTS = 10_000  # For some long texts, sentencex takes quadratic time.
# sentencex takes the text up to "5 p.m. B" for the start of one sentence, as in "At 5 p.m. Tom came".
TIME_THEN_CAPITAL = re.compile(r"\b[ap]\.m\.\W*\s\W*[A-Z]")
LINES_PER_BLOCK = 1_000  # Whether lines are wrapped is decided for so many lines, or for a paragraph.
LEAST_WIDTH = 30  # Shorter lines are rather words of a list.
SENTENCE_END = re.compile(r"[^\w\s,;&(/\u2013\u2014-]\W*$")
LIST_MARK = re.compile(r"([^\w\s]+|\d+[.)])\s")
HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]$")


def split_sentences(text: str, language: str) -> list[tuple[str, str]]:
    """Split `text` into sentences, each with the white space after it. Lines that end inside a sentence are joined.

    The returned strings, joined, are `text` after `unwrap`. If `text` begins with white space, the first sentence is
    empty.

    Args:
        language: the language of the sentences, such as "en" or "en-US". sentencex treats an unknown language as
            English.

    Raises:
        ValueError: if sentencex loses characters of `text`.
    """
    text = "\n".join(unwrap(text.split("\n")))
    language = re.split("[-_]", language)[0].lower()
    parts = [("", "")]
    offset = 0
    for line in LINE_BREAK.split(text):
        # Each white-space character becomes a space, because sentencex crashes at some white space.
        for sentence in segment(language, re.sub(r"\s", " ", line)):
            piece = text[offset : offset + len(sentence)]
            offset += len(sentence)
            body = piece.strip()
            before, _, after = piece.partition(body) if body else (piece, "", "")
            parts[-1] = (parts[-1][0], parts[-1][1] + before)
            parts += [(body, after)] * bool(body)
    if offset != len(text):
        raise ValueError(f"sentencex returned {offset} of {len(text)} characters: {text!r:.200}. Split the text first.")
    return parts[1:] if len(parts) > 1 and parts[0] == ("", "") else parts


def unwrap(lines: Iterable[str]) -> Iterator[str]:
    """Join lines that were broken at a width, as in an e-mail, so that each paragraph is one line.

    Other lines stay as they are. If a word is hyphenated at the end of a line, the hyphen is removed.
    """
    width = 0  # of the wrapped lines so far
    for _, paragraph in groupby(lines, is_blank):
        while block := list(islice(paragraph, LINES_PER_BLOCK)):
            width, joined = _unwrap_block(block, width)
            yield from joined


def _unwrap_block(lines: list[str], known_width: int) -> tuple[int, list[str]]:
    """Return the width at which lines are wrapped, 0 if it is not known, and `lines`, joined if they are wrapped."""
    sizes = sorted(len(line.strip()) for line in lines)
    width = sizes[len(sizes) * 9 // 10]  # A few longer lines, such as addresses of pages, do not count.
    is_known = width <= known_width  # Too few lines of a short paragraph may begin with a small letter.
    width = known_width if is_known else width
    pairs = list(pairwise(map(str.strip, lines)))
    # A line is full if the next word has no room. Text from a PDF has letters of many widths, hence 0.85.
    full = [len(line) + 1 + len(following.partition(" ")[0]) > 0.85 * width for line, following in pairs]
    is_open = [SENTENCE_END.search(line[-5:]) is None for line, _ in pairs]
    inside = [is_open[place] and following[:1].islower() for place, (_, following) in enumerate(pairs)]
    is_wrapped = sum(map(min, full, is_open)) >= 0.8 * sum(is_open) and 4 * sum(inside) >= len(pairs) > 0
    if width < LEAST_WIDTH or not (is_wrapped or is_known):
        return known_width, lines
    joined = lines[:1]
    for place, (_, line) in enumerate(pairs):
        if LIST_MARK.match(line) or not (full[place] or inside[place]):
            joined.append(lines[place + 1])
            continue
        begun = joined[-1].rstrip()
        is_hyphenated = line[:1].islower() and HYPHEN.search(begun[-2:])
        joined[-1] = begun[:-1] + line if is_hyphenated else f"{begun} {line}"
    return width, joined


def end_sentence(translation: str, source: str, space: str) -> str:
    """Return `translation`, with a period if it would run into the next sentence.

    The period of "He lives in the U.S." is that of an abbreviation, too, which the translation may not have.

    Args:
        space: the white space before the next sentence of the line, or a line break, or "" at the end of the text.
    """
    # A translation that ends with a letter needs a period in scripts with capitals. Thai, for example, has no period.
    is_letter = translation[-1:].lower() != translation[-1:].upper()
    is_open = is_letter and source.endswith(".") and space and LINE_BREAK.search(space) is None
    return f"{translation}." if is_open else translation


def find_hints(
    lines: Collection[str], language: str, tokenizer: PreTrainedTokenizerBase, *, is_split: bool
) -> dict[str, list[str]]:
    """Return the lines to which each of `HINTS` but the last applies.

    Args:
        is_split: whether the lines are sentences from `split_sentences`. Then no line is WRAPPED.
    """
    unchanged = set(lines if is_split else unwrap(lines))
    return {
        SEVERAL: [line for line in lines if has_several(line[:CHARACTERS_FOR_HINTS], language)],
        WRAPPED: [line for line in lines if line not in unchanged],
        FOREIGN: [
            line for line in lines if not line.isascii() and not find_scripts(line) <= find_known_scripts(tokenizer)
        ],
    }


def has_several(line: str, language: str) -> bool:
    """Return True if `line` seems to hold several sentences."""
    return len(split_sentences(line.strip(), language)) > 1 or TIME_THEN_CAPITAL.search(line) is not None


def find_scripts(text: str) -> frozenset[str]:
    """Return the scripts of the letters in `text`, such as LATIN, GREEK or CJK, from the letters' Unicode names."""
    letters = [letter for letter in set(text) if unicodedata.category(letter) in ("Lu", "Ll", "Lt", "Lo")]
    normalised = unicodedata.normalize("NFKC", "".join(letters))
    return frozenset(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in normalised)


@lru_cache(maxsize=1)
def find_known_scripts(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the scripts of the letters in the vocabulary. Other scripts were rare in the training text, or missing."""
    return find_scripts("".join(tokenizer.batch_decode([[token] for token in range(len(tokenizer))])))


def drop_broken(translation: str, source: str) -> str:
    """Return `translation` without U+FFFD, the sign for invalid bytes, or unchanged if `source` has this sign."""
    return translation if "\ufffd" in source else re.sub(" *\ufffd+", "", translation)
