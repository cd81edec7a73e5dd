"""Models compute what they computed when they were saved.

A model saved by older code computes its recorded results. `vaswani check` fails for a model that does not translate the
example saved beside its weights as before.
"""

import json
from pathlib import Path

import pytest
import torch
from shortcuts import read_json

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.runs import EXAMPLE_FILE

SAVED = Path(__file__).parent / "saved_model"  # saved by commit 3f4d6d0, when the code lay in other files


def test_a_model_saved_by_older_code_computes_its_recorded_results():
    model = VaswaniForConditionalGeneration.from_pretrained(SAVED).eval()
    input_ids = torch.tensor([[5, 9, 13, 2], [7, 3, 2, 1]])
    assert float(model(input_ids=input_ids, labels=input_ids).loss) == pytest.approx(19.63222312927246, rel=1e-5)
    found = model.generate(input_ids, return_dict_in_generate=True)
    assert found.sequences.tolist() == [[0] + [14] * 53 + [2], [0, 14] + [39] * 51 + [2, 1]]
    expected = torch.tensor([-7.966418743133545, -15.665809631347656])
    torch.testing.assert_close(found.sequences_scores, expected, rtol=1e-4, atol=1e-4)
    greedy = model.generate(input_ids, num_beams=1)[1].tolist()
    assert greedy == [0, 16, 39, 39, 39, 14] + [39] * 47 + [2, 1]


def test_check_fails_if_a_model_does_not_translate_its_saved_example_as_before(
    bundled_model, tmp_path, output_of, error_of
):
    for file in bundled_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    example = tmp_path / EXAMPLE_FILE
    kept = read_json(example)
    command = f"check --model {tmp_path}"
    assert "translates as when it was saved" in output_of(command)
    example.unlink()
    assert EXAMPLE_FILE in error_of(command)
    for change in ({"score": kept["score"] - 0.01}, {"translation": "Zwei Katzen."}):
        example.write_text(json.dumps(kept | change))
        assert "does not compute what it did" in error_of(command)
