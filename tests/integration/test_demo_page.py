"""The page of `vaswani demo` as Gradio serves it; what it shows is tested in tests/unit/test_demo.py without Gradio."""

import http.client
import json
import socket
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from vaswani_transformer.hub import demo

gradio = pytest.importorskip("gradio", reason='needs Gradio: pip install "vaswani-transformer[demo]"')


@pytest.fixture(scope="module")
def model_page(build_translator):
    texts = ["The law will never be perfect.", "a house, a garden"] * 3
    model, tokenizer = build_translator(texts, d_model=12, num_heads=3, decoder_layers=2)
    model.generation_config.max_length_offset = 3
    return demo.Demo(model, tokenizer)


@pytest.fixture
def page(model_page):
    return demo.build_page(model_page, name="<b>tiny</b>", languages=("<i>en", "de"))


@contextmanager
def serving(page, monkeypatch, host="127.0.0.1"):
    """The address at which the page is served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(page, "block_thread", lambda: None)
    demo.serve(page, host=host, port=port)
    yield f"http://127.0.0.1:{port}"
    page.close()


def handler(page, name):
    return next(function for function in page.fns.values() if function.fn.__name__ == name)


def test_a_sentence_gives_table_choice_and_attention(page, model_page):
    html, answer, chooser, frame = handler(page, "translate").fn("The law", 3)
    assert html == model_page.answer("The law", 3).html
    assert [choice for _, choice in chooser.choices] == [1, 2, 3]
    assert (chooser.value, chooser.visible) == (1, True)
    assert frame == model_page.show_attention(answer, 0)
    assert handler(page, "choose").fn(answer, 2) == model_page.show_attention(answer, 1)
    html, _, chooser, frame = handler(page, "translate").fn("", 3)
    assert "write a sentence" in html
    assert (chooser.choices, chooser.visible, frame) == ([], False, "")
    # One question at a time.
    assert {(f.concurrency_id, f.concurrency_limit) for f in page.fns.values()} == {("model", 1)}


def get(address, host):
    """Status and text of the page at `address`, asked for by the name `host`."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", "/config", headers={"Host": host})
    with connection.getresponse() as answer:
        status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


def test_a_page_for_the_network_answers_to_any_name(page, monkeypatch):
    with serving(page, monkeypatch, host="0.0.0.0") as address:
        assert get(address, "translate.example.com")[0] == 200


def test_a_page_of_this_machine_is_safe(page, monkeypatch, capsys):
    assert (page.analytics_enabled, page.share) == (False, False)
    with serving(page, monkeypatch) as address:
        assert capsys.readouterr().out == f"{address}/  (Ctrl+C ends it)\n"
        hosts = ["127.0.0.1", "LOCALHOST:80", "[::1]:80", "evil.com", ""]
        assert [get(address, host)[0] for host in hosts] == [200, 200, 200, 400, 400]
        texts = [str(part["props"].get("value")) for part in json.loads(get(address, "localhost")[1])["components"]]
        assert "<h1>Translate &lt;i&gt;en to de with &lt;b&gt;tiny&lt;/b&gt;</h1>" in texts
        body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n12\r\n--x--\r\n'
        upload = Request(f"{address}/gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"})
        with pytest.raises(HTTPError, match="413"):
            urlopen(upload)
        with urlopen(address) as answer:
            assert "fonts.googleapis.com" not in answer.read().decode()


def test_visitors_are_answered_and_no_more_are_remembered_than_the_limit(page, monkeypatch):
    monkeypatch.setattr(demo, "MOST_SESSIONS", 2)
    with serving(page, monkeypatch) as address:
        for number in range(5):
            question = json.dumps({"data": ["a", 1], "fn_index": 0, "session_hash": f"visitor{number}"}).encode()
            queue = f"{address}/gradio_api/queue"
            urlopen(Request(f"{queue}/join", question, {"Content-Type": "application/json"})).close()
            with urlopen(f"{queue}/data?session_hash=visitor{number}") as answer:
                assert '"success":true' in answer.read().decode()
    assert list(page.state_holder.session_data) == ["visitor3", "visitor4"]
