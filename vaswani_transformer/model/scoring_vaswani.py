"""Scores of given translations, as the search of section 6.1 would score them (Wu et al. 2016, equation 14).

Shapes: B sentences, n translations of each, S source tokens, T target tokens, D d_model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .beam_search_vaswani import LENGTH_PENALTIES
from .generation_options_vaswani import OWN_OPTIONS
from .loss_vaswani import IGNORE_INDEX, find_slice_length
from .masks_vaswani import build_padding_mask


@dataclass
class TranslationScores(ModelOutput):
    """How a model rates given translations, one row each, in the order of the labels.

    Args:
        log_probs: (B * n,) log P(Y | X) in nats, float32, or float64 of a model in float64.
        lengths: (B * n,) |Y|, </s> included: exp(-sum(log_probs) / sum(lengths)) is the perplexity.
        scores: (B * n,) log P / lp, the `sequences_scores` of a search.
        token_log_probs: (B * n, T), 0 at padding.
    """

    log_probs: torch.FloatTensor | None = None
    lengths: torch.LongTensor | None = None
    scores: torch.FloatTensor | None = None
    token_log_probs: torch.FloatTensor | None = None


class VaswaniScoringMixin:
    """`score()` for the model with the projection to words."""

    @torch.no_grad()
    def score(
        self,
        input_ids: torch.LongTensor,
        labels: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
        *,
        length_penalty: float | None = None,
        length_penalty_type: str | None = None,
    ) -> TranslationScores:
        """Rate given translations.

        For what `generate(input_ids, ...)` returned, `model.score(input_ids, found.sequences[:, 1:])` gives its
        `sequences_scores`, unless a logits processor, a stopping criterion, a prompt, a shortlist, an ensemble or an
        engine of another dtype changed them.

        Args:
            input_ids: (B, S).
            labels: (B * n, T) token ids of n translations of each source in turn. -100 is padding, and so is all
                that follows the first end token of `generation_config`. A translation without an end token is
                rated as it stands.
            attention_mask: (B, S); derived from the padding when not given.
            length_penalty, length_penalty_type: those of `generation_config` when not given.

        Raises:
            ValueError: if a row of `labels` has no token.
        """
        given = {"length_penalty": length_penalty, "length_penalty_type": length_penalty_type}
        alpha, kind = (self._scoring_option(name, value) for name, value in given.items())
        is_real = self._real_targets(labels)
        if not is_real.any(dim=-1).all():
            raise ValueError("labels must hold a token in each row, at least </s>; got a row of padding alone.")
        if attention_mask is None:
            attention_mask = build_padding_mask(input_ids, self.config)
        encoding = self.get_encoder()(input_ids, attention_mask=attention_mask).last_hidden_state
        copies = len(labels) // len(input_ids)
        attention_mask = attention_mask.repeat_interleave(copies, dim=0)
        labels = labels.masked_fill(~is_real, IGNORE_INDEX)
        outputs = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoding.repeat_interleave(copies, dim=0)),
            attention_mask=attention_mask,
            decoder_input_ids=self.prepare_decoder_input_ids_from_labels(labels),
            use_cache=False,
        )
        token_log_probs = select_log_probs(outputs.last_hidden_state, self.lm_head, labels, self.config.vocab_size)
        lengths = is_real.sum(dim=-1)
        log_probs = token_log_probs.sum(dim=-1)
        scores = log_probs / LENGTH_PENALTIES[kind](lengths, alpha)
        return TranslationScores(log_probs=log_probs, lengths=lengths, scores=scores, token_log_probs=token_log_probs)

    def _scoring_option(self, name: str, value: float | str | None) -> float | str:
        """`value`, or what the generation config says, or the default of `generate`."""
        default = {"length_penalty": 1.0, **OWN_OPTIONS}[name]
        choices = (value, getattr(self.generation_config, name, None), default)
        return next(choice for choice in choices if choice is not None)

    def _real_targets(self, labels: torch.LongTensor) -> torch.Tensor:
        """True at the tokens of each translation, up to and with its first end token."""
        ends = self.generation_config.eos_token_id
        ends = labels.new_tensor([] if ends is None else ends, dtype=labels.dtype).flatten()
        is_end = torch.isin(labels, ends).long()
        return (labels != IGNORE_INDEX) & (is_end.cumsum(dim=-1) - is_end == 0)


def select_log_probs(
    hidden_states: torch.Tensor,
    project: Callable[[torch.Tensor], torch.Tensor],
    labels: torch.LongTensor,
    vocab_size: int,
) -> torch.Tensor:
    """log P of each label, (B, T), 0 where it is -100, without ever storing all logits.

    Args:
        hidden_states: (B, T, D), the decoder's output.
        project: to logits, (..., D) -> (..., vocab_size).
        labels: (B, T).
    """
    is_real = labels != IGNORE_INDEX
    hidden_states, chosen = hidden_states[is_real], labels[is_real]
    slice_length = find_slice_length(hidden_states, vocab_size)
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    parts = [
        project(h).to(dtype).log_softmax(dim=-1).gather(1, y[:, None])[:, 0]
        for h, y in zip(hidden_states.split(slice_length), chosen.split(slice_length), strict=True)
    ]
    log_probs = torch.zeros(labels.shape, dtype=dtype, device=labels.device)
    log_probs[is_real] = torch.cat(parts)
    return log_probs
