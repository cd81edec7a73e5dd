"""Hyperparameters of the Transformer (sections 3 and 5.4 of the paper), typed and validated.

The defaults are the base model of table 3. `vaswani_transformer.training.recipes` lists what the other rows change.
"""

import math

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

# With these values of `attn_implementation` a model can return attention weights: transformers then builds masks that
# `eager_attention` can read.
WEIGHT_KERNELS = ("eager", "sdpa")
MOST_LAYERS = 1_000  # in each stack; a huge number in a damaged config.json would fill the memory


@strict
class VaswaniConfig(PreTrainedConfig):
    """The hyperparameters of a Transformer, saved as config.json beside its weights.

    Args:
        vocab_size: entries of the vocabulary that source and target share, special tokens included.
        d_model: width of the residual stream.
        d_ff: inner width of the feed-forward network (equation 2).
        num_heads: h, attention heads per sub-layer.
        d_k: width of the queries and keys of a head; by default d_model / num_heads.
        d_v: width of the values of a head; by default d_model / num_heads.
        encoder_layers, decoder_layers: N, layers of each stack.
        dropout: P_drop, for the output of each sub-layer and for the sums of embeddings and positional encodings.
        attention_dropout: probability of dropping an attention weight; 0 for translation. The paper tunes it for
            parsing (section 6.3).
        activation_dropout: dropout after the activation of the feed-forward network; 0 in the paper.
        label_smoothing: eps_ls of section 5.4, applied to `labels` in training mode only.
        activation_function: a name in `transformers.activations.ACT2FN`; the paper has "relu".
        attention_bias: add biases to the projections of attention. The paper has none; models that were converted from
            fairseq or Marian have them.
        output_bias: add a bias to the logits. The paper has none; models that were converted from Marian have it.
        position_embedding_type: "sinusoidal" (section 3.5) or "learned" (row E of table 3).
        position_layout: order of sines and cosines in a positional encoding. "interleaved": in turn, as in the paper.
            "concatenated": all sines, then all cosines, as in Marian. "fairseq": as "concatenated", with the
            wavelengths of fairseq. Learned positions ignore this field.
        max_position_embeddings: length of the table of learned positions, in tokens. Sinusoids have no limit.
        attention_window: r of table 1: in self-attention a position attends to r positions only. In the encoder these
            lie around it. In the decoder they are the position itself and the r - 1 positions before it. `None` for no
            restriction.
        layer_norm_eps: added to the variance in layer normalisation.
        tie_word_embeddings: use one matrix for source embedding, target embedding and pre-softmax projection.
        use_cache: keep the keys and values of earlier steps while decoding.

    Raises:
        ValueError: for a value out of range, or for values that contradict each other. The message names the fields.
        StrictDataclassError: for a value of another type.
    """

    model_type = "vaswani"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012 - transformers' Trainer adds to this list
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
    # The padding id is not 0, because transformers' beam search treats a padding id of 0 as unset, and pads with </s>.
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 0

    def __post_init__(self, **kwargs):
        # Aliases such as hidden_size are set here, because the defaults and checks below need them. The base class
        # would set them only at the end.
        for alias, name in self.attribute_map.items():
            if alias in kwargs:
                setattr(self, name, kwargs.pop(alias))
        self._check_values()
        for name in ("d_k", "d_v"):
            if getattr(self, name) is not None:
                continue
            if self.d_model % self.num_heads:
                raise ValueError(
                    f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads}): every head has "
                    f"d_model / num_heads features (section 3.2.2). Change d_model or num_heads, or set d_k and d_v."
                )
            setattr(self, name, self.d_model // self.num_heads)
        super().__post_init__(**kwargs)

    def _check_values(self) -> None:
        layers = ("encoder_layers", "decoder_layers")
        sizes = ("vocab_size", "d_model", "d_ff", "num_heads", "d_k", "d_v", *layers, "max_position_embeddings")
        for name in (*sizes, "attention_window"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**31:
                raise ValueError(f"{name} must be at least 1 and below 2^31, got {value}.")
        for name in layers:
            if getattr(self, name) > MOST_LAYERS:
                raise ValueError(f"{name} must be at most {MOST_LAYERS:,}, got {getattr(self, name)}.")
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model must be even for sinusoidal positions, got {self.d_model}: sines and cosines come in "
                f"pairs (section 3.5). Make d_model even or use learned positions."
            )
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is a probability in [0, 1), got {getattr(self, name)}.")
        if not 0 < self.layer_norm_eps < math.inf:
            raise ValueError(f"layer_norm_eps must be a positive finite number, got {self.layer_norm_eps}.")
        choices = {
            "activation_function": tuple(ACT2FN),
            "position_embedding_type": ("sinusoidal", "learned"),
            "position_layout": ("interleaved", "concatenated", "fairseq"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}.")


# `save_pretrained` copies the code of a registered class, so that a saved model loads without the package.
VaswaniConfig.register_for_auto_class()
