"""The BLEU of the paper, loaded as a metric by the library `evaluate`."""

import evaluate
import pytest

from vaswani_transformer.evaluation import paper_bleu
from vaswani_transformer.evaluation.paper_bleu import PaperBLEU

FILE = paper_bleu.__file__.replace("paper_bleu.py", "paper_bleu_metric.py")
PREDICTIONS = ["Der Hund-Katzen-Streit endet .", "L'homme dort d'heure en heure dans le Bett.", ""]
REFERENCES = ["Der Hund-Katzen-Streit endet.", "L'homme dort d'heure en heure sur le bett.", "Regen"]
TEXTS = {"predictions": PREDICTIONS, "references": REFERENCES}


pytestmark = pytest.mark.usefixtures("metric_modules")


def test_evaluate_loads_the_metric_and_gives_the_scores_of_paper_bleu():
    metric = PaperBLEU()
    loaded = evaluate.load(FILE, keep_in_memory=True)
    found = loaded.compute(**TEXTS)
    score = metric.corpus_score(PREDICTIONS, [REFERENCES])
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    expected = {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}
    assert found == expected
    several = list(map(list, zip(REFERENCES, PREDICTIONS, strict=True)))
    assert loaded.compute(predictions=PREDICTIONS, references=several)["score"] == pytest.approx(100)
    loaded.add_batch(**TEXTS)
    assert loaded.compute() == found
    plain = loaded.compute(**TEXTS, language="fr", split_compounds=False, lowercase=True)
    assert "case:lc|" in plain["signature"]
    assert "-fr|smooth:none" in plain["signature"]
    both = evaluate.combine({"paper": loaded, "again": evaluate.load(FILE, keep_in_memory=True)})
    combined = both.compute(**TEXTS)
    assert combined == {f"{key}_{name}": value for key in ("paper", "again") for name, value in expected.items()}


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ([["a", "x"], ["b"]], r"different numbers of references, or none: \[1, 2\]\. Give the same number"),
        ([[], []], r"different numbers of references, or none: \[0\]\. Give the same number"),
    ],
)
def test_sentences_with_no_or_with_different_numbers_of_references_are_refused(references, message):
    loaded = evaluate.load(FILE, keep_in_memory=True)
    with pytest.raises(ValueError, match=message):
        loaded.compute(predictions=["a", "b"], references=references)


@pytest.mark.parametrize(("predictions", "references"), [([], []), (["a"], [])])
def test_no_translations_or_no_references_are_refused(predictions, references):
    loaded = evaluate.load(FILE, keep_in_memory=True)
    with pytest.raises(ValueError, match="no translations or no references: give at least one of each"):
        loaded.compute(predictions=predictions, references=references)
