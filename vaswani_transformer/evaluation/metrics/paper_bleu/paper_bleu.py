"""The paper's BLEU for `evaluate.load`: of text tokenised by Moses' rules, hyphenated compounds split."""

import datasets
import evaluate

from vaswani_transformer.evaluation.paper_bleu import PaperBLEU
from vaswani_transformer.evaluation.scores import describe_bleu

DESCRIPTION = """\
BLEU as "Attention Is All You Need" counted it: Moses tokenizer, hyphenated compounds split, cased, no smoothing
(get_ende_bleu.sh and multi-bleu.perl). 0 to 100. Higher than sacreBLEU: compare it with scores of its own kind only."""
CITATION = """\
@inproceedings{vaswani-2017-attention,
    title = "Attention Is All You Need",
    author = "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and
        Gomez, Aidan N. and Kaiser, {\\L}ukasz and Polosukhin, Illia",
    booktitle = "Advances in Neural Information Processing Systems",
    year = "2017",
}"""
INPUTS = """\
Args:
    predictions: translations.
    references: of each translation one string, or a list of as many for each.
    language: of both, for the tokenizer; "de" if not given.
    split_compounds: as the paper did; true if not given.
    is_tokenized: both sides are tokenised already; false if not given.
    lowercase: compare without case; false if not given.

Returns:
    score, its signature, counts, totals, precisions, bp, sys_len, ref_len.
"""
TEXT, TEXTS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))


class PaperBLEUMetric(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=[
                datasets.Features({"predictions": TEXT, "references": TEXTS}),
                datasets.Features({"predictions": TEXT, "references": TEXT}),
            ],
        )

    def _compute(
        self, predictions, references, language="de", split_compounds=True, is_tokenized=False, lowercase=False
    ) -> dict:
        metric = PaperBLEU(
            language=language, split_compounds=split_compounds, is_tokenized=is_tokenized, lowercase=lowercase
        )
        return describe_bleu(metric, predictions, references)
