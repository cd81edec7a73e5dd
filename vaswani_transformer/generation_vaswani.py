"""Beam search as in section 6.1 of the paper, behind transformers' `generate()`.

A finished hypothesis Y of source X scores (Wu et al. 2016, equation 14)

    s(Y, X) = log P(Y | X) / lp(Y)        lp(Y) = ((5 + |Y|) / 6)^alpha

with |Y| its tokens, </s> included. A sentence may grow to its own source length + 50 tokens, whoever shares its
batch, and its search ends as soon as no open hypothesis can still win.

Shapes: B sentences, L sentences still open, b beams, V vocab_size, T tokens so far.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import (
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .configuration_vaswani import VaswaniConfig
from .decoding_vaswani import SHARED_ENCODING_KERNELS, BeamSteps, ForwardSteps

Length = int | torch.Tensor

# Processors that look at one row alone, so that rows may leave the batch under them.
ROW_WISE_PROCESSORS = (
    ForcedBOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
NUM_COLUMNS = 256  # of `top_entries`


def gnmt_length_penalty(length: Length, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / 6)^alpha      (Wu et al. 2016, equation 14)"""
    return ((5 + length) / 6) ** alpha


def power_length_penalty(length: Length, alpha: float) -> float | torch.Tensor:
    """|Y|^alpha, the penalty of transformers' own beam search."""
    return length**alpha


LENGTH_PENALTIES: dict[str, Callable[[Length, float], float | torch.Tensor]] = {
    "gnmt": gnmt_length_penalty,
    "power": power_length_penalty,
}


