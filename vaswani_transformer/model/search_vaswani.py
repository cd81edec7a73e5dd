"""Beam search as in section 6.1: hypotheses, their scores, when a sentence is decided, and the loop over the steps.

A finished hypothesis Y of a source X has the score (Wu et al. 2016, equation 14)

    s(Y, X) = log P(Y | X) / lp(Y)        lp(Y) = ((5 + |Y|) / 6)^alpha

where |Y| is the number of its tokens, </s> included. Open (unfinished) hypotheses have equal lengths and compete by
log P(Y | X), called log P below. The hypotheses of a sentence have at most as many tokens as its limit, by default the
length of the source + 50. The limit does not depend on other sentences of the batch. With `early_stopping="never"` a
sentence is decided, and its search ends, as soon as no open hypothesis can win.

Shapes: B sentences, L sentences still in the search (open sentences, and decided ones that `evict` has not yet
removed), b beams, V vocab_size, P tokens of the prompt, T tokens so far, the prompt included.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import LongTensor, Tensor, nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .configuration_vaswani import VaswaniConfig
from .layers_vaswani import CACHE

logger = transformers.utils.logging.get_logger(__name__)

ROOM = 16  # number of tokens by which a full history is enlarged
MOST_ALPHA = 10.0  # for 10,000 tokens lp(Y) is then ((5 + 10,000) / 6)^10 = 1e32, which float32 can hold
TokenIds = int | list[int] | Tensor | None


# Functions (|Y|, alpha) -> lp(Y), where |Y| is an int or a tensor. The base of the power must not fall as |Y| grows:
# `BeamSearch` relies on this for its bound on the scores of open hypotheses. alpha is made a float, because powers of
# an integer tensor with an integer exponent overflow, and PyTorch refuses a negative integer exponent.
LENGTH_PENALTIES = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** float(alpha),  # Wu et al. 2016, equation 14
    "power": lambda length, alpha: length ** float(alpha),  # as in transformers' beam search
}


@dataclass(frozen=True)
class SearchOptions:
    """The options of one search, with the defaults filled in.

    Args:
        num_beams: b, the number of hypotheses that compete; 1 is greedy search.
        num_return_sequences: the number of hypotheses to return for each sentence.
        length_penalty: alpha, the exponent of the length penalty lp(Y).
        length_penalty_type: the formula of lp(Y), by its name in `LENGTH_PENALTIES`.
        max_length_offset: how many tokens longer than its source a translation may be. Both lengths include </s>. At
            this limit the translation must end with </s>. The true probability of </s> counts there, unless
            `forced_eos_token_id` is given. `None` for no such limit.
        max_new_tokens, max_length: the length at which a hypothesis is cut and counts as finished. `max_length`
            includes the prompt.
        early_stopping: "never" ends the search of a sentence when no open hypothesis can still win, which is exact.
            False and True are heuristics of transformers, see `BeamSearch`. Greedy search ends at its first </s>.
        do_sample: draw the next tokens of the beams at random.
        eos_token_id: the token or tokens that end a translation.
        pad_token_id: the token that fills the row of a translation after its end.
        forced_eos_token_id: the token that ends a hypothesis at its limit. Its probability there counts as 1.
        return_dict_in_generate: return an object with all outputs instead of the tokens alone.
        output_scores, output_logits, output_attentions, output_hidden_states: what each step records for this output
            object.

    Raises:
        ValueError: for a value out of range. The message names the option and what is expected.
    """

    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    length_penalty_type: str = "gnmt"
    max_length_offset: int | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    early_stopping: bool | str = False
    do_sample: bool = False
    eos_token_id: TokenIds = None
    pad_token_id: int | None = None
    forced_eos_token_id: TokenIds = None
    return_dict_in_generate: bool = False
    output_scores: bool = False
    output_logits: bool = False
    output_attentions: bool = False
    output_hidden_states: bool = False

    def __post_init__(self):
        if type(self.num_beams) is not int or self.num_beams < 1:
            raise ValueError(f"num_beams must be an integer >= 1 (1 is greedy search), got {self.num_beams!r}.")
        if self.num_return_sequences < 1:  # transformers itself refuses a number above num_beams
            raise ValueError(f"num_return_sequences must be at least 1, got {self.num_return_sequences}.")
        if self.length_penalty_type not in LENGTH_PENALTIES:
            raise ValueError(
                f"length_penalty_type must be one of {tuple(LENGTH_PENALTIES)}, got {self.length_penalty_type!r}."
            )
        if not abs(self.length_penalty) <= MOST_ALPHA:
            raise ValueError(f"length_penalty must be from -{MOST_ALPHA} to {MOST_ALPHA}, got {self.length_penalty}.")

    @classmethod
    def resolve(cls, config: GenerationConfig, **given) -> "SearchOptions":
        """Return the options `given`; where an option is missing or `None`, take its value from `config`."""
        names = {field.name for field in fields(cls)}
        options = vars(config) | {name: value for name, value in given.items() if value is not None}
        return cls(**{name: value for name, value in options.items() if name in names and value is not None})

    def penalise(self, length: int | Tensor) -> float | Tensor:
        """Return lp(Y) for a hypothesis of `length` tokens."""
        return LENGTH_PENALTIES[self.length_penalty_type](length, self.length_penalty)

    def find_limits(
        self, source_lengths: LongTensor, *, prompt_length: int, config: VaswaniConfig
    ) -> tuple[LongTensor, Tensor]:
        """Return the limit of each sentence in new tokens, (B,), and True where the token at the limit must be </s>.

        Args:
            source_lengths: (B,) tokens of each source, </s> included.
            config: the config of the model. If its positions are learned, their number limits the length, too.

        Raises:
            ValueError: if the prompt has `max_length` tokens or more.
        """
        max_tokens = self.max_new_tokens
        if max_tokens is None and self.max_length:  # 0 means no limit, see `VaswaniGenerationConfig`
            max_tokens = self.max_length - prompt_length
        if max_tokens is None and self.max_length_offset is None:
            max_tokens = GenerationConfig._get_default_generation_params()["max_length"]
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(
                f"max_length={self.max_length} must be larger than the prompt, which has {prompt_length} tokens."
            )
        must_end = torch.full_like(source_lengths, self.forced_eos_token_id is not None, dtype=torch.bool)
        most = None
        if config.position_embedding_type == "learned":  # the last token is not read, so it needs no position
            most = config.max_position_embeddings - prompt_length + 1
        if self.max_length_offset is None:
            return torch.full_like(source_lengths, max_tokens).clamp(min=1, max=most), must_end
        by_source = (source_lengths + self.max_length_offset).clamp(min=1, max=most)
        limits = by_source.clamp(min=1, max=max_tokens)
        return limits, must_end | (by_source <= limits)

    def find_flags(self) -> dict[str, bool]:
        """Return the arguments that make `forward` return the attention weights or hidden states that are asked for."""
        names = ("output_attentions", "output_hidden_states")
        return {name: True for name in names if getattr(self, name) and self.return_dict_in_generate}

    def start_records(self) -> dict[str, tuple]:
        """Return an empty tuple under the name of each output that the steps are to record."""
        flags = {
            "scores": self.output_scores,
            "logits": self.output_logits,
            "decoder_attentions": self.output_attentions,
            "cross_attentions": self.output_attentions,
            "decoder_hidden_states": self.output_hidden_states,
        }
        return {name: () for name, flag in flags.items() if flag and self.return_dict_in_generate}


def as_list(token_ids: TokenIds) -> list[int]:
    """Return `token_ids` (one id, several ids or `None`) as a list."""
    return [] if token_ids is None else torch.as_tensor(token_ids).flatten().tolist()


class BeamSearch:
    """The hypotheses of a batch: the running beams of open sentences, and the finished hypotheses of all sentences.

    With `early_stopping="never"` a sentence ends when no open hypothesis can beat the worst kept one at any length up
    to the limit. False compares at the present length only, a heuristic. True ends a sentence as soon as `num_beams`
    hypotheses are finished. Greedy search (one beam) always ends at its first finished hypothesis.

    Args:
        prompt: (B, P) decoder tokens to start from.
        options: the options of the search.
        limits: (B,) how many new tokens a hypothesis may get, </s> included; at least 1.
        must_end: (B,) True where a hypothesis at the limit must end with an end token; False where it is cut there and
            counts as finished. A forced end token adds 0 to log P. If no end token is forced, any end token
            may end the hypothesis, and adds its true log P.
        can_rise: True if a logits processor may give a token a log P above 0. With "never" the search of a sentence
            then goes on up to its limit.
    """

    def __init__(
        self, prompt: LongTensor, options: SearchOptions, *, limits: Tensor, must_end: Tensor, can_rise: bool = False
    ):
        num_sentences, self.prompt_length = prompt.shape
        self.options = options
        self.num_beams = options.num_beams
        self.limits = limits
        self.must_end = must_end
        self.can_rise = can_rise
        self.early_stopping = options.early_stopping if self.num_beams > 1 else True
        self.end_tokens = prompt.new_tensor(as_list(options.eos_token_id))
        forced_tokens = as_list(options.forced_eos_token_id)
        self.last_tokens = prompt.new_tensor(forced_tokens) if forced_tokens else self.end_tokens
        # The lengths at which some sentence has its limit, and those at which some sentence must end with an end token.
        self.limit_lengths = set(limits.tolist())
        self.end_lengths = set(limits[must_end].tolist())

        self.length = 0  # new tokens so far
        self.places = torch.arange(num_sentences, device=prompt.device)  # (L,) places of the L sentences in the batch
        self.done = torch.zeros_like(must_end)  # (L,) True if decided but not yet evicted
        # (2, L, b, T and unused room): [0] the tokens; [1] the beam that each token extends, -1 in the prompt and after
        # the end.
        history = torch.stack((prompt, torch.full_like(prompt, -1)))[:, :, None]
        self.history = history.expand(-1, -1, self.num_beams, -1)
        # All beams start equal, so only the first may grow. Otherwise the b best continuations would all be equal.
        float_limits = limits.float()  # Scores are in float32, whatever the default dtype is.
        self.limit_penalties = options.penalise(float_limits)
        self.scores = float_limits.new_full((num_sentences, self.num_beams), -torch.inf)
        self.scores[:, 0] = 0.0

        # With the exact bound, only the hypotheses to return are kept: worse ones do not affect when a search ends.
        num_kept = options.num_return_sequences if options.early_stopping == "never" else self.num_beams
        self.kept_scores = float_limits.new_full((num_sentences, num_kept), -torch.inf)
        self.kept_history = history.expand(-1, -1, num_kept, -1)  # (2, L, num_kept, T and room)
        # Kept scores and histories of all B sentences. Those of the L sentences are copied here when sentences leave
        # the search, and at the end.
        self.best_scores = self.kept_scores.clone()
        self.best_history = self.kept_history

    @property
    def flat_tokens(self) -> LongTensor:
        """The tokens of all running beams, (L * b, T), as the model reads them."""
        return self.history[0].flatten(0, 1)[:, : self.prompt_length + self.length]

    def restrict(self, log_probs: Tensor) -> Tensor:
        """Return `log_probs` (L * b, V) of the next token, with -inf for tokens that cannot follow.

        Where a hypothesis must end now, only `last_tokens` (the tokens that may end it) keep their log P, or get 0 if
        they are forced. All other tokens get -inf. If log P of all `last_tokens` is -inf, the row does not change.

        With several beams, `run_search` records the returned values as the scores of the step. Along a hypothesis they
        add up to its log P, in which a forced end token counts 0.
        """
        if self.length + 1 not in self.end_lengths:
            return log_probs
        must_end = ((self.limits == self.length + 1) & self.must_end).repeat_interleave(self.num_beams)
        last_scores = log_probs.index_select(1, self.last_tokens)
        if self.options.forced_eos_token_id is not None:
            last_scores = torch.zeros_like(last_scores)
        must_end = must_end & (last_scores > -torch.inf).any(dim=-1)
        ending = torch.full_like(log_probs, -torch.inf).index_copy_(1, self.last_tokens, last_scores)
        return torch.where(must_end[:, None], ending, log_probs)

    def advance(self, log_probs: Tensor, stops: Callable[[LongTensor], Tensor] | None) -> Tensor:
        """Extend every running beam by one token.

        Args:
            log_probs: (L * b, V) of the next token, from `restrict`.
            stops: a further criterion, (rows, T) tokens -> (rows,) True where the hypothesis is finished.

        Returns:
            (L, b), the beam that each new beam extends.
        """
        scores, beams, words = self._best_continuations(log_probs)  # (L, candidates) each
        history = self._grow(beams, words)
        self.length += 1
        finished = (words[..., None] == self.end_tokens).any(dim=-1)
        if self.length in self.limit_lengths:
            finished = finished | (self.limits == self.length)[:, None]
        if stops is not None:
            tokens = history[0, :, :, : self.prompt_length + self.length]
            finished = finished | stops(tokens.flatten(0, 1)).unflatten(0, finished.shape)
        if (finished & (scores != -torch.inf)).any():
            self._keep(scores / self.options.penalise(self.length), history, finished)
            scores = scores.masked_fill(finished, -torch.inf)
        self.scores, order = scores.topk(self.num_beams)
        self.history = _pick(history, order)
        self.done = self._is_decided()
        self.scores = self.scores.masked_fill(self.done[:, None], -torch.inf)  # Decided sentences have no open beam.
        return beams.gather(1, order)

    def evict(self, staying: Tensor) -> None:
        """Continue only with the sentences at the indices `staying` (n,) among the L sentences."""
        self._store()
        for name in ("places", "limits", "must_end", "limit_penalties", "scores", "done", "kept_scores"):
            setattr(self, name, getattr(self, name)[staying])
        self.history, self.kept_history = self.history[:, staying], self.kept_history[:, staying]

    def _store(self) -> None:
        """Copy the kept hypotheses of the L sentences to the places of these sentences in the batch."""
        self.best_scores[self.places] = self.kept_scores
        self.best_history[:, self.places] = self.kept_history

    def best(self) -> tuple[LongTensor, Tensor, LongTensor]:
        """Return the best hypotheses of each sentence, best first, and crop all to the length of the longest.

        Returns:
            tokens (B * n, T), where n is `num_return_sequences`; scores (B * n,); and parents (B * n, T - P): for each
            new token the row, from 0 to B * b - 1, of the beam that it extends, -1 after the end. If a sentence has
            fewer than n hypotheses, the missing ones are empty and have the score -inf.

        Raises:
            FloatingPointError: if a score is NaN.
        """
        self._store()
        if self.best_scores.isnan().any() or self.scores.isnan().any():
            raise FloatingPointError(
                "the model's scores are not finite numbers: the model overflows in its dtype (use bfloat16 or float32; "
                "float16 holds up to 65,504), or its weights are damaged."
            )
        count = self.options.num_return_sequences
        scores = self.best_scores[:, :count].flatten()
        tokens, parents = self.best_history[:, :, :count].flatten(1, 2)
        parents = parents[:, self.prompt_length :].masked_fill((scores == -torch.inf)[:, None], -1)
        longest = int((parents >= 0).sum(dim=-1).max())
        parents = parents[:, :longest]
        tokens = tokens[:, : self.prompt_length + longest].clone()
        is_behind_end = parents < 0
        pad = -1 if self.options.pad_token_id is None else self.options.pad_token_id
        tokens[:, self.prompt_length :][is_behind_end] = pad
        first_rows = torch.arange(0, len(self.best_scores) * self.num_beams, self.num_beams, device=parents.device)
        parents = torch.where(is_behind_end, -1, parents + first_rows.repeat_interleave(count)[:, None])
        return tokens, scores, parents

    def _best_continuations(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, beams and words of the best continuations by `log_probs` (L * b, V), each (L, candidates)."""
        vocab_size = log_probs.shape[-1]
        # Each beam has only one continuation by each end token. So of b * (1 + number of end tokens) candidates, at
        # least b do not end. A single beam needs only its best continuation, because greedy search ends at its first
        # end token.
        count = 1 if self.num_beams == 1 else self.num_beams * min(max(2, 1 + len(self.end_tokens)), vocab_size)
        log_probs = log_probs.unflatten(0, self.scores.shape)
        if not self.options.do_sample:
            return self.best_sums(log_probs, count)
        totals = (self.scores[:, :, None] + log_probs).flatten(1)  # (L, b * V)
        # At the limit of a sentence there can be fewer than `count` continuations with a probability above 0. So
        # continuations of probability 0 get a tiny probability, and fill up the draw. The softmax is NaN where no
        # hypothesis is open.
        probs = totals.softmax(dim=-1).nan_to_num().clamp(min=torch.finfo(totals.dtype).tiny)
        choice = torch.multinomial(probs, count)
        scores, order = totals.gather(1, choice).sort(descending=True)
        choice = choice.gather(1, order)
        return scores, choice // vocab_size, choice % vocab_size

    def best_sums(self, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each sentence the `count` greatest sums of scores and `log_probs` (L, b, V), greatest first.

        Equal sums have no defined order.

        Returns:
            the sums, their beams and their words, each (L, count).
        """
        sums, places = (self.scores[..., None] + log_probs).flatten(1).topk(count)
        return sums, places // log_probs.shape[-1], places % log_probs.shape[-1]

    def find_staying(self, done: Sequence[bool]) -> list[int] | None:
        """Return the indices, among the L sentences, of those to continue with; `None` for all."""
        return [place for place, is_done in enumerate(done) if not is_done] if any(done) else None

    def _grow(self, beams: Tensor, words: Tensor) -> Tensor:
        """Return the histories of `beams` (L, n), each with one more word, (2, L, n, T + 1 and room)."""
        place = self.prompt_length + self.length
        if place >= self.history.shape[-1]:
            for name in ("history", "kept_history", "best_history"):
                setattr(self, name, nn.functional.pad(getattr(self, name), (0, ROOM), value=-1))
        history = _pick(self.history, beams)
        history[0, :, :, place], history[1, :, :, place] = words, beams
        return history

    def _keep(self, penalised: Tensor, history: Tensor, finished: Tensor) -> None:
        """Add hypotheses that have just finished to the kept hypotheses, and keep the best of all."""
        # As in transformers, only the b best candidates can finish. Other candidates that end are dropped.
        b = self.num_beams
        new_scores = torch.where(finished[:, :b], penalised[:, :b], -torch.inf)
        self.kept_scores, order = torch.cat([self.kept_scores, new_scores], dim=1).topk(self.kept_scores.shape[1])
        self.kept_history = _pick(torch.cat([self.kept_history, history[:, :, :b]], dim=2), order)

    def _is_decided(self) -> Tensor:
        """Return True for each sentence whose search is over by the rule of `early_stopping`, (L,)."""
        worst_kept = self.kept_scores[:, -1]
        best_open = self.scores[:, 0]
        if self.early_stopping is True:
            return (worst_kept > -torch.inf) | (best_open == -torch.inf)
        penalty = self.options.penalise(self.length)
        if self.early_stopping == "never":
            if self.can_rise:
                return best_open == -torch.inf
            # log P is at most 0 and only falls. So the best score that an open hypothesis can still reach is its
            # present log P, divided by the largest penalty up to the limit. This is the penalty at the limit, or the
            # present one if alpha is negative.
            penalty = self.limit_penalties.clamp(min=penalty)
        return best_open / penalty <= worst_kept


def _pick(history: Tensor, index: Tensor) -> Tensor:
    """Return the hypotheses `index` (L, n) of `history` (2, L, b, T), as (2, L, n, T)."""
    return history.gather(2, index[..., None].expand(2, -1, -1, history.shape[-1]))


class Steps(Protocol):
    """What a search needs of a model: the logits of the next token of each running beam.

    Attributes:
        outputs: what the last call of `forward` returned; `None` if `forward` has not been called.
        way: what computes the logits, for `find_ways`; `None` if there is nothing to check.
    """

    outputs: ModelOutput | None
    way: str | None

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `tokens` (L * b, T); the caller may overwrite them."""

    def reorder(self, beams: Tensor, staying: Tensor | None) -> None:
        """Continue from `beams` (L, b), where `beams` holds for each new beam the beam that it extends.

        If `staying` (n,) is given, continue only with the sentences at these indices.
        """


def run_search(
    search: BeamSearch,
    steps: Steps,
    logits: Tensor,
    *,
    processors: LogitsProcessorList | None = None,
    criteria: StoppingCriteriaList | None = None,
    records: dict[str, tuple] | None = None,
    may_evict: bool = True,
    continues: Callable[[bool], bool] = lambda all_done: not all_done,
    witness: "Witness | None" = None,
) -> None:
    """Grow the hypotheses of `search` until every sentence is decided.

    Args:
        logits: (B * b, V) of the first token after the prompt. They are overwritten.
        processors: change the scores: (rows, T) tokens and (rows, V) scores -> (rows, V). As in transformers, the
            scores are log P with several beams, and logits with one beam.
        criteria: finish hypotheses before an end token: tokens and recorded scores -> (rows,), True where a hypothesis
            is finished.
        records: a tuple under each name to record: "scores", "logits", or an output of `forward`. Each step appends its
            value.
        may_evict: True if decided sentences may leave the batch.
        continues: a function that gets True if all sentences are decided, and returns True if one more step follows.
            With `synced_gpus` another step follows as long as any process has undecided sentences.
        witness: keeps rows of the logits.
    """
    all_done = False
    last_limit = max(search.limit_lengths)
    records = records or {}
    while continues(all_done):
        logits = steps(search.flat_tokens) if search.length else logits
        if witness is not None:
            witness.keep(search, logits)
        logits = logits.float()
        if all_done:  # with `synced_gpus` the other processes still need the forward passes of this process
            continue
        raw_logits = logits.clone() if "logits" in records else None
        if search.num_beams == 1:
            scores = processors(search.flat_tokens, logits) if processors else logits
            log_probs = search.restrict(scores.log_softmax(dim=-1))
            if processors:  # where processors forbid all tokens, the softmax is NaN
                log_probs = log_probs.masked_fill(scores.amax(dim=-1, keepdim=True) == -torch.inf, -torch.inf)
            scores = search.restrict(scores)
        else:
            # The result overwrites the logits, because the allocation of new memory would take longer.
            log_probs = torch.log_softmax(logits, dim=-1, out=logits)
            log_probs = processors(search.flat_tokens, log_probs) if processors else log_probs
            scores = log_probs = search.restrict(log_probs)
        values = {"scores": scores, "logits": raw_logits}
        for name in records:
            records[name] += (values[name] if name in values else getattr(steps.outputs, name),)
        stops = (lambda tokens: criteria(tokens, records.get("scores"))) if criteria else None
        beams = search.advance(log_probs, stops)
        done = search.done.tolist()
        all_done = search.length == last_limit or all(done)
        staying = search.find_staying(done) if may_evict and not all_done else None
        if staying is not None:
            staying = beams.new_tensor(staying)
            search.evict(staying)
        steps.reorder(beams, staying)


def agree(logits: Tensor, expected: Tensor, noise: float = 0.0) -> bool:
    """Return True if `logits` and `expected` are equal up to rounding, see `find_distance`.

    The tolerance is four times the rounding error of the coarser dtype or `noise`, and at least 2e-5. If PyTorch may
    compute matrix products of float32 with less precision, the coarser dtype is bfloat16.
    """
    dtypes = {logits.dtype, expected.dtype}
    if torch.get_float32_matmul_precision() != "highest":
        dtypes.add(torch.bfloat16)
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    return find_distance(logits, expected) <= max(2e-5, 4 * rounding, 4 * noise)


def find_distance(logits: Tensor, expected: Tensor) -> float:
    """Return |logits - expected| / |expected|, or infinity if only one of the two is finite at some place.

    A single logit may not differ by much more than all others. If it does, an eighth of its share is the distance.
    """
    finite = expected.isfinite()
    if not torch.equal(logits.isfinite(), finite):
        return math.inf
    logits, expected = (x.float().masked_fill(~finite, 0.0) for x in (logits, expected))
    difference, size = logits - expected, expected.norm().clamp(min=torch.finfo(torch.float32).tiny)
    return float(torch.maximum(difference.norm(), difference.abs().max() * expected.numel() ** 0.5 / 8) / size)


def prepares_inputs(model) -> bool:
    """Return True if a subclass or an adapter, instead of transformers, prepares the inputs of a step."""
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    return prepare is not GenerationMixin.prepare_inputs_for_generation


def has_hooks(module: nn.Module) -> bool:
    """Return True if `module` has hooks of its calls, other than those with which transformers records outputs."""
    hooks = module._forward_pre_hooks | module._forward_hooks
    return bool(hooks) and any(
        not str(getattr(hook, "__module__", None)).startswith("transformers.") for hook in hooks.values()
    )


# For each model its state, and for each faster way of decoding the number of calls in this state, -1 if it is refuted.
WAYS: WeakKeyDictionary[nn.Module, tuple[list, dict[str, int]]] = WeakKeyDictionary()


def find_ways(model: nn.Module) -> dict[str, int]:
    """Return for each faster way in which `model` decodes (engines, caches) the number of calls, -1 if it is refuted.

    The numbers start again after a change of the config, of a module's class or mode, or of a weight's version. PyTorch
    raises the version of a weight at each change in place, but not at a change through `.data`.
    """
    state: list = [dict(vars(model.config))]
    for module in model.modules():
        state += [type(module), module.training]
        for weight in (*module._parameters.values(), *module._buffers.values()):
            state.append((id(weight), weight is None or weight.is_inference() or weight._version))
    if model not in WAYS or WAYS[model][0] != state:
        WAYS[model] = state, {}
    return WAYS[model][1]


class Witness:
    """Keeps rows of the logits of a search, and compares them with those of `forward` without a cache.

    The rows are of a step that is drawn, of the last step, and at the first check of the first step. They are drawn
    without PyTorch's random numbers, so the samples of a search stay the same.

    Args:
        number: the number of the call, 0 for the first check.
    """

    def __init__(self, number: int):
        self.number, self.random = number, random.Random(number)
        self.rows: list[tuple[Tensor, LongTensor, Tensor]] = []  # place of the sentence, tokens (1, T), logits (1, V)

    def keep(self, search: BeamSearch, logits: Tensor) -> None:
        """Keep one of the rows of `logits` (L * b, V) of a step, if this step is among the three."""
        row = self.random.randrange(len(logits))
        step = search.places[row // search.num_beams], search.flat_tokens[row : row + 1], logits[row : row + 1].clone()
        self.rows = self.rows or [step] * 3
        self.rows[2] = step
        if self.random.random() * (search.length + 1) < 1:  # so each step is drawn with the same probability
            self.rows[1] = step

    def confirms(self, compute: Callable[[Tensor, LongTensor], Tensor]) -> bool:
        """Return True if the logits are those of `forward`, up to rounding.

        Rounding may depend on the other rows of a batch, as in layers that quantise what they read, and dropout differs
        from call to call. So where the logits differ, `forward` reads the row again, beside a row of other words.

        Args:
            compute: returns the logits (n, V) of `forward` after tokens (n, T), for the sentence at a place.
        """
        for place, tokens, logits in self.rows[self.number > 0 :]:
            expected = compute(place, tokens)
            if not agree(logits, expected):
                others = (tokens + 1) % expected.shape[-1]
                noise = find_distance(compute(place, torch.cat([tokens, others]))[:1], expected)
                if not agree(logits, expected, noise):
                    return False
        return True


class ForwardSteps:
    """Steps that each call the model's `forward` once.

    Args:
        model: a `VaswaniForConditionalGeneration`.
        encoding: (L, S, D), the output of the encoder.
        attention_mask: (L, S), 0 at padding of the sources; `None` if nothing is padded.
        num_beams: b.
        cache: keys and values of earlier tokens, for L * b rows. Without it each step computes all tokens again.
        forward: computes the steps after the first; by default `model`.
        way: the kind of cache, see `Steps`.
        model_kwargs: further arguments of `forward`, such as `decoder_attention_mask` (L, P). A tensor has a row for
            each sentence.
    """

    def __init__(
        self,
        model,
        encoding: Tensor,
        attention_mask: Tensor | None,
        *,
        num_beams: int,
        cache: EncoderDecoderCache | None,
        forward: Callable | None = None,
        way: str | None = None,
        **model_kwargs,
    ):
        self.model, self.cache, self.outputs = model, cache, None
        self.way = None if cache is None else way
        self.forward = forward or model
        self.num_cached = 0 if cache is None else int(cache.get_seq_length())
        inputs = {"states": encoding, "attention_mask": attention_mask, "logits_to_keep": 1, **model_kwargs}
        self.rows = {name: x.repeat_interleave(num_beams, 0) for name, x in inputs.items() if isinstance(x, Tensor)}
        self.others = {name: x for name, x in inputs.items() if name not in self.rows}

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `tokens` (L * b, T)."""
        self.outputs = self._run(self.model if self.outputs is None else self.forward, tokens)
        self.num_cached = tokens.shape[1]
        if self.cache is not None:  # Prefix tuning brings a cache of its own.
            self.cache = self.outputs.get(CACHE) or self.cache
        return self.outputs.logits[:, -1].to(torch.float32, copy=True)  # a copy, because a hook may keep the logits

    def _run(self, forward: Callable, tokens: LongTensor) -> ModelOutput:
        """Return the output of `forward` after `tokens` (L * b, T); those in the cache are not read again."""
        num_new = None if self.cache is None else tokens.shape[1] - self.num_cached
        inputs = {**self.rows, **self.others, "use_cache": self.cache is not None, CACHE: self.cache}
        inputs["encoder_outputs"] = BaseModelOutput(inputs.pop("states"))
        if (mask := inputs.get("decoder_attention_mask")) is not None:
            mask = nn.functional.pad(mask, (0, tokens.shape[1] - mask.shape[1]), value=1)
            inputs["decoder_attention_mask"] = mask
        if prepares_inputs(self.model):
            inputs = self.model.prepare_inputs_for_generation(
                tokens, next_sequence_length=num_new, is_first_iteration=num_new in (None, tokens.shape[1]), **inputs
            )
            # Such a method usually calls that of transformers. With a static cache, that makes the mask of the decoder
            # four-dimensional, but the model computes positions from a two-dimensional mask. So the given mask takes
            # its place.
            inputs["decoder_attention_mask"] = mask
            # An adapter of peft replaces the cache by its prefix, under the old name.
            inputs[CACHE] = inputs.pop("past_key_values", inputs.get(CACHE))
        else:
            inputs["decoder_input_ids"] = tokens if num_new is None else tokens[:, -num_new:]
        return forward(**inputs, return_dict=True)

    def reorder(self, beams: Tensor, staying: Tensor | None) -> None:
        """Reorder the cache by `beams` (L, b). If `staying` (n,) is given, keep only the sentences at these indices.

        A beam never changes its sentence, so the encoding and its mask change only when sentences are evicted.
        """
        num_open, num_beams = beams.shape
        sentences = torch.arange(num_open, device=beams.device) if staying is None else staying
        rows = (sentences[:, None] * num_beams + beams[sentences]).flatten()
        if self.cache is not None:
            self.cache.self_attention_cache.reorder_cache(rows)
        if staying is None:
            return
        self.rows = {name: x[rows] for name, x in self.rows.items()}
        if self.cache is not None:
            self.cache.cross_attention_cache.reorder_cache(rows)
