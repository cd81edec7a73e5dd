"""Bracketed trees: reading in any layout, stripping as in EVALB, writing, and refusing wrong brackets."""

import re

import pytest

from vaswani_transformer.parsing.linearisation import linearise, rebuild
from vaswani_transformer.parsing.trees import Constituent, Leaf, Tree, format_tree, parse_trees, strip

WITH_TRACES = "( (S-TPC-1 (NP=2 (-LRB- -LRB-) (NN dog)) (VP (VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))) (. .)) )"
# (file, stride): every stride-th line is tested, which gives about 300 trees of each treebank.
TREEBANKS = [
    ("treebank_craft/dev.mrg", 6),
    ("treebank_craft/train.mrg", 90),
    ("treebank_wsj_sample/wsj_sample.mrg", 13),
]


def is_restored(tree: Tree) -> bool:
    """Return True if writing and reading restores `tree`, and linearising and rebuilding restores its stripped form.

    The stripped form is linearised with its words and without.
    """
    is_reread = list(parse_trees([format_tree(tree)], name="text")) == [tree]
    stripped = strip(tree)
    forms = [] if stripped is None else [linearise(stripped, copy_words=copied) for copied in (False, True)]
    return is_reread and all(rebuild(form, stripped.leaves) == stripped for form in forms)


def one_tree(text):
    (tree,) = parse_trees(text.split("\n"), name="test")
    return tree


def test_a_tree_has_the_leaves_and_spans_of_its_brackets():
    tree = one_tree("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
    assert tree.leaves == (Leaf("DT", "The"), Leaf("NN", "dog"), Leaf("VBZ", "barks"))
    assert tree.constituents == (Constituent("S", 0, 3), Constituent("NP", 0, 2), Constituent("VP", 2, 3))
    assert tree.words == ["The", "dog", "barks"]


@pytest.mark.parametrize(
    "layout",
    ["(S\n  (NP\t(NN dog) )\r\n\n)", "((S(NP(NN dog))))", "(TOP (S (NP (NN\ndog))))", "((TOP ((S (NP (NN dog))))))"],
)
def test_whitespace_and_outer_brackets_do_not_matter(layout):
    tree = one_tree(layout)
    assert format_tree(tree) == "(TOP (S (NP (NN dog))))"
    assert one_tree(format_tree(tree)) == tree


def test_a_top_bracket_around_part_of_a_sentence_is_kept():
    tree = one_tree("(TOP (TOP (NN dog)) (VP (VBZ barks)))")
    assert tree.constituents == (Constituent("TOP", 0, 2), Constituent("TOP", 0, 1), Constituent("VP", 1, 2))
    assert one_tree(format_tree(tree)) == tree


@pytest.mark.parametrize("text", ["(NN dog)", "((NN dog))", "((NP (NN dog)) (VP (VBZ barks)))"])
def test_a_tree_without_a_root_gets_one(text):
    tree = one_tree(text)
    assert tree.constituents[0] == Constituent("TOP", 0, len(tree.leaves))
    assert one_tree(format_tree(tree)) == tree


def test_a_word_with_a_space_stays_one_word():
    assert one_tree("(S (NN Xpd TTD))").words == one_tree("(S (NN Xpd\u00a0TTD))").words == ["Xpd\u00a0TTD"]


def test_traces_function_tags_and_indices_are_stripped():
    stripped = strip(one_tree(WITH_TRACES))
    assert stripped == strip(stripped) == one_tree("(S (NP (-LRB- -LRB-) (NN dog)) (VP (VBD said)) (. .))")


def test_very_deep_trees_can_be_read():
    depth = 5_000
    tree = one_tree("(NP " * depth + "(NN dog)" + ")" * depth)
    assert len(tree.constituents) == depth
    assert one_tree(format_tree(strip(tree))) == tree


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("\ndog", 2, "unexpected 'dog'"),
        ("(S (NN dog)))", 1, "unexpected ')'"),
        ("(S (NN dog))\n(S (NN dog)\n\n", 2, "the tree that begins here is not closed at the end of the file"),
        ("(S\n(NP dog (NN cat)))", 2, "unexpected '('"),
        ("(S (NP))", 1, "unexpected ')'"),
        ("()", 1, "unexpected ')'"),
    ],
)
def test_the_error_about_wrong_brackets_names_file_and_line(text, line, what):
    message = f"trees.mrg, line {line}: {what}. Expected trees such as (S (NP (DT The) (NN dog))"
    with pytest.raises(ValueError, match=re.escape(message)):
        list(parse_trees(text.split("\n"), name="trees.mrg"))


@pytest.mark.parametrize(("name", "stride"), TREEBANKS)
def test_trees_of_real_treebanks_survive_writing_and_reading(data_folder, name, stride):
    lines = (data_folder / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")[::stride]
    assert all(map(is_restored, parse_trees(lines, name=name)))
