"""Lines are translated sentence by sentence if `split_sentences` is set.

Otherwise a warning counts the lines that hold several sentences.
"""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shortcuts import vaswani

from vaswani_transformer import pipeline as vaswani_pipeline
from vaswani_transformer.model.pipeline_vaswani import SEVERAL_SENTENCES, custom_pipelines, split_text
from vaswani_transformer.translation.translator import Translator, translate

OPTION = {"split_sentences": True}
SENTENCES = ["A dog runs.", "Two cats sleep!", "Does Dr. Smith see J. K. Rowling?", "A dog."]
PARAGRAPH = "  {}\u2028{} \r\n\n {}\u3000\t{} "


@pytest.fixture
def sentencex():
    return pytest.importorskip("sentencex", reason='needs pip install ".[sentences]"')


@pytest.fixture(scope="module")
def folder(build_translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    build_translator(SENTENCES * 3, folder=folder, custom_pipelines=custom_pipelines("translation_en-US_to_de"))
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    return vaswani_pipeline("translation", model=folder, max_new_tokens=6)


@pytest.fixture
def paragraph(tmp_path, folder):
    """Return the path of a file of two lines that holds `PARAGRAPH`, filled with `SENTENCES`."""
    text = tmp_path / "text"
    text.write_bytes(PARAGRAPH.replace("\r\n\n", "\n").format(*SENTENCES).encode())
    return text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.one_of(st.sampled_from(" .!?。\n\r\t\u2028\u00a0\"'()ABcd3"), st.characters(codec="utf-8"))))
@pytest.mark.parametrize("language", ["en", "de-CH", "ja", "xx", None])
def test_the_sentences_and_spaces_that_a_text_is_split_into_join_to_the_text(sentencex, language, text):
    parts = split_text(text, language)
    assert "".join(sentence + space for sentence, space in parts) == text
    if language and not text.isspace():
        assert all(sentence == sentence.strip() and not space.strip() for sentence, space in parts)


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", PARAGRAPH.format(*SENTENCES), ["", *SENTENCES]),
        ("zh_Hant", "我喜歡狗。你呢?\u2029好!", ["我喜歡狗。", "你呢?", "好!"]),
        ("ja", "犬が走る。猫は?", ["犬が走る。", "猫は?"]),
        ("de", "Am 3. Mai kam Dr. Maier. „Gut.“ Er ging z. B. nach Hause.", None),
        ("en", "I am J.\u2028K. Rowling", ["I am J.\u2028K. Rowling"]),  # sentencex panics if U+2028 is not replaced
        ("en", " \n ", [" ", " "]),
    ],
)
def test_sentences_are_found_in_many_languages_after_any_white_space(sentencex, language, text, sentences):
    expected = sentences or ["Am 3. Mai kam Dr. Maier.", "„Gut.“", "Er ging z. B. nach Hause."]
    assert [sentence for sentence, _ in split_text(text, language)] == expected


def test_a_paragraph_is_translated_sentence_by_sentence(sentencex, pipe, folder, paragraph, tmp_path):
    text = PARAGRAPH.format(*SENTENCES)
    alone = [found["translation_text"] for found in pipe(SENTENCES)]
    expected = PARAGRAPH.format(*alone)
    assert pipe(["A dog.", text], **OPTION, batch_size=3)[1] == {"translation_text": expected}
    assert pipe(text)[0]["translation_text"] != expected
    constructed = vaswani_pipeline("translation", model=pipe.model, tokenizer=pipe.tokenizer, **OPTION)
    assert constructed(text, max_new_tokens=6)[0]["translation_text"] == expected
    assert translate(pipe.model, pipe.tokenizer, [text, ""], **OPTION, max_new_tokens=6) == [expected, ""]
    files = f"--input {paragraph} --output {tmp_path}/output"
    vaswani(f"translate --model {folder} {files} --max_length_offset 1 --split_sentences")
    alone = translate(pipe.model, pipe.tokenizer, SENTENCES, max_length_offset=1)
    assert (tmp_path / "output").read_bytes().decode() == PARAGRAPH.replace("\r\n\n", "\n").format(*alone) + "\n"


