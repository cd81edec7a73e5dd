"""Exports that are refused, and the exported table of positions. integration/test_export.py tests exported models."""

import math
import sys

import pytest
import torch
from shortcuts import vaswani

from vaswani_transformer.export.ctranslate2_converter import VaswaniLoader

UNSUPPORTED = r"no attention_window, and only .*relu.* as activation_function. This model has"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_window": 4}, f"{UNSUPPORTED} 4"),
        ({"activation_function": "mish"}, f"{UNSUPPORTED} None and 'mish'"),
        ({"d_k": 5, "d_v": 7}, "needs d_k = d_v; this model has 5 and 7"),
    ],
)
def test_models_that_ctranslate2_cannot_compute_are_refused(build_tiny_model, changes, message):
    with pytest.raises(ValueError, match=message):
        VaswaniLoader().get_model_spec(build_tiny_model(**changes))


@torch.no_grad()
def test_the_exported_table_equals_the_positions_of_the_model(build_tiny_model):
    table = VaswaniLoader(max_positions=9).get_model_spec(build_tiny_model(d_v=5)).encoder.position_encodings.encodings
    angle = 7 / 10000 ** (2 / 12)
    assert table.shape == (9, 12)
    assert table[7, 2:4].tolist() == pytest.approx([math.sin(angle), math.cos(angle)])
    model = build_tiny_model(d_v=5, position_embedding_type="learned", max_position_embeddings=6)
    table = VaswaniLoader(max_positions=9).get_model_spec(model).decoder.position_encodings.encodings
    assert torch.equal(table, model.model.decoder.positions.embedding.weight)


def test_the_error_about_a_missing_package_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    package = "ctranslate2"
    for name in list(sys.modules):
        if name.startswith(("vaswani_transformer.export", package)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delattr("vaswani_transformer.export", raising=False)
    vaswani(f"export --model nowhere --output {tmp_path}/export", status=1)
    error = capsys.readouterr().err
    assert package in error
    assert 'pip install -c constraints.txt -e ".[export]"' in error
