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

from .cpu_vaswani import Product, Products, build_products
from .engine_graphs_vaswani import CAPTURES, CapturedSteps, FixedMemory
from .engine_layers_vaswani import DecoderProducts, EncoderProducts, linear_of
from .engine_steps_vaswani import EngineSteps
from .plain_vaswani import find_obstacle, refuse_released

MANY_SENTENCES = 8  # in a call; with fewer, packing takes longer than it saves


class Engine:
    """A snapshot of a model, for searches on the device where the model is.

        engine = model.build_engine(dtype="int8")
        model.generate(**inputs, engine=engine)

    An engine has copies of its own and never looks at the model's weights again: it translates with the weights of the
    moment it was built, whatever happens to the model afterwards. `for_call` makes the exception, for a single call.

    A device must offer two things. `Products` multiplies by the matrices of a layer: float32, bfloat16 and int8 differ
    in nothing else. `start` begins a search and returns its `Steps`, which own the keys and values of that search; on a
    device that captures steps in graphs they lie in memory that the engine keeps, with the graphs, for later searches.

    Args:
        model: a `VaswaniForConditionalGeneration` in which `find_obstacle` finds nothing.
        products: how to multiply.
        encodes: also lay out the encoder; an engine of `for_call` decodes only.
        releases: free the float matrices of the model, which afterwards can translate through this engine only.
    """

    @torch.inference_mode(False)  # an engine outlives the search during which it may have been built
    @torch.no_grad()
    def __init__(self, model, products: Products, *, encodes: bool = True, releases: bool = False):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        self.model, self.device = weakref.ref(model), model.device
        self.dtype = products.dtype or model.dtype
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
        # A single call does not repeat a step often enough for its capture to pay.
        self.captures = encodes and self.device.type in CAPTURES
        self.idle_memory: list[FixedMemory] = []  # of captured steps; searches at one time have one each
        if releases:
            self._release(model)

    @classmethod
    def build(cls, model, *, dtype: torch.dtype | str | None = None, releases: bool = False) -> "Engine":
        """A snapshot of `model`.

        Args:
            dtype: of the engine's matrices: a floating-point dtype of torch or its name, or "int8"; when not given,
                that of the model, or int8 for one loaded with `dtype="int8"`.

        Raises:
            ValueError: for another dtype, and where only the model's `forward` will do; the message says what stands in
                the way.
        """
        if obstacle := find_obstacle(model):
            raise ValueError(
                f"an engine cannot be built of this model: {obstacle}. Without one, generate() calls its forward."
            )
        return cls(model, build_products(dtype or model.engine_dtype or model.dtype, model.device), releases=releases)

    @classmethod
    def for_call(cls, model, *, num_sentences: int) -> "Engine":
        """The decoder of `model` for one call of `generate`.

        Packing takes as long as about three unpacked steps. Where the call is too small for it to pay, the matrices of
        the model are borrowed and nothing is copied.
        """
        packs = num_sentences >= MANY_SENTENCES or model.engine_dtype
        dtype = model.engine_dtype or model.dtype
        return cls(model, build_products(dtype, model.device) if packs else Products(None), encodes=False)

    def __reduce__(self):
        raise TypeError(
            "an engine is laid out for the processor of one process and cannot be pickled or copied: send the model, "
            "and call build_engine(), or make the Translator or pipeline that holds one, where it arrives."
        )

    def is_of(self, model) -> bool:
        """True if `model` is the one that this engine was built of."""
        return self.model() is model

    def _release(self, model) -> None:
        """Free the matrices of `model`, which shares the embeddings of this engine from now on."""
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(torch.empty_like(module.weight, device="meta"), requires_grad=False)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        encoder.embed_tokens.weight.data = self.source_embedding
        decoder.embed_tokens.weight.data = self.target_embedding
        for parameter in model.parameters():
            if parameter.data_ptr() not in (self.source_embedding.data_ptr(), self.target_embedding.data_ptr()):
                parameter.data = parameter.data.clone()  # one view of a file that is mapped keeps all of it
        for stack in (encoder, decoder):
            stack.forward = refuse_released  # PyTorch takes a matrix that is nowhere for zeros

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
    ) -> "EngineSteps":
        """The steps of a search.

        Args:
            encoding: (L, S, D) of the sources.
            source_mask: (L, S), 0 at padding; `None` where nothing is padded.
            num_beams: b, at most 32.
            shortlist: (n,) token ids to compute logits of; all when not given.
        """
        given = {
            "layers": self.decoder_layers,
            "embed": lambda tokens: nn.functional.embedding(tokens, self.target_embedding) * self.embed_scale,
            "positions": self.target_positions,
            "project": self.projection(shortlist),
            "encoding": encoding.to(self.dtype),
            "source_mask": source_mask,
            "num_beams": num_beams,
        }
        if not self.captures:
            return EngineSteps(**given)
        try:
            memory = self.idle_memory.pop()
        except IndexError:
            memory = FixedMemory(self.device)
        steps = CapturedSteps(memory=memory, **given)
        weakref.finalize(steps, self.idle_memory.append, memory)
        return steps

    def projection(self, shortlist: torch.LongTensor | None) -> Product:
        """The product with the vocabulary's rows of `shortlist` (n,), or with all of them: (..., D) -> (..., n)."""
        if shortlist is None:
            return self.project
        weight, bias = self.head[shortlist], None if self.head_bias is None else self.head_bias[shortlist]
        return lambda x: nn.functional.linear(x, weight, bias)


def build_engines(models: Sequence, *, releases: bool = False) -> list[Engine | None]:
    """A snapshot of each of `models`; `None` where only the `forward` of one will do.

    Raises:
        ValueError: for a model loaded for int8, which only an engine has, where one cannot be built.
    """
    return [
        # By the code that the model came with, which need not be this copy of it; an adapter around a model has none.
        model.build_engine(releases=releases)
        if getattr(model, "engine_dtype", None)
        or (hasattr(type(model), "engine_obstacle") and not model.engine_obstacle())
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
