"""The tokens that a parser may generate next: any choice among them leads to a tree over the words of the sentence."""

import random

import pytest
import torch

from vaswani_transformer.parsing.linearisation import linearise, rebuild
from vaswani_transformer.parsing.trees import Leaf
from vaswani_transformer.parsing.well_formed import MOST_OPENED, WellFormed

START, END = 0, 2
BRACKETS = {10: "(S", 11: ")S", 12: "(NP", 13: ")NP"}
XX = 14
OPENING = [10, 12]
WORDS = [[20], [21, 22]]  # the second word is two tokens


def follow(tokens, *, limit=50):
    """Return the tokens that may follow `tokens`, in a batch of one sentence."""
    allow = WellFormed([WORDS], brackets=BRACKETS, end_id=END, limits=[limit])
    return allow(0, torch.tensor([START, *tokens]))


@pytest.mark.parametrize(
    ("tokens", "allowed"),
    [
        ([], OPENING),  # the root comes first
        ([10], [20, *OPENING]),  # an empty bracket must not close
        ([10, 20], [21, *OPENING]),  # the root must not close before the last word
        ([10, 12, 20], [21, 13, *OPENING]),  # a bracket closes with the label with which it opened
        ([10, 12, 20, 13], [21, *OPENING]),
        ([10, 20, 21], [22]),  # a word of several tokens must be completed
        ([10, 12, 20, 21, 22], [13]),  # nothing opens after the last word
        ([10, 12, 20, 21, 22, 13], [11]),
        ([10, 20, 21, 22, 11], [END]),
        ([10, 20, 21, 22, 11, END], [END]),
        ([10, 99], [20, *OPENING]),  # a forbidden token, which only a beam of probability 0 has, changes nothing
    ],
)
def test_only_tokens_that_can_still_become_a_tree_are_allowed(tokens, allowed):
    assert sorted(follow(tokens)) == sorted(allowed)


def test_no_bracket_opens_that_cannot_close_within_the_limit():
    # "(S The dogs )S </s>" has six tokens, because the second word has two. Each inner constituent takes two more.
    assert follow([10], limit=7) == [20]
    assert sorted(follow([10], limit=8)) == [10, 12, 20]


def test_the_number_of_brackets_opened_in_a_row_is_limited():
    assert sorted(follow([10, *[12] * (MOST_OPENED - 2)])) == [10, 12, 20]
    assert follow([10, *[12] * (MOST_OPENED - 1)]) == [20]
    assert sorted(follow([10, *[12] * (MOST_OPENED - 1), 20])) == [10, 12, 13, 21]


@pytest.mark.parametrize("seed", range(10))
def test_any_choice_of_allowed_tokens_ends_in_a_tree_within_the_limit(seed):
    rng = random.Random(seed)
    words = [[XX]] * rng.randint(1, 6)
    limit = len(words) + rng.randint(3, 30)
    allow = WellFormed([words], brackets=BRACKETS, end_id=END, limits=[limit])
    tokens = [START]
    while tokens[-1] != END:
        tokens.append(rng.choice(allow(0, torch.tensor(tokens))))
    assert len(tokens) - 1 <= limit
    symbols = [BRACKETS.get(token, "XX") for token in tokens[1:-1]]
    assert linearise(rebuild(symbols, [Leaf("X", "x")] * len(words))) == symbols


def test_only_prefixes_of_the_last_two_steps_are_remembered():
    # If all prefixes were remembered, memory would grow with the square of a sentence's length.
    allow = WellFormed([[[XX + row]] * 200 for row in range(3)], brackets=BRACKETS, end_id=END, limits=[300] * 3)
    for length in range(150):
        for row in range(3):  # each row has different words
            assert allow(row, torch.tensor([START, 10, *[XX + row] * length]))[0] == XX + row
        assert len(allow._states) <= 2 * 3
