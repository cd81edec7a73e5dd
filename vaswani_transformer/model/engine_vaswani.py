"""A model laid out for the device that it decodes on: the function of `layers_vaswani`, by the fastest products.

A search calls the same layers with a few tokens, some ten thousand times per minute. An engine computes what they
compute, once for what does not change from step to step, and moves no keys or values when hypotheses change places.

Shapes: L sentences still in the search, b beams, S source tokens, V vocab_size, D d_model.
"""

import copy
import weakref
from collections.abc import Sequence

import torch
from torch import nn

from .cpu_vaswani import Product, Products
from .engine_layers_vaswani import DecoderProducts, EncoderProducts, linear_of
from .engine_steps_vaswani import EngineSteps


class Engine:
    """A snapshot of a model, for searches on the device where the model is.

        engine = model.build_engine(dtype="int8")
        model.generate(**inputs, engine=engine)

    An engine that is kept has copies of its own: it translates with the weights of the moment it was built, whatever
    happens to the model afterwards. `Products` multiplies by the matrices of a layer:
    float32, bfloat16 and int8 differ in nothing else. `start` begins a search and returns its `Steps`, which own the
    keys and values of that search.

    Args:
        model: a `VaswaniForConditionalGeneration` in which `find_obstacle` finds nothing.
        products: how to multiply.
        encodes: also lay out the encoder; an engine for a single call only decodes.
    """

    @torch.inference_mode(False)  # an engine outlives the search during which it may have been built
    @torch.no_grad()
    def __init__(self, model, products: Products, *, encodes: bool = True):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        self.model, self.device, self.dtype = weakref.ref(model), model.device, products.dtype
        keep = products.keep
        self.embed_scale = decoder.embed_tokens.embed_scale
        self.target_embedding = keep(decoder.embed_tokens.weight)
        self.target_positions = copy.deepcopy(decoder.positions)
        self.decoder_layers = [DecoderProducts(layer, products) for layer in decoder.layers]
        head = linear_of(model.lm_head)
        self.project, self.head_bias = products.one(head), keep(head.bias)
        # Its rows are for shortlists.
        self.head = self.target_embedding if head.weight is decoder.embed_tokens.weight else keep(head.weight)
        self.encoder_layers = None
        if encodes:
            self.source_positions = copy.deepcopy(encoder.positions)
            is_shared = encoder.embed_tokens.weight is decoder.embed_tokens.weight
            self.source_embedding = self.target_embedding if is_shared else keep(encoder.embed_tokens.weight)
            self.encoder_layers = [EncoderProducts(layer, products) for layer in encoder.layers]

    def is_of(self, model) -> bool:
        """True if `model` is the one that this engine was built of."""
        return self.model() is model

    @torch.inference_mode()
    def encode(self, input_ids: torch.LongTensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """The encoder's output (B, S, D) for `input_ids` (B, S), whose padding `attention_mask` (B, S) marks by 0."""
        is_padded = attention_mask is not None and not bool(attention_mask.all())
        with torch.autocast(self.device.type, enabled=False):
            x = nn.functional.embedding(input_ids, self.source_embedding) * self.embed_scale
            positions = self.source_positions(
                input_ids.shape[1],
                mask=attention_mask if is_padded else None,
                device=input_ids.device,
            )
            x = x + positions.to(x.dtype)
            mask = attention_mask[:, None, None].bool() if is_padded else None
            for layer in self.encoder_layers:
                x = layer(x, mask)
        return x

    def start(
        self,
        encoding: torch.Tensor,
        source_mask: torch.Tensor | None,
        *,
        num_beams: int,
        shortlist: torch.LongTensor | None = None,
    ) -> EngineSteps:
        """The steps of a search.

        Args:
            encoding: (L, S, D) of the sources.
            source_mask: (L, S), 0 at padding; `None` where nothing is padded.
            num_beams: b, at most 32.
            shortlist: (n,) token ids to compute logits of; all when not given.
        """
        return EngineSteps(
            layers=self.decoder_layers,
            embed=lambda tokens: nn.functional.embedding(tokens, self.target_embedding) * self.embed_scale,
            positions=self.target_positions,
            project=self.projection(shortlist),
            encoding=encoding.to(self.dtype),
            source_mask=source_mask,
            num_beams=num_beams,
        )

    def projection(self, shortlist: torch.LongTensor | None) -> Product:
        """The product with the vocabulary's rows of `shortlist` (n,), or with all of them: (..., D) -> (..., n)."""
        if shortlist is None:
            return self.project
        weight, bias = self.head[shortlist], None if self.head_bias is None else self.head_bias[shortlist]
        return lambda x: nn.functional.linear(x, weight, bias)


def build_engines(models: Sequence, *, dtype: torch.dtype | str | None = None) -> list[Engine | None]:
    """A snapshot of each of `models`; without a `dtype`, `None` where only the `forward` of one will do.

    Raises:
        ValueError: where an engine in `dtype` cannot be built.
    """
    return [
        # By the code that the model came with, which need not be this copy of it; an adapter around a model has none.
        model.build_engine(dtype=dtype)
        if dtype is not None or (hasattr(type(model), "engine_obstacle") and not model.engine_obstacle())
        else None
        for model in models
    ]


def as_engines(engine: Engine | Sequence[Engine] | None, models: Sequence) -> list[Engine | None]:
    """An engine, or none, for each of `models`.

    Raises:
        ValueError: for an engine of another model, or another number of them.
    """
    engines = [None] * len(models) if engine is None else [engine] if isinstance(engine, Engine) else list(engine)
    if len(engines) == 1:
        engines += [None] * (len(models) - 1)
    if len(engines) != len(models):
        raise ValueError(f"engine must be one engine, or one per model: got {len(engines)} for {len(models)} models.")
    for built, model in zip(engines, models, strict=True):
        if built is not None and not built.is_of(model):
            raise ValueError("engine was built of another model: build it by this model's build_engine().")
    return engines
