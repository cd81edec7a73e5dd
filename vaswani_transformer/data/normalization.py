"""What a tokenizer does to text before it cuts it: text that looks alike gets the same ids.

Everything stands in tokenizer.json, so it also holds without this package.
"""

import struct
import unicodedata

from tokenizers import Regex, normalizers

# Format characters that nothing visible depends on: soft hyphen, zero-width space, marks of direction, byte order mark.
# Those that join letters or pictures are not among them, nor are the tags of flags.
INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\ufeff\ufff9\ufffa\ufffb" + "".join(
    chr(code) for first, last in ((0x202A, 0x202E), (0x2060, 0x206F)) for code in range(first, last + 1)
)
JOINERS = r"\x{200c}\x{200d}"
# After these characters they change what is seen: scripts whose letters join, and pictures.
JOINING = r"\x{600}-\x{1cff}\x{2190}-\x{2bff}\x{a800}-\x{abff}\x{fe0f}\x{10a00}-\x{11fff}\x{1e900}-\x{1fbff}"


def build_normalizer() -> normalizers.Normalizer:
    """Build the normaliser of a new vocabulary.

    Canonical composition (NFC) of the text; each run of white space and line breaks as one space, none at the end, and
    at the start only where there was one, which the space before the first word replaces; no control characters and no
    invisible format characters; letters and marks of full width, and Latin ligatures, as plain ones. The rest of NFKC
    would make other numbers of "10²" and "1½".
    """
    return normalizers.Sequence(
        [
            # Replaced, not removed: the pre-tokeniser knows the first word by its distance of 0 from the start.
            normalizers.Replace(Regex(rf"\A[\s\p{{Cc}}{JOINERS}{INVISIBLE}]+"), " "),
            normalizers.Precompiled(_compile(_list_rules())),
            normalizers.Replace(Regex(rf"[\x00{JOINERS}](?<![{JOINING}][{JOINERS}])"), ""),
            normalizers.NFC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )


def is_normalised(text: str) -> bool:
    """Return whether the normaliser would surely leave `text` as it is: found out in a tenth of the time."""
    return text.isprintable() and max(text, default="") < "\u0300" and "  " not in text and text == text.strip(" ")


def _list_rules() -> dict[str, str]:
    """Return characters and what stands for them."""
    rules = dict.fromkeys(INVISIBLE, "")
    for character in map(chr, range(1, 0x10000)):  # beyond, no character is one of these
        if character.isspace():
            rules[character] = " "
        elif unicodedata.category(character) == "Cc":
            rules[character] = ""
        elif "\ufb00" <= character <= "\ufb06" or unicodedata.decomposition(character).startswith("<wide>"):
            rules[character] = unicodedata.normalize("NFKC", character)
    return rules


def _compile(rules: dict[str, str]) -> bytes:
    """Return SentencePiece's binary form of `rules`: a double array of the keys' bytes, and the values behind it.

    A regular expression for each character would take many times as long.
    """
    starts, values = {}, b""
    for value in dict.fromkeys(rules.values()):
        starts[value] = len(values)
        values += f"{value}\0".encode()
    tree: dict = {}
    for key, value in rules.items():
        node = tree
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = starts[value]
    units: dict[int, int] = {0: 0}
    bases: set[int] = set()  # two nodes with the same one would share their children
    open_nodes = [(0, 0, tree)]
    while open_nodes:
        at, label, node = open_nodes.pop()
        base = next(
            base for base in range(1, 1 << 21) if base not in bases and not any(base ^ byte in units for byte in node)
        )
        bases.add(base)
        units[at] = label | (0 in node) << 8 | (at ^ base) << 10
        for byte, child in node.items():
            if byte:
                units[base ^ byte] = 0
                open_nodes.append((base ^ byte, byte, child))
            else:
                units[base] = 1 << 31 | child
    size = (max(units) | 255) + 1  # a search may look up any byte of a node
    return struct.pack(f"<{size + 1}I", 4 * size, *(units.get(at, 0) for at in range(size))) + values
