"""sacreBLEU for `evaluate.load`, without a network; takes and gives what the Hub's metric of this name does."""

import datasets
import evaluate
import sacrebleu

from vaswani_transformer.evaluation.scores import describe_bleu

DESCRIPTION = "BLEU as sacreBLEU counts it (Post 2018): of plain text, with its own tokenizer. 0 to 100."
CITATION = """\
@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation",
    year = "2018",
    url = "https://aclanthology.org/W18-6319",
    pages = "186--191",
}"""
INPUTS = """\
Args:
    predictions: translations.
    references: of each translation one string, or a list of as many for each.
    smooth_method, smooth_value, force, lowercase, tokenize, use_effective_order: as of sacrebleu.BLEU.

Returns:
    score, its signature, counts, totals, precisions, bp, sys_len, ref_len.
"""
TEXT, TEXTS = datasets.Value("string"), datasets.Sequence(datasets.Value("string"))


class SacreBLEU(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            homepage="https://github.com/mjpost/sacreBLEU",
            features=[
                datasets.Features({"predictions": TEXT, "references": TEXTS}),
                datasets.Features({"predictions": TEXT, "references": TEXT}),
            ],
        )

    def _compute(
        self,
        predictions,
        references,
        smooth_method="exp",
        smooth_value=None,
        force=False,
        lowercase=False,
        tokenize=None,
        use_effective_order=False,
    ) -> dict:
        metric = sacrebleu.BLEU(
            lowercase=lowercase,
            force=force,
            tokenize=tokenize,
            smooth_method=smooth_method,
            smooth_value=smooth_value,
            effective_order=use_effective_order,
        )
        return describe_bleu(metric, predictions, references)
