"""The Transformer (section 3, figure 1) as models of Hugging Face transformers: stacks, tying, initialisation, saving.

Shapes: B batch, T target length, S source length, D d_model, V vocab_size.
"""

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import LongTensor, Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple, logging
from transformers.utils.generic import TransformersKwargs, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vaswani import VaswaniConfig
from .generation_vaswani import VaswaniGenerationMixin, build_generation_config
from .layers_vaswani import (
    CACHE,
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    PositionEncoding,
    TokenEmbedding,
    build_padding_mask,
    choose_cache,
    mask_decoder,
    mask_source,
)
from .loss_vaswani import IGNORE_INDEX, sum_label_smoothed_loss
from .pipeline_vaswani import custom_pipelines

logger = logging.get_logger(__name__)

# The keyword arguments that each `forward` accepts beside its named parameters. `use_cache` and `logits_to_keep` do not
# concern the encoder, but transformers passes them to it.
KNOWN_ARGUMENTS = {*TransformersKwargs.__annotations__, "use_cache", "logits_to_keep"}


@dataclass
class VaswaniSeq2SeqLMOutput(Seq2SeqLMOutput):
    """`Seq2SeqLMOutput` with `nll_loss`: in training mode the loss without label smoothing, for the perplexity."""

    nll_loss: Tensor | None = None


class VaswaniPreTrainedModel(PreTrainedModel):
    """The base of all models: initialisation, loading, saving, and flags for transformers."""

    config: VaswaniConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("EncoderLayer", "DecoderLayer")
    _skip_keys_device_placement = ("past_key_values", "cache")
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as tensor2tensor does: Glorot uniform matrices, zero biases, N(0, 1 / d_model) embeddings.

        Any other layer initialises itself, by the method `reset_parameters` that PyTorch's layers have.
        """
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def _resize_token_embeddings(self, new_num_tokens, *args, **kwargs) -> nn.Embedding:
        """Resize the embedding of the source and, if there is a separate one, the embedding of the target.

        Return the embedding of the source.
        """
        resized = super()._resize_token_embeddings(new_num_tokens, *args, **kwargs)
        decoder = self.get_decoder()
        if not self.config.tie_word_embeddings and decoder is not self:
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, resized.num_embeddings)
        return resized

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load as transformers does, but from safetensors only: loading a pickle can run any code.

        If a subclass saved the weights, and another class loads them, a warning names the subclass.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs | {"use_safetensors": True})
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info
        known = {*globals(), *(base.__name__ for base in type(model).mro())}
        if unknown := {*(model.config.architectures or ())} - known:
            logger.warning(
                f"{pretrained_model_name_or_path} was saved as {', '.join(unknown)}, but is loaded as "
                f"{type(model).__name__}, which may compute something else. Load it by the class that saved it. To let "
                f"AutoModelForSeq2SeqLM find that class, register it with a config class that has its own model_type."
            )
        return loaded

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does. The config names the classes that `trust_remote_code=True` loads."""
        if type(self).__module__ == __name__:  # For a user's subclass, transformers sets auto_map.
            self.config.auto_map = {
                "AutoConfig": "configuration_vaswani.VaswaniConfig",
                "AutoModel": "modeling_vaswani.VaswaniModel",
                "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
            }
        if vars(self.config).get("custom_pipelines") is None:
            self.config.custom_pipelines = custom_pipelines(*vars(self.config).get("task_specific_params") or ())
        super().save_pretrained(*args, **kwargs)


