"""Trees are written as symbols, and rebuilt from symbols. Symbols that form no tree are repaired by rules."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer.parsing.linearisation import linearise, read_pairs, rebuild
from vaswani_transformer.parsing.trees import Leaf, format_tree, parse_trees

DOG = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
SYMBOLS = st.sampled_from(["(S", "(NP", "(VP", "(TOP", ")S", ")NP", ")VP", ")TOP", "XX"])


def one_tree(text):
    (tree,) = parse_trees([text], name="test")
    return tree


def test_a_tree_is_linearised_with_placeholders_or_with_its_words():
    assert " ".join(linearise(one_tree(DOG))) == "(S (NP XX XX )NP (VP XX )VP )S"
    assert " ".join(linearise(one_tree(DOG), copy_words=True)) == "(S (NP The dog )NP (VP barks )VP )S"


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("XX XX XX", "(TOP X X X)"),
        ("", "(TOP X X X)"),
        ("(S XX XX )S (NP XX )NP", "(S X X (NP X))"),
        ("(S (NP XX (VP XX )NP XX )S", "(S (NP X (VP X)) X)"),
        ("(S XX )NP XX XX )S", "(S X X X)"),
        ("(S XX (NP XX XX", "(S X (NP X X))"),
        ("(S XX (NP )NP XX XX )S", "(S X X X)"),
        ("(S XX XX XX XX )S XX", "(S X X X)"),
        ("(S (NP XX )NP (VP XX", "(S (NP X) (VP X X))"),
        ("(S XX XX XX )S )S (NP )NP", "(S X X X)"),
    ],
    ids=[
        "no brackets",
        "no symbols",
        "root closed too early",
        "outer bracket closed first",
        "closing bracket without an opening one",
        "never closed",
        "constituent without a word",
        "more words than leaves",
        "fewer words than leaves",
        "brackets after the end",
    ],
)
def test_symbols_that_form_no_tree_are_repaired(symbols, tree):
    leaves = [Leaf("X", word) for word in "abc"]
    words = iter("abc")
    expected = re.sub(r"\bX\b", lambda _: f"(X {next(words)})", tree)
    assert rebuild(symbols.split(), leaves) == one_tree(expected)


@given(st.lists(SYMBOLS, max_size=30), st.integers(min_value=1, max_value=8))
def test_any_symbols_become_a_tree_over_the_given_words(symbols, num_words):
    leaves = [Leaf("X", str(number)) for number in range(num_words)]
    tree = rebuild(symbols, leaves)
    assert tree.leaves == tuple(leaves)
    assert tree.constituents[0][1:] == (0, num_words)
    assert rebuild(linearise(tree), leaves) == tree
    assert one_tree(format_tree(tree)) == tree


def test_read_pairs_returns_sentences_and_linearised_trees(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.mrg"):
        read_pairs(tmp_path / "none.mrg")
    path = tmp_path / "trees.mrg"
    path.write_text("((S (NP-SBJ (NN dog)) (VP (VBZ barks) (NP (-NONE- *)))))\n((S (-NONE- *)))\n", encoding="utf-8")
    assert list(read_pairs(path)) == [("dog barks", "(S (NP XX )NP (VP XX )VP )S")]
    assert list(read_pairs(path, copy_words=True)) == [("dog barks", "(S (NP dog )NP (VP barks )VP )S")]
