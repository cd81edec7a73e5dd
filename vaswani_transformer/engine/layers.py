"""The layers of encoder and decoder in an engine. They compute what `layers_vaswani` computes (section 3 of the paper).

Their matrices have the dtype of the engine. On a CPU the matrices may be packed, see `PackedProducts`.

Shapes: B batch, S source tokens, D d_model, H heads.
"""

import copy

import torch
from torch import Tensor, nn

from ..model.layers_vaswani import DecoderLayer, EncoderLayer, MultiHeadAttention, split_heads
from .products import Matrix, Product, Products


class AttentionProducts:
    """The projections of one `MultiHeadAttention`. The keys and values of a head lie side by side in one tensor."""

    def __init__(self, attention: MultiHeadAttention, products: Products, *, is_cross: bool):
        self.num_heads, self.scaling = attention.num_heads, attention.scaling
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        self.widths = k.out_features // self.num_heads, v.out_features // self.num_heads
        if is_cross:
            self.query, self.keys_and_values = products.one(q), products.one(self._interleave(k, v))
        else:
            self.project = products.several(q, self._interleave(k, v))
        self.add_out = products.adding(attention.out_proj)

    def _interleave(self, k: nn.Linear, v: nn.Linear) -> Matrix:
        """Return one matrix with the rows of `k` and `v`, head by head."""

        def join(x: Tensor, y: Tensor) -> Tensor:
            heads = [rows.unflatten(0, (self.num_heads, -1)) for rows in (x, y)]
            return torch.cat(heads, dim=1).flatten(0, 1)

        return Matrix(join(k.weight, v.weight), None if k.bias is None else join(k.bias, v.bias))


class FeedForwardProducts:
    """The feed-forward layer (equation 2) with its residual connection and layer normalisation."""

    def __init__(self, layer: EncoderLayer | DecoderLayer, products: Products):
        module = layer.feed_forward
        is_relu = type(module.activation) is nn.ReLU
        self.fc1, self.fc2 = products.one(module.fc1, relu=is_relu), products.one(module.fc2)
        # A copy, because some activations have weights.
        self.activation = (lambda x: x) if is_relu else copy.deepcopy(module.activation).to(products.dtype)
        self.norm = _copy_norm(layer.feed_forward_residual.norm, products)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output (..., D) for `x` (..., D)."""
        return self.norm(x + self.fc2(self.activation(self.fc1(x))))


class EncoderProducts:
    """An `EncoderLayer` in an engine."""

    def __init__(self, layer: EncoderLayer, products: Products):
        self.attention = AttentionProducts(layer.self_attention, products, is_cross=False)
        self.norm = _copy_norm(layer.self_attention_residual.norm, products)
        self.feed_forward = FeedForwardProducts(layer, products)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the output (B, S, D) for `x` (B, S, D); `mask`, True at visible keys, broadcasts to (B, H, S, S)."""
        attention = self.attention
        q, keys_and_values = (split_heads(projected, attention.num_heads) for projected in attention.project(x))
        k, v = keys_and_values.split(attention.widths, dim=-1)
        context = nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=attention.scaling)
        added = attention.add_out(context.transpose(1, 2).flatten(2).flatten(0, 1), x.flatten(0, 1))
        return self.feed_forward(self.norm(added.view(x.shape)))


class DecoderProducts:
    """The matrices of a `DecoderLayer` in an engine. `LayerSteps` (in steps.py) computes with them."""

    def __init__(self, layer: DecoderLayer, products: Products):
        self.attention = AttentionProducts(layer.self_attention, products, is_cross=False)
        self.cross_attention = AttentionProducts(layer.cross_attention, products, is_cross=True)
        self.norm = _copy_norm(layer.self_attention_residual.norm, products)
        self.cross_norm = _copy_norm(layer.cross_attention_residual.norm, products)
        self.feed_forward = FeedForwardProducts(layer, products)


def _copy_norm(norm: nn.LayerNorm, products: Products) -> Product:
    weight, bias = products.keep(norm.weight), products.keep(norm.bias)
    shape, eps = norm.normalized_shape, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
