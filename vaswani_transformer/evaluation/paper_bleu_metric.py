"""The paper's BLEU for `evaluate.load` and `evaluate.combine`, by the path of this file."""

import datasets
import evaluate

from vaswani_transformer.evaluation.paper_bleu import PaperBLEU

DESCRIPTION = """\
BLEU as "Attention Is All You Need" counted it: Moses tokenizer, hyphenated compounds split, cased, no smoothing. 0 to
100. Higher than sacreBLEU: compare it with scores of its own kind only."""
CITATION = 'Vaswani et al., "Attention Is All You Need", NeurIPS 2017'
INPUTS = """\
Args:
    predictions: translations.
    references: of each translation one string, or a list of as many for each.
    language, split_compounds, is_tokenized, lowercase: of `PaperBLEU`.

Returns:
    score, its signature, counts, totals, precisions, bp, sys_len, ref_len."""
RESULTS = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
TEXT = datasets.Value("string")


class PaperBLEUMetric(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        features = [
            datasets.Features({"predictions": TEXT, "references": references})
            for references in (datasets.Sequence(TEXT), TEXT)
        ]
        return evaluate.MetricInfo(DESCRIPTION, CITATION, features, INPUTS)

    def _compute(self, predictions, references, **options) -> dict:
        metric = PaperBLEU(**options)
        lists = [[reference] if isinstance(reference, str) else reference for reference in references]
        counts = sorted({len(of_one) for of_one in lists})
        if len(counts) != 1 or counts == [0]:
            raise ValueError(f"references of each translation: {counts}; expected as many for each, at least 1.")
        score = metric.corpus_score(predictions, list(zip(*lists, strict=True)))
        return {name: getattr(score, name) for name in RESULTS} | {"signature": str(metric.get_signature())}
