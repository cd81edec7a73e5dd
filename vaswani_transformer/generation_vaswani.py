"""Beam search as in section 6.1 of the paper, behind transformers' `generate()`.

A finished hypothesis Y of source X scores (Wu et al. 2016, equation 14)

    s(Y, X) = log P(Y | X) / lp(Y) + beta cp(X, Y)        lp(Y) = ((5 + |Y|) / 6)^alpha

with |Y| its tokens, </s> included, and cp the coverage penalty of `coverage_vaswani` (the paper has beta = 0). Running
hypotheses, all of one length, compete by log P. A sentence may grow to its own source length + 50 tokens, whoever
shares its batch, and its search ends as soon as no open hypothesis can still win.

Shapes: B sentences, L sentences still open, b beams, V vocab_size or the length of a shortlist, T tokens so far.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .configuration_vaswani import VaswaniConfig
from .coverage_vaswani import BeamCoverage, check_kernel
from .decoding_vaswani import SHARED_ENCODING_KERNELS, BeamSteps, ForwardSteps
from .ensemble_vaswani import check_ensemble, mean_log_probs, prepare_member
from .generation_options_vaswani import check_mode, check_options

Length = int | torch.Tensor

# Processors that look at one row alone, so that rows may leave the batch under them.
ROW_WISE_PROCESSORS = (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
# Processors behind which no log P is above 0, so that a hypothesis only falls and the bound of the search holds.
NEVER_RAISING_PROCESSORS = (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ForcedBOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
# Generation options that transformers does not know, with what they are where nobody says.
OWN_OPTIONS = {"length_penalty_type": "gnmt", "max_length_offset": None, "coverage_penalty": 0.0}
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

    Three keys are ours: `length_penalty_type` ("gnmt" or "power"), `max_length_offset` (tokens a translation may be
    longer than its source, `None` for no such limit) and `coverage_penalty` (beta, >= 0; GNMT's best was 0.2).
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_length_offset=50,
        coverage_penalty=0.0,
        early_stopping="never",  # the bound of section 6.1 is exact; transformers' default is a guess
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class SourceLengthLimit(LogitsProcessor):
    """Lets only </s> follow once a sentence has reached its own limit (greedy search and sampling)."""

    def __init__(self, limits: torch.Tensor, *, prompt_length: int, last_tokens: list[int], is_forced: bool):
        """limits: (B,) tokens a sentence may get, </s> included. For the others see `BeamSearch`."""
        self.limits = limits
        self.prompt_length = prompt_length
        self.last_tokens = last_tokens
        self.is_forced = is_forced

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        limits = self.limits.repeat_interleave(input_ids.shape[0] // self.limits.shape[0])
        at_limit = limits.to(scores.device) <= input_ids.shape[1] - self.prompt_length + 1
        return _only_end(scores, at_limit, self.last_tokens, self.is_forced)


def _only_end(scores: torch.Tensor, at_limit: torch.Tensor, last_tokens: list[int], is_forced: bool) -> torch.Tensor:
    """`scores` (rows, V) with -inf at all but the `last_tokens` in rows at their limit.

    They keep their own scores, unless all of them are forbidden; where they are forced their probability is 1.
    """
    if not last_tokens or not at_limit.any():
        return scores
    ending = torch.full_like(scores, -torch.inf)
    ending[:, last_tokens] = 0.0 if is_forced else scores[:, last_tokens]
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
        forced_token_ids: tokens that alone may come last at the limit, at probability 1; when there are none, it is
            those that finish a hypothesis, at their own.
        shortlist: (V,) the tokens that the scores are of; `None` for the whole vocabulary.
        can_rise: whether a hypothesis may gain in going on; then "never" searches up to the limit.
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
        forced_token_ids: Sequence[int] = (),
        shortlist: torch.LongTensor | None = None,
        can_rise: bool = False,
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
        self.is_forced = bool(forced_token_ids)
        self.shortlist = shortlist
        self.can_rise = can_rise
        self.last_tokens = list(forced_token_ids or eos_token_ids)  # places in the shortlist, if there is one
        if shortlist is not None:
            self.last_tokens = torch.searchsorted(shortlist, shortlist.new_tensor(self.last_tokens)).tolist()
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

    def advance(
        self,
        log_probs: torch.Tensor,
        stops: Callable[[torch.LongTensor], torch.Tensor] | None,
        bonus: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Grow every running beam by one token.

        Args:
            log_probs: (L * b, V) of the next token.
            stops: further criteria, (rows, T) tokens -> (rows,) True where the hypothesis is finished.
            bonus: (L, b) what the score of a hypothesis gains or loses besides log P / lp if this token is its last;
                never positive.

        Returns:
            (L, b) the beam each new one grew from.
        """
        length, at_limit = self.length + 1, None
        if length >= self.next_limit:
            at_limit = (self.limits <= length) & ~self.done
            rows_at_limit = at_limit.repeat_interleave(self.num_beams)
            log_probs = _only_end(log_probs, rows_at_limit, self.last_tokens, self.is_forced)
        scores, beams, words = self._best_continuations(log_probs)  # (L, candidates) each
        if self.shortlist is not None:
            words = self.shortlist[words]
        finished = (words[..., None] == self.end_tokens).any(dim=-1)
        if at_limit is not None:
            finished = finished | at_limit[:, None]
        if stops is not None:
            tokens = self._grow(beams, words)[0]
            finished = finished | stops(tokens.flatten(0, 1)).unflatten(0, finished.shape)
        if self.num_done:
            finished = finished & ~self.done[:, None]
        if finished.any():
            penalised = scores / self.length_penalty(length)
            if bonus is not None:
                penalised = penalised + bonus.gather(1, beams)
            self._keep(penalised, self._grow(beams, words), finished)
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
            tokens (B * count, T), scores (B * count,), and the rows (of B * b) that each new token
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

    def _keep(self, penalised: torch.Tensor, history: torch.Tensor, finished: torch.Tensor) -> None:
        """Merge newly finished hypotheses among the b best into the kept ones."""
        # A candidate past the b best is there to go on with; it may not finish (as in transformers).
        finished = finished & (torch.arange(penalised.shape[1], device=penalised.device) < self.num_beams)
        penalised = penalised.masked_fill(~finished, -torch.inf)
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
        # The coverage penalty of an open hypothesis may still rise to 0, so the bound is that of log P / lp alone.
        best_open = self.scores[:, 0]
        bound = best_open / self.length_penalty(length)
        if self.early_stopping == "never":
            if self.can_rise:
                return best_open == -torch.inf
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
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        *args,
        **kwargs,
    ):
        """As `transformers.GenerationMixin.generate`, with three generation options and two arguments more.

        `length_penalty` means the formula of `length_penalty_type` ("gnmt" by default), a sentence gets at most its
        source length + `max_length_offset` new tokens, besides `max_length` or `max_new_tokens`, and
        `coverage_penalty` is the weight of GNMT's penalty on source words left out. Missing masks are derived from
        the padding, `attention_mask` and `decoder_attention_mask` (of a prompt in `decoder_input_ids`, to be padded
        on the left) alike. A beam search returns `past_key_values` only where it calls `forward` at each step (see
        `decoding_vaswani`). What transformers would ignore is refused (see `generation_options_vaswani`).

        Args:
            ensemble: further models that translate together with this one, by the mean of their probabilities.
            shortlist: token ids, the only ones that may be generated besides </s>. The product with the vocabulary is
                made for them alone, and probabilities are over them: equal to a search with the logits of all others
                at -inf. Logits processors, `scores` and `logits` see the whole vocabulary all the same.

        With `ensemble` or `shortlist`, greedy search is our beam search with one beam, and has its kind of output;
        `logits` of an ensemble are the logarithms of the mean probabilities.

        Behind a processor that may raise a log P above 0 (a positive `sequence_bias`, one of your own) no bound holds,
        and a search with `early_stopping="never"` goes up to the limit; `renormalize_logits=True` restores the bound.

        Raises:
            ValueError: for options that cannot be honoured, and for what transformers itself refuses.
        """
        configs = [config for config in (generation_config, self.generation_config) if config is not None]

        def option(name: str):
            values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
            return next((value for value in values if value is not None), None)

        source_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if kwargs.get("ensemble") is not None:
            check_ensemble(self, kwargs["ensemble"], kwargs)
        _check_source(source_ids, kwargs, option)
        if kwargs.get("attention_mask") is None and source_ids is not None and self.config.pad_token_id is not None:
            kwargs["attention_mask"] = (source_ids != self.config.pad_token_id).long()
        start, end, forced = (
            option(name) for name in ("decoder_start_token_id", "eos_token_id", "forced_eos_token_id")
        )
        _mask_prompt(kwargs, start_token_id=start, pad_token_id=option("pad_token_id"))
        offset = kwargs["max_length_offset"] if "max_length_offset" in kwargs else option("max_length_offset")
        limits = _source_limits(kwargs, offset)
        if limits is not None:
            if option("max_length") is None and option("max_new_tokens") is None:
                kwargs["max_new_tokens"] = int(limits.max())
            if option("num_beams") in (None, 1):
                limit = SourceLengthLimit(
                    limits,
                    prompt_length=_prompt_length(kwargs.get("decoder_input_ids"), start),
                    last_tokens=_as_list(end if forced is None else forced),
                    is_forced=forced is not None,
                )
                logits_processor = LogitsProcessorList([*(logits_processor or []), limit])
        return super().generate(inputs, generation_config, logits_processor, *args, **kwargs)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        """All options of a call; ours too where the configs have never heard of them."""
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, default in OWN_OPTIONS.items():
            if not hasattr(config, name) or name in model_kwargs:
                setattr(config, name, model_kwargs.pop(name, default))
        check_options(config)
        return config, model_kwargs

    def _extract_generation_mode_kwargs(self, custom_generate, kwargs: dict, *args) -> dict:
        """Arguments for the search itself, `ensemble` and `shortlist` among them."""
        own = {name: kwargs.pop(name, None) for name in ("ensemble", "shortlist")}
        own = {name: value for name, value in own.items() if value is not None}
        if own and custom_generate is not None:
            raise ValueError(f"{' and '.join(own)} cannot be used with custom_generate.")
        return super()._extract_generation_mode_kwargs(custom_generate, kwargs, *args) | own

    def _validate_generation_mode(self, generation_mode, generation_config: GenerationConfig, mode_kwargs: dict):
        check_mode(generation_mode, generation_config, mode_kwargs)
        super()._validate_generation_mode(generation_mode, generation_config, mode_kwargs)

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

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor | None = None,
        ensemble: Sequence["VaswaniGenerationMixin"] = (),
        shortlist: Sequence[int] | torch.Tensor | None = None,
        **kwargs,
    ):
        """Greedy search and sampling of transformers; what it cannot do is a beam search with one beam."""
        if not ensemble and shortlist is None:
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        generation_config.early_stopping = True  # the first </s> that wins ends a greedy search
        return self._beam_search(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            inputs_tensor=inputs_tensor,
            ensemble=ensemble,
            shortlist=shortlist,
            **kwargs,
        )

    def _beam_search(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        inputs_tensor: torch.Tensor | None = None,
        ensemble: Sequence["VaswaniGenerationMixin"] = (),
        shortlist: Sequence[int] | torch.Tensor | None = None,
        tokenizer: object = None,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
        """The search of section 6.1; called by `generate` with everything prepared.

        Args:
            inputs_tensor: (B, S) source tokens; read by the further models of an ensemble.
            tokenizer: read before, by the criterion of `stop_strings`.
        """
        records = _Records(generation_config)
        if ensemble and records.wants_states:
            raise ValueError("output_attentions and output_hidden_states are of one model: leave out the ensemble.")
        criteria = _further_criteria(stopping_criteria)
        processors = _further_processors(logits_processor)
        # Rows may leave the batch unless somebody counts on their places.
        may_leave = not (synced_gpus or records.wanted or criteria) and all(map(_is_row_wise, processors))
        if shortlist is not None:
            ends = _as_list(generation_config.eos_token_id)
            shortlist = _as_shortlist(shortlist, ends, self.config.vocab_size, input_ids.device)
            model_kwargs["shortlist"] = shortlist
        # Nobody else needs to see scores of words that are not on it.
        is_narrow = shortlist is not None and not (processors or records.wanted)
        search = self._start_search(
            input_ids,
            generation_config,
            model_kwargs,
            shortlist=shortlist if is_narrow else None,
            can_rise=_can_raise(processors),
        )
        coverage = None
        if generation_config.coverage_penalty:
            for model in (self, *ensemble):
                check_kernel(model.config._attn_implementation)
            coverage = _start_coverage(search, generation_config, model_kwargs)
        calls_forward = synced_gpus or records.wants_states or coverage is not None
        members = self._start_steps(
            ensemble, inputs_tensor, generation_config, model_kwargs, calls_forward=calls_forward
        )
        all_done = False
        while self._has_unfinished_sequences(all_done, synced_gpus, device=input_ids.device):
            logits_of_models = [steps(search.flat_tokens) for steps in members]
            if all_done:  # the other processes of a sharded model still need this one's forward passes
                continue
            logits_of_models = [logits.float() for logits in logits_of_models]
            log_probs = mean_log_probs([logits.log_softmax(dim=-1) for logits in logits_of_models])
            logits = log_probs if ensemble else logits_of_models[0]
            if shortlist is not None and not is_narrow:
                log_probs, logits = (_scatter(x, shortlist, self.config.vocab_size) for x in (log_probs, logits))
            log_probs = processors(search.flat_tokens, log_probs)
            records.add(members[0].outputs, logits, log_probs)
            bonus = None
            if coverage is not None:
                bonus = coverage.add([steps.outputs.cross_attentions for steps in members])
            stops = None if not criteria else (lambda tokens, scores=records.scores: criteria(tokens, scores))
            beams = search.advance(log_probs, stops, bonus)
            all_done, staying = search.num_done == len(search.done), None
            if may_leave and search.num_done and not all_done:
                staying = (~search.done).nonzero()[:, 0]
                search.leave(staying)
            if not all_done or synced_gpus:
                for follower in members if coverage is None else (*members, coverage):
                    follower.follow(beams, staying)
        return records.result(search, generation_config, members[0])

    def _start_steps(
        self,
        ensemble: Sequence["VaswaniGenerationMixin"],
        source_ids: torch.LongTensor,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        *,
        calls_forward: bool,
    ) -> list[BeamSteps | ForwardSteps]:
        """How each model takes its steps, this one first; the faster way unless something only `forward` gives."""
        inputs_of_models = [(self, model_kwargs)]
        for member in ensemble:
            prepared = prepare_member(member, source_ids, generation_config, model_kwargs)
            given = {name: model_kwargs[name] for name in ("shortlist", "output_attentions") if name in model_kwargs}
            inputs_of_models.append((member, prepared | given))
        return [
            (ForwardSteps if calls_forward or not BeamSteps.suit(model, generation_config, inputs) else BeamSteps)(
                model, generation_config, inputs
            )
            for model, inputs in inputs_of_models
        ]

    def _start_search(
        self,
        input_ids: torch.LongTensor,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        *,
        shortlist: torch.LongTensor | None,
        can_rise: bool,
    ) -> BeamSearch:
        kind = generation_config.length_penalty_type
        if kind not in LENGTH_PENALTIES:
            raise ValueError(f"length_penalty_type must be one of {tuple(LENGTH_PENALTIES)}, got {kind!r}.")
        alpha, num_beams = generation_config.length_penalty, generation_config.num_beams
        num_sentences = input_ids.shape[0] // num_beams
        limits = torch.full(
            (num_sentences,), generation_config.max_length - input_ids.shape[1], device=input_ids.device
        )
        own_limits = _source_limits(model_kwargs, generation_config.max_length_offset)
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
            forced_token_ids=_as_list(generation_config.forced_eos_token_id),
            shortlist=shortlist,
            can_rise=can_rise,
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


def _start_coverage(search: BeamSearch, config: GenerationConfig, model_kwargs: dict) -> BeamCoverage:
    """What counts the coverage; asks the steps for attention weights."""
    model_kwargs["output_attentions"] = True
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        mask = model_kwargs["encoder_outputs"].last_hidden_state.new_ones(
            model_kwargs["encoder_outputs"].last_hidden_state.shape[:2]
        )
    mask = mask[:: len(mask) // len(search.limits)].bool()  # one row a sentence
    return BeamCoverage(
        mask,
        num_beams=search.num_beams,
        beta=config.coverage_penalty,
        prompt_mask=model_kwargs.get("decoder_attention_mask"),
    )


def _as_shortlist(
    shortlist: Sequence[int] | torch.Tensor, end_token_ids: list[int], vocab_size: int, device: torch.device
) -> torch.LongTensor:
    """The ids of `shortlist` and the end tokens, each once, in ascending order."""
    ids = torch.as_tensor(shortlist, device=device)
    if ids.dim() != 1 or not len(ids) or ids.dtype == torch.bool or ids.is_floating_point():
        raise ValueError(
            f"shortlist must be token ids, one row of at least one integer, got a {tuple(ids.shape)} of {ids.dtype}."
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"shortlist must hold ids from 0 to {vocab_size - 1}, got {int(ids.min())} to {int(ids.max())}."
        )
    return torch.cat([ids.long(), ids.new_tensor(end_token_ids, dtype=torch.long)]).unique()


def _scatter(scores: torch.Tensor, shortlist: torch.LongTensor, vocab_size: int) -> torch.Tensor:
    """`scores` (rows, words of the shortlist) over the whole vocabulary, with -inf at all others."""
    return scores.new_full((len(scores), vocab_size), -torch.inf).index_copy_(1, shortlist, scores)


def _prompt_length(prompt: torch.Tensor | None, start_token_id: int | list[int] | torch.Tensor) -> int:
    """Tokens in front of the new ones: transformers adds the start token where no row of `prompt` begins with it."""
    if prompt is None:
        return 1
    start = torch.as_tensor(start_token_id, device=prompt.device)
    return prompt.shape[1] + int((prompt[:, 0] != start).all())


def _mask_prompt(kwargs: dict, *, start_token_id: int | list[int] | torch.Tensor, pad_token_id: int | None) -> None:
    """Derive the missing mask of a padded prompt in `kwargs`, and refuse padding where the new words begin."""
    prompt, mask = kwargs.get("decoder_input_ids"), kwargs.get("decoder_attention_mask")
    if prompt is None:
        return
    starts_with_padding = pad_token_id in _as_list(start_token_id)  # then padding cannot be told from a start
    if mask is None and pad_token_id is not None and not starts_with_padding and (prompt == pad_token_id).any():
        kwargs["decoder_attention_mask"] = mask = (prompt != pad_token_id).long()
    if mask is not None and not mask[:, -1].all():
        raise ValueError(
            "decoder_input_ids of different lengths must be padded on the left: new words follow the last token of "
            "each row, which is padding in some."
        )


def _check_source(source_ids: torch.Tensor | None, kwargs: dict, option: Callable[[str], object]) -> None:
    """Refuse options that need the source tokens where these are not given, and those for decoder-only models."""
    needs_tokens = {"encoder_repetition_penalty": (None, 1.0), "encoder_no_repeat_ngram_size": (None, 0)}
    for name, off in needs_tokens.items():
        if source_ids is None and option(name) not in off:
            raise ValueError(f"{name}={option(name)!r} compares with the source tokens: pass input_ids.")
    for name in ("negative_prompt_ids", "negative_prompt_attention_mask"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} is not supported: classifier-free guidance is for decoder-only models.")


def _further_processors(logits_processor: LogitsProcessorList) -> LogitsProcessorList:
    """Those whose work the search does not do itself, for each sentence at its own limit."""
    own = (SourceLengthLimit, ForcedEOSTokenLogitsProcessor)
    return LogitsProcessorList(processor for processor in logits_processor if not isinstance(processor, own))


def _can_raise(processors: LogitsProcessorList) -> bool:
    """Whether a log P behind them may be above 0."""
    if processors and isinstance(processors[-1], LogitNormalization):
        return False

    def raises(processor: LogitsProcessor) -> bool:
        if type(processor) is SequenceBiasLogitsProcessor:
            return max(processor.sequence_bias.values()) > 0
        return not isinstance(processor, NEVER_RAISING_PROCESSORS)

    return any(map(raises, processors))


def _is_row_wise(processor: LogitsProcessor) -> bool:
    """Whether it looks at one row alone, wherever that lies in the batch."""
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        return not isinstance(processor.prompt_ignore_length, torch.Tensor)  # one number a row
    return isinstance(processor, ROW_WISE_PROCESSORS)


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
