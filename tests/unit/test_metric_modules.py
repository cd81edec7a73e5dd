from pathlib import Path

import evaluate
import numpy as np
import pytest
import sacrebleu
from setuptools import find_packages
from transformers import EvalPrediction

from vaswani_transformer import train_tokenizer
from vaswani_transformer.evaluation import metrics
from vaswani_transformer.evaluation.metrics.trainer import build_compute_metrics
from vaswani_transformer.evaluation.paper_bleu import PaperBLEU

FOLDER = Path(metrics.__file__).parent
PREDICTIONS = ["Der Hund-Katzen-Streit endet .", "Zwei Katzen schlafen heute auf dem Bett.", ""]
REFERENCES = ["Der Hund-Katzen-Streit endet.", "Zwei Katzen schlafen auf dem Bett.", "Regen"]


pytestmark = pytest.mark.usefixtures("metric_modules")


def test_the_metric_loads_from_its_folder_and_scores_as_the_paper_did():
    metric = PaperBLEU()
    loaded = evaluate.load(str(FOLDER / "paper_bleu"), keep_in_memory=True)
    found = loaded.compute(predictions=PREDICTIONS, references=REFERENCES)
    expected = metric.corpus_score(PREDICTIONS, [REFERENCES])
    assert found["score"] == pytest.approx(expected.score)
    assert found["precisions"] == pytest.approx(expected.precisions)
    assert found["signature"] == str(metric.get_signature())
    nested = loaded.compute(predictions=PREDICTIONS, references=[[reference] for reference in REFERENCES])
    assert nested == found
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        loaded.add(prediction=prediction, reference=reference)
    assert loaded.compute() == found
    upper = [reference.upper() for reference in REFERENCES]
    assert loaded.compute(predictions=upper, references=REFERENCES, lowercase=True)["score"] == pytest.approx(100)
    plain = loaded.compute(predictions=PREDICTIONS, references=REFERENCES, split_compounds=False)
    assert "-de|smooth:none" in plain["signature"]


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
    upper = sacrebleu.BLEU(lowercase=True).corpus_score(PREDICTIONS, [REFERENCES]).score
    assert build_compute_metrics(tokenizer, ["sacrebleu"], lowercase=True)(prediction) == {
        "sacrebleu": pytest.approx(upper)
    }


def test_the_language_of_a_trainer_is_that_of_the_paper_s_bleu():
    texts, references = ["Il dit que l'homme court loin d'ici."], ["Il dit que l'homme court près d'ici."]
    tokenizer = train_tokenizer(texts + references, vocab_size=300)
    predictions, labels = (tokenizer(side, return_tensors="np").input_ids for side in (texts, references))
    found = build_compute_metrics(tokenizer, language="fr")(EvalPrediction(predictions=predictions, label_ids=labels))
    french, german = (PaperBLEU(language=name).corpus_score(texts, [references]).score for name in ("fr", "de"))
    assert found["paper_bleu"] == pytest.approx(french) != pytest.approx(german)
    assert found["sacrebleu"] == pytest.approx(sacrebleu.BLEU().corpus_score(texts, [references]).score)


def test_an_unknown_metric_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"there is no metric bleurt here; choose one of: sacrebleu, paper_bleu\."):
        build_compute_metrics(None, ["paper_bleu", "bleurt"])


def test_the_folder_travels_in_the_wheel():
    packages = find_packages(str(FOLDER.parents[2]), include=["vaswani_transformer", "vaswani_transformer.*"])
    assert "vaswani_transformer.evaluation.metrics.paper_bleu" in packages
