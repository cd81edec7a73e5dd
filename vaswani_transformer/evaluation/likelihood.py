"""Score existing translations with a model: log P, the score of beam search (section 6.1), perplexity (section 6.2).

Shapes: B sentences, n translations of each, S source tokens, T target tokens, D d_model.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from ..data.batching import plan_batches
from ..kernels.cross_entropy import find_slice_length
from ..model.layers_vaswani import build_padding_mask
from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import MOST_SOURCE_TOKENS, check_sentence
from ..model.search_vaswani import SearchOptions, as_list

PAIRS_PER_WINDOW = 4_096  # The number of pairs that are read at a time, and then batched by length.


class TranslationScores(NamedTuple):
    """The scores of given translations, in the order of the rows of `labels`.

    Args:
        log_probs: (B * n,) log P(Y | X) in nats. The dtype is float32, or float64 if the model is in float64.
        lengths: (B * n,) |Y|, </s> included. So exp(-sum(log_probs) / sum(lengths)) is the perplexity.
        scores: (B * n,) log P / lp(Y), where lp is the length penalty, like the `sequences_scores` of a search.
        token_log_probs: (B * n, T) log P of each token, 0 at padding.
    """

    log_probs: FloatTensor
    lengths: LongTensor
    scores: FloatTensor
    token_log_probs: FloatTensor


@torch.no_grad()
def score(
    model: VaswaniForConditionalGeneration,
    input_ids: LongTensor,
    labels: LongTensor,
    attention_mask: Tensor | None = None,
    **options,
) -> TranslationScores:
    """Return the scores of given translations (Wu et al. 2016, equation 14).

    If `found` is the output of `model.generate(input_ids, ...)`, then `found.sequences_scores` equals the `scores` of
    `score(model, input_ids, found.sequences[:, 1:])`. The two differ if the search had a logits processor, a stopping
    criterion, a prompt, an ensemble, or an engine (`engine=...`) whose dtype is not the model's.

    Args:
        input_ids: (B, S).
        labels: (B * n, T) token ids: first the n translations of the first source, then those of the next, and so on.
            -100 is padding, at the end of a row. All tokens after the first end token of
            `generation_config` are ignored. A translation without an end token is scored as it is.
        attention_mask: (B, S). By default it excludes the padding of `input_ids`.
        options: fields of `SearchOptions`, such as `length_penalty`. The defaults come from `generation_config`.

    Raises:
        ValueError: if a row of `labels` has no token, or begins with -100.
    """
    search = SearchOptions.resolve(model.generation_config, **options)
    is_end = torch.isin(labels, labels.new_tensor(as_list(search.eos_token_id))).long()
    is_real = (labels != IGNORE_INDEX) & (is_end.cumsum(dim=-1) - is_end == 0)
    if not is_real.any(dim=-1).all():
        raise ValueError("each row of labels must hold at least one token, such as </s>, got a row of padding alone.")
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
    token_log_probs = _select_log_probs(model, outputs.last_hidden_state, labels)
    lengths = is_real.sum(dim=-1)
    log_probs = token_log_probs.sum(dim=-1)
    return TranslationScores(log_probs, lengths, log_probs / search.penalise(lengths.float()), token_log_probs)


def _select_log_probs(model: VaswaniForConditionalGeneration, hidden_states: Tensor, labels: LongTensor) -> Tensor:
    """Return log P (B, T) of each label, or 0 where the label is -100.

    The logits are computed in slices, because the logits of all labels together might not fit into memory.

    Args:
        hidden_states: (B, T, D), the output of the decoder.
        labels: (B, T).
    """
    is_real = labels != IGNORE_INDEX
    hidden_states = hidden_states[is_real]
    chosen = labels[is_real]
    slice_length = find_slice_length(hidden_states, model.config.vocab_size)
    dtype = torch.promote_types(hidden_states.dtype, torch.float32)
    losses = [
        torch.nn.functional.cross_entropy(model.lm_head(h).to(dtype), y, reduction="none")
        for h, y in zip(hidden_states.split(slice_length), chosen.split(slice_length), strict=True)
    ]
    log_probs = torch.zeros(labels.shape, dtype=dtype, device=labels.device)
    log_probs[is_real] = -torch.cat(losses)
    return log_probs


def score_pairs(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
    **options,
) -> Iterator[tuple[float, int, float]]:
    """Yield log P, |Y| and the score of each pair of source and target, in their order.

    An empty text is scored like any other sentence: it consists of </s> alone. A source or target of more than
    `MOST_SOURCE_TOKENS` tokens is cut, as in `Translator`: the first `MOST_SOURCE_TOKENS` - 1 tokens and </s> remain. A
    warning at the end tells how many sources and targets were cut.

    Args:
        tokens_per_batch: the largest padded size of a batch, which is its number of pairs * the length of its longest
            source or target. A longer pair is alone in its batch.
        options: see `score`.

    Raises:
        ValueError: if a text is no str, or cannot be written as UTF-8.
    """
    pairs = iter(pairs)
    num_cut = 0
    while window := list(islice(pairs, PAIRS_PER_WINDOW)):
        sources, targets = map(list, zip(*window, strict=True))
        for text in sources + targets:
            check_sentence(text)
        sides = tokenizer(sources, verbose=False).input_ids, tokenizer(text_target=targets, verbose=False).input_ids
        num_cut += sum(len(ids) > MOST_SOURCE_TOKENS for side in sides for ids in side)
        num_kept = MOST_SOURCE_TOKENS - 1  # beside the last token, </s>
        sides = [[ids[:num_kept] + ids[num_kept:][-1:] for ids in side] for side in sides]
        results = {}
        for rows in plan_batches([max(map(len, ids)) for ids in zip(*sides, strict=True)], limit=tokens_per_batch):
            inputs, labels = (
                tokenizer.pad({"input_ids": [side[row] for row in rows]}, padding_side="right", return_tensors="pt").to(
                    model.device
                )
                for side in sides
            )
            labels = labels.input_ids.masked_fill(labels.attention_mask == 0, IGNORE_INDEX)
            found = score(model, **inputs, labels=labels, **options)
            rated = zip(*map(Tensor.tolist, found[:3]), strict=True)  # log P, |Y| and the score of each pair
            results.update(zip(rows, rated, strict=True))
        yield from map(results.get, range(len(window)))
    if num_cut:
        message = f"{num_cut} sources and targets were cut to {MOST_SOURCE_TOKENS:,} tokens, </s> included. Split them."
        warnings.warn(message, stacklevel=2)


def compute_perplexity(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
) -> float:
    """Return the perplexity per sub-word (section 6.2), without label smoothing.

    The perplexity is exp(mean of -log P), where the mean is over all target tokens, </s> included.
    """
    log_probs, lengths, _ = zip(*score_pairs(model.eval(), tokenizer, pairs), strict=True)
    return math.exp(-sum(log_probs) / sum(lengths))
