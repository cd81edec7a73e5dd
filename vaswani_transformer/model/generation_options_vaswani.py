"""What the options of `generate()` mean for a Vaswani model: its own, those refused, and rules for the search.

Nothing is ignored: an option is honoured, or handed to transformers, or refused here with what to do instead. A test
names every field of `GenerationConfig`, so that a new one in a later version is noticed. transformers turns some
options into rules, logits processors and stopping criteria; the beam search does the work of some of them itself.
"""

import torch
from transformers import GenerationConfig
from transformers.generation import (
    EosTokenCriteria,
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    GenerationMode,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    SequenceBiasLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WatermarkLogitsProcessor,
    logits_process,
)

from .beam_search_vaswani import LENGTH_PENALTIES, only_end
from .configuration_vaswani import VaswaniConfig

# Our generation options and their defaults.
OWN_OPTIONS = {"length_penalty_type": "gnmt", "max_length_offset": None}
RAISING = (ExponentialDecayLengthPenalty, SequenceBiasLogitsProcessor, WatermarkLogitsProcessor)

OFF = {"guidance_scale": 1, "num_beam_groups": 1}  # values that mean "no", besides None, False and 0

# Refused in every mode.
NOT_SUPPORTED = {
    "cache_config": "it configures quantized caches, which transformers has for decoder-only models alone",
    "constraints": "transformers has given up constrained beam search; use prefix_allowed_tokens_fn",
    "continuous_batching_config": "continuous batching is for decoder-only models",
    "coverage_penalty": "the paper has none; take it out of generation_config.json",
    "diversity_penalty": "transformers has given up groups of beams; use do_sample or num_return_sequences",
    "force_words_ids": "transformers has given up constrained beam search; use prefix_allowed_tokens_fn",
    "guidance_scale": "classifier-free guidance is for decoder-only models",
    "low_memory": "transformers has given it up; use a smaller batch",
    "num_beam_groups": "transformers has given up groups of beams; use do_sample or num_return_sequences",
    "prefill_chunk_size": "transformers would cut the mask of the source by the chunks of the target",
    "token_healing": "it mends prompts of decoder-only models",
    "use_mtp": "the model predicts one token at a time",
}
# Refused in beam search; in greedy search and sampling they are transformers'.
WITHOUT_BEAMS = (
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "dola_layers",
    "is_assistant",
    "max_matching_ngram_size",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "speculation_type",
    # transformers fills in the defaults of these:
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "target_lookbehind",
)


