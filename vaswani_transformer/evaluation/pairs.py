"""Scores of pairs of sentences: the model's own, of translations that are given."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from transformers import PreTrainedTokenizerFast

from ..data.batching import plan_batches
from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration

PAIRS_PER_WINDOW = 4_096  # read, sorted by length and scored at a time


def score_pairs(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
    **options,
) -> Iterator[tuple[float, int, float]]:
    """log P, |Y| and score of each pair of source and target text, in their order.

    An empty line is the sentence that consists of </s> alone, on either side, and is rated like any other.

    Args:
        tokens_per_batch: padded tokens of a batch, on the longer side.
        options: for `model.score`.
    """
    pairs = iter(pairs)
    while window := list(islice(pairs, PAIRS_PER_WINDOW)):
        yield from _score_window(model, tokenizer, window, tokens_per_batch, options)


def _score_window(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[tuple[str, str]],
    tokens_per_batch: int,
    options: dict,
) -> list[tuple[float, int, float]]:
    sources, targets = zip(*pairs, strict=True)
    source_ids = tokenizer(list(sources), verbose=False).input_ids
    target_ids = tokenizer(text_target=list(targets), verbose=False).input_ids
    results: list[tuple[float, int, float]] = [(0.0, 0, 0.0)] * len(sources)
    longest = [max(map(len, sides)) for sides in zip(source_ids, target_ids, strict=True)]
    for rows in plan_batches(longest, limit=tokens_per_batch):
        inputs, labels = (
            tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt").to(model.device)
            for ids in (source_ids, target_ids)
        )
        found = model.score(
            **inputs, labels=labels.input_ids.masked_fill(labels.attention_mask == 0, IGNORE_INDEX), **options
        )
        rated = zip(found.log_probs.tolist(), found.lengths.tolist(), found.scores.tolist(), strict=True)
        for row, result in zip(rows, rated, strict=True):
            results[row] = result
    return results
