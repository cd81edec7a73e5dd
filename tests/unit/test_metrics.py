"""BLEU, chrF and the BLEU of the paper, each with a signature of its settings."""

import numpy as np
import pytest
import sacrebleu
from transformers import EvalPrediction

from vaswani_transformer import train_tokenizer
from vaswani_transformer.evaluation.metrics import build_compute_metrics, build_metrics, compute_scores
from vaswani_transformer.evaluation.paper_bleu import PaperBLEU

REFERENCES = ["Der Hund-Katzen-Streit endet heute.", "Zwei Katzen schlafen auf dem Bett.", "Es regnet seit Tagen."] * 9
CLOSE = [line.replace("Bett", "Sofa") for line in REFERENCES]
FAR = [" ".join(line.split()[::-1]) for line in REFERENCES]


def test_all_metrics_are_reported_with_their_signatures():
    found = {score.name: score for score in compute_scores(CLOSE, [REFERENCES], build_metrics())}
    expected = {
        "BLEU": (sacrebleu.BLEU(), "case:mixed|eff:no|tok:13a|smooth:exp"),
        "BLEU, lower-cased": (sacrebleu.BLEU(lowercase=True), "case:lc|eff:no|tok:13a|smooth:exp"),
        "BLEU, tokenised, compounds split as in the paper": (PaperBLEU(), "-de-split|smooth:none"),
        "BLEU, tokenised": (PaperBLEU(split_compounds=False), "-de|smooth:none"),
        "chrF2": (sacrebleu.CHRF(), "case:mixed|eff:yes|nc:6|nw:0"),
    }
    assert list(found) == list(expected)
    for name, (metric, signature) in expected.items():
        assert found[name].value == pytest.approx(metric.corpus_score(CLOSE, [REFERENCES]).score)
        assert signature in found[name].signature
    assert str(found["BLEU"]) == f"BLEU {found['BLEU'].value:.2f}  {found['BLEU'].signature}"


def test_a_word_counts_if_any_reference_has_it():
    found = compute_scores(CLOSE, [FAR, CLOSE], build_metrics())
    assert all(score.value == pytest.approx(100) for score in found)
    assert "nrefs:2|" in found[0].signature


def test_tokenised_text_is_not_tokenised_again():
    metrics = build_metrics(tokenize="none")
    signatures = [score.signature for score in compute_scores(CLOSE, [REFERENCES], metrics)]
    assert ["tok:none" in signature for signature in signatures] == [True, True, True, True, False]
    assert metrics["BLEU, tokenised, compounds split as in the paper"].tokenizer_signature == "none-split"


def test_lowercase_applies_to_every_score():
    upper = [line.upper() for line in REFERENCES]
    found = compute_scores(upper, [REFERENCES], build_metrics(lowercase=True))
    assert len(found) == 4
    assert all(score.value == pytest.approx(100) and "case:lc" in score.signature for score in found)


def test_unequal_numbers_of_sentences_and_empty_references_are_refused():
    with pytest.raises(ValueError, match="translations is 1, but the number of references is 2: line i of both"):
        compute_scores(["a"], [["a", "b"]], build_metrics())
    with pytest.raises(ValueError, match="there are no references"):
        compute_scores([], [[]], build_metrics())
    with pytest.raises(ValueError, match="there are no references"):
        compute_scores(["a"], [], build_metrics())


def test_an_unknown_tokenizer_is_refused_and_the_error_lists_the_known_ones():
    with pytest.raises(ValueError, match="sacreBLEU has no tokenizer 'moses': choose one of none, zh, 13a"):
        build_metrics(tokenize="moses")


def test_compute_metrics_gives_a_trainer_the_scores_of_its_predictions():
    tokenizer = train_tokenizer(CLOSE + REFERENCES, vocab_size=300)
    predictions, labels = (
        tokenizer(texts, padding=True, return_tensors="np").input_ids for texts in (CLOSE, REFERENCES)
    )
    predictions = np.pad(predictions, ((0, 0), (1, 2)), constant_values=((0, 0), (tokenizer.bos_token_id, -100)))
    labels = np.where(labels == tokenizer.pad_token_id, -100, labels)
    prediction = EvalPrediction(predictions=predictions, label_ids=labels)
    assert build_compute_metrics(tokenizer)(prediction) == {
        "sacrebleu": pytest.approx(sacrebleu.BLEU().corpus_score(CLOSE, [REFERENCES]).score),
        "paper_bleu": pytest.approx(PaperBLEU().corpus_score(CLOSE, [REFERENCES]).score),
    }
