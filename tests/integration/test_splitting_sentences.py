"""Lines are translated sentence by sentence if `split_sentences` is set.

Otherwise a warning counts the lines that hold several sentences.
"""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shortcuts import vaswani

from vaswani_transformer import pipeline as vaswani_pipeline
from vaswani_transformer import text as text_module
from vaswani_transformer.model.pipeline_vaswani import TranslationPipeline as TravellingPipeline
from vaswani_transformer.model.pipeline_vaswani import custom_pipelines
from vaswani_transformer.text import end_sentence, has_several, split_sentences, unwrap
from vaswani_transformer.translation.translator import Translator, translate

OPTION = {"split_sentences": True}
SENTENCES = ["A dog runs.", "Two cats sleep!", "Does Dr. Smith see J. K. Rowling?", "A dog."]
PARAGRAPH = "  {}\u2028{} \r\n\n {}\u3000\t{} "


end_with_period = partial(end_sentence, space=" ")


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


@given(st.text(st.one_of(st.sampled_from(" .!?。\n\r\t\u2028\u00a0\"'()ABcd3"), st.characters(codec="utf-8"))))
@pytest.mark.parametrize("language", ["en", "de-CH", "ja", "xx"])
def test_the_sentences_and_spaces_that_a_text_is_split_into_join_to_the_text(language, text):
    parts = split_sentences(text, language)
    assert "".join(sentence + space for sentence, space in parts) == "\n".join(unwrap(text.split("\n")))
    if not text.isspace():
        assert all(sentence == sentence.strip() and not space.strip() for sentence, space in parts)


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", PARAGRAPH.format(*SENTENCES), ["", *SENTENCES]),
        ("zh_Hant", "我喜歡狗。你呢?\u2029好!", ["我喜歡狗。", "你呢?", "好!"]),
        ("ja", "犬が走る。猫は?", ["犬が走る。", "猫は?"]),
        ("de", "Am 3. Mai kam Dr. Maier. „Gut.“ Er ging z. B. nach Hause.", None),
        ("en", "I am J.\u2028K. Rowling", ["I am J.\u2028K. Rowling"]),  # sentencex panics if U+2028 is not replaced
    ],
)
def test_sentences_are_found_in_many_languages_after_any_white_space(language, text, sentences):
    expected = sentences or ["Am 3. Mai kam Dr. Maier.", "„Gut.“", "Er ging z. B. nach Hause."]
    assert [sentence for sentence, _ in split_sentences(text, language)] == expected


def test_a_paragraph_is_translated_sentence_by_sentence(pipe, folder, paragraph, tmp_path):
    text = PARAGRAPH.format(*SENTENCES)
    alone = [found["translation_text"] for found in pipe(SENTENCES)]
    expected = PARAGRAPH.format(*map(end_with_period, alone, SENTENCES))
    assert pipe(["A dog.", text], **OPTION, batch_size=3)[1] == {"translation_text": expected}
    assert pipe(text)[0]["translation_text"] != expected
    constructed = vaswani_pipeline("translation", model=pipe.model, tokenizer=pipe.tokenizer, **OPTION)
    assert constructed(text, max_new_tokens=6)[0]["translation_text"] == expected
    assert translate(pipe.model, pipe.tokenizer, [text, ""], **OPTION, max_new_tokens=6) == [expected, ""]
    files = f"--input {paragraph} --output {tmp_path}/output"
    vaswani(f"translate --model {folder} {files} --max_length_offset 1 --split_sentences")
    alone = map(end_with_period, translate(pipe.model, pipe.tokenizer, SENTENCES, max_length_offset=1), SENTENCES)
    assert (tmp_path / "output").read_bytes().decode() == PARAGRAPH.replace("\r\n\n", "\n").format(*alone) + "\n"


def test_hypotheses_of_a_paragraph_are_joined_and_their_scores_added(pipe):
    options = {"num_hypotheses": 2, "with_scores": True, "max_new_tokens": 6}
    counts = []
    translator = Translator(pipe.model, pipe.tokenizer, **OPTION, **options)
    [found, _] = translator([" A dog runs. A dog. ", "A dog."], on_batch=counts.append)
    parts = Translator(pipe.model, pipe.tokenizer, **options)(["A dog runs.", "A dog."])
    for n, hypothesis in enumerate(found):
        first, second = (end_with_period(part[n].text, "A dog.") for part in parts)
        assert hypothesis.text == f" {first} {second} "
        assert hypothesis.score == pytest.approx(parts[0][n].score + parts[1][n].score)
    assert sum(counts) == 2  # lines are counted, not sentences


def test_the_printed_scores_say_that_sentences_were_split(folder, paragraph, capsys):
    vaswani(f"evaluate --model {folder} --test {paragraph} {paragraph} --split_sentences")
    printed = capsys.readouterr()
    assert "|split_sentences  model" in printed.out
    assert "several" not in printed.err


def test_a_warning_counts_lines_with_several_sentences_and_names_the_option(
    pipe, folder, paragraph, capsys, monkeypatch
):
    vaswani(f"translate --model {folder} --input {paragraph} --max_length_offset 1")
    error = capsys.readouterr().err
    assert "2 lines (the first begins '" in error
    assert "with several sentences, one of which may be missing" in error
    assert "let --split_sentences " in error
    warnings = []
    monkeypatch.setattr("vaswani_transformer.translation.pipeline.logger.warning_once", warnings.append)
    pipe("A dog.\nA dog.")
    assert not warnings
    pipe("A dog. A dog.")
    assert "split_sentences=True" in warnings[0]


