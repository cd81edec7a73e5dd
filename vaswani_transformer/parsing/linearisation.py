"""A tree as a sequence of symbols, and back, as in Vinyals et al. 2015 (section 6.3).

    (S (NP (DT The) (NN dog)) (VP (VBZ barks)))
    (S (NP XX XX )NP (VP XX )VP )S                  words normalised away, the form of the paper
    (S (NP The dog )NP (VP barks )VP )S             words copied

A closing bracket repeats its label. Part-of-speech tags are left out: bracket F1 ignores them. With XX the model must
count to know its place in the sentence; copied words show it. With the sub-words of the recipe parsing_small they make
the trees of CRAFT 19 % longer, in tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..data.corpus import Pair
from .trees import TOP, Constituent, Leaf, Tree, read_trees, strip, walk, with_root

NORMALISED = "XX"


def linearise(tree: Tree, *, copy_words: bool = False) -> list[str]:
    """Return the symbols of `tree`: "(NP" and ")NP" for brackets, XX or the word itself for a leaf."""
    symbols = []
    for opened, leaf, closed in walk(tree):
        symbols += [f"({constituent.label}" for constituent in opened]
        symbols.append(leaf.word if copy_words else NORMALISED)
        symbols += [f"){constituent.label}" for constituent in closed]
    return symbols


def rebuild(symbols: Iterable[str], leaves: Sequence[Leaf]) -> Tree:
    """Build a tree over exactly `leaves`, at least one, from `symbols`.

    The k-th symbol that is not a bracket stands for the k-th leaf. Any symbols are accepted; faults are repaired:

    - A word before any bracket puts a TOP around everything.
    - A closing bracket of the root before the last word is left out.
    - A closing bracket whose label is open further out closes all inside that first; one that is not open is left out.
    - A constituent still open at the end is closed there; one without a word is left out.
    - A word after the last one is left out; a missing one goes into the innermost constituent that is open at the end.
    """
    constituents: list[list] = []  # label, start, end (`None` while it is open)
    is_open: list[list] = []
    place = 0
    for symbol in symbols:
        if symbol.startswith(")"):
            _close(is_open, symbol[1:], place, is_last=place == len(leaves))
            continue
        is_word = not symbol.startswith("(")
        if not is_word or not constituents:
            is_open.append([TOP if is_word else symbol[1:], place, None])
            constituents.append(is_open[-1])
        place = min(place + is_word, len(leaves))
    for constituent in is_open:
        constituent[2] = len(leaves)
    whole = [Constituent(*constituent) for constituent in constituents]
    return with_root(leaves, [constituent for constituent in whole if constituent.start < constituent.end])


def _close(is_open: list[list], label: str, place: int, *, is_last: bool) -> None:
    """Close the innermost open constituent called `label` and all inside it, but the root only after the last word."""
    depth = next((depth for depth in reversed(range(len(is_open))) if is_open[depth][0] == label), None)
    if depth is None or (depth == 0 and not is_last):
        return
    for constituent in is_open[depth:]:
        constituent[2] = place
    del is_open[depth:]


def read_pairs(path: Path, *, copy_words: bool = False) -> Iterator[Pair]:
    """Return words and linearisation of each stripped tree of a file that `read_trees` reads."""
    stripped = filter(None, map(strip, read_trees(path)))
    return ((" ".join(tree.words), " ".join(linearise(tree, copy_words=copy_words))) for tree in stripped)
