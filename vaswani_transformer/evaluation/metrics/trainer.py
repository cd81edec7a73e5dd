"""The metrics of this folder as the `compute_metrics` of a Seq2SeqTrainer.

    trainer = Seq2SeqTrainer(
        args=Seq2SeqTrainingArguments(..., predict_with_generate=True),
        compute_metrics=build_compute_metrics(tokenizer),
    )

The log then has eval_sacrebleu and eval_paper_bleu.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import evaluate
import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

METRICS = ("sacrebleu", "paper_bleu")


def load_metric(name: str) -> evaluate.EvaluationModule:
    """One of `METRICS`: `evaluate.load` of its folder in this package, without a network.

    Raises:
        ValueError: if there is no such metric.
    """
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r} here; choose one of: {', '.join(METRICS)}.")
    return evaluate.load(str(Path(__file__).parent / name), keep_in_memory=True)


def build_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = METRICS, *, language: str = "de", **options
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A function that decodes what was generated and the labels, and gives the score of each metric by its name.

    Args:
        tokenizer: of the model.
        names: of `METRICS`.
        language: of the labels, for the tokenizer of "paper_bleu"; sacreBLEU knows none.
        options: of every metric's `compute`, such as `lowercase=True`.

    Raises:
        ValueError: if there is no such metric.
    """
    metrics = {name: load_metric(name) for name in names}
    options_of = dict.fromkeys(names, options) | {"paper_bleu": options | {"language": language}}

    def decode(token_ids: np.ndarray) -> list[str]:
        # Both are filled up with -100 where batches of different length were joined.
        padded = np.where(token_ids < 0, tokenizer.pad_token_id, token_ids)
        return tokenizer.batch_decode(padded, skip_special_tokens=True)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        texts, references = decode(prediction.predictions), decode(prediction.label_ids)
        return {
            name: metric.compute(predictions=texts, references=references, **options_of[name])["score"]
            for name, metric in metrics.items()
        }

    return compute_metrics
