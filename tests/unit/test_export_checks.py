"""What the exports refuse, and the arithmetic of rescoring. That they translate alike: integration/test_export.py."""

import math
import sys

import pytest
import torch

from vaswani_transformer import cli
from vaswani_transformer.conversion.fairseq_dictionary import build_tokenizer
from vaswani_transformer.export.ctranslate2_converter import VaswaniLoader, export_model
from vaswani_transformer.export.ctranslate2_translation import rescore_hypotheses
from vaswani_transformer.model.beam_search_vaswani import gnmt_length_penalty


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_window": 4}, "attention_window must be None, got 4"),
        ({"activation_function": "mish"}, "not 'mish'. Use --format onnx"),
        ({"eos_token_id": [2, 3]}, r"one token that ends a sentence, got eos_token_id=\[2, 3\]"),
    ],
)
def test_ctranslate2_is_not_given_what_it_would_compute_otherwise(build_tiny_model, changes, message):
    with pytest.raises(ValueError, match=message):
        VaswaniLoader().get_model_spec(build_tiny_model(**changes))


def test_an_unknown_quantization_is_refused_before_anything_is_written(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"int4.*int8"):
        export_model(
            tiny_model, build_tokenizer(["<s>", "<pad>", "</s>", "<unk>"]), tmp_path / "x", quantization="int4"
        )
    assert not (tmp_path / "x").exists()


@torch.no_grad()
def test_the_table_holds_the_positions_of_the_model_as_they_are(build_tiny_model):
    table = VaswaniLoader(max_positions=9).get_model_spec(build_tiny_model()).encoder.position_encodings.encodings
    angle = 7 / 10000 ** (2 / 12)
    assert table.shape == (9, 12)
    assert table[7, 2:4].tolist() == pytest.approx([math.sin(angle), math.cos(angle)])


@torch.no_grad()
def test_a_learned_table_is_not_longer_than_it_was_trained(build_tiny_model):
    model = build_tiny_model(position_embedding_type="learned", max_position_embeddings=6)
    table = VaswaniLoader(max_positions=9).get_model_spec(model).decoder.position_encodings.encodings
    assert torch.equal(table, model.model.decoder.positions.embedding.weight)


def test_rescoring_divides_log_p_by_the_penalty_of_gnmt():
    short, long = ["a", "</s>"], ["a", "b", "c", "d", "</s>"]
    # log P / |Y|^0.6 with log P = -2 and -3: CTranslate2 puts the longer one first, GNMT the shorter.
    scores = [-3 / 5**0.6, -2 / 2**0.6]
    rescored = rescore_hypotheses([long, short], scores, alpha=0.6, length_penalty=gnmt_length_penalty)
    assert [tokens for tokens, _ in rescored] == [short, long]
    assert [score for _, score in rescored] == pytest.approx([-2 / (7 / 6) ** 0.6, -3 / (10 / 6) ** 0.6])


def export(*args) -> int:
    return cli.main(["export", "--model", "nowhere/at/all", *map(str, args)])


@pytest.mark.parametrize(("form", "package"), [("ctranslate2", "ctranslate2"), ("onnx", "onnxscript")])
def test_a_missing_package_is_named_with_the_way_to_install_it(form, package, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("vaswani_transformer.export")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delattr("vaswani_transformer.export", raising=False)
    assert export("--format", form, "--output", tmp_path / "export") == 1
    assert f'needs the package {package}, which is not installed: pip install "vaswani-transformer[export]"' in (
        capsys.readouterr().err
    )


def test_files_of_another_model_are_not_mixed_in(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert export("--format", "ctranslate2", "--output", tmp_path) == 1
    assert "is not empty: files of another model may not be mixed in. Name a new folder." in capsys.readouterr().err


def test_settings_of_ctranslate2_are_refused_for_onnx(tmp_path, capsys):
    with pytest.raises(SystemExit):
        export("--format", "onnx", "--quantization", "int8", "--output", tmp_path / "export")
    assert "--quantization is for --format ctranslate2: ONNX gets float32" in capsys.readouterr().err