def test_hypotheses_of_a_paragraph_are_joined_and_their_scores_added(sentencex, pipe):
    options = {"num_hypotheses": 2, "with_scores": True, "max_new_tokens": 6}
    counts = []
    translator = Translator(pipe.model, pipe.tokenizer, **OPTION, **options)
    [found, _] = translator([" A dog runs. A dog. ", "A dog."], on_batch=counts.append)
    parts = Translator(pipe.model, pipe.tokenizer, **options)(["A dog runs.", "A dog."])
    for n, hypothesis in enumerate(found):
        assert hypothesis.text == f" {parts[0][n].text} {parts[1][n].text} "
        assert hypothesis.score == pytest.approx(parts[0][n].score + parts[1][n].score)
    assert sum(counts) == 2  # lines are counted, not sentences


def test_the_printed_scores_say_that_sentences_were_split(sentencex, folder, paragraph, capsys):
    vaswani(f"evaluate --model {folder} --test {paragraph} {paragraph} --split_sentences")
    printed = capsys.readouterr()
    assert "|split_sentences  model" in printed.out
    assert "several" not in printed.err


def test_alignments_of_split_sentences_are_refused(folder, paragraph, tmp_path, error_of):
    files = f"--input {paragraph} --output {tmp_path}/output --alignments {tmp_path}/links"
    assert "--alignments needs one translation per line" in error_of(
        f"translate --model {folder} {files} --split_sentences"
    )


def test_a_warning_counts_lines_with_several_sentences_and_names_the_option(
    pipe, folder, paragraph, capsys, monkeypatch
):
    vaswani(f"translate --model {folder} --input {paragraph} --max_length_offset 1")
    error = capsys.readouterr().err
    assert "several sentences, one of which may be missing in the translation: 2 (the first begins '" in error
    assert "Split them, or give --split_sentences." in error
    warnings = []
    monkeypatch.setattr("vaswani_transformer.model.pipeline_vaswani.logger.warning_once", warnings.append)
    pipe("A dog.\nA dog.")
    assert not warnings
    pipe("A dog. A dog.")
    assert "give split_sentences=True" in warnings[0]


def test_the_pattern_of_several_sentences_does_not_match_a_single_sentence():
    singles = [
        *SENTENCES,
        "J. K. Rowling.",
        "On 3. May he came.",
        "Well... No",
        "Mr. X",
        "a.m. and p.m.",
        "Yahoo! is",
        "3.5",
    ]
    assert [text for text in singles if SEVERAL_SENTENCES.search(text)] == []
    several = [
        "A dog. A cat",
        '"Who?" (He.)',
        "Gut!  „Er geht.“",
        "猫。犬。",
        "猫。 犬",
        "मैं आया। वह गया।",
        "Он идёт. Я иду.",
        "It is hot. Élan",
    ]
    assert all(map(SEVERAL_SENTENCES.search, several))


def test_a_sentence_splitter_that_is_missing_or_loses_characters_is_an_error(pipe, folder, error_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    assert "pip install sentencex" in error_of(f"translate --model {folder} --split_sentences")
    with pytest.raises(ImportError, match="pip install sentencex"):
        pipe("A dog.", **OPTION)
    monkeypatch.setitem(sys.modules, "sentencex", SimpleNamespace(segment=lambda language, text: [text[:4]]))
    with pytest.raises(ValueError, match=r"sentencex returned 4 of 6 characters: 'A dog\.'"):
        pipe("A dog.", **OPTION)


def test_the_source_language_chooses_the_rules_for_splitting(pipe, build_translator, monkeypatch):
    languages = set()
    segment = SimpleNamespace(segment=lambda language, text: languages.add(language) or [text])
    monkeypatch.setitem(sys.modules, "sentencex", segment)
    pipe("A dog.", **OPTION)
    assert languages == {"en"}  # from the name of the model's task
    model, tokenizer = build_translator(SENTENCES)
    without_languages = vaswani_pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=1)
    without_languages("A dog.", src_lang="da", **OPTION)
    assert languages == {"en", "da"}
