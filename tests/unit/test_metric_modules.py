import evaluate
import numpy as np
import pytest
import sacrebleu
from transformers import EvalPrediction

from vaswani_transformer import train_tokenizer
from vaswani_transformer.evaluation import paper_bleu
from vaswani_transformer.evaluation.paper_bleu import PaperBLEU
from vaswani_transformer.evaluation.scores import build_compute_metrics

FILE = paper_bleu.__file__.replace("paper_bleu.py", "paper_bleu_metric.py")
PREDICTIONS = ["Der Hund-Katzen-Streit endet .", "L'homme dort d'heure en heure dans le Bett.", ""]
REFERENCES = ["Der Hund-Katzen-Streit endet.", "L'homme dort d'heure en heure sur le bett.", "Regen"]


pytestmark = pytest.mark.usefixtures("metric_modules")


def test_the_metric_loads_from_its_file_and_scores_as_the_paper_did():
    metric = PaperBLEU()
    loaded = evaluate.load(FILE, keep_in_memory=True)
    found = loaded.compute(predictions=PREDICTIONS, references=REFERENCES)
    score = metric.corpus_score(PREDICTIONS, [REFERENCES])
    names = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
    expected = {name: getattr(score, name) for name in names} | {"signature": str(metric.get_signature())}
    assert found == expected
    several = [[reference, prediction] for reference, prediction in zip(REFERENCES, PREDICTIONS, strict=True)]
    assert loaded.compute(predictions=PREDICTIONS, references=several)["score"] == pytest.approx(100)
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        loaded.add(prediction=prediction, reference=reference)
    assert loaded.compute() == found
    options = {"language": "fr", "split_compounds": False, "lowercase": True}
    plain = loaded.compute(predictions=PREDICTIONS, references=REFERENCES, **options)
    assert "case:lc|" in plain["signature"]
    assert "-fr|smooth:none" in plain["signature"]
    both = evaluate.combine({"paper": loaded, "again": evaluate.load(FILE, keep_in_memory=True)})
    combined = both.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert combined == {f"{key}_{name}": value for key in ("paper", "again") for name, value in expected.items()}


def test_a_trainer_gets_the_scores_of_what_was_generated():
    tokenizer = train_tokenizer(PREDICTIONS + REFERENCES, vocab_size=300)
    predictions, labels = (
        tokenizer(texts, padding=True, return_tensors="np").input_ids for texts in (PREDICTIONS, REFERENCES)
    )
    predictions = np.pad(predictions, ((0, 0), (1, 2)), constant_values=((0, 0), (tokenizer.bos_token_id, -100)))
    labels = np.where(labels == tokenizer.pad_token_id, -100, labels)
    prediction = EvalPrediction(predictions=predictions, label_ids=labels)
    assert build_compute_metrics(tokenizer)(prediction) == {
        "sacrebleu": pytest.approx(sacrebleu.BLEU().corpus_score(PREDICTIONS, [REFERENCES]).score),
        "paper_bleu": pytest.approx(PaperBLEU().corpus_score(PREDICTIONS, [REFERENCES]).score),
    }
    assert build_compute_metrics(tokenizer, language="fr", lowercase=True)(prediction) == {
        "sacrebleu": pytest.approx(sacrebleu.BLEU(lowercase=True).corpus_score(PREDICTIONS, [REFERENCES]).score),
        "paper_bleu": pytest.approx(
            PaperBLEU(language="fr", lowercase=True).corpus_score(PREDICTIONS, [REFERENCES]).score
        ),
    }
