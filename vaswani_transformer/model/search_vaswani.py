"""Beam search as in section 6.1 of the paper: hypotheses, their scores, when a sentence is decided, and the loop.

A finished hypothesis Y of source X scores (Wu et al. 2016, equation 14)

    s(Y, X) = log P(Y | X) / lp(Y)        lp(Y) = ((5 + |Y|) / 6)^alpha

where |Y| is the number of its tokens, </s> included. Open (unfinished) hypotheses have equal lengths and compete by log
P. The limit of a sentence, by default the length of its source + 50 tokens, does not depend on other sentences of the
batch. With `early_stopping="never"` a sentence is decided, and its search ends, as soon as no open hypothesis can win.

Shapes: B sentences, L sentences still in the search (open sentences, and decided ones that `evict` has not yet
removed), b beams, V vocab_size, P tokens of the prompt, T tokens so far, the prompt included.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import LongTensor, Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .layers_vaswani import CACHE

logger = transformers.utils.logging.get_logger(__name__)

ROOM = 16  # number of tokens by which a full history is enlarged


# Functions (|Y|, alpha) -> lp(Y), where |Y| is an int or a tensor. The base of the power must not fall as |Y| grows:
# `BeamSearch` relies on this for its bound on the scores of open hypotheses. alpha is made a float, because powers of
# an integer tensor with an integer exponent overflow, and PyTorch refuses a negative integer exponent.
LENGTH_PENALTIES = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** float(alpha),  # Wu et al. 2016, equation 14
    "power": lambda length, alpha: length ** float(alpha),  # as in transformers' beam search
}


class BeamSearch:
    """The hypotheses of a batch: the running beams of open sentences, and the finished hypotheses of all sentences.

    Args:
        prompt: (B * b, P) decoder tokens to start from, equal for all beams of a sentence.
        num_beams: b.
        num_kept: the number of finished hypotheses to keep for each sentence.
        limits: (B,) how many new tokens a hypothesis may get, </s> included.
        must_end: (B,) True where a hypothesis at the limit must end with an end token; False where it is cut there and
            counts as finished.
        length_penalty: |Y| -> lp(Y).
        early_stopping: "never" ends a sentence when no open hypothesis can beat the worst kept one at any length
            up to the limit; False compares at the present length only, a heuristic; True ends it as soon as
            `num_kept` hypotheses are finished.
        eos_token_ids: tokens that finish a hypothesis.
        pad_token_id: fills short rows of the result.
        forced_token_ids: the tokens that may end a hypothesis at the limit; the one that ends it adds 0 to log P. If
            there are none, `eos_token_ids` may end it, and add their true log P.
        can_rise: True if a further token may raise log P of a hypothesis. "never" then searches up to the limit.
        do_sample: draw continuations instead of taking the best.
    """

    def __init__(
        self,
        prompt: LongTensor,
        *,
        num_beams: int,
        num_kept: int,
        limits: Tensor,
        must_end: Tensor,
        length_penalty: Callable[[int | Tensor], float | Tensor],
        early_stopping: bool | str,
        eos_token_ids: list[int],
        pad_token_id: int,
        forced_token_ids: Sequence[int] = (),
        can_rise: bool = False,
        do_sample: bool = False,
    ):
        device = prompt.device
        num_sentences, self.prompt_length = len(limits), prompt.shape[1]
        self.num_beams = num_beams
        self.limits = limits.clamp(min=1)
        self.must_end = must_end
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.end_tokens = prompt.new_tensor(eos_token_ids)
        self.is_forced = bool(forced_token_ids)
        self.can_rise = can_rise
        self.last_tokens = prompt.new_tensor(forced_token_ids or eos_token_ids)
        self.pad_token_id = pad_token_id
        self.do_sample = do_sample
        # The lengths at which some sentence has its limit, and those at which some sentence must end with an end token.
        self.limit_lengths = set(self.limits.tolist())
        self.end_lengths = set(self.limits[must_end].tolist())

        self.length = 0  # new tokens so far
        self.places = torch.arange(num_sentences, device=device)  # (L,) the indices of these sentences in the batch
        self.done = torch.zeros_like(must_end)  # (L,) decided, not yet evicted
        # (2, L, b, T and unused room): [0] the tokens; [1] the beam that each token extends, -1 in the prompt and after
        # the end.
        self.history = torch.stack((prompt, torch.full_like(prompt, -1))).unflatten(1, (num_sentences, num_beams))
        # All beams start equal, so only the first may grow. Otherwise the b best continuations would all be equal.
        self.scores = torch.full((num_sentences, num_beams), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.limit_penalties = length_penalty(self.limits)

        self.kept_scores = torch.full((num_sentences, num_kept), -torch.inf, device=device)
        self.kept_history = self.history[:, :, :1].expand(-1, -1, num_kept, -1)  # (2, L, num_kept, T and room)
        self.before_evictions: list[tuple[Tensor, ...]] = []  # places, kept scores, kept histories

    @property
    def flat_tokens(self) -> LongTensor:
        """The tokens of all running beams, (L * b, T), as the model reads them."""
        return self.history[0].flatten(0, 1)[:, : self.prompt_length + self.length]

    def restrict(self, log_probs: Tensor) -> Tensor:
        """Return `log_probs` (L * b, V) of the next token, with -inf for tokens that cannot follow.

        Where a hypothesis must end now, only `last_tokens` (the tokens that may end it) keep their log P, or get 0 if
        they are forced. All other tokens get -inf. If log P of all `last_tokens` is -inf, the row does not change. With
        several beams, the search adds up the returned values and `run_search` records them, so the recorded scores add
        up to log P of the hypothesis.
        """
        if self.length + 1 not in self.end_lengths:
            return log_probs
        must_end = ((self.limits == self.length + 1) & self.must_end).repeat_interleave(self.num_beams)
        last_scores = log_probs.index_select(1, self.last_tokens)
        if self.is_forced:
            last_scores = torch.zeros_like(last_scores)
        must_end = must_end & (last_scores > -torch.inf).any(dim=-1)
        ending = torch.full_like(log_probs, -torch.inf).index_copy_(1, self.last_tokens, last_scores)
        return torch.where(must_end[:, None], ending, log_probs)

    def advance(
        self,
        log_probs: Tensor,
        stops: Callable[[LongTensor], Tensor] | None,
    ) -> Tensor:
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
            self._keep(scores / self.length_penalty(self.length), history, finished)
            scores = scores.masked_fill(finished, -torch.inf)
        self.scores, order = scores.topk(self.num_beams)
        self.history = _pick(history, order)
        self.done = self._is_decided()
        self.scores = self.scores.masked_fill(self.done[:, None], -torch.inf)  # Decided sentences have no open beam.
        return beams.gather(1, order)

    def evict(self, staying: Tensor) -> None:
        """Continue only with the sentences at the indices `staying` (n,) among the L sentences."""
        self.before_evictions.append((self.places, self.kept_scores, self.kept_history))
        for name in ("places", "limits", "must_end", "limit_penalties", "scores", "done", "kept_scores"):
            setattr(self, name, getattr(self, name)[staying])
        self.history, self.kept_history = self.history[:, staying], self.kept_history[:, staying]

    def best(self, count: int) -> tuple[LongTensor, Tensor, LongTensor]:
        """Return the `count` best hypotheses of each sentence, best first, and crop all to the length of the longest.

        Returns:
            tokens (B * count, T); scores (B * count,); and parents (B * count, T - P): for each new token the row, from
            0 to B * b - 1, of the beam that it extends, -1 after the end. If a sentence has fewer hypotheses, the
            missing ones are empty and have the score -inf.

        Raises:
            FloatingPointError: if a score is NaN.
        """
        scores, history = self._gather_kept()
        if scores.isnan().any() or self.scores.isnan().any():
            raise FloatingPointError(
                "the model's scores are not finite numbers: the model overflows in its dtype (use bfloat16 or float32; "
                "float16 holds up to 65,504), or its weights are damaged."
            )
        scores = scores[:, :count].flatten()
        tokens, parents = history[:, :, :count].flatten(1, 2)
        parents = parents[:, self.prompt_length :].masked_fill((scores == -torch.inf)[:, None], -1)
        longest = int((parents >= 0).sum(dim=-1).max())
        parents = parents[:, :longest]
        is_behind_end = parents < 0
        new_tokens = tokens[:, self.prompt_length :][:, :longest].masked_fill(is_behind_end, self.pad_token_id)
        first_rows = torch.arange(len(history[0]), device=new_tokens.device).repeat_interleave(count) * self.num_beams
        parents = torch.where(is_behind_end, -1, parents + first_rows[:, None])
        return torch.cat([tokens[:, : self.prompt_length], new_tokens], dim=-1), scores, parents

    def _gather_kept(self) -> tuple[Tensor, Tensor]:
        """Return the kept scores (B, num_kept) and histories (2, B, num_kept, T and room) of all sentences."""
        parts = *self.before_evictions, (self.places, self.kept_scores, self.kept_history)
        num_sentences, [_, _, num_kept, length] = len(parts[0][0]), self.kept_history.shape
        scores = self.kept_scores.new_empty(num_sentences, num_kept)
        histories = self.kept_history.new_full((2, num_sentences, num_kept, length), -1)
        for places, kept_scores, kept_history in parts:
            scores[places] = kept_scores
            histories[:, places, :, : kept_history.shape[-1]] = kept_history
        return scores, histories

    def _best_continuations(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, beams and words of the best continuations by `log_probs` (L * b, V), each (L, candidates)."""
        vocab_size = log_probs.shape[-1]
        # With several beams, b candidates stay open even if each beam ends with each end token. One beam needs only its
        # best continuation, because greedy search ends at its first end token.
        count = 1 if self.num_beams == 1 else self.num_beams * min(max(2, 1 + len(self.end_tokens)), vocab_size)
        log_probs = log_probs.unflatten(0, self.scores.shape)
        if not self.do_sample:
            return self.best_sums(log_probs, count)
        totals = (self.scores[:, :, None] + log_probs).flatten(1)  # (L, b * V)
        # At the limit of a sentence, fewer than `count` continuations may have a probability above 0. So continuations
        # of probability 0 get a tiny probability, and fill up the draw. The softmax is NaN where no hypothesis is open.
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
            self.history, self.kept_history = (
                nn.functional.pad(history, (0, ROOM), value=-1) for history in (self.history, self.kept_history)
            )
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
        penalty = self.length_penalty(self.length)
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
    """

    outputs: ModelOutput | None

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `tokens` (L * b, T); the caller may overwrite them."""

    def reorder(self, beams: Tensor, staying: Tensor | None) -> None:
        """Continue from `beams` (L, b); if `staying` (n,) is given, only in the sentences at these indices."""


