"""Constituency trees in the brackets of the Penn Treebank: read, strip, write.

    for tree in read_trees(Path("wsj_02.mrg")):
        print(format_tree(strip(tree)))

A tree is kept flat, as its leaves and the spans of its constituents, so that no depth of nesting is too deep and the
spans that section 6.3's measure compares are there already.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..data.corpus import read_lines

TOP = "TOP"
TRACE = "-NONE-"
# CRAFT has words of two parts, (NN Xpd TTD). They stay one word where words are separated by spaces.
NO_BREAK_SPACE = "\u00a0"
# Whitespace of ASCII only, for the same reason.
TOKEN = re.compile(r"[()]|[^ \t\n\r\f\v()]+")
FUNCTION_TAGS = re.compile(r"(?<!^)[-=].*")


class Leaf(NamedTuple):
    """A word and its part-of-speech tag."""

    tag: str
    word: str


class Constituent(NamedTuple):
    """A label over the leaves from `start` to `end`, the latter not included."""

    label: str
    start: int
    end: int


class Tree(NamedTuple):
    """A tree: its leaves, and its constituents with each before those inside it.

    The first constituent is the root and spans all leaves. The bracket without label, or labelled TOP, that treebanks
    put around a sentence is left out where it holds one constituent and nothing else; otherwise it is the root, TOP.
    """

    leaves: tuple[Leaf, ...]
    constituents: tuple[Constituent, ...]

    @property
    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves]


def read_trees(path: Path) -> Iterator[Tree]:
    """Trees of a bracketed file as they stand there, traces and function tags included; see `parse_trees`.

    Raises:
        FileNotFoundError: at once, if there is no such file.
        ValueError: where the brackets are wrong, with file and line; if a line is not UTF-8.
    """
    return parse_trees(read_lines(path), name=str(path))


def parse_trees(lines: Iterable[str], *, name: str) -> Iterator[Tree]:
    """Trees written as `(S (NP (DT The) (NN dog)) (VP (VBZ barks)))`, on one line or over several.

    Args:
        name: of the file, for messages.

    Raises:
        ValueError: at the first tree that is not well-formed.
    """
    reader = _TreeReader(name)
    for number, line in enumerate(lines, start=1):
        for token in TOKEN.findall(line):
            if (tree := reader.read(token, number)) is not None:
                yield tree
    reader.finish()


class _TreeReader:
    """Reads bracketed trees token by token."""

    def __init__(self, name: str):
        self.name = name
        self._begin()

    def _begin(self) -> None:
        self.first_line = 0
        self.leaves: list[Leaf] = []
        # Label and first leaf of each constituent, in the order in which they open, and its end once it is closed.
        self.constituents: list[tuple[str, int, int | None]] = []
        self.open: list[int] = []  # constituents not yet closed, innermost last
        self.texts: list[str] | None = None  # of the bracket that has just opened and may be a leaf

    def read(self, token: str, line: int) -> Tree | None:
        """Take the next token; the tree, if it is complete with that."""
        if token == "(":
            self.first_line = self.first_line or line
            self._begin_bracket(line)
            self.texts = []
        elif not self.first_line:
            raise self._error(line, f"expected '(' where a tree begins, found {token!r}")
        elif token == ")":
            return self._close(line)
        elif self.texts is None:
            raise self._error(line, f"the word {token!r} has no tag: write (TAG {token})")
        else:
            self.texts.append(token)
        return None

    def finish(self) -> None:
        """The file has ended."""
        if self.first_line:
            num_open = len(self.open) + (self.texts is not None)
            raise self._error(self.first_line, f"the tree that begins here lacks {num_open} ')' at the end of the file")

    def _begin_bracket(self, line: int) -> None:
        """What the bracket before this one is: a constituent, for it holds a bracket."""
        if self.texts is None:
            return
        if len(self.texts) > 1:
            raise self._error(line, f"a word and a bracket side by side in ({' '.join(self.texts)} (")
        self.open.append(len(self.constituents))
        self.constituents.append((self.texts[0] if self.texts else "", len(self.leaves), None))

    def _close(self, line: int) -> Tree | None:
        if self.texts is None:
            place = self.open.pop()
            label, start, _ = self.constituents[place]
            self.constituents[place] = label, start, len(self.leaves)
        elif len(self.texts) > 1:
            tag, *parts = self.texts
            self.leaves.append(Leaf(tag, NO_BREAK_SPACE.join(parts)))
            self.texts = None
        else:
            raise self._error(line, f"a bracket without brackets in it is (TAG word), found ({''.join(self.texts)})")
        if self.open:
            return None
        tree = with_root(self.leaves, [Constituent(*constituent) for constituent in self.constituents])
        self._begin()
        return tree

    def _error(self, line: int, what: str) -> ValueError:
        return ValueError(
            f"{self.name}, line {line}: {what}. Expected trees such as (S (NP (DT The) (NN dog)) (VP (VBZ barks)))."
        )


def with_root(leaves: Sequence[Leaf], constituents: Sequence[Constituent]) -> Tree:
    """The tree, with the brackets around it left out or called TOP, and one put around where there is none."""
    whole = (0, len(leaves))
    while constituents and constituents[0].label in ("", TOP) and constituents[0][1:] == whole:
        constituents = constituents[1:]
    if not constituents or constituents[0][1:] != whole:
        constituents = [Constituent(TOP, 0, len(leaves)), *constituents]
    return Tree(tuple(leaves), tuple(constituents))


def strip(tree: Tree) -> Tree | None:
    """`tree` as EVALB's setting for the Penn Treebank compares it, and as section 6.3 learns it.

    Without traces (-NONE-) and the constituents that hold nothing else, and with function tags and indices cut off
    labels: NP for NP-SBJ-1 and NP=2. `None` if no word is left.
    """
    new_place, leaves = [0], []
    for leaf in tree.leaves:
        if leaf.tag != TRACE:
            leaves.append(leaf)
        new_place.append(len(leaves))
    if not leaves:
        return None
    constituents = [
        Constituent(FUNCTION_TAGS.sub("", label), new_place[start], new_place[end])
        for label, start, end in tree.constituents
        if new_place[start] < new_place[end]
    ]
    return with_root(leaves, constituents)


def walk(tree: Tree) -> Iterator[tuple[list[Constituent], Leaf, list[Constituent]]]:
    """Each leaf, with the constituents that open before it, outermost first, and close after it, innermost first."""
    constituents = iter(tree.constituents)
    following = next(constituents, None)
    is_open: list[Constituent] = []
    for place, leaf in enumerate(tree.leaves):
        opened, closed = [], []
        while following is not None and following.start == place:
            opened.append(following)
            following = next(constituents, None)
        is_open += opened
        while is_open and is_open[-1].end == place + 1:
            closed.append(is_open.pop())
        yield opened, leaf, closed


def format_tree(tree: Tree) -> str:
    """`tree` on one line, in a bracket TOP: EVALB would count one without label as a constituent."""
    pieces = [] if tree.constituents[0].label == TOP else [TOP]
    for opened, leaf, closed in walk(tree):
        pieces += [constituent.label for constituent in opened]
        pieces.append(f"{leaf.tag} {leaf.word}" + ")" * (1 + len(closed)))
    text = "(" + " (".join(pieces)
    return text if tree.constituents[0].label == TOP else f"{text})"


def pretty(tree: Tree) -> str:
    """`tree` over several lines, a constituent two spaces deeper than its parent; one of leaves only takes one line.

    (S
      (NP (DT The) (NN dog))
      (VP (VBZ barks)))
    """
    successors = [*(constituent.start for constituent in tree.constituents[1:]), len(tree.leaves)]
    holds_leaves_only = iter(
        successor >= constituent.end for constituent, successor in zip(tree.constituents, successors, strict=True)
    )
    lines: list[str] = []
    depth, is_flat = 0, False
    for opened, leaf, closed in walk(tree):
        for constituent in opened:
            lines.append("  " * depth + f"({constituent.label}")
            depth += 1
            is_flat = next(holds_leaves_only)
        text = f"({leaf.tag} {leaf.word})" + ")" * len(closed)
        if is_flat:
            lines[-1] += f" {text}"
        else:
            lines.append("  " * depth + text)
        depth -= len(closed)
        is_flat = is_flat and not closed
    return "\n".join(lines)
