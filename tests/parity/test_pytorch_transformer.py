"""Encoder and decoder agree in float64 with a `torch.nn.Transformer` that has the same weights."""

import pytest
import torch
from tiny_training import assert_close
from torch import nn

from vaswani_transformer.model.layers_vaswani import DecoderLayer, MultiHeadAttention, Residual

# In PyTorch, d_k and d_v are d_model / num_heads.
SIZES = {"d_model": 12, "num_heads": 3, "d_k": 4, "d_v": 4, "attention_bias": True}
PADDED = torch.tensor(
    [[5, 9, 12, 30, 7, 2], [8, 3, 21, 2, 1, 1], [1, 1, 1, 6, 19, 2]]  # whole, padded right, padded left
)


@pytest.fixture(params=["eager", "sdpa"])
def model(request, build_tiny_model):
    return build_tiny_model(noise=0.3, dtype=torch.float64, attention=request.param, **SIZES)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    inputs = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in inputs]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in inputs]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


@torch.no_grad()
def build_reference(model) -> nn.Transformer:
    config = model.config
    sizes = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "layer_norm_eps": config.layer_norm_eps,
        "batch_first": True,
        "dtype": torch.float64,
    }
    # nn.Transformer builds stacks with a norm at the end. These stacks have none, as in the paper.
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**sizes), config.encoder_layers, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), config.decoder_layers)
    reference = nn.Transformer(
        config.d_model, config.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    layers = (*model.model.encoder.layers, *model.model.decoder.layers)
    for ours, theirs in zip(layers, (*encoder.layers, *decoder.layers), strict=True):
        copy_attention(ours.self_attention, theirs.self_attn)
        if isinstance(ours, DecoderLayer):
            copy_attention(ours.cross_attention, theirs.multihead_attn)
        theirs.linear1.load_state_dict(ours.feed_forward.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.fc2.state_dict())
        residuals = (module for module in ours.children() if isinstance(module, Residual))
        norms = (module for module in theirs.children() if isinstance(module, nn.LayerNorm))
        for residual, norm in zip(residuals, norms, strict=True):
            norm.load_state_dict(residual.norm.state_dict())
    # In evaluation mode PyTorch may use a fused kernel. Training mode without dropout computes the formula.
    return reference.train()


@pytest.mark.parametrize("target_is_padded", [False, True])
def test_the_stacks_agree_with_pytorch(model, target_is_padded):
    torch.manual_seed(0)
    source = torch.randn(3, 6, 12, dtype=torch.float64)
    target = torch.randn(3, 5, 12, dtype=torch.float64)
    source_mask = (PADDED != 1).long()
    target_mask = torch.ones(3, 5, dtype=torch.long)
    if target_is_padded:
        target_mask[1, 3:] = 0
    # PyTorch's stacks take the sum of embedding and position. Our stacks take the embedding, and add the position.
    expected = build_reference(model)(
        source + model.model.encoder.positions(6, mask=source_mask, device=source.device),
        target + model.model.decoder.positions(5, mask=target_mask, device=source.device),
        src_key_padding_mask=source_mask == 0,
        tgt_key_padding_mask=target_mask == 0,
        memory_key_padding_mask=source_mask == 0,
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
    )
    actual = model.model(
        attention_mask=source_mask,
        decoder_attention_mask=target_mask,
        inputs_embeds=source,
        decoder_inputs_embeds=target,
    ).last_hidden_state
    assert_close(actual, expected, tolerance=1e-10)


def test_the_encoder_agrees_with_pytorch(model):
    torch.manual_seed(0)
    source = torch.randn(3, 6, 12, dtype=torch.float64)
    mask = (PADDED != 1).long()
    positions = model.model.encoder.positions(6, mask=mask, device=source.device)
    expected = build_reference(model).encoder(source + positions, src_key_padding_mask=mask == 0)
    actual = model.model.encoder(inputs_embeds=source, attention_mask=mask).last_hidden_state
    assert_close(actual, expected, tolerance=1e-10)
