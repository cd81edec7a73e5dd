import pytest
import torch

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.model.layers_vaswani import build_padding_mask


@pytest.mark.parametrize(("pad", "expected"), [(1, [1, 0, 1]), (0, [1, 1, 1]), (None, [1, 1, 1])])
def test_padding_is_masked_if_there_is_such_a_token(pad, expected):
    mask = build_padding_mask(torch.tensor([[5, 1, 2]]), VaswaniConfig(pad_token_id=pad))
    assert mask.tolist() == [expected]


@pytest.mark.parametrize("ends", [1, [2, 1]])
def test_a_mask_is_asked_for_where_the_padding_may_be_an_end(ends):
    config = VaswaniConfig(pad_token_id=1, eos_token_id=ends)
    with pytest.raises(ValueError, match=r"cannot be told from </s>: pad_token_id=1 is .* Pass the attention_mask"):
        build_padding_mask(torch.tensor([[5, 1]]), config)
