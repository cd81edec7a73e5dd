"""Constrain a search, so that its output is a linearised tree over the words of the sentence.

A linearised tree is a tree written as a sequence of symbols, such as (S (NP XX XX )NP (VP XX )VP )S.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from torch import LongTensor

# At most this many brackets may open in a row. No tree of the treebank CRAFT or of the Wall Street Journal sample has
# more. Without this bound, a model that is uncertain of the next word could open brackets until it reaches the length
# limit.
MOST_OPENED = 9


class _State(NamedTuple):
    """The state of a linearisation after the tokens so far.

    Attributes:
        closing: the tokens that close the open brackets, outermost first.
        place: the number of tokens that belong to words.
        num_opened: the number of brackets that opened since the last word or closing bracket.
    """

    closing: tuple[int, ...] = ()
    place: int = 0
    num_opened: int = 0


class WellFormed:
    """A `prefix_allowed_tokens_fn` of `generate` for the sentences of a batch.

    - The root opens first, and closes after the last word. Then only </s> may follow.
    - A closing bracket has the label of the innermost open bracket, which must hold at least one word.
    - The leaves are the words of the sentence, in order. Nothing stands between the tokens of a word.
    - A bracket opens only if the length limit leaves room to close it.
    - No more than `MOST_OPENED` brackets open in a row.

    Args:
        words: for each word of each sentence, the tokens of its leaf.
        brackets: the brackets of the vocabulary ("(NP", ")NP") by their token ids.
        end_id: the token id of </s>.
        limits: for each sentence, the largest number of tokens that its output may have, with </s> and without the
            start token.
    """

    def __init__(
        self,
        words: Sequence[Sequence[Sequence[int]]],
        *,
        brackets: Mapping[int, str],
        end_id: int,
        limits: Sequence[int],
    ):
        # For each sentence, the tokens of its leaves, and the places where a leaf begins or the sentence ends.
        self._tokens = [list(chain.from_iterable(sentence_words)) for sentence_words in words]
        self._boundaries = [set(accumulate(map(len, sentence_words), initial=0)) for sentence_words in words]
        self._end_id = end_id
        self._limits = limits
        id_of = {bracket: token_id for token_id, bracket in brackets.items()}
        # The closing bracket of each opening bracket.
        self._closing = {id_of[bracket]: id_of[f"){bracket[1:]}"] for bracket in id_of if bracket[0] == "("}
        # The states after the prefixes of this step and of the previous step. The states of all steps would take memory
        # that grows with the square of the length.
        self._states: dict[tuple[int, tuple[int, ...]], _State] = {}
        self._length = 0  # the length of the prefixes of this step

    def __call__(self, row: int, prefix: LongTensor) -> list[int]:
        """Return the tokens that may follow a prefix.

        Args:
            row: the number of the sentence in the batch.
            prefix: (T,) the tokens so far. The first one is the start token.
        """
        ids = tuple(prefix.tolist())
        if len(ids) > self._length:
            self._length = len(ids)
            self._states = {key: state for key, state in self._states.items() if len(key[1]) == len(ids) - 1}
        closing, place, num_opened = self._state_after(row, ids)
        tokens = self._tokens[row]
        if place not in self._boundaries[row]:
            return [tokens[place]]
        if place == len(tokens):
            return [closing[-1] if closing else self._end_id]
        allowed = []
        if closing:
            allowed.append(tokens[place])
            if len(closing) > 1 and not num_opened:
                allowed.append(closing[-1])
        # The remaining words, the closing brackets and </s> are still to come. A new bracket takes two more tokens.
        needed = len(tokens) - place + len(closing) + 1
        has_room = len(ids) - 1 + needed + 2 <= self._limits[row]
        if not closing or (has_room and num_opened < MOST_OPENED):
            allowed += self._closing
        return allowed

    def _state_after(self, row: int, ids: tuple[int, ...]) -> _State:
        """Return the state after the prefix `ids`. The state before its last token is usually stored already."""
        if len(ids) <= 1:
            return _State()
        if (row, ids) not in self._states:
            self._states[row, ids] = self._advance(row, self._state_after(row, ids[:-1]), ids[-1])
        return self._states[row, ids]

    def _advance(self, row: int, state: _State, token_id: int) -> _State:
        closing, place, num_opened = state
        if token_id in self._closing:
            return _State((*closing, self._closing[token_id]), place, num_opened + 1)
        if closing and token_id == closing[-1]:
            return _State(closing[:-1], place)
        if place < len(self._tokens[row]) and token_id == self._tokens[row][place]:
            return _State(closing, place + 1)
        return state  # The token is </s>, or it is a forbidden token in a beam of probability 0.