class VaswaniStack(VaswaniPreTrainedModel):
    """What encoder and decoder share: embeddings plus positions, and N layers."""

    def __init__(self, config: VaswaniConfig, layer_class: type[nn.Module], num_layers: int):
        super().__init__(config)
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.d_model)
        self.positions = PositionEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(num_layers))
        self.gradient_checkpointing = False
        self.post_init()

    def _refuse_unknown(self, arguments: dict) -> None:
        """Raise a TypeError for an argument that `forward` would ignore, such as a misspelt name."""
        for name in arguments.keys() - KNOWN_ARGUMENTS:
            raise TypeError(
                f"{type(self).__name__}.forward() has no argument {name!r}. It takes the arguments of its signature "
                f"and of transformers' TransformersKwargs."
            )

    def _embed(self, input_ids, inputs_embeds, *, mask, start=0) -> Tensor:
        """Return embeddings plus positions (sections 3.4, 3.5) after dropout, (B, T, D)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                f"{type(self).__name__} needs exactly one of token ids and embeddings, got "
                f"{'neither' if input_ids is None else 'both'}."
            )
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        positions = self.positions(inputs_embeds.shape[1], start=start, mask=mask, device=inputs_embeds.device)
        return self.dropout(inputs_embeds + positions.to(inputs_embeds.dtype))


class VaswaniEncoder(VaswaniStack):
    """A stack of N encoder layers (section 3.1), without a further norm after the last."""

    _can_record_outputs = {  # noqa: RUF012 - the base class reads a plain class attribute
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, EncoderLayer, config.encoder_layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: LongTensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source sentence.

        Args:
            input_ids: (B, S).
            attention_mask: (B, S), 1 for tokens and 0 for padding, left or right; by default derived from the padding
                token.
            inputs_embeds: (B, S, D), the output of the layer `get_input_embeddings()`, instead of `input_ids`.

        Returns:
            `last_hidden_state` (B, S, D).
        """
        self._refuse_unknown(kwargs)
        if attention_mask is None and input_ids is not None:
            attention_mask = build_padding_mask(input_ids, self.config)
        x = self._embed(input_ids, inputs_embeds, mask=attention_mask)
        mask = mask_source(self.config, x, attention_mask, is_training=self.training)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class VaswaniDecoder(VaswaniStack):
    """A stack of N decoder layers (section 3.1), without a further norm after the last."""

    _can_record_outputs = {  # noqa: RUF012 - the base class reads a plain class attribute
        "hidden_states": OutputRecorder(DecoderLayer, num_hidden_layers_key="decoder_layers"),
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: VaswaniConfig):
        super().__init__(config, DecoderLayer, config.decoder_layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: LongTensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode the next tokens of a target sentence.

        Args:
            input_ids: (B, T), the tokens that are not yet in `past_key_values`.
            attention_mask: (B, tokens in the cache + T), 0 at padding of the target.
            encoder_hidden_states: (B, S, D), the output of the encoder. Without it, encoder-decoder attention is
                skipped, and the decoder is a language model of the target.
            encoder_attention_mask: (B, S), 0 at padding of the source.
            past_key_values, cache: the keys and values of earlier tokens. transformers renames this argument: give it
                by its old name or by its new name.
            inputs_embeds: (B, T, D), the output of the layer `get_input_embeddings()`, instead of `input_ids`.
            use_cache: return the given cache or a new one.

        Returns:
            `last_hidden_state` (B, T, D), and with `use_cache` the cache, which the installed transformers names
            "past_key_values" or "cache" (see `CACHE`).
        """
        self._refuse_unknown(kwargs)
        past_key_values = choose_cache(past_key_values, cache)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = EncoderDecoderCache(past_key_values, DynamicCache())
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        x = self._embed(input_ids, inputs_embeds, mask=attention_mask, start=past_length)
        target_cache = None if past_key_values is None else past_key_values.self_attention_cache
        mask = mask_decoder(self.config, x, attention_mask, target_cache)
        if encoder_hidden_states is not None:
            encoder_attention_mask = mask_source(
                self.config, x, encoder_attention_mask, encoder_hidden_states, is_training=self.training
            )
        for layer in self.layers:
            x = layer(x, mask, encoder_hidden_states, encoder_attention_mask, past_key_values, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x, **{CACHE: past_key_values if use_cache else None}
        )


class VaswaniModel(VaswaniPreTrainedModel):
    """Encoder and decoder, by default with one shared embedding matrix (figure 1 without the projection to words)."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        if config.tie_word_embeddings:
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
            self.shared = TokenEmbedding(config.vocab_size, config.d_model)
        self.encoder = VaswaniEncoder(config)
        self.decoder = VaswaniDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.shared = self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode `input_ids` (B, S) unless `encoder_outputs` are given, then decode `decoder_input_ids` (B, T).

        See `VaswaniEncoder` and `VaswaniDecoder` for the arguments.

        Returns:
            `last_hidden_state` (B, T, D) of the decoder, the output of the encoder, and if requested the cache, hidden
            states and attention weights.
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = build_padding_mask(input_ids, self.config)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=choose_cache(past_key_values, cache),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE: decoded.get(CACHE)},
        )