def build_generation_config(config: VaswaniConfig) -> GenerationConfig:
    """Decoding as in section 6.1: beam 4, alpha 0.6, source length + 50 tokens.

    Two keys are ours: `length_penalty_type` ("gnmt" or "power") and `max_length_offset` (tokens a translation may be
    longer than its source; with `None`, `max_length` alone counts, by default transformers' 20).
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


def forget_default_length(config: GenerationConfig) -> None:
    """Take back a `max_length` that no caller has set.

    With `predict_with_generate`, transformers' Seq2SeqTrainer fills the model's config with the defaults of all options
    (5.23), a `max_length` of 20 among them: from the second evaluation on, translations would end there. Any other
    length stays, and one of 20 without all the other defaults.
    """
    defaults = {name: value for name, value in config._get_default_generation_params().items() if value is not None}
    is_filled = all(getattr(config, name, None) is not None for name in defaults)
    if is_filled and config.max_length == defaults["max_length"]:
        config.max_length = None


def check_options(config: GenerationConfig) -> None:
    """Refuse what neither our search nor transformers would honour.

    Args:
        config: all options of the call, with the defaults filled in.

    Raises:
        ValueError: naming the option, its value, and what to do instead.
    """
    for name, reason in NOT_SUPPORTED.items():
        if _is_on(config, name):
            raise ValueError(f"{name}={getattr(config, name)!r} is not supported: {reason}.")
    if config.cache_implementation == "paged":
        raise ValueError('cache_implementation="paged" is not supported: it is for decoder-only models.')
    if config.length_penalty_type not in LENGTH_PENALTIES:
        raise ValueError(
            f"length_penalty_type must be one of {tuple(LENGTH_PENALTIES)}, got {config.length_penalty_type!r}."
        )
    _check_forced_end(config)
    if isinstance(config.num_beams, bool) or config.num_beams < 1:
        raise ValueError(f"num_beams must be at least 1, which is greedy search; got {config.num_beams!r}.")
    if config.num_beams == 1:
        return
    defaults = GenerationConfig._get_default_generation_params()
    for name in WITHOUT_BEAMS:
        if _is_on(config, name) and getattr(config, name) != defaults.get(name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no meaning in beam search; pass num_beams=1, or leave it out."
            )
    if isinstance(config.watermarking_config, SynthIDTextWatermarkingConfig):
        raise ValueError(
            "a SynthID watermark follows one hypothesis and cannot change places with the beams; pass num_beams=1."
        )


def check_mode(mode: GenerationMode, config: GenerationConfig, mode_arguments: dict) -> None:
    """Refuse arguments of `generate` that the mode has no use for.

    Args:
        mode_arguments: streamer, assistant_model, ensemble, ... as far as they were given.

    Raises:
        ValueError: naming the argument and what to do instead.
    """
    if config.num_beams > 1:
        for name in ("streamer", "assistant_model"):
            if name in mode_arguments:
                raise ValueError(f"{name} follows one hypothesis and is not for beam search: pass num_beams=1.")
    for name in sorted({"ensemble", "shortlist"} & mode_arguments.keys()):
        if "streamer" in mode_arguments:
            raise ValueError(f"{name} and streamer cannot be used together.")
        if mode not in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE, GenerationMode.GREEDY_SEARCH):
            raise ValueError(f"{name} is for beam search and greedy search, not for {mode.value}.")


def _is_on(config: GenerationConfig, name: str) -> bool:
    value = getattr(config, name, None)
    return not (value is None or value is False or value in (0, OFF.get(name)))


def _check_forced_end(config: GenerationConfig) -> None:
    forced, ends = (
        torch.tensor([] if token_ids is None else token_ids).flatten().tolist()
        for token_ids in (config.forced_eos_token_id, config.eos_token_id)
    )
    if not set(forced) <= set(ends):
        raise ValueError(
            f"forced_eos_token_id={config.forced_eos_token_id} must be among eos_token_id={config.eos_token_id}: "
            f"a translation at its limit ends, and others in the batch go on."
        )


class SourceLengthLimit(LogitsProcessor):
    """Lets only </s> follow once a sentence has reached its own limit (greedy search and sampling).

    Args:
        limits: (B,) tokens a sentence may get, </s> included.
        last_tokens, is_forced: see `only_end`.
    """

    def __init__(self, limits: torch.Tensor, *, prompt_length: int, last_tokens: list[int], is_forced: bool):
        self.limits, self.prompt_length = limits, prompt_length
        self.last_tokens, self.is_forced = torch.tensor(last_tokens, dtype=torch.long, device=limits.device), is_forced

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        at_limit = _has_grown_to(self.limits, input_ids, input_ids.shape[1] - self.prompt_length + 1)
        return only_end(scores, at_limit, self.last_tokens, self.is_forced) if at_limit.any() else scores


class SourceLengthStop(StoppingCriteria):
    """Ends a sentence at its own limit, (B,), where </s> is forbidden or there is none (greedy search and sampling)."""

    def __init__(self, limits: torch.Tensor, *, prompt_length: int, pad_token_id: int | None):
        self.limits, self.prompt_length = limits, prompt_length
        if pad_token_id is not None:
            self.eos_token_id = None  # that it is there tells transformers to pad a row that has ended

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor | None, **kwargs) -> torch.BoolTensor:
        return _has_grown_to(self.limits, input_ids, input_ids.shape[1] - self.prompt_length)


def _has_grown_to(limits: torch.Tensor, input_ids: torch.LongTensor, length: int) -> torch.BoolTensor:
    """(rows,) True where `length` tokens are as many as the sentence of a row may get."""
    return limits.repeat_interleave(len(input_ids) // len(limits)).to(input_ids.device) <= length


def further_processors(logits_processor: LogitsProcessorList) -> LogitsProcessorList:
    """Those whose work the search does not do itself, for each sentence at its own limit."""
    return LogitsProcessorList(_leave_out((SourceLengthLimit, ForcedEOSTokenLogitsProcessor), logits_processor))


def can_raise(processors: LogitsProcessorList) -> bool:
    """True if a log P behind `processors` may be above 0, so that a hypothesis may gain in going on.

    transformers' own processors leave it at or below 0, except those of `RAISING`; any other may do what it likes.
    """
    if processors and isinstance(processors[-1], LogitNormalization):
        return False
    return any(
        isinstance(processor, RAISING) or type(processor).__module__ != logits_process.__name__
        for processor in processors
    )


def further_criteria(stopping_criteria: StoppingCriteriaList) -> StoppingCriteriaList:
    """Those that the search does not see to itself."""
    return StoppingCriteriaList(_leave_out((MaxLengthCriteria, EosTokenCriteria, SourceLengthStop), stopping_criteria))


def _leave_out(own: tuple[type, ...], rules: LogitsProcessorList | StoppingCriteriaList) -> list:
    """`rules` without those of the classes `own` that `generate` made, but with those that its caller gave."""
    given = [rule for rule in rules.given if not isinstance(rule, (SourceLengthLimit, SourceLengthStop))]
    return [rule for rule in rules if not isinstance(rule, own) or any(rule is one for one in given)]
