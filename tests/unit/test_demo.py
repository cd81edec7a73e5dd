import html
import json
import math
import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch

from vaswani_transformer import cli
from vaswani_transformer.attention.maps import collect_attention_batch
from vaswani_transformer.hub.demo import MOST_BEAMS, MOST_CHARACTERS, Demo, Translation, escape

TEXTS = ["The law will never be perfect.", "Das Gesetz wird nie vollkommen sein.", "a house, a garden"] * 3
MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(build_translator):
    """The page of an untrained model."""
    sizes = {"d_model": 12, "num_heads": 3, "encoder_layers": 2, "decoder_layers": 4}
    model, tokenizer = build_translator(TEXTS, vocab_size=300, **sizes)
    model.generation_config.max_length_offset = 4
    return Demo(model, tokenizer)


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of each table cell and paragraph."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))
        if tag in ("td", "th", "p"):
            self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data


def message(page, text, num_beams=2):
    """What is said of a text that is not translated."""
    answer = page.answer(text, num_beams)
    assert not answer.translations
    assert page.show_attention(answer, 0) == ""
    parsed = Parsed(answer.html)
    assert parsed.attributes["p"] == [{"role": "alert"}]
    return parsed.texts[0]


def test_translations_are_those_of_the_search_with_its_scores_in_a_table(page):
    answer = page.answer("\n The law\r\nwill  never be perfect.", 3)
    inputs = page.tokenizer("The law will never be perfect.", return_tensors="pt")
    found = page.model.generate(
        **inputs, num_beams=3, num_return_sequences=3, return_dict_in_generate=True, output_scores=True
    )
    texts = page.tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
    assert [translation.text for translation in answer.translations] == texts
    scores = [translation.score for translation in answer.translations]
    assert scores == pytest.approx(found.sequences_scores.tolist(), rel=1e-4)
    rows = []
    for rank, translation in enumerate(answer.translations, start=1):
        length = len(translation.token_ids)
        assert translation.token_ids.index(page.tokenizer.eos_token_id) == length - 1
        assert translation.score == pytest.approx(translation.log_prob / ((5 + length) / 6) ** 0.6)
        figures = f"{translation.score:.3f}", f"{translation.log_prob:.3f}", str(length)
        rows += [str(rank), escape_back(translation.text), *figures]
    parsed = Parsed(answer.html)
    assert parsed.texts[:-1] == ["rank", "translation", "score", "log P", "tokens", *rows]
    assert "log P / ((5 + tokens) / 6)0.6, ranks" in parsed.texts[-1]


def escape_back(text):
    return html.unescape(escape(text))


@pytest.mark.parametrize(
    ("text", "num_beams", "expected"),
    [
        (" \u3000\n\t", 2, "There is nothing to translate yet: write a sentence."),
        ("a \udc00", 2, "A sentence holds half of a surrogate pair at position 2, '\\udc00', which is no character"),
        (None, 2, "A sentence to translate is a str"),
        ("a" * (MOST_CHARACTERS + 1), 2, "This page takes up to 1,000 characters, not 1,001."),
        ("ä" * 200, 2, "This page takes up to 128 sub-words, not 402."),
        ("The law", 0, "The beam is 1 to 10 hypotheses wide, got 0."),
        ("The law", MOST_BEAMS + 1, "The beam is 1 to 10 hypotheses wide, got 11."),
        ("The law", math.nan, "The beam is 1 to 10 hypotheses wide, got nan."),
    ],
)
def test_what_cannot_be_translated_is_refused(page, text, num_beams, expected, monkeypatch):
    assert message(page, text, num_beams).startswith(expected)
    monkeypatch.setattr(page.tokenizer, "model_max_length", 8)  # training saw no longer sentences
    assert "up to 8 sub-words" in message(Demo(page.model, page.tokenizer), "The law will never be perfect, never.")


