"""Compute labelled bracket F1, the measure of section 6.3, by the rules of EVALB with its parameter file COLLINS.prm.

    score = BracketScore()
    for gold, predicted in zip(gold_trees, predicted_trees, strict=True):
        score += compare(gold, predicted)
    print(score.f1)

Brackets are compared by label and span. The root TOP does not count. ADVP and PRT count as the same label. Before the
comparison, words whose gold tag is a punctuation mark are removed from both trees, and so are brackets that hold only
such words. A sentence of punctuation alone does not count.
"""

from collections import Counter
from itertools import accumulate
from operator import add
from typing import NamedTuple

from .trees import TOP, Tree

PUNCTUATION_TAGS = frozenset({",", ":", "``", "''", "."})
EQUAL_LABELS = {"PRT": "ADVP"}


class BracketScore(NamedTuple):
    """Counts over sentences. Two scores can be added."""

    matched: int = 0  # brackets that are in both trees; each bracket is matched once
    gold: int = 0  # brackets of the gold trees
    predicted: int = 0  # brackets of the predicted trees
    sentences: int = 0  # sentences with at least one word that is not punctuation
    exact: int = 0  # sentences whose two trees have exactly the same brackets

    def __add__(self, other: "BracketScore") -> "BracketScore":
        return BracketScore(*map(add, self, other))

    @property
    def recall(self) -> float:
        """Recall in percent, or 0 if the gold trees have no bracket."""
        return 100 * self.matched / max(1, self.gold)

    @property
    def precision(self) -> float:
        """Precision in percent, or 0 if the predicted trees have no bracket."""
        return 100 * self.matched / max(1, self.predicted)

    @property
    def f1(self) -> float:
        """F1 = 2 P R / (P + R) in percent, over the brackets of all sentences together."""
        return 200 * self.matched / max(1, self.gold + self.predicted)

    def summary(self) -> str:
        """Return the score as one line of text."""
        return (
            f"F1 {self.f1:.2f}, precision {self.precision:.2f}, recall {self.recall:.2f}, "
            f"{self.exact} of {self.sentences} sentences exact"
        )


def compare(gold: Tree, predicted: Tree) -> BracketScore:
    """Return the counts of one sentence.

    Args:
        gold, predicted: two trees over the same words, as `strip` of trees.py returns them.

    Raises:
        ValueError: if the words of the trees differ.
    """
    if gold.words != predicted.words:
        raise ValueError(
            f"trees over different sentences cannot be compared: {' '.join(gold.words)!r} and "
            f"{' '.join(predicted.words)!r}"
        )
    is_counted = [leaf.tag not in PUNCTUATION_TAGS for leaf in gold.leaves]
    if not any(is_counted):
        return BracketScore()
    # For each boundary between words, the number of counted words before it.
    places = list(accumulate(is_counted, initial=0))
    gold_brackets = _brackets(gold, places)
    predicted_brackets = _brackets(predicted, places)
    matched = (gold_brackets & predicted_brackets).total()
    return BracketScore(
        matched=matched,
        gold=gold_brackets.total(),
        predicted=predicted_brackets.total(),
        sentences=1,
        exact=int(gold_brackets == predicted_brackets),
    )


def _brackets(tree: Tree, places: list[int]) -> Counter[tuple[str, int, int]]:
    """Return the label and span of each bracket that counts, and how often it occurs."""
    return Counter(
        (EQUAL_LABELS.get(label, label), places[start], places[end])
        for label, start, end in tree.constituents
        if label != TOP and places[start] < places[end]
    )