@pytest.mark.parametrize(
    ("language", "text", "is_several"),
    [
        *(("en", text, False) for text in SENTENCES),
        ("de", "Am 3. Mai kam Dr. Maier.", False),
        ("en", "J. K. Rowling.", False),
        ("en", "He lives at No. 5 near St. James Park, with Prof. Miller.", False),
        ("en", "Mr. X comes at 3.5 a.m. and p.m.", False),
        ("en", "Yahoo! is", False),
        ("en", "A dog. A cat", True),
        ("en", "Call me at 5 p.m. Bring the keys.", True),
        ("en", "He left the U.S. He is in Rome.", True),
        ("en", "Please bring I.D. The office is open.", True),
        ("en", "He was born in 1990. He died.", True),
        ("en", "Excuse me. Who are you?", True),
        ("en", '"Who?" (He.)', True),
        ("de", "Gut!  „Er geht.“", True),
        ("zh", "猫。犬。", True),
        ("hi", "मैं आया। वह गया।", True),
        ("ru", "Он идёт. Я иду.", True),
        ("en", "It is hot. Élan", True),
    ],
)
def test_a_hint_tells_several_sentences_from_one(language, text, is_several):
    assert has_several(text, language) == is_several


WRAPPED_TEXT = """\
We would like to invite you to the opening of
our new library on Friday. The architec-
ture is modern.

Please tell us by Monday whether your friend
Tom can come.
- a list
Best wishes, Mary"""
UNWRAPPED = """\
We would like to invite you to the opening of our new library on Friday. The architecture is modern.

Please tell us by Monday whether your friend Tom can come.
- a list
Best wishes, Mary"""


def test_lines_that_end_inside_a_sentence_are_counted_or_joined(pipe, folder, tmp_path, capsys, monkeypatch):
    lines = WRAPPED_TEXT.split("\n")
    assert list(unwrap(lines)) == UNWRAPPED.split("\n")
    (tmp_path / "text").write_text(WRAPPED_TEXT)
    (tmp_path / "long").write_text(UNWRAPPED)
    command = f"translate --model {folder} --max_length_offset 1 --output {tmp_path}/output --input {tmp_path}"
    vaswani(f"{command}/text")
    assert "5 lines (the first begins 'We would" in capsys.readouterr().err
    translations = []
    for name in ("text", "long"):
        vaswani(f"{command}/{name} --split_sentences")
        assert ("joined with the line before, because a sentence goes on in them: 3." in capsys.readouterr().err) == (
            name == "text"
        )
        translations.append((tmp_path / "output").read_text())
    assert translations[0] == translations[1]
    assert pipe(WRAPPED_TEXT, **OPTION) == pipe(UNWRAPPED, **OPTION)
    warnings = []
    monkeypatch.setattr("vaswani_transformer.translation.pipeline.logger.warning_once", warnings.append)
    pipe(WRAPPED_TEXT)
    assert "a line has a break inside a sentence" in warnings[-1]


@pytest.mark.parametrize(
    "lines",
    [
        ["dog", "cat", "house", "bird"] * 9,
        ["A man in a blue shirt stands on a ladder.", "Two dogs run through the snow in the park.", "he runs."],
        ["Parliament adopts the new budget for 2024", "Tom wins", "Government announces a plan for all schools"],
        ["a man in a blue shirt is standing on a ladder", "two dogs", "people are fixing the roof of a house", "a cat"],
    ],
)
def test_sentences_and_lists_of_one_line_each_are_not_joined(lines):
    assert list(unwrap(lines)) == lines


def test_a_translation_that_lacks_the_period_of_its_sentence_gets_it_before_the_next_sentence(pipe, monkeypatch):
    assert end_sentence("in den USA", "in the U.S.", " ") == "in den USA."
    for translation, source, space in (
        ("in den USA.", "in the U.S.", " "),
        ("in den USA", "in the U.S.", ""),
        ("in den USA", "in the U.S.", "\n"),
        ("in den USA", "in the U.S", " "),
        ("\u0e43\u0e19", "in the U.S.", " "),
    ):
        assert end_sentence(translation, source, space) == translation
    monkeypatch.setattr(pipe.tokenizer, "batch_decode", lambda tokens, **_: ["x"] * len(tokens))
    assert pipe("A dog. A cat.", **OPTION)[0]["translation_text"] == "x. x"
    assert translate(pipe.model, pipe.tokenizer, ["A dog. A cat."], **OPTION) == ["x. x"]


def test_a_travelling_pipeline_without_the_package_says_what_splitting_needs(pipe):
    travelling = TravellingPipeline(pipe.model, tokenizer=pipe.tokenizer, max_new_tokens=6)
    assert travelling("A dog.\n7") == pipe("A dog.\n7")
    with pytest.raises(ValueError, match="split_sentences needs the package vaswani_transformer"):
        travelling("A dog.", **OPTION)


def test_a_sentence_splitter_that_loses_characters_is_an_error(pipe, monkeypatch):
    monkeypatch.setattr(text_module, "segment", lambda language, text: [text[:4]])
    with pytest.raises(ValueError, match=r"sentencex returned 4 of 6 characters: 'A dog\.'"):
        pipe("A dog.", **OPTION)


def test_the_source_language_chooses_the_rules_for_splitting(pipe, build_translator, monkeypatch):
    languages = set()
    monkeypatch.setattr(text_module, "segment", lambda language, text: languages.add(language) or [text])
    pipe("A dog.", **OPTION)
    assert languages == {"en"}  # from the name of the model's task
    model, tokenizer = build_translator(SENTENCES)
    without_languages = vaswani_pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=1)
    without_languages("A dog.", src_lang="da", **OPTION)
    assert languages == {"en", "da"}
