"""Scores of translations side by side, and whether two systems differ by more than chance.

Every score carries its signature, which says how it was counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sacrebleu
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from .paper_bleu import PaperBLEU

BLEU = "BLEU"
PAPER = "BLEU, tokenised, compounds split as in the paper"
TOKENISED = "BLEU, tokenised"
LOWER_CASED = "BLEU, lower-cased"
CHRF = "chrF2"
NUM_RESAMPLES = 1_000


@dataclass(frozen=True)
class Score:
    """A score of a test set.

    Attributes:
        name: what was counted.
        value: 0 to 100.
        signature: how it was counted, as sacreBLEU writes it.
    """

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


@dataclass(frozen=True)
class Comparison:
    """One score of several systems.

    Attributes:
        name, signature: of the score, with the number of resamples and the seed.
        results: for each system in turn `score`, `ci` (half the width of its 95 % interval) and `p_value`: how likely
            a difference from the first system as large as this would be if both were equally good; `None` for the
            first.
    """

    name: str
    signature: str
    results: list[Result]


def build_metrics(*, tokenize: str = "13a", lowercase: bool = False, language: str = "de") -> dict[str, Metric]:
    """The metrics by their names: first the one that others can reproduce, then the paper's, then the rest.

    Args:
        tokenize: sacreBLEU's tokenizer: "13a" for plain text; "none" for text that is tokenised already, both sides.
        lowercase: compare without case, in all of them.
        language: of the translations, for the Moses tokenizer.

    Raises:
        ValueError: if sacreBLEU has no such tokenizer.
    """
    moses = {"language": language, "is_tokenized": tokenize == "none", "lowercase": lowercase}
    metrics: dict[str, Metric] = {BLEU: build_bleu(tokenize=tokenize, lowercase=lowercase)}
    if not lowercase:
        metrics[LOWER_CASED] = build_bleu(tokenize=tokenize, lowercase=True)
    metrics[PAPER] = PaperBLEU(**moses)
    metrics[TOKENISED] = PaperBLEU(split_compounds=False, **moses)
    metrics[CHRF] = sacrebleu.CHRF(lowercase=lowercase)
    return metrics


def build_bleu(*, tokenize: str, lowercase: bool) -> sacrebleu.BLEU:
    """sacreBLEU's BLEU; arguments as of `build_metrics`."""
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        tokenizers = ", ".join(sacrebleu.BLEU.TOKENIZERS)
        raise ValueError(f"sacreBLEU has no tokenizer {tokenize!r}; choose one of: {tokenizers}.")
    # `force` silences a guess that text with spaces before full stops must not be scored.
    return sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")


def compute_scores(hypotheses: Sequence[str], references: Sequence[str], metrics: Mapping[str, Metric]) -> list[Score]:
    """All scores of the translations of one test set.

    Raises:
        ValueError: if the numbers of sentences differ, or are 0.
    """
    _check_counts({"": hypotheses}, references)
    return [
        Score(name, metric.corpus_score(list(hypotheses), [list(references)]).score, str(metric.get_signature()))
        for name, metric in metrics.items()
    ]


def score_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> dict[str, float | str]:
    """Corpus BLEU by sacreBLEU, with its signature; arguments and errors as of `build_metrics` and `compute_scores`."""
    (score,) = compute_scores(hypotheses, references, {BLEU: build_bleu(tokenize=tokenize, lowercase=lowercase)})
    return {"bleu": score.value, "signature": score.signature}


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], metrics: Mapping[str, Metric]
) -> list[Comparison]:
    """All scores of one or several systems, the others tested against the first by paired bootstrap (Koehn 2004).

    Args:
        systems: name -> translations.

    Raises:
        ValueError: if the numbers of sentences differ, or are 0.
    """
    _check_counts(systems, references)
    named = [(name, list(hypotheses)) for name, hypotheses in systems.items()]
    comparisons = []
    for name, metric in metrics.items():
        # One test a metric: sacreBLEU tells metrics apart by the names it gives them, and here four are called BLEU.
        test = PairedTest(named, {name: metric}, [list(references)], test_type="bs", n_samples=NUM_RESAMPLES)
        signatures, results = test()
        ((own_name, signature),) = signatures.items()
        first, *others = results[own_name]
        for other in others:
            if other.score == first.score:
                other.p_value = 1.0  # sacreBLEU counts only larger differences and would find none in any resample
        comparisons.append(Comparison(name, str(signature), [first, *others]))
    return comparisons


def _check_counts(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> None:
    if not references:
        raise ValueError("there is no reference; there is nothing to score.")
    for name, hypotheses in systems.items():
        if len(hypotheses) != len(references):
            raise ValueError(
                f"{len(hypotheses)} translations{name and f' in {name}'} cannot be scored against {len(references)} "
                f"references: line i of one must translate the source of line i of the other."
            )


def describe_bleu(metric: sacrebleu.BLEU, hypotheses: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict:
    """BLEU with its parts under the names that the Hub's metrics give them, and with its signature.

    Args:
        references: of each translation one, or a list of as many for each.

    Raises:
        ValueError: if the numbers of sentences differ, or those of the references of two translations.
    """
    _check_counts({"": hypotheses}, references)
    lists = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
    if len(set(map(len, lists))) > 1:
        counts = sorted(set(map(len, lists)))
        raise ValueError(
            f"every translation needs as many references as the others, but some have {counts[0]}, some {counts[-1]}. "
            f"Leave out what not all have."
        )
    score = metric.corpus_score(list(hypotheses), list(zip(*lists, strict=True)))
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    return {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}
