"""An engine: a copy of a model for searches on one device. It computes what `layers_vaswani` computes, but faster.

A search calls the same layers with few tokens, about ten thousand times per minute. An engine computes only once what
all steps share, and does not copy keys and values when hypotheses change places.

Shapes: B sentences of a batch, L sentences still in the search, b beams, S source tokens, P tokens of the prompt, V
vocab_size, D d_model.
"""

import copy
import weakref

import torch
from torch import LongTensor, Tensor, nn
from transformers.utils import ModelOutput

from ..devices import limit_threads
from ..model.generation_vaswani import VaswaniGenerationMixin
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import find_ways, logger
from .layers import DecoderProducts, EncoderProducts
from .obstacles import find_obstacle
from .products import build_products
from .steps import EngineSteps

REFUSAL = "an engine cannot be built of this model: {}. Call the model's generate() without an engine."


class Engine(VaswaniGenerationMixin):
    """A snapshot of a model, for searches on its device.

        engine = model.build_engine(dtype="bfloat16")
        engine.generate(**inputs)

    An engine copies the weights when it is built. Afterwards the model may change or be deleted. The products with the
    matrices of the layers (see `build_products`) are computed in the engine's dtype. `start` begins a search and
    returns its `EngineSteps`, which hold the keys and values of that search.

    Args:
        model: a model that an engine can replace. `find_obstacle` returns `None` for such a model.
        dtype: a floating-point dtype for the copies, by default the model's.
        for_one_call: True for an engine that serves one call. It has no encoder, and shares the model's weights where
            it can.

    Attributes:
        model: a weak reference to the model. If an engine cannot do what a call of `model.generate(engine=...)` asks
            for, the model's `forward` takes its place. Before that, `generate` reads this reference. If the engine was
            built of another model, `generate` raises a ValueError.
        way: the kind of engine, for `find_ways`.
        ways: what `find_ways` returned when the engine was built. After a change of the model, it returns another one.
    """

    @torch.inference_mode(False)  # An engine that is built in inference mode is also used outside of it.
    @torch.no_grad()
    def __init__(
        self,
        model: VaswaniForConditionalGeneration,
        *,
        dtype: torch.dtype | str | None = None,
        for_one_call: bool = False,
    ):
        products = build_products(dtype or model.dtype, model.device, copies=not for_one_call)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        copy_if_kept = (lambda module: module) if for_one_call else copy.deepcopy  # A model does not change in a call.
        self.model = weakref.ref(model)
        self.config, self.generation_config = model.config, copy_if_kept(model.generation_config)
        self.device, self.dtype = model.device, products.dtype
        keep = products.keep
        self.embed_scale = decoder.embed_tokens.embed_scale
        self.target_embedding = keep(decoder.embed_tokens.weight)
        self.target_positions = copy_if_kept(decoder.positions)
        self.decoder_layers = [DecoderProducts(layer, products) for layer in decoder.layers]
        head = model.lm_head
        is_tied = head.weight is decoder.embed_tokens.weight
        self.project = products.build(self.target_embedding if is_tied else keep(head.weight), keep(head.bias))
        self.way = name_way(self.dtype, for_one_call=for_one_call)
        self.ways = find_ways(model)
        if not for_one_call:
            self.source_positions = copy.deepcopy(encoder.positions)
            is_shared = encoder.embed_tokens.weight is decoder.embed_tokens.weight
            self.source_embedding = self.target_embedding if is_shared else keep(encoder.embed_tokens.weight)
            self.encoder_layers = [EncoderProducts(layer, products) for layer in encoder.layers]

    def generate(self, *args, **kwargs) -> LongTensor | ModelOutput:
        """Search as the model's `generate` does. Options that need the model's `forward` raise a ValueError."""
        with limit_threads(self.device):
            return super().generate(*args, **{"engine": self} | kwargs)

    @property
    def is_refuted(self) -> bool:
        """True if a search with this kind of engine gave other logits than `forward`."""
        return self.ways.get(self.way, 0) < 0

    def save_pretrained(self, *args, **kwargs) -> None:
        """Raise a TypeError: packed matrices (see `PackedProducts`) could not be used in another process."""
        raise TypeError("an engine is for one process and cannot be saved or pickled: save or pickle its model.")

    __reduce__ = save_pretrained

    def without_autocast(self) -> torch.autocast:
        """Return a context in which an engine computes in the dtype that it was built in."""
        return torch.autocast(self.device.type, enabled=False)

    def embed(self, tokens: LongTensor, matrix: Tensor) -> Tensor:
        """Return the embeddings (..., D) of `tokens` (...) by `matrix` (V, D)."""
        return nn.functional.embedding(tokens, matrix) * self.embed_scale

    @torch.inference_mode()
    def encode(self, input_ids: LongTensor, attention_mask: Tensor | None) -> Tensor:
        """Return the output of the encoder (B, S, D) for `input_ids` (B, S); `attention_mask` is 0 at padding."""
        if not hasattr(self, "encoder_layers"):  # This engine serves one call, so its model has not changed.
            return self.model().get_encoder()(input_ids, attention_mask=attention_mask).last_hidden_state
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None  # nothing is padded
        with self.without_autocast():
            x = self.embed(input_ids, self.source_embedding)
            positions = self.source_positions(input_ids.shape[1], mask=attention_mask, device=input_ids.device)
            x = x + positions.to(x.dtype)
            mask = None if attention_mask is None else attention_mask[:, None, None].bool()
            for layer in self.encoder_layers:
                x = layer(x, mask)
        return x

    def start(
        self, encoding: Tensor, source_mask: Tensor | None, *, prompt: LongTensor, num_beams: int
    ) -> tuple[EngineSteps, Tensor]:
        """Read the prompt. Return the object that computes the next steps, and the logits (L * b, V) after the prompt.

        Args:
            encoding: (L, S, D), the encoded sources.
            source_mask: (L, S), 0 at padding; `None` if nothing is padded.
            prompt: (L, P), the tokens with which the translations begin.
            num_beams: b.
        """
        encoding = encoding.to(self.dtype)
        steps = EngineSteps(self, encoding, source_mask, prompt_length=prompt.shape[1], num_beams=num_beams)
        return steps, steps.read(prompt)


