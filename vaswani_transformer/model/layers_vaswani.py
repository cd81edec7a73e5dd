"""Building blocks of the Transformer, in the order of section 3 of the paper, and the masks of section 3.2.3.

Shapes: B batch, T query length, S key length, D d_model, F d_ff, H num_heads, K d_k or d_v.
A mask says which keys are visible to a query. It is boolean (True at visible keys) or additive (0 at visible keys, the
minimum of the dtype at hidden ones), or has another form that the kernel of `config._attn_implementation` needs. With
`None` all keys are visible, or in causal self-attention all keys up to the position of the query.
"""

import inspect
from collections.abc import Callable

import torch
from torch import LongTensor, Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vaswani import WEIGHT_KERNELS, VaswaniConfig

# The name of the cache as an argument of transformers: "past_key_values" up to version 5.23, "cache" from 5.24 on.
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"


def choose_cache(past_key_values: Cache | None, cache: Cache | None) -> Cache | None:
    """Return the cache, which a caller may pass by its old name in transformers or by its new name, but not by both."""
    if past_key_values is not None and cache is not None:
        raise ValueError("past_key_values and cache are two names of one argument: give one of them.")
    return past_key_values if cache is None else cache


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Compute Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V      (equation 1, section 3.2.1).

    The context of a query without visible keys is zero, because its softmax is not defined.

    By default PyTorch's kernel "sdpa" computes equation 1. This function computes it where attention weights are asked
    for, and everywhere with `attn_implementation="eager"`.

    Args:
        query: (B, H, T, K).
        key, value: (B, H, S, K).
        attention_mask: boolean or additive, broadcastable to (B, H, T, S). With `None`, a query attends to all keys;
            if `module.is_causal`, to the keys up to its own position.
        scaling: 1 / sqrt(d_k).
        dropout: probability of dropping an attention weight; 0 in the paper.

    Returns:
        context (B, T, H, K) and attention weights (B, H, T, S).
    """
    scores = query @ key.transpose(-2, -1) * scaling  # (B, H, T, S)
    hidden = None  # True at hidden keys
    if attention_mask is None and module.is_causal:
        # With "sdpa", transformers builds no mask if attention is only causal, because PyTorch's kernel has an argument
        # for it. If attention weights are asked for, such a call without a mask comes here.
        query_length, key_length = scores.shape[-2:]
        hidden = scores.new_ones(query_length, key_length, dtype=torch.bool).triu(key_length - query_length + 1)
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        hidden = ~attention_mask
    elif attention_mask is not None:
        scores = scores + attention_mask
        hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    # Softmax in float32, as in the eager attention of most models in transformers.
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    weights = nn.functional.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention (section 3.2.2, figure 2 right).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O
        head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

    The h matrices W_i are stored side by side in one matrix. With `key_value_states` this is encoder-decoder attention,
    without `key_value_states` self-attention (section 3.2.3). Only the self-attention of the decoder is causal.
    """

    def __init__(self, config: VaswaniConfig, layer_idx: int, *, is_causal: bool = False, window: int | None = None):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.window = window  # r of table 1. The mask hides keys outside the window; a kernel may skip them
        self.is_causal = is_causal  # for kernels that get no mask
        self.scaling = config.d_k**-0.5
        # These are copies: reading a field of a transformers config takes as long as a small tensor operation.
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, config.num_heads * config.d_v, bias=bias)
        self.out_proj = nn.Linear(config.num_heads * config.d_v, config.d_model, bias=bias)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden_states` (B, T, D) to `key_value_states` (B, S, D), by default to `hidden_states`.

        Args:
            attention_mask: broadcastable to (B, H, T, S).
            past_key_values: keys and values of earlier decoding steps. Self-attention appends to them in place;
                encoder-decoder attention fills them at the first step and then reuses them.

        Returns:
            output (B, T, D), and attention weights (B, H, T, S) or `None` if the kernel does not compute them.
        """
        q = split_heads(self.q_proj(hidden_states), self.num_heads)
        k, v = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        attend = self._find_kernel(**kwargs)
        dropout = self.attention_dropout if self.training else 0.0
        context, weights = attend(self, q, k, v, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)
        return self.out_proj(context.flatten(2)), weights  # (B, T, H, K) -> (B, T, H * K) -> (B, T, D)

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, past_key_values: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values, each (B, H, S, K), including those in the cache."""
        is_cross, cache = key_value_states is not None, past_key_values
        if is_cross and cache is not None and cache.is_updated.get(self.layer_idx):
            # The output of the encoder does not change while decoding: reuse the projection of the first step.
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        source = key_value_states if is_cross else hidden_states
        k, v = (split_heads(project(source), self.num_heads) for project in (self.k_proj, self.v_proj))
        if cache is None:
            return k, v
        if not is_cross:
            return cache.self_attention_cache.update(k, v, self.layer_idx)
        cache.is_updated[self.layer_idx] = True
        return cache.cross_attention_cache.update(k, v, self.layer_idx)

    def _find_kernel(self, output_attentions: bool | None = None, **kwargs) -> Callable:
        """Return the function that computes equation 1 for `config._attn_implementation`.

        Raises:
            ValueError: if `output_attentions` asks for attention weights and the kernel cannot return them.
        """
        kernel = self.config._attn_implementation
        if not output_attentions:
            return ALL_ATTENTION_FUNCTIONS.get_interface(kernel, eager_attention)
        if kernel not in WEIGHT_KERNELS:
            raise ValueError(
                f"attn_implementation={kernel!r} cannot return attention weights: call "
                f'model.set_attn_implementation("eager").'
            )
        return eager_attention


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Reshape (B, T, H * K) to (B, H, T, K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def build_padding_mask(input_ids: LongTensor, config: VaswaniConfig) -> LongTensor:
    """Return a mask (B, S) with 1 at tokens and 0 at padding.

    Raises:
        ValueError: if the padding token is also an end token. Its id then does not show where padding begins.
    """
    pad, ends = config.pad_token_id, config.eos_token_id
    if pad is None:
        return torch.ones_like(input_ids)
    if pad == ends or (isinstance(ends, list) and pad in ends):
        raise ValueError(
            f"padding and </s> cannot be distinguished: pad_token_id={pad} is also eos_token_id. Pass the "
            f"attention_mask that the tokenizer returns."
        )
    return (input_ids != pad).long()


def mask_decoder(config: VaswaniConfig, x: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor | None:
    """Return the mask for causal self-attention of the target `x` (B, T, D), which follows the tokens in `cache`."""
    return create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        and_mask_function=build_window(config.attention_window, is_causal=True),
        **{CACHE: cache},
    )


def mask_source(
    config: VaswaniConfig,
    x: Tensor,
    attention_mask: Tensor | None,
    encoder_hidden_states: Tensor | None = None,
    *,
    is_training: bool,
) -> Tensor | None:
    """Return the mask for attention to the source: self-attention of the encoder, or encoder-decoder attention.

    Args:
        x: (B, S, D), the source; for encoder-decoder attention the target, (B, T, D).
        attention_mask: (B, S), 0 at padding of the source.
        encoder_hidden_states: (B, S, D), the output of the encoder; `None` for self-attention.
    """
    window = config.attention_window if encoder_hidden_states is None else None
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        and_mask_function=build_window(window, is_causal=False),
        # If this is allowed, transformers checks whether a mask hides any key, and replaces a mask that hides none by
        # `None`. On a GPU the check waits for the work in the queue, so training does without it.
        allow_is_bidirectional_skip=x.device.type == "cpu" or not is_training,
    )


def window_reach(r: int, *, is_causal: bool) -> tuple[int, int]:
    """Return how many positions before and after a query belong to its window of r positions (table 1).

    In the encoder the window is centred on the query, as in the paper. A window of even r has one position less after
    the query than before it. The paper does not describe the decoder. Here the window of the decoder ends at the query,
    because later positions are hidden.
    """
    return (r - 1, 0) if is_causal else (r // 2, r - r // 2 - 1)


def build_window(r: int | None, *, is_causal: bool) -> Callable | None:
    """Return the `and_mask_function` of restricted self-attention (table 1); `None` if `r` is `None`.

    The function returns True for keys inside the window of `r` positions.
    """
    if r is None:
        return None
    back, ahead = window_reach(r, is_causal=is_causal)
    return lambda batch, head, query, key: (key - query >= -back) & (key - query <= ahead)


class FeedForward(nn.Module):
    """The feed-forward network FFN(x) = max(0, x W_1 + b_1) W_2 + b_2      (equation 2, section 3.3)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each position of `x` (B, T, D); return (B, T, D)."""
        return self.fc2(self.dropout(self.activation(self.fc1(x))))


class TokenEmbedding(nn.Embedding):
    """An embedding that multiplies the rows of its matrix by sqrt(d_model) (section 3.4)."""

    @property
    def embed_scale(self) -> float:
        """Return sqrt(d_model). Adapters of peft read this attribute, so its name must not change."""
        return self.embedding_dim**0.5

    def forward(self, input_ids: LongTensor) -> Tensor:
        """Return the embeddings (B, T, D) of `input_ids` (B, T)."""
        return super().forward(input_ids) * self.embed_scale


def sinusoids(positions: Tensor, *, d_model: int, layout: str = "interleaved") -> Tensor:
    """Return the positional encodings of `positions` (section 3.5), for sequences of any length.

        PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    Args:
        positions: (...) integers, counted from 0.
        d_model: width, even.
        layout: "interleaved" as above; "concatenated": all sines, then all cosines; "fairseq": as "concatenated",
            but with 10000^(2i / (d_model - 2)) and positions counted from 2, because padding has position 1 in fairseq.

    Returns:
        (..., d_model) in float32.
    """
    # float64, because at position 5000 an angle in float32 has an error of 3e-4. MPS devices have no float64.
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    two_i = torch.arange(0, d_model, 2, dtype=dtype, device=positions.device)
    first, divisor = (2, d_model - 2) if layout == "fairseq" else (0, d_model)
    angles = (positions[..., None].to(dtype) + first) / 10000 ** (two_i / divisor)
    stacked = torch.stack((angles.sin(), angles.cos()), dim=-1 if layout == "interleaved" else -2)
    return stacked.flatten(-2).float()


class PositionEncoding(nn.Module):
    """The encodings of positions: sinusoids (section 3.5), or learned vectors (row E of table 3).

    Sinusoids are computed at each call, because loading, casting or moving a model could spoil a stored table.
    """

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.config = config
        if config.position_embedding_type == "learned":
            self.embedding = nn.Embedding(config.max_position_embeddings, config.d_model)

    def forward(self, length: int, *, start: int | Tensor = 0, mask: Tensor | None, device: torch.device) -> Tensor:
        """Return the encodings of `length` positions from `start` on, (1 or B, length, D).

        Args:
            start: number of tokens before the first of the positions.
            mask: (B, start + length) with 0 at padding; `None` without padding. Padding is not counted, so a sentence
                padded on the left has the same encodings as the sentence alone.

        Raises:
            ValueError: if the sequence is longer than the table of learned positions.
        """
        end = start + length
        if mask is None or mask.dim() != 2:
            return self._encode(torch.arange(length, device=device) + start, end)[None]
        positions = (mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, -length:]  # (B, length)
        if isinstance(start, int):
            # Compute each encoding once, then look it up for each sentence: a lookup is faster than sines.
            table = self._encode(torch.arange(end, device=device), end)
            return nn.functional.embedding(positions, table)
        return self._encode(positions, end)

    def _encode(self, positions: Tensor, end: int | Tensor) -> Tensor:
        config = self.config
        if config.position_embedding_type == "sinusoidal":
            return sinusoids(positions, d_model=config.d_model, layout=config.position_layout)
        if isinstance(end, int) and end > config.max_position_embeddings:
            raise ValueError(
                f"a sequence of {end} tokens is longer than the learned positions "
                f"(max_position_embeddings={config.max_position_embeddings}). Shorten it, or train with more "
                f"positions or with sinusoidal ones, which have no limit."
            )
        return self.embedding(positions)


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x)))      (sections 3.1 and 5.4). The norm follows the sum (post-norm)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer_output: Tensor) -> Tensor:
        """Add `sublayer_output` (B, T, D) to `x` (B, T, D) and normalise; return (B, T, D)."""
        return self.norm(x + self.dropout(sublayer_output))


class EncoderLayer(GradientCheckpointingLayer):
    """A layer of the encoder: self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx, window=config.attention_window)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None, **kwargs) -> Tensor:
        """Return the output (B, S, D) for `x` (B, S, D)."""
        attended, _ = self.self_attention(x, attention_mask=mask, **kwargs)
        x = self.self_attention_residual(x, attended)
        return self.feed_forward_residual(x, self.feed_forward(x))


class DecoderLayer(GradientCheckpointingLayer):
    """A layer of the decoder: causal self-attention, encoder-decoder attention, then feed-forward (section 3.1)."""

    def __init__(self, config: VaswaniConfig, layer_idx: int):
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx, is_causal=True, window=config.attention_window)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, layer_idx)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        source: Tensor | None,
        source_mask: Tensor | None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> Tensor:
        """Return the output (B, T, D) for the target `x` (B, T, D) and the output of the encoder, `source` (B, S, D).

        Without `source`, encoder-decoder attention is left out.
        """
        attended, _ = self.self_attention(x, attention_mask=mask, past_key_values=past_key_values, **kwargs)
        x = self.self_attention_residual(x, attended)
        if source is not None:
            attended, _ = self.cross_attention(
                x, key_value_states=source, attention_mask=source_mask, past_key_values=past_key_values, **kwargs
            )
            x = self.cross_attention_residual(x, attended)
        return self.feed_forward_residual(x, self.feed_forward(x))