@pytest.mark.parametrize("text", ["a\0b", "\u202egnirts", "<unk> </s> <pad>", "{{7*7}} ${alert(1)}", f'{MARKUP}"&amp;'])
def test_any_other_text_is_shown_as_text_in_the_table_and_in_the_frame(page, text, monkeypatch):
    assert len(page.answer(text, 2).translations) == 2
    # A model that repeats the sentence: one that has learnt nothing would not write the markup.
    monkeypatch.setattr(page, "translate", lambda ids, _: [Translation(text, list(ids), -1.0, -0.5)])
    plain, answer = page.answer("The law", 1), page.answer(text, 1)
    found = Parsed(answer.html)
    assert found.tags == Parsed(plain.html).tags
    assert found.texts[6] == escape_back(text)
    frames = [Parsed(page.show_attention(shown, 0)) for shown in (plain, answer)]
    assert [frame.tags for frame in frames] == [["iframe"]] * 2
    sources = [frame.attributes["iframe"][0]["srcdoc"] for frame in frames]
    expected, shown = map(Parsed, sources)
    assert (shown.tags, shown.attributes) == (expected.tags, expected.attributes)
    [data] = re.findall('<script id="data" type="application/json">(.*?)</script>', sources[1])
    words = "".join("".join(json.loads(data)[2]["keys"]).split()).removesuffix("</s>")
    assert words == "".join(escape_back(text).split())
    assert "\0" not in answer.html + sources[1]


def test_each_text_is_shown_once_and_an_empty_one_as_nothing(page, monkeypatch):
    pad, eos = page.tokenizer.pad_token_id, page.tokenizer.eos_token_id
    found = torch.tensor([[0, 9, eos], [0, 8, eos], [0, 7, eos], [0, pad, pad]])
    found = SimpleNamespace(sequences=found, sequences_scores=torch.zeros(4))
    monkeypatch.setattr(page.translator, "search", lambda *_, **__: found)
    monkeypatch.setattr(page.tokenizer, "batch_decode", lambda *_, **__: ["Hund", "", "Hund", ""], raising=False)
    answer = page.answer("The law", 3)
    translations = [(translation.text, translation.token_ids) for translation in answer.translations]
    assert translations == [("Hund", [9, eos]), ("", [8, eos])]
    assert Parsed(answer.html).texts[11] == "nothing"


def test_the_frame_opens_with_encoder_decoder_attention_of_the_chosen_translation(page):
    answer = page.answer("The law", 2)
    frame = Parsed(page.show_attention(answer, 1)).attributes["iframe"][0]
    assert frame["sandbox"] == "allow-scripts"
    srcdoc = frame["srcdoc"]
    assert '<h1 dir="auto">What translation 2 was written from</h1>' in srcdoc
    kinds, opening = (
        json.loads(re.search(f'<script id="{name}" type="application/json">(.*?)</script>', srcdoc)[1])
        for name in ("data", "opening")
    )
    shown = kinds[opening["kind"]]
    assert shown["name"] == "Encoder-decoder attention"
    assert (shown["layers"], shown["heads"]) == (4, 3)
    assert shown["keys"] == ["The", "law", "</s>"]
    other, chosen = (
        collect_attention_batch(page.model, page.tokenizer, [answer.source_ids], [translation.token_ids])[0]
        for translation in answer.translations
    )
    assert shown["pieces"]["queries"] == chosen.output_tokens != other.output_tokens


def test_without_gradio_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "vaswani_transformer.commands.demo", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert cli.main(["demo", "--model", "no/such/model"]) == 1
    assert 'pip install "vaswani-transformer[demo]"' in capsys.readouterr().err


def test_the_command_serves_this_machine_alone_unless_told_otherwise(page, tmp_path, monkeypatch):
    page.model.save_pretrained(tmp_path / "tiny")
    page.tokenizer.save_pretrained(tmp_path / "tiny")
    served = []
    monkeypatch.setattr("vaswani_transformer.commands.demo.build_page", lambda demo, **facts: facts)
    monkeypatch.setattr("vaswani_transformer.commands.demo.serve", lambda page, **place: served.append(page | place))
    monkeypatch.setattr("vaswani_transformer.loading.BUNDLED_MODEL", tmp_path / "tiny")
    assert cli.main(["demo"]) == 0
    assert cli.main(["demo", "--model", str(tmp_path / "tiny"), "--host", "0.0.0.0", "--port", "80"]) == 0
    shown = {"name": "tiny", "languages": None}
    assert served == [shown | {"host": "127.0.0.1", "port": 7860}, shown | {"host": "0.0.0.0", "port": 80}]
