"""Compute scores of translations. Each score has the signature of its metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import sacrebleu
from accelerate.utils import gather_object
from sacrebleu.metrics.base import Metric
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..model.loss_vaswani import IGNORE_INDEX
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..translation.translator import Translator
from .paper_bleu import PaperBLEU

PERPLEXITY = "perplexity"


class Score(NamedTuple):
    """A score of a test set."""

    name: str
    value: float  # from 0 to 100, or a perplexity
    signature: str  # the signature of sacreBLEU; for a perplexity, a description of how it was counted

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


def build_metrics(*, tokenize: str = "13a", lowercase: bool = False, language: str = "de") -> dict[str, Metric]:
    """Return a dictionary from name to metric. The first is BLEU as sacreBLEU counts it.

    Args:
        tokenize: the tokenizer of sacreBLEU: "13a" for plain text, or "none" if translations and references are
            tokenised already.
        lowercase: True to ignore case in all metrics.
        language: the language of the translations, for the Moses tokenizer of the paper's BLEU.

    Raises:
        ValueError: if sacreBLEU has no such tokenizer.
    """
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(
            f"sacreBLEU has no tokenizer {tokenize!r}: choose one of {', '.join(sacrebleu.BLEU.TOKENIZERS)}."
        )
    # `force` hides sacreBLEU's warning that the text looks tokenised.
    bleu = partial(sacrebleu.BLEU, tokenize=tokenize, force=tokenize == "none")
    moses = {"language": language, "is_tokenized": tokenize == "none", "lowercase": lowercase}
    metrics = {
        "BLEU": bleu(lowercase=lowercase),
        "BLEU, lower-cased": bleu(lowercase=True),
        "BLEU, tokenised, compounds split as in the paper": PaperBLEU(**moses),
        "BLEU, tokenised": PaperBLEU(split_compounds=False, **moses),
        "chrF2": sacrebleu.CHRF(lowercase=lowercase),
    }
    if lowercase:
        del metrics["BLEU, lower-cased"]  # It would repeat "BLEU".
    return metrics


def compute_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metrics: Mapping[str, Metric]
) -> list[Score]:
    """Return all scores of the translations of one test set.

    Args:
        references: one or more reference translations of the whole test set.

    Raises:
        ValueError: if a reference has no sentences, or if it has more or fewer sentences than there are translations.
    """
    if not (references and all(references)):
        raise ValueError("there are no references: give at least one sentence.")
    for translations in references:
        if len(hypotheses) != len(translations):
            raise ValueError(
                f"the number of translations is {len(hypotheses)}, but the number of references is "
                f"{len(translations)}: line i of both must translate source i."
            )
    return [
        Score(name, metric.corpus_score(hypotheses, references).score, str(metric.get_signature()))
        for name, metric in metrics.items()
    ]


def compute_bleu(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Iterable[tuple[str, str]],
    *,
    process_index: int = 0,
    num_processes: int = 1,
) -> float:
    """Return sacreBLEU (13a, cased) of the translations that the model finds with its search options.

    Several processes can share the work. Then all of them must call this function at the same time. The number of
    processes does not change the batches, and so it does not change the score.

    Args:
        pairs: sources and references.
        process_index: the number of this process, from 0 on.
        num_processes: the number of processes.
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
    return sacrebleu.BLEU().corpus_score(translations, [references]).score


def build_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, *, language: str = "de"
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return the argument `compute_metrics` of a Seq2SeqTrainer with `predict_with_generate`.

    With it, the log of the trainer has sacreBLEU (eval_sacrebleu) and the paper's BLEU (eval_paper_bleu).

    Args:
        language: the language of the labels, for the tokenizer of the paper's BLEU.
    """
    metrics = {"sacrebleu": sacrebleu.BLEU(), "paper_bleu": PaperBLEU(language=language)}

    def decode(token_ids: np.ndarray) -> list[str]:
        if not isinstance(token_ids, np.ndarray) or token_ids.dtype.kind not in "iu":
            raise ValueError(
                "the predictions are not token ids: set predict_with_generate=True for the Seq2SeqTrainer."
            )
        # The trainer pads predictions and labels with -100 when it joins batches of different lengths.
        padded = np.where(token_ids == IGNORE_INDEX, tokenizer.pad_token_id, token_ids)
        return tokenizer.batch_decode(padded, skip_special_tokens=True)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        texts = decode(prediction.predictions)
        references = decode(prediction.label_ids)
        return {name: metric.corpus_score(texts, [references]).score for name, metric in metrics.items()}

    return compute_metrics
