"""Write a model as ONNX graphs: `vaswani export --format onnx`.

The export has three files. Files, inputs and outputs have the names that Hugging Face optimum uses:

    encoder_model.onnx             input_ids, attention_mask
                                   -> last_hidden_state
    decoder_model.onnx             encoder_attention_mask, input_ids, encoder_hidden_states
                                   -> logits, present.{i}.{decoder,encoder}.{key,value}
    decoder_with_past_model.onnx   encoder_attention_mask, input_ids, past_key_values.{i}.{decoder,encoder}.{key,value}
                                   -> logits, present.{i}.decoder.{key,value}

The first step of a translation feeds the start token to `decoder_model`. Each later step feeds the last token and the
cache to `decoder_with_past_model`. The keys and values of the encoder do not change after the first step. Both decoder
files hold the weights of the decoder. Batch size and lengths are free, because the graphs compute sinusoids for any
length. The README of this folder has a greedy search in onnxruntime.

Shapes: B batch, S source length, T target length, P cached tokens, D d_model, H heads, K d_k or d_v, V vocab_size.
"""

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnxscript  # noqa: F401 - without it, torch would fail in the middle of an export
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import EncoderDecoderCache

from ..model.layers_vaswani import CACHE
from ..model.modeling_vaswani import VaswaniDecoder, VaswaniForConditionalGeneration

Tensors = tuple[Tensor, ...]


class DecoderGraph(nn.Module):
    """The graph of `decoder_model.onnx`, or with `past_key_values` the graph of `decoder_with_past_model.onnx`."""

    def __init__(self, decoder: VaswaniDecoder, lm_head: nn.Linear):
        super().__init__()
        self.decoder = decoder
        self.lm_head = lm_head

    def forward(
        self,
        encoder_attention_mask: Tensor,
        input_ids: Tensor,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: Tensors | None = None,
    ) -> Tensors:
        """Return logits and cache after a prompt, or with `past_key_values` after one more token.

        Args:
            encoder_attention_mask: (B, S).
            input_ids: (B, T); (B, 1) with `past_key_values`.
            encoder_hidden_states: (B, S, D), for the first step.
            past_key_values: for each layer, the keys and values of the decoder (B, H, P, K) and of the encoder
                (B, H, S, K), for later steps.

        Returns:
            logits (B, T, V), and for each layer the keys and values of the decoder (B, H, P + T, K). In the first step,
            the keys and values of the encoder (B, H, S, K), which do not change later, follow those of the decoder.
        """
        is_first = past_key_values is None
        cache = None
        if not is_first:
            cache = EncoderDecoderCache(
                [past_key_values[start : start + 4] for start in range(0, len(past_key_values), 4)]
            )
            # Only the length of this tensor matters, because keys and values come from the cache.
            encoder_hidden_states = past_key_values[2][:, 0]
        outputs = self.decoder(
            input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        cache = outputs[CACHE]
        tensors = []
        for target, source in zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True):
            tensors += [target.keys, target.values]
            if is_first:
                tensors += [source.keys, source.values]
        return self.lm_head(outputs.last_hidden_state), *tensors


HOW_TO_USE = """\
The ONNX graphs are in {folder}. vaswani_transformer/export/README.md has a greedy search in onnxruntime. The program
that calls the graphs must apply the search options of this model: {search}."""


@torch.no_grad()
def export_model(model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write the three graphs, the tokenizer and the configurations into the folder `output`, in float32."""
    model = copy.deepcopy(model).cpu().float().eval()
    model.set_attn_implementation("eager")  # "sdpa" branches on whether a length is 1. A graph cannot.
    encoder = model.model.encoder
    decoder = DecoderGraph(model.model.decoder, model.lm_head)
    # The names of the free dimensions of each kind of tensor. Free dimensions may have any size.
    sentences = {0: "batch", 1: "source"}
    remembered_source = {0: "batch", 2: "source"}
    remembered_target = {0: "batch", 2: "past"}
    # The sizes of the traced example. A size of 0 or 1, or one that equals another size, would become a constant.
    input_ids = torch.zeros((2, 5), dtype=torch.long)
    prompt = input_ids[:, :3]
    mask = torch.ones_like(input_ids)
    states = encoder(input_ids, attention_mask=mask).last_hidden_state
    remembered = decoder(mask, prompt, states)[1:]
    num_layers = model.config.decoder_layers
    sides = [f"{layer}.{side}" for layer in range(num_layers) for side in ("decoder", "encoder")]
    present = [f"present.{side}.{kind}" for side in sides for kind in ("key", "value")]
    past = [name.replace("present", "past_key_values") for name in present]

    output.mkdir(parents=True, exist_ok=True)
    _export(
        encoder,
        {"input_ids": input_ids, "attention_mask": mask},
        {"input_ids": sentences, "attention_mask": sentences},
        output / "encoder_model.onnx",
        ["last_hidden_state"],
    )
    _export(
        decoder,
        {"encoder_attention_mask": mask, "input_ids": prompt, "encoder_hidden_states": states},
        {
            "encoder_attention_mask": sentences,
            "input_ids": {0: "batch", 1: "target"},
            "encoder_hidden_states": sentences,
        },
        output / "decoder_model.onnx",
        ["logits", *present],
    )
    _export(
        decoder,
        {"encoder_attention_mask": mask, "input_ids": input_ids[:, :1], "past_key_values": remembered},
        {
            "encoder_attention_mask": sentences,
            "input_ids": {0: "batch"},
            "past_key_values": (*[remembered_target] * 2, *[remembered_source] * 2) * num_layers,
        },
        output / "decoder_with_past_model.onnx",
        ["logits", *(name for name in present if "decoder" in name)],
        ["encoder_attention_mask", "input_ids", *past],
    )
    model.config.save_pretrained(output)
    model.generation_config.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _export(
    graph: nn.Module, inputs: dict, shapes: dict, path: Path, output_names: list[str], input_names: Sequence[str] = ()
) -> None:
    """Write a graph to the file `path`.

    Args:
        inputs: an example of each input.
        shapes: the free dimensions of each input.
        input_names: the names of all input tensors; if empty, the keys of `inputs`.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # This hides a warning that torchvision is missing.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warnings are about axes that have the same name on purpose.
        torch.onnx.export(
            graph.eval(),
            kwargs=inputs,
            f=path,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
