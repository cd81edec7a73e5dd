"""Hyperparameters of the Transformer (sections 3 and 5.4 of the paper), typed and validated.

Defaults are the base model of table 3. Every other row of that table is this class with the fields the
row names changed; `vaswani_transformer.training.recipes` holds them.
"""

import math

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

POSITION_EMBEDDING_TYPES = ("sinusoidal", "learned")
# Values of `attn_implementation` whose masks equation 1, as written here, can read: only these give attention weights.
WEIGHT_KERNELS = ("eager", "sdpa")
POSITION_LAYOUTS = ("interleaved", "concatenated", "fairseq")


@strict
class VaswaniConfig(PreTrainedConfig):
    """Architecture of a Transformer: what the weights mean.

    Args:
        vocab_size: entries of the vocabulary that source and target share, special tokens included.
        d_model: width of the residual stream.
        d_ff: inner width of the feed-forward network (equation 2).
        num_heads: h, attention heads per sub-layer.
        d_k: width of one head's queries and keys; d_model / num_heads when not given.
        d_v: width of one head's values; d_model / num_heads when not given.
        encoder_layers, decoder_layers: N, layers of each stack.
        dropout: P_drop, on each sub-layer's output and on the sums of embedding and position.
        attention_dropout: on attention weights; 0 for translation, tuned for parsing (section 6.3).
        activation_dropout: between the two products of the feed-forward network; 0 in the paper.
        label_smoothing: eps_ls of section 5.4, applied to `labels` in training mode only.
        activation_function: name in `transformers.activations.ACT2FN`; the paper's is "relu".
        attention_bias: biases in the projections of attention; the paper's formulas have none, converted
            checkpoints of other systems do.
        output_bias: a bias on the logits; the paper has none, converted checkpoints do.
        position_embedding_type: "sinusoidal" (section 3.5) or "learned" (row E of table 3).
        position_layout: "interleaved" sines and cosines as in the paper, "concatenated" halves as in Marian, or
            "fairseq": halves of its own wavelengths. Read by sinusoidal positions only.
        max_position_embeddings: longest sequence a learned table can hold, in tokens. Sinusoids have no limit.
        attention_window: r of table 1: self-attention sees r positions, in the encoder around its own and in the
            decoder the last up to its own; all when not given.
        layer_norm_eps: added to the variance in layer normalisation.
        tie_word_embeddings: one matrix for source embedding, target embedding and pre-softmax projection.
        use_cache: keep keys and values of earlier steps while decoding.

    Raises:
        ValueError: if the numbers do not fit together; the message names them.
    """

    model_type = "vaswani"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - transformers' Trainer adds to a list
    attribute_map = {  # noqa: RUF012 - the base class reads a plain class attribute
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "encoder_layers",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
    }

    vocab_size: int = 37000
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    label_smoothing: float | int = 0.1
    activation_function: str = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    position_embedding_type: str = "sinusoidal"
    position_layout: str = "interleaved"
    max_position_embeddings: int = 1024
    attention_window: int | None = None
    layer_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    # The order of the special tokens: transformers' beam search pads with </s> when pad is token 0.
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 0

    def __post_init__(self, **kwargs):
        # transformers sets aliases (hidden_size, ...) last; the defaults and checks below need them now.
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                setattr(self, name, kwargs.pop(alias))
        if self.num_heads > 0 and (self.d_k is None or self.d_v is None):
            if self.d_model % self.num_heads:
                raise ValueError(
                    f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads}): every head gets "
                    f"d_model / num_heads features (section 3.2.2). Change one of them, or give d_k and d_v."
                )
            self.d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
            self.d_v = self.d_model // self.num_heads if self.d_v is None else self.d_v
        self._check_sizes()
        self._check_numbers()
        self._check_names()
        self._check_positions()
        super().__post_init__(**kwargs)

    def _check_sizes(self) -> None:
        layers = ("encoder_layers", "decoder_layers")
        widths = ("d_model", "d_ff", "num_heads", "d_k", "d_v")
        for name in ("vocab_size", *widths, *layers, "max_position_embeddings"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.attention_window is not None and self.attention_window < 1:
            raise ValueError(
                f"attention_window counts positions and must be at least 1, got {self.attention_window}; "
                f"leave it None for full attention."
            )

    def _check_numbers(self) -> None:
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is a probability in [0, 1), got {getattr(self, name)}.")
        if not 0 < self.layer_norm_eps < math.inf:
            raise ValueError(f"layer_norm_eps must be a positive finite number, got {self.layer_norm_eps}.")

    def _check_names(self) -> None:
        choices = {
            "activation_function": tuple(ACT2FN),
            "position_embedding_type": POSITION_EMBEDDING_TYPES,
            "position_layout": POSITION_LAYOUTS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}.")

    def _check_positions(self) -> None:
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model must be even for sinusoidal positions, got {self.d_model}: sines and cosines come in "
                f"pairs (section 3.5). Make it even or use learned positions."
            )


VaswaniConfig.register_for_auto_class()  # a saved model carries the code that loads it without the package