def build_generation_config(config: VaswaniConfig) -> GenerationConfig:
    """Decoding as in section 6.1: beam 4, alpha 0.6, source length + 50 tokens.

    Two keys are ours: `length_penalty_type` ("gnmt" or "power") and `max_length_offset` (tokens a translation may
    be longer than its source, `None` for no such limit).
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_length_offset=50,
        early_stopping="never",  # the bound of section 6.1 is exact; transformers' default is a guess
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class SourceLengthLimit(LogitsProcessor):
    """Lets only </s> follow once a sentence has reached its own limit (greedy search and sampling)."""

    def __init__(self, limits: torch.Tensor, *, prompt_length: int, eos_token_ids: list[int]):
        """limits: (B,) tokens a sentence may get, </s> included."""
        self.limits = limits
        self.prompt_length = prompt_length
        self.eos_token_ids = eos_token_ids

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        limits = self.limits.repeat_interleave(input_ids.shape[0] // self.limits.shape[0])
        at_limit = limits.to(scores.device) <= input_ids.shape[1] - self.prompt_length + 1
        return _only_end(scores, at_limit, self.eos_token_ids)


def _only_end(scores: torch.Tensor, at_limit: torch.Tensor, eos_token_ids: list[int]) -> torch.Tensor:
    """`scores` (rows, V) with -inf at all but </s> in rows at their limit, unless </s> itself is forbidden."""
    if not eos_token_ids or not at_limit.any():
        return scores
    ending = torch.full_like(scores, -torch.inf)
    ending[:, eos_token_ids] = scores[:, eos_token_ids]
    must_end = at_limit & ending.isfinite().any(dim=-1)
    return torch.where(must_end[:, None], ending, scores)


class BeamSearch:
    """The hypotheses of a batch: running beams of the sentences still open, finished ones of all.

    Args:
        prompt: (B * b, P) decoder tokens to start from, equal within a sentence.
        num_beams: b.
        num_kept: finished hypotheses to keep for each sentence.
        limits: (B,) new tokens a sentence may get, </s> included.
        length_penalty: |Y| -> lp(Y).
        early_stopping: "never" ends a sentence when no open hypothesis can beat the worst kept one at any length
            up to the limit; False judges by the present length (a guess); True ends it with `num_kept` finished.
        eos_token_ids: tokens that finish a hypothesis.
        pad_token_id: fills short rows of the result.
        do_sample: draw continuations instead of taking the best.
    """

    def __init__(
        self,
        prompt: torch.LongTensor,
        *,
        num_beams: int,
        num_kept: int,
        limits: torch.Tensor,
        length_penalty: Callable[[Length], float | torch.Tensor],
        early_stopping: bool | str,
        eos_token_ids: list[int],
        pad_token_id: int,
        do_sample: bool = False,
    ):
        device = prompt.device
        num_sentences = prompt.shape[0] // num_beams
        self.num_beams = num_beams
        self.limits = limits
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.eos_token_ids = eos_token_ids
        self.end_tokens = torch.tensor(eos_token_ids, dtype=torch.long, device=device)
        self.pad_token_id = pad_token_id
        self.do_sample = do_sample
        self.prompt_length = prompt.shape[1]

        self.open = torch.arange(num_sentences, device=device)  # (L,) their places in the batch
        self.done = torch.zeros(num_sentences, dtype=torch.bool, device=device)  # (L,) done but still here
        # (2, L, b, T): tokens, and the row of B * b that each grew from, -1 in the prompt
        self.history = torch.stack((prompt, torch.full_like(prompt, -1))).unflatten(1, (num_sentences, num_beams))
        # All beams start equal: only the first may grow, or the b best continuations would be b times the same.
        self.scores = torch.full((num_sentences, num_beams), -torch.inf, device=device)
        self.scores[:, 0] = 0.0

        room = int(limits.max()) if num_sentences else 0
        self.kept_scores = torch.full((num_sentences, num_kept), -torch.inf, device=device)
        kept = self.history[:, :, :1].expand(-1, -1, num_kept, -1)
        self.kept_history = nn.functional.pad(kept, (0, room), value=-1)  # (2, B, num_kept, P + room)
        self._prepare_checks()

    def _prepare_checks(self) -> None:
        """What the checks of each step read, of the sentences that are open."""
        self.num_done = int(self.done.sum())
        self.worst = self.kept_scores[self.open, -1]
        self.limit_penalties = self.length_penalty(self.limits)
        self.next_limit = int(self.limits.min()) if len(self.limits) else 0

    @property
    def flat_tokens(self) -> torch.LongTensor:
        """(L * b, T) as the model reads them."""
        return self.history[0].flatten(0, 1)

    @property
    def length(self) -> int:
        """New tokens so far."""
        return self.history.shape[-1] - self.prompt_length

    def advance(self, log_probs: torch.Tensor, stops: Callable[[torch.LongTensor], torch.Tensor] | None):
        """Grow every running beam by one token.

        Args:
            log_probs: (L * b, V) of the next token.
            stops: further criteria, (rows, T) tokens -> (rows,) True where the hypothesis is finished.

        Returns:
            (L, b) the beam each new one grew from.
        """
        length, at_limit = self.length + 1, None
        if length >= self.next_limit:
            at_limit = (self.limits <= length) & ~self.done
            log_probs = _only_end(log_probs, at_limit.repeat_interleave(self.num_beams), self.eos_token_ids)
        scores, beams, words = self._best_continuations(log_probs)  # (L, candidates) each
        finished = (words[..., None] == self.end_tokens).any(dim=-1)
        if at_limit is not None:
            finished = finished | at_limit[:, None]
        if stops is not None:
            tokens = self._grow(beams, words)[0]
            finished = finished | stops(tokens.flatten(0, 1)).unflatten(0, finished.shape)
        if self.num_done:
            finished = finished & ~self.done[:, None]
        if finished.any():
            self._keep(scores, self._grow(beams, words), finished, length)
            scores = scores.masked_fill(finished, -torch.inf)
        self.scores, order = scores.topk(self.num_beams)
        beams, words = beams.gather(1, order), words.gather(1, order)
        self.history = self._grow(beams, words)
        self.done = self.done | self._is_decided(length)
        if at_limit is not None:
            self.done = self.done | at_limit
        self.num_done = int(self.done.sum())
        return beams

    def leave(self, staying: torch.Tensor) -> None:
        """Go on with the open sentences of index `staying` only."""
        self.open, self.limits, self.scores = self.open[staying], self.limits[staying], self.scores[staying]
        self.history, self.done = self.history[:, staying], self.done[staying]
        self._prepare_checks()

    def best(self, count: int) -> tuple[torch.LongTensor, torch.Tensor, torch.LongTensor]:
        """The `count` best hypotheses of each sentence, best first, cropped to the longest of them.

        Returns:
            tokens (B * count, T), scores log P / lp (B * count,), and the rows (of B * b) that each new token
            grew from (B * count, T - P), -1 behind the end. A sentence with fewer hypotheses gets empty ones of
            score -inf.
        """
        scores = self.kept_scores[:, :count].flatten()
        tokens, parents = self.kept_history[:, :, :count].flatten(1, 2)
        parents = parents[:, self.prompt_length :].masked_fill((scores == -torch.inf)[:, None], -1)
        longest = int((parents >= 0).sum(dim=-1).max()) if parents.numel() else 0
        parents = parents[:, :longest]
        new = tokens[:, self.prompt_length :][:, :longest].masked_fill(parents < 0, self.pad_token_id)
        return torch.cat([tokens[:, : self.prompt_length], new], dim=-1), scores, parents

    def _best_continuations(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores, beams and words, each (L, candidates), of log_probs (L * b, V)."""
        vocab_size = log_probs.shape[-1]
        # As many as could finish and still leave b to go on with.
        count = min(max(2, 1 + len(self.eos_token_ids)) * self.num_beams, self.num_beams * vocab_size)
        if not self.do_sample:
            # The best of a sentence are among the best of each of its beams.
            best, words = top_entries(log_probs, min(count, vocab_size))
            totals = (self.scores.view(-1, 1) + best).view(len(self.open), -1)
            scores, choice = totals.topk(count)
            return scores, choice // best.shape[-1], words.view(totals.shape).gather(1, choice)
        totals = (self.scores[:, :, None] + log_probs.unflatten(0, self.scores.shape)).flatten(1)  # (L, b * V)
        # Hopeless continuations stay drawable: at a sentence's limit there may be fewer than `count` others.
        # A sentence that is done but still here has no open hypothesis, and its softmax no value.
        probs = totals.softmax(dim=-1).nan_to_num().clamp(min=torch.finfo(totals.dtype).tiny)
        choice = torch.multinomial(probs, count)
        scores, order = totals.gather(1, choice).sort(descending=True)
        choice = choice.gather(1, order)
        return scores, choice // vocab_size, choice % vocab_size

    def _grow(self, beams: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The histories of `beams` (L, n) with a word more each, (2, L, n, T + 1)."""
        rows = beams + self.open[:, None] * self.num_beams
        return torch.cat([_pick(self.history, beams), torch.stack((words, rows))[..., None]], dim=-1)

    def _keep(self, scores: torch.Tensor, history: torch.Tensor, finished: torch.Tensor, length: int) -> None:
        """Merge newly finished hypotheses among the b best into the kept ones."""
        # A candidate past the b best is there to go on with; it may not finish (as in transformers).
        finished = finished & (torch.arange(scores.shape[1], device=scores.device) < self.num_beams)
        penalised = (scores / self.length_penalty(length)).masked_fill(~finished, -torch.inf)
        num_kept = self.kept_scores.shape[1]
        best, order = torch.cat([self.kept_scores[self.open], penalised], dim=1).topk(num_kept)
        kept = self.kept_history[:, self.open]
        history = nn.functional.pad(history, (0, kept.shape[-1] - history.shape[-1]), value=-1)
        self.kept_scores[self.open] = best
        self.kept_history[:, self.open] = _pick(torch.cat([kept, history], dim=2), order)
        self.worst = best[:, -1]

    def _is_decided(self, length: int) -> torch.Tensor:
        """(L,) True where no running beam can beat the worst kept hypothesis."""
        if self.early_stopping is True:
            return self.worst > -torch.inf
        best_open = self.scores[:, 0]
        bound = best_open / self.length_penalty(length)
        if self.early_stopping == "never":
            # log P only falls. Where the penalty grows with the length, the limit flatters an open hypothesis most.
            bound = torch.maximum(bound, best_open / self.limit_penalties)
        return bound <= self.worst


def top_entries(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows.topk(count)` of (n, V); many rows on a CPU take half the time.

    A row is folded into columns. The `count` columns of the greatest maxima hold its `count` greatest entries, and
    maxima are cheap, while PyTorch's `topk` partially sorts all of V. Which of equal entries come first, or come at
    all, is as undefined as there.
    """
    depth = rows.shape[-1] // NUM_COLUMNS
    if rows.device.type != "cpu" or rows.numel() < 100_000 or depth < 8 or count > NUM_COLUMNS // 8:
        return rows.topk(count)
    folded = rows[:, : depth * NUM_COLUMNS].unflatten(1, (depth, NUM_COLUMNS))
    columns = folded.amax(dim=1).topk(count, sorted=False).indices  # (n, count)
    kept = folded.gather(2, columns[:, None].expand(-1, depth, -1)).flatten(1)
    values, places = torch.cat([kept, rows[:, depth * NUM_COLUMNS :]], dim=1).topk(count)
    inside = places // count * NUM_COLUMNS + columns.gather(1, places % count)
    behind = places - kept.shape[1]
    return values, torch.where(behind < 0, inside, depth * NUM_COLUMNS + behind)


def _pick(history: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows `index` (L, n) of `history` (2, L, b, T) -> (2, L, n, T)."""
    return history.gather(2, index[..., None].expand(2, -1, -1, history.shape[-1]))


class VaswaniGenerationMixin(GenerationMixin):
    """`generate()` with the paper's beam search. Greedy search and sampling stay transformers'."""

    @torch.no_grad()
    def generate(self, inputs: torch.Tensor | None = None, generation_config=None, **kwargs):
        """As `transformers.GenerationMixin.generate`, with two generation options more.

        `length_penalty` means the formula of `length_penalty_type` ("gnmt" by default), and a sentence gets at
        most its source length + `max_length_offset` new tokens, besides `max_length` or `max_new_tokens`. A
        missing `attention_mask` is derived from the padding. A beam search returns `past_key_values` only where it
        calls `forward` at each step (see `decoding_vaswani`).

        Raises:
            ValueError: for an unknown `length_penalty_type`, and for what transformers itself refuses.
        """
        if kwargs.get("attention_mask") is None:
            source_ids = inputs if inputs is not None else kwargs.get("input_ids")
            if source_ids is not None and self.config.pad_token_id is not None:
                kwargs["attention_mask"] = (source_ids != self.config.pad_token_id).long()
        configs = [config for config in (generation_config, self.generation_config) if config is not None]

        def option(name: str):
            values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
            return next((value for value in values if value is not None), None)

        offset = kwargs["max_length_offset"] if "max_length_offset" in kwargs else option("max_length_offset")
        limits = _source_limits(kwargs, offset)
        if limits is not None:
            if option("max_length") is None and option("max_new_tokens") is None:
                kwargs["max_new_tokens"] = int(limits.max())
            if option("num_beams") in (None, 1):
                start, end = option("decoder_start_token_id"), option("eos_token_id")
                kwargs["logits_processor"] = self._limit_sources(kwargs, limits, start, end)
        return super().generate(inputs, generation_config, **kwargs)

    def _limit_sources(self, kwargs: dict, limits: torch.Tensor, start_token_id, eos_token_id) -> LogitsProcessorList:
        prompt = kwargs.get("decoder_input_ids")
        prompt_length = 1
        if prompt is not None:  # transformers puts the start token in front where no row has it
            start = torch.as_tensor(start_token_id, device=prompt.device)
            prompt_length = prompt.shape[1] + int((prompt[:, 0] != start).all())
        limit = SourceLengthLimit(limits, prompt_length=prompt_length, eos_token_ids=_as_list(eos_token_id))
        return LogitsProcessorList([*(kwargs.get("logits_processor") or []), limit])

    def adjust_generation_fn(self, *args, **kwargs):
        """Called at the end of loading: without a `generation_config.json` the search is that of section 6.1."""
        super().adjust_generation_fn(*args, **kwargs)
        if getattr(self.generation_config, "_from_model_config", None):
            self.generation_config = build_generation_config(self.config)

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=True, input_ids=None, **model_kwargs):
        """Repeat the decoder's rows for the beams; all beams of a sentence read one copy of its encoding."""
        if self.config._attn_implementation not in SHARED_ENCODING_KERNELS:
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        shared = {name: model_kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        model_kwargs.update({name: value for name, value in shared.items() if value is not None})
        return input_ids, model_kwargs

    def _beam_search(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
        """The search of section 6.1; called by `generate` with everything prepared."""
        records = _Records(generation_config)
        criteria = _further_criteria(stopping_criteria)
        # Rows may leave the batch unless somebody counts on their places.
        may_leave = not (synced_gpus or records.wanted or criteria) and all(
            isinstance(processor, ROW_WISE_PROCESSORS) for processor in logits_processor
        )
        search = self._start_search(input_ids, generation_config, model_kwargs)
        kind = ForwardSteps
        if not (synced_gpus or records.wants_states) and BeamSteps.suit(self, generation_config, model_kwargs):
            kind = BeamSteps
        steps = kind(self, generation_config, model_kwargs)
        all_done = False
        while self._has_unfinished_sequences(all_done, synced_gpus, device=input_ids.device):
            logits = steps(search.flat_tokens)
            if all_done:  # the other processes of a sharded model still need this one's forward passes
                continue
            logits = logits.float()
            log_probs = logits_processor(search.flat_tokens, logits.log_softmax(dim=-1))
            records.add(steps.outputs, logits, log_probs)
            stops = None if not criteria else (lambda tokens, scores=records.scores: criteria(tokens, scores))
            beams = search.advance(log_probs, stops)
            all_done, staying = search.num_done == len(search.done), None
            if may_leave and search.num_done and not all_done:
                staying = (~search.done).nonzero()[:, 0]
                search.leave(staying)
            if not all_done or synced_gpus:
                steps.follow(beams, staying)
        return records.result(search, generation_config, steps)

    def _start_search(
        self, input_ids: torch.LongTensor, generation_config: GenerationConfig, model_kwargs: dict
    ) -> BeamSearch:
        kind = getattr(generation_config, "length_penalty_type", "gnmt")
        if kind not in LENGTH_PENALTIES:
            raise ValueError(f"length_penalty_type must be one of {tuple(LENGTH_PENALTIES)}, got {kind!r}.")
        alpha, num_beams = generation_config.length_penalty, generation_config.num_beams
        num_sentences = input_ids.shape[0] // num_beams
        limits = torch.full(
            (num_sentences,), generation_config.max_length - input_ids.shape[1], device=input_ids.device
        )
        offset = getattr(generation_config, "max_length_offset", None)
        own_limits = _source_limits(model_kwargs, offset)
        if own_limits is not None:
            own_limits = own_limits[:: own_limits.shape[0] // num_sentences].to(limits.device)
            limits = torch.minimum(limits, own_limits)
        exact = generation_config.early_stopping == "never"
        return BeamSearch(
            input_ids,
            num_beams=num_beams,
            # Under the exact bound, hypotheses that are not asked for cannot change those that are.
            num_kept=generation_config.num_return_sequences if exact else num_beams,
            limits=limits,
            length_penalty=lambda length: LENGTH_PENALTIES[kind](length, alpha),
            early_stopping=generation_config.early_stopping,
            eos_token_ids=_as_list(generation_config.eos_token_id),
            pad_token_id=-1 if generation_config.pad_token_id is None else generation_config.pad_token_id,
            do_sample=generation_config.do_sample,
        )


class _Records:
    """What `return_dict_in_generate` asks to be kept of each step."""

    NAMES = ("scores", "logits", "decoder_attentions", "cross_attentions", "decoder_hidden_states")

    def __init__(self, config: GenerationConfig):
        flags = (
            config.output_scores,
            config.output_logits,
            config.output_attentions,
            config.output_attentions,
            config.output_hidden_states,
        )
        self.as_dict = bool(config.return_dict_in_generate)
        self.wanted = {name for name, flag in zip(self.NAMES, flags, strict=True) if flag and self.as_dict}
        self.steps: dict[str, tuple] = dict.fromkeys(self.wanted, ())

    @property
    def wants_states(self) -> bool:
        """Whether something from inside the decoder is asked for."""
        return not self.wanted <= {"scores", "logits"}

    @property
    def scores(self) -> tuple | None:
        return self.steps.get("scores")

    def add(self, outputs, logits: torch.Tensor, log_probs: torch.Tensor) -> None:
        for name in self.wanted:
            own = {"scores": log_probs, "logits": logits}
            self.steps[name] += (own[name] if name in own else getattr(outputs, name),)

    def result(self, search: BeamSearch, config: GenerationConfig, steps: BeamSteps | ForwardSteps):
        tokens, scores, parents = search.best(config.num_return_sequences)
        if not self.as_dict:
            return tokens
        encoder = steps.model_kwargs["encoder_outputs"]
        return GenerateBeamEncoderDecoderOutput(
            sequences=tokens,
            sequences_scores=scores if config.output_scores else None,
            beam_indices=parents,
            encoder_attentions=encoder.get("attentions") if config.output_attentions else None,
            encoder_hidden_states=encoder.get("hidden_states") if config.output_hidden_states else None,
            past_key_values=steps.cache,
            **self.steps,
        )


def _source_limits(kwargs: dict, offset: int | None) -> torch.Tensor | None:
    """(rows,) source length + `offset`, or `None` where the length or the offset is not known."""
    if offset is None:
        return None
    if kwargs.get("attention_mask") is not None:
        return kwargs["attention_mask"].long().sum(dim=-1) + offset
    states = kwargs.get("inputs_embeds")
    if states is None and kwargs.get("encoder_outputs") is not None:
        states = kwargs["encoder_outputs"][0]
    if states is None:
        return None
    return torch.full((states.shape[0],), states.shape[1] + offset, device=states.device)


def _further_criteria(stopping_criteria: StoppingCriteriaList) -> StoppingCriteriaList:
    """Those that the search does not see to itself."""
    own = (MaxLengthCriteria, EosTokenCriteria)
    return StoppingCriteriaList(criterion for criterion in stopping_criteria if not isinstance(criterion, own))


def _as_list(token_ids: int | list[int] | torch.Tensor | None) -> list[int]:
    if token_ids is None:
        return []
    if isinstance(token_ids, torch.Tensor):
        return token_ids.flatten().tolist()
    return list(token_ids) if isinstance(token_ids, (list, tuple)) else [token_ids]
