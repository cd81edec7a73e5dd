"""Bracket F1 by the rules of EVALB, on cases counted by hand.

EVALB itself gives the same counts, except where the predicted tags differ from the gold tags.
"""

import pytest

from vaswani_transformer.parsing.bracket_f1 import BracketScore, compare
from vaswani_transformer.parsing.trees import parse_trees, strip

GOLD = "(S (NP (DT The) (NN dog)) (VP (VBZ likes) (NP (NNS cats))) (. .))"


def score(gold, predicted):
    return compare(*map(strip, parse_trees([gold, predicted], name="test")))


def counts(gold, predicted):
    """Return the numbers of matched, gold and predicted brackets."""
    found = score(gold, predicted)
    return found.matched, found.gold, found.predicted


def test_a_tree_matches_itself():
    assert score(GOLD, GOLD) == BracketScore(4, 4, 4, 1, 1)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        # A wrong label, two wrong spans, a missing bracket, and one bracket too many.
        ("(S (PP (DT The) (NN dog)) (VP (VBZ likes) (NP (NNS cats))) (. .))", (3, 4, 4)),
        ("(S (NP (DT The) (NN dog) (VBZ likes)) (VP (NP (NNS cats))) (. .))", (2, 4, 4)),
        ("(S (DT The) (NN dog) (VP (VBZ likes) (NP (NNS cats))) (. .))", (3, 4, 3)),
        ("(S (NP (NP (DT The) (NN dog))) (VP (VBZ likes) (NP (NNS cats))) (. .))", (4, 4, 5)),
        # The root TOP does not count. A full stop may stand in any bracket. A bracket that holds only a full stop does
        # not count.
        ("(TOP (S (NP (DT The) (NN dog)) (VP (VBZ likes) (NP (NNS cats))) (. .)))", (4, 4, 4)),
        ("(S (NP (DT The) (NN dog)) (VP (VBZ likes) (NP (NNS cats) (. .))))", (4, 4, 4)),
        ("(S (NP (DT The) (NN dog)) (VP (VBZ likes) (NP (NNS cats))) (NP (. .)))", (4, 4, 4)),
        # Predicted tags are ignored. A parser without tags, or with wrong tags, loses nothing.
        ("(S (NP (XX The) (XX dog)) (VP (XX likes) (NP (XX cats))) (XX .))", (4, 4, 4)),
    ],
)
def test_brackets_are_counted_by_label_and_span(predicted, expected):
    assert counts(GOLD, predicted) == expected


def test_a_bracket_matches_at_most_one_bracket_of_the_other_tree():
    doubled = "(S (NP (NP (NN dog))))"
    assert counts(doubled, "(S (NP (NN dog)))") == (2, 3, 2)
    assert counts(doubled, "(S (NP (NP (NP (NN dog)))))") == (3, 3, 4)


def test_the_labels_of_adverb_phrases_and_particles_count_as_equal():
    assert counts("(S (PRT (RP up)) (NP (NN dog)))", "(S (ADVP (RP up)) (NP (NN dog)))") == (3, 3, 3)


# -LRB- is not a tag of punctuation in EVALB, so its bracket counts.
@pytest.mark.parametrize(("tag", "num_gold"), [(",", 1), (":", 1), ("``", 1), ("''", 1), (".", 1), ("-LRB-", 2)])
def test_punctuation_is_left_out_by_its_tag(tag, num_gold):
    assert counts(f"(S (NN dog) (NP ({tag} x)))", f"(S (NN dog) ({tag} x))") == (1, num_gold, 1)


def test_scores_are_computed_over_the_brackets_of_all_sentences():
    imperfect = score(GOLD, "(S (PP (DT The) (NN dog)) (VBZ likes) (NNS cats) (. .))")
    assert imperfect == BracketScore(1, 4, 2, 1, 0)
    total = imperfect + score(GOLD, GOLD)
    assert total == BracketScore(5, 8, 6, 2, 1)
    assert (total.recall, total.precision) == (pytest.approx(62.5), pytest.approx(500 / 6))
    assert total.f1 == pytest.approx(2 * 62.5 * (500 / 6) / (62.5 + 500 / 6))
    assert total.summary() == "F1 71.43, precision 83.33, recall 62.50, 1 of 2 sentences exact"


def test_a_sentence_of_punctuation_alone_is_not_counted():
    dots = "(S (. .) (: ...))"
    found = score(dots, dots)
    assert found == BracketScore() == (0, 0, 0, 0, 0)
    assert (found.f1, found.precision, found.recall) == (0, 0, 0)


def test_trees_over_different_words_are_refused():
    with pytest.raises(ValueError, match="trees over different sentences cannot be compared: 'dog' and 'cat'"):
        counts("(S (NN dog))", "(S (NN cat))")