def run_search(
    search: BeamSearch,
    steps: Steps,
    logits: Tensor,
    *,
    processors: Callable[[LongTensor, Tensor], Tensor] | None = None,
    criteria: Callable[[LongTensor, tuple | None], Tensor] | None = None,
    records: dict[str, tuple] | None = None,
    may_evict: bool = True,
    continues: Callable[[bool], bool] = lambda all_done: not all_done,
) -> None:
    """Grow the hypotheses of `search` until every sentence is decided.

    Args:
        logits: (B * b, V) of the first token after the prompt. They are overwritten.
        processors: changes the scores: (rows, T) tokens and (rows, V) scores -> (rows, V). As in transformers, the
            scores are log P with beams and logits with a single hypothesis.
        criteria: finishes more hypotheses: tokens and recorded scores -> (rows,), True where a hypothesis is finished.
        records: a tuple under each name to record: "scores", "logits", or an output of `forward`. Each step appends its
            value.
        may_evict: True if decided sentences may leave the batch.
        continues: a function that gets True if all sentences are decided, and returns True if one more step follows.
            With `synced_gpus` it asks the other processes too.
    """
    all_done, last_limit, records = False, max(search.limit_lengths), records or {}
    while continues(all_done):
        logits = (steps(search.flat_tokens) if search.length else logits).float()
        if all_done:  # with `synced_gpus` the other processes still need the forward passes of this process
            continue
        raw_logits = logits.clone() if "logits" in records else None
        if search.num_beams == 1:
            scores = processors(search.flat_tokens, logits) if processors else logits
            log_probs = search.restrict(scores.log_softmax(dim=-1))
            if processors:  # where processors forbid all tokens, the softmax is NaN
                log_probs = log_probs.masked_fill(scores.amax(dim=-1, keepdim=True) == -torch.inf, -torch.inf)
            scores = search.restrict(scores) if "scores" in records else None
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


