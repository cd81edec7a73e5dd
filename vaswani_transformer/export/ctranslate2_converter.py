"""Write a model in the format of CTranslate2: `vaswani export --format ctranslate2`.

Importing this file registers a converter for `VaswaniConfig`. Then CTranslate2's own tools can convert our models:

    import vaswani_transformer.export.ctranslate2_converter
    from ctranslate2.converters import TransformersConverter
    TransformersConverter("runs/base/model").convert("exports/base", quantization="int8")

CTranslate2 cannot compute sinusoids in the layout of the paper. So the export holds a table with the sinusoids of
`max_positions` positions, and CTranslate2 raises an error for a longer sentence. The README of this folder says how the
search of CTranslate2 differs from the paper's.
"""

import copy
from pathlib import Path

import torch
from ctranslate2.converters.transformers import BartLoader, register_loader
from ctranslate2.specs import transformer_spec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from ctranslate2.specs.common_spec import Activation
from transformers import PreTrainedTokenizerFast

from ..model.configuration_vaswani import VaswaniConfig
from ..model.layers_vaswani import MultiHeadAttention
from ..model.modeling_vaswani import VaswaniDecoder, VaswaniEncoder, VaswaniForConditionalGeneration

MAX_POSITIONS = 2_048
ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELUTanh,
    "gelu_pytorch_tanh": Activation.GELUTanh,
    "silu": Activation.SWISH,
    "swish": Activation.SWISH,
}
HOW_TO_USE = """\
The CTranslate2 model is in {folder}. In float32, its greedy search gives the translations of `vaswani translate
--num_beams 1`; int8 changes some of them. Its beam search differs from the paper's in the length penalty and in when it
ends. vaswani_transformer/export/README.md has a short program that chooses from CTranslate2's n-best list by the
paper's penalty (section 6.1). CTranslate2 does not read the search options of this model ({search}): pass beam_size,
length_penalty and max_decoding_length to translate_batch."""


def export_model(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    output: Path,
    *,
    quantization: str = "float32",
    max_positions: int = MAX_POSITIONS,
) -> None:
    """Write a CTranslate2 model, its tokenizer and its generation config into the folder `output`.

    Args:
        quantization: the type of the stored weights, such as float32, int8 or int8_float16.
        max_positions: the largest number of tokens that a sentence may have, on either side.

    Raises:
        ValueError: if CTranslate2 cannot compute this architecture, or if it has no such quantization.
    """
    with torch.no_grad():
        # The model is copied, because CTranslate2 quantizes in place.
        spec = VaswaniLoader(max_positions=max_positions)(copy.deepcopy(model).cpu(), tokenizer)
        spec.validate()
        spec.optimize(quantization=quantization)
    output.mkdir(parents=True, exist_ok=True)
    spec.save(str(output))
    tokenizer.save_pretrained(output)
    model.generation_config.save_pretrained(output)


@register_loader("VaswaniConfig")
class VaswaniLoader(BartLoader):
    """A builder of CTranslate2 specifications, for `export_model` and for the `TransformersConverter` of CTranslate2.

    Args:
        max_positions: the number of rows in the table of positions. A table of learned positions has at most
            `max_position_embeddings` rows.
    """

    architecture_name = "AutoModelForSeq2SeqLM"

    def __init__(self, *, max_positions: int = MAX_POSITIONS):
        self.max_positions = max_positions

    def get_model_spec(self, model: VaswaniForConditionalGeneration) -> transformer_spec.TransformerSpec:
        """Return the specification of `model`.

        Raises:
            ValueError: if CTranslate2 cannot compute this architecture.
        """
        config = model.config
        if config.attention_window is not None or config.activation_function not in ACTIVATIONS:
            raise ValueError(
                f"CTranslate2 has no attention_window, and only {', '.join(ACTIVATIONS)} as activation_function. This "
                f"model has {config.attention_window} and {config.activation_function!r}."
            )
        if config.d_k != config.d_v:
            raise ValueError(f"CTranslate2 needs d_k = d_v; this model has {config.d_k} and {config.d_v}.")
        options = {
            "num_heads": config.num_heads,
            "head_dim": config.d_k,
            "pre_norm": False,
            "activation": ACTIVATIONS[config.activation_function],
        }
        spec = transformer_spec.TransformerSpec(
            transformer_spec.TransformerEncoderSpec(config.encoder_layers, **options),
            transformer_spec.TransformerDecoderSpec(config.decoder_layers, **options),
        )
        self.set_stack(spec.encoder, spec.encoder.embeddings[0], model.model.encoder)
        self.set_stack(spec.decoder, spec.decoder.embeddings, model.model.decoder)
        self.set_linear(spec.decoder.projection, model.lm_head)
        return spec

    def get_vocabulary(self, model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> list[str]:
        """Return one token per row of the embeddings. A row without a token in the tokenizer gets a made-up token."""
        tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        return [tokens.get(row, f"<row {row}>") for row in range(model.config.vocab_size)]

    def set_config(self, config, model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
        """Fill in the `config.json` of the export."""
        super().set_config(config, model, tokenizer)
        config.layer_norm_epsilon = model.config.layer_norm_eps
        config.add_attribute("max_positions", self._count_positions(model.config))

    def set_stack(self, spec, embeddings_spec, stack: VaswaniEncoder | VaswaniDecoder) -> None:
        """Fill in the specification of an encoder or a decoder.

        The embeddings are copied without the factor sqrt(d_model), because CTranslate2 itself multiplies by it.
        """
        self.set_embeddings(embeddings_spec, stack.embed_tokens)
        positions = stack.positions(self._count_positions(stack.config), mask=None, device=stack.device)
        spec.position_encodings.encodings = positions[0]
        for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
            self.set_attention(layer_spec.self_attention, layer.self_attention)
            self.set_layer_norm(layer_spec.self_attention.layer_norm, layer.self_attention_residual.norm)
            if isinstance(stack, VaswaniDecoder):
                self.set_attention(layer_spec.attention, layer.cross_attention)
                self.set_layer_norm(layer_spec.attention.layer_norm, layer.cross_attention_residual.norm)
            self.set_linear(layer_spec.ffn.linear_0, layer.feed_forward.fc1)
            self.set_linear(layer_spec.ffn.linear_1, layer.feed_forward.fc2)
            self.set_layer_norm(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)

    def set_attention(self, spec: MultiHeadAttentionSpec, attention: MultiHeadAttention) -> None:
        """Fill in the specification of one attention."""
        # One matrix holds Q, K and V of self-attention. Encoder-decoder attention has one for Q, and one for K and V.
        super().set_attention(spec, attention, self_attention=len(spec.linear) == 2)
        spec.queries_scale = attention.scaling

    def _count_positions(self, config: VaswaniConfig) -> int:
        if config.position_embedding_type == "learned":
            return min(self.max_positions, config.max_position_embeddings)
        return self.max_positions
