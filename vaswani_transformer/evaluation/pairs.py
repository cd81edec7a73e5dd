"""Scores of given pairs of sentences by a model, and its perplexity."""

import math
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice

from transformers import PreTrainedTokenizerFast

from ..data.batching import plan_batches
from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import MOST_SOURCE_TOKENS, check_sentence
from .scoring import score

PAIRS_PER_WINDOW = 4_096  # read, sorted by length and scored at a time


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
