"""Read, strip and write constituency trees in the brackets of the Penn Treebank.

    for tree in read_trees(Path("wsj_02.mrg")):
        print(format_tree(strip(tree)))

A tree is stored flat, as its leaves and the spans of its constituents. So nesting may have any depth, and bracket F1
(section 6.3) can compare the spans.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ..data.lines import read_lines

TOP = "TOP"
TRACE = "-NONE-"
# The treebank CRAFT has words of two parts, as in (NN Xpd TTD). A no-break space joins the parts, because spaces
# separate words.
NO_BREAK_SPACE = "\u00a0"
# Only white space of ASCII separates tokens, so that a no-break space belongs to its word.
TOKEN = re.compile(r"[()]|[^ \t\n\r\f\v()]+")
# The end of a label such as NP-SBJ-1 or NP=2. A hyphen at the start of a label, as in -NONE-, begins no function tag.
FUNCTION_TAGS = re.compile(r"(?<!^)[-=].*")


class Leaf(NamedTuple):
    """A word and its part-of-speech tag."""

    tag: str
    word: str


class Constituent(NamedTuple):
    """A label over the leaves from `start` up to, but not including, `end`."""

    label: str
    start: int
    end: int


class Tree(NamedTuple):
    """A tree: its leaves, and its constituents in the order in which they open.

    The first constituent is the root and spans all leaves. Treebanks put another bracket around a sentence, without a
    label or with the label TOP. This bracket is left out if it holds exactly one constituent. Otherwise it is the root,
    and its label is TOP.
    """

    leaves: tuple[Leaf, ...]
    constituents: tuple[Constituent, ...]

    @property
    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves]


def read_trees(path: Path) -> Iterator[Tree]:
    """Read the trees of a bracketed file, with traces and function tags.

    Raises:
        FileNotFoundError: if the file does not exist. The call itself raises this error, before the first tree is read.
        ValueError: if the brackets are wrong or a line is not UTF-8. The message names the file and the line.
    """
    return parse_trees(read_lines(path), name=str(path))


def parse_trees(lines: Iterable[str], *, name: str) -> Iterator[Tree]:
    """Parse trees written as `(S (NP (DT The) (NN dog)) (VP (VBZ barks)))`, on one line or over several.

    Args:
        name: the name of the file, for error messages.

    Raises:
        ValueError: at the first tree that is not well-formed.
    """

    def error(line: int, reason: str) -> ValueError:
        return ValueError(
            f"{name}, line {line}: {reason}. Expected trees such as (S (NP (DT The) (NN dog)) (VP (VBZ barks)))."
        )

    first_line = 0  # the line in which the present tree begins
    leaves: list[Leaf] = []
    constituents: list[Constituent] = []  # in the order in which they open; `end` is -1 until they close
    open_indices: list[int] = []  # the indices of the constituents that are not closed, innermost last
    # The texts since the last opening bracket: the label of a constituent, or the tag and the words of a leaf. `None`
    # after a closing bracket, and before the first bracket.
    texts: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        for token in TOKEN.findall(line):
            if token == "(" and (texts is None or len(texts) < 2):
                if texts is not None:  # The bracket that opened before this one is a constituent.
                    open_indices.append(len(constituents))
                    constituents.append(Constituent("".join(texts), len(leaves), -1))
                elif not open_indices:
                    first_line = number
                texts = []
            elif token not in "()" and texts is not None:
                texts.append(token)
            elif token == ")" and texts is None and open_indices:
                place = open_indices.pop()
                constituents[place] = constituents[place]._replace(end=len(leaves))
            elif token == ")" and texts is not None and len(texts) > 1:
                leaves.append(Leaf(texts[0], NO_BREAK_SPACE.join(texts[1:])))
                texts = None
            else:
                raise error(number, f"unexpected {token!r}")
            if texts is None and not open_indices:
                yield with_root(leaves, constituents)
                leaves = []
                constituents = []
    if open_indices or texts is not None:
        raise error(first_line, "the tree that begins here is not closed at the end of the file")


def with_root(leaves: Sequence[Leaf], constituents: Sequence[Constituent]) -> Tree:
    """Return the tree of `leaves` and `constituents`, with exactly one root.

    Brackets around the whole tree are left out if they have no label or the label TOP. If no other constituent spans
    all leaves, the root is TOP.
    """
    full_span = (0, len(leaves))
    while constituents and constituents[0].label in ("", TOP) and constituents[0][1:] == full_span:
        constituents = constituents[1:]
    if not constituents or constituents[0][1:] != full_span:
        constituents = [Constituent(TOP, 0, len(leaves)), *constituents]
    return Tree(tuple(leaves), tuple(constituents))


def strip(tree: Tree) -> Tree | None:
    """Remove traces, function tags and indices.

    EVALB's setting for the Penn Treebank compares trees in this form, and the model of section 6.3 learns trees in this
    form. Traces (-NONE-) are removed, and so are constituents that hold only traces. NP-SBJ-1 and NP=2 become NP.

    Returns:
        the stripped tree, or `None` if no word is left.
    """
    leaves = [leaf for leaf in tree.leaves if leaf.tag != TRACE]
    new_place = list(accumulate((leaf.tag != TRACE for leaf in tree.leaves), initial=0))
    if not leaves:
        return None
    constituents = [
        Constituent(FUNCTION_TAGS.sub("", label), new_place[start], new_place[end])
        for label, start, end in tree.constituents
        if new_place[start] < new_place[end]
    ]
    return with_root(leaves, constituents)


def walk(tree: Tree) -> Iterator[tuple[list[Constituent], Leaf, list[Constituent]]]:
    """Yield for each leaf the constituents that open before it, the leaf, and the constituents that close after it.

    The opening constituents come outermost first, the closing ones innermost first.
    """
    by_start = defaultdict(list)
    by_end = defaultdict(list)
    for constituent in tree.constituents:
        by_start[constituent.start].append(constituent)
        by_end[constituent.end].append(constituent)
    for place, leaf in enumerate(tree.leaves):
        yield by_start[place], leaf, by_end[place + 1][::-1]


def format_tree(tree: Tree) -> str:
    """Return `tree` on one line, in a bracket with the label TOP.

    The bracket has a label because EVALB counts a bracket without a label as a constituent.
    """
    pieces = []
    for opened, leaf, closed in walk(tree):
        pieces += [f"({constituent.label}" for constituent in opened]
        pieces.append(f"({leaf.tag} {leaf.word})" + ")" * len(closed))
    text = " ".join(pieces)
    return text if tree.constituents[0].label == TOP else f"({TOP} {text})"