class VaswaniForConditionalGeneration(VaswaniGenerationMixin, VaswaniPreTrainedModel):
    """The Transformer of the paper: `VaswaniModel` and a projection to words that shares the matrix of embeddings."""

    def __init__(self, config: VaswaniConfig):
        super().__init__(config)
        if config.tie_word_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
        self.model = VaswaniModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()
        self.generation_config = build_generation_config(config)

    def prepare_decoder_input_ids_from_labels(self, labels: LongTensor) -> LongTensor:
        """Return `labels` (B, T) shifted right, after the start token (section 3.1); -100 becomes padding.

        Data collators call this method.

        Raises:
            ValueError: if a row holds labels but begins with -100.
        """
        if ((labels[:, 0] == IGNORE_INDEX) & (labels != IGNORE_INDEX).any(dim=1)).any():
            raise ValueError("labels are padded on the left: set tokenizer.padding_side = 'right'.")
        return self._shift_right(labels)

    def _shift_right(self, labels: LongTensor) -> LongTensor:
        shifted = labels.roll(1, dims=-1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted == IGNORE_INDEX, self.config.pad_token_id)

    def _sum_loss(self, hidden_states: Tensor, labels: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss with label smoothing and the loss without, each summed over `labels` (B, T).

        Both are computed from `logits`. If `logits` is `None`, they are computed from `hidden_states` (B, T, D).
        """
        head, label_smoothing = self.lm_head, self.config.label_smoothing if self.training else 0.0
        # The loss by slices reads only the weights of the head. It would bypass an adapter or a hook of the head.
        has_hooks = head._forward_hooks or head._forward_pre_hooks
        is_plain = type(head) is nn.Linear and not has_hooks and "forward" not in vars(head)
        # The compiler gets the plain formula: it fuses the operations itself, and stores one matrix of logits.
        can_slice = self.faster is not None and not torch.compiler.is_compiling()
        if logits is None and is_plain and can_slice:
            return self.faster.sum_loss(hidden_states, head.weight, head.bias, labels, label_smoothing=label_smoothing)
        logits = head(hidden_states) if logits is None else logits
        return sum_label_smoothed_loss(logits, labels, label_smoothing=label_smoothing)

    @can_return_tuple
    def forward(
        self,
        input_ids: LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VaswaniSeq2SeqLMOutput:
        """Return the logits of the next words, and with `labels` the loss of section 5.4.

        Label smoothing acts in training mode only, like dropout. In evaluation mode exp(loss) is the perplexity of the
        paper.

        Args:
            labels: (B, T) token ids with -100 at padding, which stands on the right. By default `decoder_input_ids` are
                derived from them.
            logits_to_keep: n to return the logits of the last n positions only, 0 to return all; or a tensor of
                positions.
            num_items_in_batch: number of target tokens in the whole update, over all processes and accumulation steps.
                The loss is the sum over this batch divided by this number; by default the mean over this batch.
            skip_logits: do not return `logits`. The package then computes the loss without storing them. This is the
                default in training mode with `labels`: logits need most of the memory, and no trainer reads them.

        Returns:
            `loss` (scalar, nats per token), `logits` (B, T, V), in training mode `nll_loss` (the loss without
            smoothing), the output of the encoder, and if requested the cache, hidden states and attention weights.
        """
        kwargs.pop("tokenizer", None)  # With `stop_strings`, transformers' loop passes the tokenizer to each step.
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self._shift_right(labels)
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=choose_cache(past_key_values, cache),
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states, loss, nll_loss, logits = outputs.last_hidden_state, None, None, None
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden_states[:, kept])
        if labels is not None:
            has_all_logits = isinstance(logits_to_keep, int) and logits_to_keep == 0
            loss, nll_loss = self._sum_loss(hidden_states, labels, logits if has_all_logits else None)
            num_items = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
            loss = loss / num_items
            nll_loss = nll_loss / num_items if self.training else None
        return VaswaniSeq2SeqLMOutput(
            loss=loss,
            nll_loss=nll_loss,
            logits=logits,
            **{name: value for name, value in outputs.items() if name != "last_hidden_state"},
        )


# `save_pretrained` copies the code of a registered class, so that a saved model loads without the package.
VaswaniModel.register_for_auto_class("AutoModel")
VaswaniForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
