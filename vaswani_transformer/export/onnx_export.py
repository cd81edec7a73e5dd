"""The model as ONNX graphs: `vaswani export --format onnx`.

Three files, with Hugging Face optimum's names of files, inputs and outputs:

    encoder_model.onnx             input_ids, attention_mask
                                   -> last_hidden_state
    decoder_model.onnx             encoder_attention_mask, input_ids, encoder_hidden_states
                                   -> logits, present.{i}.{decoder,encoder}.{key,value}
    decoder_with_past_model.onnx   encoder_attention_mask, input_ids, past_key_values.{i}.{decoder,encoder}.{key,value}
                                   -> logits, present.{i}.decoder.{key,value}

The first step of a translation feeds the start token to `decoder_model`, each later step its last token and the cache
to `decoder_with_past_model`; keys and values of the encoder stay those of the first step. The weights of the decoder
are in both files. Batch and lengths are free, and sinusoids are computed in the graph, for any length. The README of
this folder has a greedy search in onnxruntime.

Shapes: B batch, S source length, T target length, P cached tokens, D d_model, H heads, K d_k or d_v, V vocab_size.
"""

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnxscript  # noqa: F401 - torch imports it only in the middle of an export
import torch
from torch import nn
from torch.export import Dim
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..model.layers_vaswani import CACHE
from ..model.modeling_vaswani import VaswaniDecoder, VaswaniEncoder, VaswaniForConditionalGeneration

Tensors = tuple[torch.Tensor, ...]

# Sizes of the example that is traced. Sizes of 0 and 1, and equal sizes, would become constants.
BATCH, SOURCE, TARGET = 2, 5, 3


class EncoderGraph(nn.Module):
    """`encoder_model.onnx`."""

    def __init__(self, encoder: VaswaniEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(B, S), (B, S) -> (B, S, D)."""
        return self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state


class DecoderGraph(nn.Module):
    """`decoder_model.onnx`: the first step."""

    def __init__(self, decoder: VaswaniDecoder, lm_head: nn.Linear):
        super().__init__()
        self.decoder = decoder
        self.lm_head = lm_head

    def forward(
        self, encoder_attention_mask: torch.Tensor, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> Tensors:
        """(B, S), (B, T), (B, S, D) -> logits (B, T, V), and keys and values of decoder and encoder of each layer."""
        outputs = self.decoder(
            input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=True,
        )
        cache = outputs[CACHE]
        layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        remembered = ((own.keys, own.values, source.keys, source.values) for own, source in layers)
        return self.lm_head(outputs.last_hidden_state), *(tensor for layer in remembered for tensor in layer)


class DecoderWithPastGraph(DecoderGraph):
    """`decoder_with_past_model.onnx`: each later step."""

    def forward(
        self, encoder_attention_mask: torch.Tensor, input_ids: torch.Tensor, past_key_values: Tensors
    ) -> Tensors:
        """(B, S), (B, 1) and the cache -> logits (B, 1, V), and keys and values of each layer."""
        layers = [past_key_values[start : start + 4] for start in range(0, len(past_key_values), 4)]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for index, (keys, values, source_keys, source_values) in enumerate(layers):
            cache.self_attention_cache.update(keys, values, index)
            cache.cross_attention_cache.update(source_keys, source_values, index)
            cache.is_updated[index] = True
        outputs = self.decoder(
            input_ids,
            # Only its length matters: keys and values come from the cache.
            encoder_hidden_states=past_key_values[2][:, 0],
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        own = outputs[CACHE].self_attention_cache.layers
        return self.lm_head(outputs.last_hidden_state), *(tensor for x in own for tensor in (x.keys, x.values))


HOW_TO_USE = """\
ONNX graphs in {folder}. vaswani_transformer/export/README.md has a greedy search in onnxruntime. The program that calls
the graphs must apply the search that this model is set to: {search}."""


@torch.no_grad()
def export_model(model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write the three graphs, the tokenizer and the configurations into the folder `output`, in float32."""
    model = copy.deepcopy(model).cpu().float().eval()
    model.set_attn_implementation("eager")  # "sdpa" branches on whether a length is 1
    encoder, decoder, lm_head = model.model.encoder, model.model.decoder, model.lm_head
    batch, source, target, past = Dim("batch"), Dim("source"), Dim("target"), Dim("past")
    sentences, remembered_source = {0: batch, 1: source}, {0: batch, 2: source}
    remembered_target = {0: batch, 2: past}
    input_ids = torch.zeros((BATCH, SOURCE), dtype=torch.long)
    mask = torch.ones_like(input_ids)
    states = encoder(input_ids, attention_mask=mask).last_hidden_state
    first = DecoderGraph(decoder, lm_head)
    remembered = first(mask, input_ids[:, :TARGET], states)[1:]
    num_layers = model.config.decoder_layers

    output.mkdir(parents=True, exist_ok=True)
    _export(
        EncoderGraph(encoder),
        {"input_ids": input_ids, "attention_mask": mask},
        {"input_ids": sentences, "attention_mask": sentences},
        output / "encoder_model.onnx",
        ["last_hidden_state"],
    )
    _export(
        first,
        {"encoder_attention_mask": mask, "input_ids": input_ids[:, :TARGET], "encoder_hidden_states": states},
        {"encoder_attention_mask": sentences, "input_ids": {0: batch, 1: target}, "encoder_hidden_states": sentences},
        output / "decoder_model.onnx",
        ["logits", *_cache_names("present", num_layers, ("decoder", "encoder"))],
    )
    _export(
        DecoderWithPastGraph(decoder, lm_head),
        {"encoder_attention_mask": mask, "input_ids": input_ids[:, :1], "past_key_values": remembered},
        {
            "encoder_attention_mask": sentences,
            "input_ids": {0: batch},
            "past_key_values": (*[remembered_target] * 2, *[remembered_source] * 2) * num_layers,
        },
        output / "decoder_with_past_model.onnx",
        ["logits", *_cache_names("present", num_layers, ("decoder",))],
        ["encoder_attention_mask", "input_ids", *_cache_names("past_key_values", num_layers, ("decoder", "encoder"))],
    )
    model.config.save_pretrained(output)
    model.generation_config.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _export(
    graph: nn.Module, inputs: dict, shapes: dict, path: Path, output_names: list[str], input_names: Sequence[str] = ()
) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about axes that share a name on purpose
        torch.onnx.export(
            graph.eval(),
            kwargs=inputs,
            f=path,
            input_names=input_names or list(inputs),
            output_names=output_names,
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _cache_names(prefix: str, num_layers: int, sides: tuple[str, ...]) -> list[str]:
    return [f"{prefix}.{i}.{side}.{kind}" for i in range(num_layers) for side in sides for kind in ("key", "value")]
