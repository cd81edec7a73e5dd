"""How likely a model finds given translations: scores as of the search of section 6.1, and perplexity (section 6.2).

Shapes: B sentences, n translations of each, S source tokens, T target tokens, D d_model.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from ..data.batching import plan_batches
from ..kernels.cross_entropy import find_slice_length
from ..model.generation_vaswani import SearchOptions, as_list
from ..model.layers_vaswani import build_padding_mask
from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration, count_padding, roll_rows
from ..model.pipeline_vaswani import MOST_SOURCE_TOKENS, check_sentence

PAIRS_PER_WINDOW = 4_096  # read, sorted by length and scored at a time


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
    """Rate given translations (Wu et al. 2016, equation 14).

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


def score_pairs(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
    **options,
) -> Iterator[tuple[float, int, float]]:
    """Yield log P, |Y| and score of each pair of source and target text, in their order.

    An empty line is the sentence that consists of </s> alone, on either side, and is rated like any other. A text of
    more than `MOST_SOURCE_TOKENS` is cut, on either side, as `Translator` cuts sources; a warning at the end says how
    many were.

    Args:
        tokens_per_batch: padded tokens of a batch, on the longer side.
        options: for `score`.
    """
    pairs, num_cut = iter(pairs), 0
    while window := list(islice(pairs, PAIRS_PER_WINDOW)):
        sources, targets = map(list, zip(*window, strict=True))
        for text in sources + targets:
            check_sentence(text)
        sides = tokenizer(sources, verbose=False).input_ids, tokenizer(text_target=targets, verbose=False).input_ids
        num_cut += sum(len(ids) > MOST_SOURCE_TOKENS for side in sides for ids in side)
        last = MOST_SOURCE_TOKENS - 1  # </s> stays the last token
        sides = [[ids[:last] + ids[last:][-1:] for ids in side] for side in sides]
        results = {}
        for rows in plan_batches([max(map(len, ids)) for ids in zip(*sides, strict=True)], limit=tokens_per_batch):
            inputs, labels = (
                tokenizer.pad({"input_ids": [side[row] for row in rows]}, return_tensors="pt").to(model.device)
                for side in sides
            )
            labels = labels.input_ids.masked_fill(labels.attention_mask == 0, IGNORE_INDEX)
            found = score(model, **inputs, labels=labels, **options)
            rated = zip(found.log_probs.tolist(), found.lengths.tolist(), found.scores.tolist(), strict=True)
            results.update(zip(rows, rated, strict=True))
        yield from map(results.get, range(len(window)))
    if num_cut:
        told = f"sources and targets cut to their first {MOST_SOURCE_TOKENS:,} tokens: {num_cut}. Split them."
        warnings.warn(told, stacklevel=2)


def compute_perplexity(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
) -> float:
    """Return the perplexity per sub-word (section 6.2): exp of the mean of -log P over targets and </s>, unsmoothed."""
    rated = score_pairs(model.eval(), tokenizer, pairs, tokens_per_batch=tokens_per_batch)
    log_probs, lengths, _ = zip(*rated, strict=True)
    return math.exp(-sum(log_probs) / sum(lengths))
