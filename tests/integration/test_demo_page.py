"""The page of `vaswani demo` as Gradio serves it; what it shows is tested in tests/unit/test_demo.py without Gradio."""

import json
import socket
import urllib.error
import urllib.request

import pytest
import torch

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, demo, train_tokenizer
from vaswani_transformer.space import GRADIO_VERSION

gradio = pytest.importorskip("gradio", reason='needs Gradio: pip install "vaswani-transformer[demo]"')


@pytest.fixture(scope="module")
def model_page():
    tokenizer = train_tokenizer(["The law will never be perfect.", "a house, a garden"] * 3, vocab_size=290)
    torch.manual_seed(0)
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=12, d_ff=20, num_heads=3, encoder_layers=1, decoder_layers=2
    )
    model = VaswaniForConditionalGeneration(config).eval()
    model.generation_config.max_length_offset = 3
    return demo.Demo(model, tokenizer)


@pytest.fixture
def page(model_page):
    return demo.build_page(model_page, name="<b>tiny</b>", languages=("en", "de"))


@pytest.fixture
def served(page, monkeypatch, capsys):
    """The address at which the page is served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(page, "block_thread", lambda: None)
    demo.serve(page, host="127.0.0.1", port=port)
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/  (Ctrl+C ends it)\n"
    yield f"http://127.0.0.1:{port}"
    page.close()


def handler(page, name):
    return next(function for function in page.fns.values() if function.fn.__name__ == name)


def test_the_version_a_space_asks_for_is_the_tested_one():
    assert gradio.__version__ == GRADIO_VERSION


def test_a_sentence_gives_table_choice_and_attention(page, model_page):
    html, answer, chooser, frame = handler(page, "translate").fn("The law", 3)
    assert html == model_page.answer("The law", 3).html
    assert [choice for _, choice in chooser.choices] == [1, 2, 3]
    assert (chooser.value, chooser.visible) == (1, True)
    assert frame == model_page.show_attention(answer, 0)
    assert handler(page, "choose").fn(answer, 2) == model_page.show_attention(answer, 1)


def test_a_refusal_hides_choice_and_attention(page):
    html, _, chooser, frame = handler(page, "translate").fn("", 3)
    assert "write a sentence" in html
    assert (chooser.choices, chooser.visible, frame) == ([], False, "")


def test_the_model_is_asked_one_question_at_a_time(page):
    settings = {(f.concurrency_id, f.concurrency_limit) for f in page.fns.values()}
    assert settings == {("model", 1)}


def test_nothing_is_counted_shared_or_fetched_from_elsewhere(served, page):
    with urllib.request.urlopen(served) as answer:
        text, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self' ")
    assert not {"http:", "https:", "*"} & set(policy.replace(";", " ").split())
    assert (page.analytics_enabled, page.share, page.config["footer_links"]) == (False, False, [])
    assert "fonts.googleapis.com" not in text
    assert "<b>tiny" not in json.dumps([c["props"].get("value") for c in page.config["components"]])


def test_no_file_can_be_uploaded(served):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nlonger\r\n--x--\r\n'
    request = urllib.request.Request(
        f"{served}/gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request)
    assert refusal.value.code == 413


def test_a_taken_port_is_said(page):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {port}: it is taken"):
            demo.serve(page, host="127.0.0.1", port=port)
