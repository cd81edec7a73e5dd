"""Scores of given translations, as the search of section 6.1 would score them (Wu et al. 2016, equation 14).

Shapes: B sentences, n translations of each, S source tokens, T target tokens, D d_model.
"""

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from ..kernels.cross_entropy import find_slice_length
from ..model.generation_vaswani import SearchOptions, as_list
from ..model.layers_vaswani import build_padding_mask
from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration, count_padding, roll_rows


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


@torch.no_grad()
def score(
    model: VaswaniForConditionalGeneration,
    input_ids: torch.LongTensor,
    labels: torch.LongTensor,
    attention_mask: torch.Tensor | None = None,
    **options,
) -> TranslationScores:
    """Rate given translations.

    For what `model.generate(input_ids, ...)` returned, `score(model, input_ids, found.sequences[:, 1:])` gives its
    `sequences_scores`, unless a logits processor, a stopping criterion, a prompt, an ensemble or an engine of another
    dtype changed them.

    Args:
        input_ids: (B, S).
        labels: (B * n, T) token ids of n translations of each source in turn. -100 is padding, on either side, and so
            is all that follows the first end token of `generation_config`. A translation without an end token is rated
            as it stands.
        attention_mask: (B, S); derived from the padding when not given.
        options: of `SearchOptions`, such as `length_penalty`; those of `generation_config` when not given.

    Raises:
        ValueError: if a row of `labels` has no token.
    """
    search = SearchOptions.resolve(model.generation_config, **options)
    num_padded = count_padding(labels)
    labels = roll_rows(labels, num_padded)
    is_end = torch.isin(labels, labels.new_tensor(as_list(search.eos_token_id))).long()
    is_real = (labels != IGNORE_INDEX) & (is_end.cumsum(dim=-1) - is_end == 0)
    if not is_real.any(dim=-1).all():
        raise ValueError("labels must hold a token in each row, at least </s>; got a row of padding alone.")
    if attention_mask is None:
        attention_mask = build_padding_mask(input_ids, model.config)
    encoding = model.get_encoder()(input_ids, attention_mask=attention_mask).last_hidden_state
    copies = len(labels) // len(input_ids)
    labels = labels.masked_fill(~is_real, IGNORE_INDEX)
    outputs = model.model(
        encoder_outputs=BaseModelOutput(last_hidden_state=encoding.repeat_interleave(copies, dim=0)),
        attention_mask=attention_mask.repeat_interleave(copies, dim=0),
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
        use_cache=False,
    )
    token_log_probs = roll_rows(_select_log_probs(model, outputs.last_hidden_state, labels), -num_padded)
    lengths, log_probs = is_real.sum(dim=-1), token_log_probs.sum(dim=-1)
    scores = log_probs / search.penalise(lengths)
    return TranslationScores(log_probs=log_probs, lengths=lengths, scores=scores, token_log_probs=token_log_probs)


def _select_log_probs(
    model: VaswaniForConditionalGeneration, hidden_states: torch.Tensor, labels: torch.LongTensor
) -> torch.Tensor:
    """(B, T, D), (B, T) -> (B, T): log P of each label, 0 where it is -100, without ever storing all logits."""
    is_real = labels != IGNORE_INDEX
    hidden_states, chosen = hidden_states[is_real], labels[is_real]
    slice_length = find_slice_length(hidden_states, model.config.vocab_size)
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    parts = [
        model.lm_head(h).to(dtype).log_softmax(dim=-1).gather(1, y[:, None])[:, 0]
        for h, y in zip(hidden_states.split(slice_length), chosen.split(slice_length), strict=True)
    ]
    log_probs = torch.zeros(labels.shape, dtype=dtype, device=labels.device)
    log_probs[is_real] = torch.cat(parts)
    return log_probs
