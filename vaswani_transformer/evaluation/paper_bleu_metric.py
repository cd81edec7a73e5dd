"""The paper's BLEU as a metric for `evaluate.load` and `evaluate.combine`, which take the path of this file."""

import datasets
import evaluate

from vaswani_transformer.evaluation.paper_bleu import PaperBLEU

DESCRIPTION = """\
BLEU as "Attention Is All You Need" counted it: Moses tokenizer, hyphenated compounds split, cased, no smoothing. The
score is from 0 to 100. It is higher than sacreBLEU: compare it only with scores that were counted in the same way."""
CITATION = 'Vaswani et al., "Attention Is All You Need", NeurIPS 2017'
INPUTS = """\
Args:
    predictions: translations.
    references: for each translation a string, or a list of strings. All lists must have the same length.
    language: the language of the translations, by default "de".
    split_compounds: False to leave hyphenated compounds whole.
    is_tokenized: True if predictions and references are already tokenised.
    lowercase: True to compare without case.

Returns:
    score, its signature, counts, totals, precisions, bp, sys_len, ref_len."""
RESULTS = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
TEXT = datasets.Value("string")


class PaperBLEUMetric(evaluate.Metric):
    """The metric that `evaluate.load` finds in this file."""

    def _info(self) -> evaluate.MetricInfo:
        features = [
            datasets.Features({"predictions": TEXT, "references": references})
            for references in (datasets.Sequence(TEXT), TEXT)
        ]
        return evaluate.MetricInfo(DESCRIPTION, CITATION, features, INPUTS)

    def add_batch(self, **batch) -> None:
        """Add predictions and references. `evaluate` finds out their form from the first ones."""
        if self.writer is None and not all(map(len, batch.values())):
            raise ValueError("there are no translations or no references: give at least one of each.")
        super().add_batch(**batch)

    def _compute(self, predictions, references, **options) -> dict:
        metric = PaperBLEU(**options)
        lists = [[reference] if isinstance(reference, str) else reference for reference in references]
        counts = sorted({len(texts) for texts in lists})
        if len(counts) != 1 or counts == [0]:
            raise ValueError(
                f"the translations have different numbers of references, or none: {counts}. Give the same number for "
                f"each, at least 1."
            )
        score = metric.corpus_score(predictions, list(zip(*lists, strict=True)))
        return {name: getattr(score, name) for name in RESULTS} | {"signature": str(metric.get_signature())}
