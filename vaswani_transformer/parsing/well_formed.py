"""Constrain a search, so that its output is a linearised tree over the words of the sentence."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

# At most this many brackets may open in a row. No tree of CRAFT or of the Wall Street Journal sample has more. Without
# this bound, a model that is uncertain of the next word could open brackets until it reaches the length limit.
MOST_OPENED = 9


class _State(NamedTuple):
    """The state of a linearisation after the tokens so far.

    Attributes:
        innermost: the open brackets as a linked list, innermost first: (the token that closes the bracket, the list of
            the brackets around it). `None` if no bracket is open.
        depth: the number of open brackets.
        num_words: the number of words that have begun.
        num_pieces: the number of tokens seen of the word that began last; 0 before the first word.
        num_opened: the number of brackets that opened since the last word or closing bracket.
        is_over: True after </s>, or after a token that is not allowed.
    """

    innermost: tuple[int, tuple | None] | None = None
    depth: int = 0
    num_words: int = 0
    num_pieces: int = 0
    num_opened: int = 0
    is_over: bool = False


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
        limits: for each sentence, the largest number of tokens that its output may have, </s> included.
    """

    def __init__(
        self,
        words: Sequence[Sequence[Sequence[int]]],
        *,
        brackets: Mapping[int, str],
        end_id: int,
        limits: Sequence[int],
    ):
        self._words = words
        self._end_id = end_id
        self._limits = limits
        # For each word, the number of tokens from its beginning to the end of the sentence.
        self._pieces_from = [
            list(accumulate(map(len, reversed(sentence_words)), initial=0))[::-1] for sentence_words in words
        ]
        id_of = {bracket: token_id for token_id, bracket in brackets.items()}
        # The closing bracket of each opening bracket.
        self._closing = {id_of[bracket]: id_of[f"){bracket[1:]}"] for bracket in sorted(id_of) if bracket[0] == "("}
        # The states after the prefixes of this step and of the previous step. The states of all steps would take memory
        # that grows with the square of the length.
        self._states: dict[tuple[int, tuple[int, ...]], _State] = {}
        self._length = 0  # the length of the prefixes of this step

    def __call__(self, row: int, prefix: torch.LongTensor) -> list[int]:
        """Return the tokens that may follow a prefix.

        Args:
            row: the number of the sentence in the batch.
            prefix: (T,) the tokens so far. The first one is the start token.
        """
        ids = tuple(prefix.tolist())
        if len(ids) > self._length:
            self._length = len(ids)
            self._states = {key: state for key, state in self._states.items() if len(key[1]) == len(ids) - 1}
        state = self._state_after(row, ids)
        if state.is_over:
            return [self._end_id]
        words = self._words[row]
        if state.num_words and state.num_pieces < len(words[state.num_words - 1]):
            return [words[state.num_words - 1][state.num_pieces]]
        if state.num_words == len(words):
            return [self._end_id if state.innermost is None else state.innermost[0]]
        allowed = []
        if state.innermost is not None:
            allowed.append(words[state.num_words][0])
            if state.depth > 1 and not state.num_opened:
                allowed.append(state.innermost[0])
        # The remaining words, the closing brackets and </s> are still to come. A new bracket takes two more tokens.
        needed = self._pieces_from[row][state.num_words] + state.depth + 1
        has_room = len(ids) - 1 + needed + 2 <= self._limits[row]
        if state.innermost is None or (has_room and state.num_opened < MOST_OPENED):
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
        words = self._words[row]
        num_pieces = len(words[state.num_words - 1]) if state.num_words else 0
        if state.num_pieces < num_pieces:
            return state._replace(num_pieces=state.num_pieces + 1)
        if token_id in self._closing:
            innermost = (self._closing[token_id], state.innermost)
            return state._replace(innermost=innermost, depth=state.depth + 1, num_opened=state.num_opened + 1)
        if state.innermost is not None and token_id == state.innermost[0]:
            return state._replace(innermost=state.innermost[1], depth=state.depth - 1, num_opened=0)
        if state.num_words < len(words) and token_id == words[state.num_words][0]:
            return state._replace(num_words=state.num_words + 1, num_pieces=1, num_opened=0)
        # The token is </s>, or it is a forbidden token in a beam of probability 0.
        return state._replace(is_over=True)
