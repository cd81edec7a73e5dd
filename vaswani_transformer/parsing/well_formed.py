"""The constraint of the search: tokens that keep the output a linearised tree over the words of the sentence."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

# Brackets that open in a row, at most; no tree of CRAFT or of the sample of the Wall Street Journal has more. Without
# this bound a model that is uncertain of the next word could open brackets up to the limit of length.
MOST_OPENED = 9


class _State(NamedTuple):
    """The state of a linearisation after some tokens.

    `innermost` is the innermost open bracket as (token that closes it, the one around it), `None` outside the root.
    """

    innermost: tuple[int, tuple | None] | None = None
    depth: int = 0
    num_words: int = 0  # begun
    num_pieces: int = 0  # of the last of them
    num_opened: int = 0  # brackets since the last word or closing bracket
    is_over: bool = False


class WellFormed:
    """`prefix_allowed_tokens_fn` of `generate` for the sentences of a batch.

    - The root opens first, and closes after the last word; only </s> follows.
    - A bracket closes with its own label, and not before it holds a word.
    - Leaves are the tokens of the words, in order, each word whole.
    - No bracket opens that the limit of length would leave open, nor after `MOST_OPENED` others in a row.

    Args:
        words: for each sentence the tokens of each word's leaf.
        brackets: "(NP", ")NP" and the like, by token id.
        end_id: of </s>.
        limits: for each sentence the tokens its output may have, </s> included.
    """

    def __init__(
        self,
        words: Sequence[Sequence[Sequence[int]]],
        *,
        brackets: Mapping[int, str],
        end_id: int,
        limits: Sequence[int],
    ):
        self._words, self._end_id, self._limits = words, end_id, limits
        # For each word, the number of tokens from its first to the end of the sentence.
        self._pieces_from = [
            list(accumulate(map(len, reversed(of_sentence)), initial=0))[::-1] for of_sentence in words
        ]
        id_of = {bracket: token_id for token_id, bracket in brackets.items()}
        # For each opening bracket the one that closes it.
        self._closing = {id_of[bracket]: id_of[f"){bracket[1:]}"] for bracket in sorted(id_of) if bracket[0] == "("}
        # Of prefixes of this step and the one before; those of all steps would need memory quadratic in the length.
        self._states: dict[tuple[int, tuple[int, ...]], _State] = {}
        self._length = 0  # of the prefixes of this step

    def __call__(self, row: int, prefix: torch.LongTensor) -> list[int]:
        """Return the tokens that may follow `prefix` (T,), which begins with the start token, in sentence `row`."""
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
        needed = self._pieces_from[row][state.num_words] + state.depth + 1
        is_short = len(ids) - 1 + needed + 2 <= self._limits[row]
        if state.innermost is None or (is_short and state.num_opened < MOST_OPENED):
            allowed += self._closing
        return allowed

    def _state_after(self, row: int, ids: tuple[int, ...]) -> _State:
        """Return the state after `ids`, one token longer than a prefix of the step before."""
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
        # The end, or any token of a beam of probability 0.
        return state._replace(is_over=True)