def name_way(dtype: torch.dtype, *, for_one_call: bool) -> str:
    """Return the name of a kind of engine, for `find_ways`."""
    return f"an engine {'for one call' if for_one_call else 'that is kept'} in {dtype}"


def build_engine(model: VaswaniForConditionalGeneration, *, dtype: torch.dtype | str | None = None) -> Engine:
    """Return an engine of `model` for any number of calls.

    Raises:
        ValueError: if an engine cannot compute what the model computes; the message says why.
    """
    if reason := find_obstacle(model):
        raise ValueError(REFUSAL.format(reason))
    return _build_readable(model, dtype=dtype)


def _build_readable(model: VaswaniForConditionalGeneration, **options) -> Engine:
    try:
        return Engine(model, **options)
    except (ValueError, MemoryError, torch.OutOfMemoryError):  # A lack of memory says nothing about the layers.
        raise
    except Exception as error:  # A changed layer may lack anything that an engine reads.
        raise ValueError(REFUSAL.format(f"an engine can read the paper's layers only ({error})")) from error


def find_engine(
    model: VaswaniForConditionalGeneration, *, for_one_call: bool = False, kept: Engine | None = None
) -> Engine | None:
    """Return an engine, or `None` if the model must decode by its `forward`.

    Args:
        for_one_call: True for an engine that serves one call, False for an engine for many calls.
        kept: an earlier engine of `model`, which is returned if the model has not changed since.
    """
    if find_obstacle(model):
        return None
    ways, way = find_ways(model), name_way(model.dtype, for_one_call=for_one_call)
    if ways.get(way, 0) < 0:
        return None
    if kept is not None and kept.ways is ways:
        return kept
    try:
        return _build_readable(model, for_one_call=for_one_call)
    except ValueError as error:
        ways[way] = -1
        logger.warning(f"this {type(model).__name__} decodes by its forward, which is right but slower: {error}")
        return None
