"""BLEU and perplexity of a trained model, and the search settings that were used (section 6.1)."""

from collections.abc import Iterable

import numpy as np
import sacrebleu
from accelerate.utils import gather_object
from transformers import PreTrainedTokenizerFast

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..translation.translator import Translator
from .pairs import score_pairs


def compute_bleu(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    process_index: int = 0,
    num_processes: int = 1,
) -> float:
    """Return sacreBLEU (13a, cased) of the model's translations of `pairs`, decoded as the model is set to.

    Several processes, which must all call it together, share the batches out. The batches are those of one process, so
    the score is the same for any number.
    """
    sources, references = zip(*pairs, strict=True)
    translator = Translator(model, tokenizer)
    translated = [
        (row, hypotheses[0].text)
        for batch in translator.plan(sources)[process_index::num_processes]
        for row, hypotheses in zip(batch.rows, translator.translate(batch), strict=True)
    ]
    if num_processes > 1:
        translated = gather_object(translated)
    translations = [text for _, text in sorted(translated)]
    return sacrebleu.BLEU().corpus_score(translations, [list(references)]).score


def compute_perplexity(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
) -> float:
    """Return exp of the mean of -log P over the sub-words of the targets, with `</s>`, without label smoothing."""
    rated = score_pairs(model.eval(), tokenizer, pairs, tokens_per_batch=tokens_per_batch)
    log_probs, lengths, _ = zip(*rated, strict=True)
    return float(np.exp(-sum(log_probs) / sum(lengths)))


def describe_search(model: VaswaniForConditionalGeneration, **generate_kwargs) -> str:
    """Return the search settings in one line, to print beside a score."""
    names = ("num_beams", "length_penalty", "length_penalty_type", "max_length_offset", "early_stopping")
    settings = {name: generate_kwargs.get(name, getattr(model.generation_config, name, None)) for name in names}
    return "|".join(f"{name}:{value}" for name, value in settings.items())
