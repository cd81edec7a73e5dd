"""BLEU as in the paper: tokenised, with compounds split."""

import re

import pytest
import sacremoses

from vaswani_transformer.evaluation.paper_bleu import PaperBLEU, split_compounds, tokenize

# Each function makes an imperfect translation from a line of newstest2014. The text has every ninth line. The two
# numbers are the BLEU that multi-bleu.perl of Moses printed for it: the first without splitting of compounds, the
# second with it. Before scoring, translations and references went through replace-unicode-punctuation.perl and
# tokenizer.perl (December 2016). For the second number, hyphens were then substituted.
SYSTEMS = {
    "every third word is missing": (
        lambda line: " ".join(word for i, word in enumerate(line.split(" ")) if i % 3 != 2),
        [11.54, 14.78],
    ),
    "neighbours change places": (lambda line: re.sub(r"([^ ]+) ([^ ]+)", r"\2 \1", line), [4.34, 7.77]),
    "compounds in two words": (lambda line: line.replace("-", " "), [95.73, 96.65]),
    "hyphens around und": (lambda line: line.replace(" und ", "-und-"), [90.95, 91.47]),
    "lower case": (str.lower, [36.29, 35.73]),
    "quotation marks curled": (lambda line: line.replace('"', "\u201c").replace("'", "\u2019"), [100.0, 100.0]),
    "cut in the middle": (lambda line: line[: len(line) // 2], [34.71, 34.80]),
}


@pytest.fixture(scope="module")
def references(data_folder):
    text = (data_folder / "news_en-de" / "newstest2014.de").read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")[::9]


@pytest.mark.parametrize(("change", "expected"), SYSTEMS.values(), ids=SYSTEMS)
def test_scores_agree_with_the_scripts_of_moses(references, change, expected):
    hypotheses = list(map(change, references))
    scores = [
        PaperBLEU(split_compounds=splits).corpus_score(hypotheses, [references]).score for splits in (False, True)
    ]
    assert scores == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("language", "sentence", "tokens"),
    [
        ("de", "Die \u201eRich-Text\u201c-Datei (2,5 MB).", "Die \u201e Rich-Text &quot; -Datei ( 2,5 MB ) ."),
        ("de", "Dr. M\u00fcller geht z.B. ins B\u00fcro\u2026", "Dr. M\u00fcller geht z.B. ins B\u00fcro ..."),
        ("de", "\u300c\uff11\u300d\uff1ax", "&quot; 1 &quot; : x"),
        ("de", "a\u2028b", "a b"),
        ("de", " ", ""),
        ("en", "It's Mr. Smith's.", "It &apos;s Mr. Smith &apos;s ."),
        ("fr", "L'homme d'eau.", "L&apos; homme d&apos; eau ."),
    ],
)
def test_punctuation_is_split_off_by_the_rules_of_the_language(language, sentence, tokens):
    assert tokenize(sentence, language=language) == tokens


def test_compounds_are_split_at_hyphens_inside_words():
    assert split_compounds("rich-text -format - Aix-en-Provence") == (
        "rich ##AT##-##AT## text -format - Aix ##AT##-##AT## en ##AT##-##AT## Provence"
    )
    # As in the authors' script, b is part of the first match a-b, so b-c cannot match.
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_text_is_lower_cased_after_tokenization_and_the_signature_names_the_tokenizer():
    metric = PaperBLEU(language="fr", lowercase=True)
    assert PaperBLEU(lowercase=True)._preprocess_segment("Dr. A") == "dr. a"
    assert metric.corpus_score(["das Ist ein Satz"], [["Das ist ein satz"]]).score == pytest.approx(100)
    signature = str(metric.get_signature())
    assert f"tok:sacremoses{sacremoses.__version__}-fr-split|smooth:none" in signature
    assert PaperBLEU(is_tokenized=True, split_compounds=False).tokenizer_signature == "none"


def test_tokenised_text_is_only_split_at_hyphens_and_is_scored_without_smoothing():
    metric = PaperBLEU(is_tokenized=True)
    assert metric._preprocess_segment("A-b . &") == "A ##AT##-##AT## b . &"
    assert metric.corpus_score(["a b c x d e f"], [["a b c y d e f"]]).score == pytest.approx(0)


def test_text_with_spaces_before_full_stops_is_scored_without_a_warning(caplog):
    lines = ["Ein Hund rennt ."] * 200
    assert PaperBLEU(is_tokenized=True).corpus_score(lines, [lines]).score == pytest.approx(100)
    assert not caplog.records