def agree(logits: Tensor, expected: Tensor, *, noise: float = 0.0) -> bool:
    """Return True if `logits` and `expected` are equal up to rounding, see `find_distance`.

    The tolerance is four times the largest of three errors: the rounding error of the coarser dtype, that of PyTorch's
    matrix products as configured, and the measured `noise`. It is at least 2e-5.
    """
    dtypes = {logits.dtype, expected.dtype}
    if torch.get_float32_matmul_precision() != "highest":
        dtypes.add(torch.bfloat16)
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    return find_distance(logits, expected) <= max(2e-5, 4 * rounding, 4 * noise)


def find_distance(logits: Tensor, expected: Tensor) -> float:
    """Return |logits - expected| / |expected|, or infinity if the two are not finite at the same places."""
    finite = expected.isfinite()
    if not torch.equal(logits.isfinite(), finite):
        return math.inf
    logits, expected = (x.float().masked_fill(~finite, 0.0) for x in (logits, expected))
    return float((logits - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float32).tiny))


def prepares_inputs(model) -> bool:
    """Return True if a subclass or an adapter, instead of transformers, prepares the inputs of a step."""
    prepare = getattr(model.prepare_inputs_for_generation, "__func__", None)
    return prepare is not GenerationMixin.prepare_inputs_for_generation


# For each model: the kinds of cache and attention, and True if steps with such a cache equal steps without a cache.
CACHES_THAT_WORK: WeakKeyDictionary[nn.Module, dict[tuple, bool]] = WeakKeyDictionary()


