"""sacreBLEU and the paper's BLEU as the `compute_metrics` of a Seq2SeqTrainer.

    trainer = Seq2SeqTrainer(
        args=Seq2SeqTrainingArguments(..., predict_with_generate=True),
        compute_metrics=build_compute_metrics(tokenizer),
    )

The log then has eval_sacrebleu and eval_paper_bleu.
"""

from collections.abc import Callable, Sequence

import numpy as np
import sacrebleu
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ...model.loss_vaswani import IGNORE_INDEX
from ..paper_bleu import PaperBLEU

METRICS = {"sacrebleu": sacrebleu.BLEU, "paper_bleu": PaperBLEU}


def build_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = tuple(METRICS), *, language: str = "de", **options
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return a function that decodes generated tokens and labels, and returns the score of each metric by its name.

    Args:
        tokenizer: of the model.
        names: of `METRICS`.
        language: of the labels, for the tokenizer of "paper_bleu"; sacreBLEU knows none.
        options: of every metric, such as `lowercase=True`.

    Raises:
        ValueError: if there is no such metric.
    """
    if unknown := sorted(set(names) - METRICS.keys()):
        raise ValueError(f"there is no metric {', '.join(unknown)} here; choose one of: {', '.join(METRICS)}.")
    options_of = {"sacrebleu": options, "paper_bleu": options | {"language": language}}
    metrics = {name: METRICS[name](**options_of[name]) for name in names}

    def decode(token_ids: np.ndarray) -> list[str]:
        # The trainer pads both where it joins batches of different length.
        padded = np.where(token_ids == IGNORE_INDEX, tokenizer.pad_token_id, token_ids)
        return tokenizer.batch_decode(padded, skip_special_tokens=True)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        texts, references = decode(prediction.predictions), decode(prediction.label_ids)
        return {name: metric.corpus_score(texts, [references]).score for name, metric in metrics.items()}

    return compute_metrics
