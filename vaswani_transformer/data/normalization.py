"""Normalise text before a tokenizer cuts it, so that texts that look alike get the same token ids.

The rules are stored in tokenizer.json. So they also apply where this package is not installed.
"""

import unicodedata

import sentencepiece
from tokenizers import Regex, normalizers
from transformers.convert_slow_tokenizer import import_protobuf

# Format characters without a visible effect, such as the soft hyphen, the zero-width space, marks of direction and the
# byte order mark. Two kinds are not in this list: characters that join letters or pictures, and the tag characters of
# emoji flags.
INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\ufeff\ufff9\ufffa\ufffb" + "".join(
    chr(code) for first, last in ((0x202A, 0x202E), (0x2060, 0x206F)) for code in range(first, last + 1)
)
JOINERS = r"\x{200c}\x{200d}"
# A joiner has a visible effect only after these characters: letters of scripts that join letters, and pictures.
JOINING = r"\x{600}-\x{1cff}\x{2190}-\x{2bff}\x{a800}-\x{abff}\x{fe0f}\x{10a00}-\x{11fff}\x{1e900}-\x{1fbff}"


def build_normalizer() -> normalizers.Normalizer:
    """Return the normaliser of a new vocabulary.

    - Characters are composed (NFC).
    - Each run of white space and line breaks becomes one space. White space at the end is removed. White space at the
      start becomes one space, like the space that the pre-tokeniser puts before the first word of other texts.
    - Control characters and invisible format characters are removed.
    - Full-width letters and punctuation marks get their usual width, and Latin ligatures become separate letters.

    The other replacements of NFKC are not made, because "10²" and "1½" would become other numbers.
    """
    return normalizers.Sequence(
        [
            # White space at the start becomes a space and is not removed, because the pre-tokeniser recognises the
            # first word by its offset of 0 in the original text.
            normalizers.Replace(Regex(rf"\A[\s\p{{Cc}}{JOINERS}{INVISIBLE}]+"), " "),
            # tokenizers would drop a combining mark that follows a character with a rule, so U+0000 parts them.
            normalizers.Replace(Regex(r"(?!\A)(?=\p{M})"), "\x00"),
            normalizers.Precompiled(_compile(_list_rules())),
            # A joiner stays only after a character of `JOINING`. U+0000 is removed here, because no key of `_compile`
            # can hold a byte 0.
            normalizers.Replace(Regex(rf"[\x00{JOINERS}](?<![{JOINING}][{JOINERS}])"), ""),
            normalizers.NFC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )


def _list_rules() -> dict[str, str]:
    """Return the characters to replace, each with its replacement."""
    rules = dict.fromkeys(INVISIBLE, "")
    for character in map(chr, range(1, 0x10000)):  # No character from U+10000 on needs a rule.
        if character.isspace() and character != " ":
            rules[character] = " "
        elif unicodedata.category(character) == "Cc":
            rules[character] = ""
        elif "\ufb00" <= character <= "\ufb06" or unicodedata.decomposition(character).startswith("<wide>"):
            rules[character] = unicodedata.normalize("NFKC", character)
    return rules


def _compile(rules: dict[str, str]) -> bytes:
    """Return `rules` in the binary form of SentencePiece, which finds all characters in one pass."""
    sentencepiece.SetMinLogLevel(2)  # Otherwise SentencePiece logs the number of rules.
    normalizer = sentencepiece.SentencePieceNormalizer(norm_map=list(rules.items()))
    sentencepiece.SetMinLogLevel(0)
    spec = import_protobuf().NormalizerSpec.FromString(normalizer.serialized_normalizer_spec())
    return spec.precompiled_charsmap
