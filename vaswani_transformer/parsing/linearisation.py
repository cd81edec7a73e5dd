"""Write a tree as a sequence of symbols, and read it back, as section 6.3 does after Vinyals et al. 2015.

    (S (NP (DT The) (NN dog)) (VP (VBZ barks)))     the tree
    (S (NP XX XX )NP (VP XX )VP )S                  the form of the paper: XX stands for each word
    (S (NP The dog )NP (VP barks )VP )S             the form with copied words

A closing bracket repeats its label. Part-of-speech tags are left out, because bracket F1 ignores them. With XX the
model must count the words to know its place in the sentence. Copied words show the place, but make the trees of the
CRAFT corpus 19 % longer (in sub-words of the recipe parsing_small).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..data.corpus import Pair
from .trees import TOP, Constituent, Leaf, Tree, read_trees, strip, walk, with_root

NORMALISED = "XX"


def linearise(tree: Tree, *, copy_words: bool = False) -> list[str]:
    """Return the symbols of `tree`: "(NP" and ")NP" for brackets, and XX or the word itself for a leaf."""
    symbols = []
    for opened, leaf, closed in walk(tree):
        symbols += [f"({constituent.label}" for constituent in opened]
        symbols.append(leaf.word if copy_words else NORMALISED)
        symbols += [f"){constituent.label}" for constituent in closed]
    return symbols


def rebuild(symbols: Iterable[str], leaves: Sequence[Leaf]) -> Tree:
    """Return a tree over exactly `leaves` (at least one) that is built from `symbols`.

    The k-th symbol that is not a bracket stands for the k-th leaf. All sequences of symbols are accepted. These rules
    repair faults:

    - If a word comes before all brackets, a TOP is put around everything.
    - If the root is closed before the last leaf, this closing bracket is left out.
    - If a bracket is closed while brackets inside it are open, the inner brackets are closed first.
    - If a closing bracket has no open bracket, it is left out.
    - If a constituent is still open at the end, it is closed there.
    - If a constituent has no word, it is left out.
    - If there are more words than leaves, the last words are left out.
    - If there are fewer words than leaves, the last leaves go into the innermost constituent that is open at the end.
    """
    constituents: list[list] = []  # [label, start, end], where the end is the last leaf until the constituent is closed
    pending: list[list] = []  # the open constituents, outermost first
    place = 0
    for symbol in symbols:
        if symbol.startswith(")"):
            _close(pending, symbol[1:], place, is_last=place == len(leaves))
            continue
        is_word = not symbol.startswith("(")
        if not is_word or not constituents:
            pending.append([TOP if is_word else symbol[1:], place, len(leaves)])
            constituents.append(pending[-1])
        place = min(place + is_word, len(leaves))
    return with_root(leaves, [Constituent(label, start, end) for label, start, end in constituents if start < end])


def _close(pending: list[list], label: str, place: int, *, is_last: bool) -> None:
    """Close the innermost open constituent called `label`, and all constituents inside it.

    The root is closed only if `is_last`, which is True once every leaf has its word.
    """
    depth = next((depth for depth in reversed(range(len(pending))) if pending[depth][0] == label), None)
    if depth is None or (depth == 0 and not is_last):
        return
    for constituent in pending[depth:]:
        constituent[2] = place
    del pending[depth:]


def read_pairs(path: Path, *, copy_words: bool = False) -> Iterator[Pair]:
    """Yield the words and the linearisation of each tree in a file, without traces and function tags (see `strip`).

    Trees without a word are left out.
    """
    stripped = filter(None, map(strip, read_trees(path)))
    return ((" ".join(tree.words), " ".join(linearise(tree, copy_words=copy_words))) for tree in stripped)
