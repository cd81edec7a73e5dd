"""Rules of `generate()`, logits processors and stopping criteria, as the beam search takes them.

Some the search sees to itself, some let sentences leave the batch, some keep the bound of its end exact.
"""

import torch
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
    StoppingCriteria,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from .beam_search_vaswani import only_end

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
        return only_end(scores, at_limit, self.last_tokens, self.is_forced)


class SourceLengthStop(StoppingCriteria):
    """Ends a sentence at its own limit where </s> is forbidden, or there is none (greedy search and sampling)."""

    def __init__(self, limits: torch.Tensor, *, prompt_length: int, pad_token_id: int | None):
        """limits: (B,) tokens a sentence may get, </s> included."""
        self.limits = limits
        self.prompt_length = prompt_length
        if pad_token_id is not None:
            self.eos_token_id = None  # that it is there tells transformers to pad a row that has ended

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor | None, **kwargs) -> torch.BoolTensor:
        limits = self.limits.repeat_interleave(input_ids.shape[0] // self.limits.shape[0])
        return limits.to(input_ids.device) <= input_ids.shape[1] - self.prompt_length


def further_processors(logits_processor: LogitsProcessorList) -> LogitsProcessorList:
    """Those whose work the search does not do itself, for each sentence at its own limit."""
    return LogitsProcessorList(_leave_out((SourceLengthLimit, ForcedEOSTokenLogitsProcessor), logits_processor))


def split_min_length(
    processors: LogitsProcessorList, prompt_length: int, end_token_ids: list[int]
) -> tuple[LogitsProcessorList, int]:
    """`processors` without those that forbid an early end, and the new tokens that must come before it.

    The search forbids it in place; a processor copies the scores of the whole vocabulary. Beside others they stay where
    they are, because the order may matter, and so do those of other end tokens.
    """

    def is_own(processor: LogitsProcessor) -> bool:
        return type(processor) in (MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor) and set(
            processor.eos_token_id.flatten().tolist()
        ) == set(end_token_ids)

    if not all(map(is_own, processors)):
        return processors, 0
    lengths = [
        one.min_length - prompt_length
        if type(one) is MinLengthLogitsProcessor
        else one.min_new_tokens + one.prompt_length_to_skip - prompt_length
        for one in processors
    ]
    return LogitsProcessorList(), max(lengths, default=0)


def can_raise(processors: LogitsProcessorList) -> bool:
    """Whether a log P behind them may be above 0."""
    if processors and isinstance(processors[-1], LogitNormalization):
        return False

    def raises(processor: LogitsProcessor) -> bool:
        if type(processor) is SequenceBiasLogitsProcessor:
            return max(processor.sequence_bias.values()) > 0
        return not isinstance(processor, NEVER_RAISING_PROCESSORS)

    return any(map(raises, processors))


def is_row_wise(processor: LogitsProcessor) -> bool:
    """Whether it looks at one row alone, wherever that lies in the batch."""
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        return not isinstance(processor.prompt_ignore_length, torch.Tensor)  # one number a row
    return isinstance(processor, ROW_WISE_PROCESSORS)


def further_criteria(stopping_criteria: StoppingCriteriaList) -> StoppingCriteriaList:
    """Those that the search does not see to itself."""
    return StoppingCriteriaList(_leave_out((MaxLengthCriteria, EosTokenCriteria, SourceLengthStop), stopping_criteria))


def _leave_out(own: tuple[type, ...], rules: LogitsProcessorList | StoppingCriteriaList) -> list:
    """`rules` without those of the classes `own` that `generate` made, but with those that its caller gave."""
    given = [rule for rule in rules.given if not isinstance(rule, (SourceLengthLimit, SourceLengthStop))]
    return [rule for rule in rules if not isinstance(rule, own) or any(rule is one for one in given)]