class ForwardSteps:
    """Steps that each call the model's `forward` once.

    Caches come from transformers, and another version may treat them differently. So a model's first two steps with a
    cache are compared with the same steps without one. If they differ, a warning says so, and the search goes on
    without a cache, which is right but slower.

    Args:
        model: a `VaswaniForConditionalGeneration`.
        encoding: (L, S, D), the output of the encoder.
        attention_mask: (L, S), 0 at padding of the sources; `None` where nothing is padded.
        num_beams: b.
        cache: keys and values of earlier tokens, for L * b rows. Without it each step computes all tokens again.
        forward: computes the steps after the first; by default `model`.
        model_kwargs: further arguments of `forward`, such as `decoder_attention_mask` (L * b, T).
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
        **model_kwargs,
    ):
        self.model, self.cache, self.outputs = model, cache, None
        self.forward = forward or model
        self.num_cached = 0 if cache is None else int(cache.get_seq_length())
        self.rows = {"states": encoding, "attention_mask": attention_mask}
        self.rows = {name: x.repeat_interleave(num_beams, 0) for name, x in self.rows.items() if x is not None}
        self.rows["decoder_attention_mask"] = model_kwargs.pop("decoder_attention_mask", None)
        self.model_kwargs = {"logits_to_keep": 1} | model_kwargs
        if cache is not None:
            self.kind = type(cache.self_attention_cache), model.config._attn_implementation
            works = CACHES_THAT_WORK.setdefault(model, {}).get(self.kind)
            # A cache that the caller has filled is not compared, because it may hold tokens that the search does not
            # see.
            self.is_checked = works is not None or self.num_cached > 0
            if works is False:
                self.cache, self.num_cached = None, 0

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `tokens` (L * b, T)."""
        outputs = self._run(self.model if self.outputs is None else self.forward, tokens, self.cache)
        if self.cache is not None and self.outputs is None:
            found = outputs.get(CACHE)
            if found is not None and int(found.get_seq_length()) > tokens.shape[1]:
                # The cache already holds keys of an adapter, such as prefix tuning. Steps without that cache would be
                # wrong, so there is nothing to compare with.
                self.cache, self.is_checked = found, True
        if self.cache is not None and not self.is_checked:
            self.is_checked = self.num_cached > 0
            expected = self._run(self.model, tokens, None)
            works = self._is_right(tokens, outputs.logits[:, -1], expected.logits[:, -1])
            if self.is_checked or not works:
                CACHES_THAT_WORK[self.model][self.kind] = works
            if not works:
                logger.warning(
                    f"a step with a cache of earlier tokens gives other logits than one without, in transformers "
                    f"{transformers.__version__} and torch {torch.__version__}. This model searches without a cache, "
                    f"which is right but slower."
                )
                outputs, self.cache = expected, None
        self.outputs = outputs
        self.num_cached = tokens.shape[1]
        return outputs.logits[:, -1].to(torch.float32, copy=True)  # a copy, because a hook may have kept the logits

    def _is_right(self, tokens: LongTensor, logits: Tensor, expected: Tensor) -> bool:
        """Return True if `logits` (with a cache) equal `expected` (without a cache) up to rounding."""
        if agree(logits, expected):
            return True
        # Quantised activations are rounded more coarsely. The effect of a tiny change of the source shows how coarsely.
        states = self.rows["states"]
        new_logits = self._run(self.model, tokens, None, states=states + 1e-6 * states.roll(1, dims=-1)).logits[:, -1]
        return agree(logits, expected, noise=find_distance(new_logits, expected))

    def _run(
        self,
        forward: Callable,
        tokens: LongTensor,
        cache: EncoderDecoderCache | None,
        *,
        states: Tensor | None = None,
    ) -> ModelOutput:
        """Return the output of `forward` after `tokens` (L * b, T); those in `cache` are not read again."""
        num_new = None if cache is None else tokens.shape[1] - self.num_cached
        masks = {name: x for name, x in self.rows.items() if x is not None and name != "states"}
        states = self.rows["states"] if states is None else states
        inputs = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            "use_cache": cache is not None,
            CACHE: cache,
            **masks,
            **self.model_kwargs,
        }
        if prepares_inputs(self.model):
            inputs = self.model.prepare_inputs_for_generation(
                tokens, next_sequence_length=num_new, is_first_iteration=self.outputs is None, **inputs
            )
            # For a static cache transformers makes this mask four-dimensional. The model computes positions from a
            # two-dimensional mask.
            inputs["decoder_attention_mask"] = masks.get("decoder_attention_mask")
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
        mask = self.rows["decoder_attention_mask"]
        if mask is not None:
            self.rows["decoder_attention_mask"] = nn.functional.pad(mask, (0, 1), value=1)
        if staying is None:
            return
        self.rows = {name: None if x is None else x[rows] for name, x in self.rows.items()}
        if self.cache is not None:
            self.cache.cross_attention_cache.reorder_cache(rows)
