"""A model laid out for the device that it decodes on: the function of `layers_vaswani`, by the fastest products.

A search calls the same layers with a few tokens, some ten thousand times per minute. An engine computes what they
compute, once for what does not change from step to step, and moves no keys or values when hypotheses change places.

Shapes: L sentences still in the search, b beams, S source tokens, V vocab_size, D d_model.
"""

import copy
import weakref

import torch

from .cpu_vaswani import Products, build_products
from .engine_layers_vaswani import DecoderProducts, EncoderProducts, linear_of
from .plain_vaswani import find_obstacle

MANY_SENTENCES = 8  # in a call; with fewer, packing takes longer than it saves


class Engine:
    """A snapshot of a model, for searches on the device where the model is.

        engine = model.build_engine(dtype="int8")
        model.generate(**inputs, engine=engine)

    An engine has copies of its own and never looks at the model's weights again: it translates with the weights of the
    moment it was built, whatever happens to the model afterwards. `for_call` makes the exception, for a single call.

    A device must offer two things. `Products` multiplies by the matrices of a layer: float32, bfloat16 and int8 differ
    in nothing else. `start` begins a search and returns its `Steps`, which own the keys and values of that search; a
    device on which steps are captured in graphs differs in what `start` returns.

    Args:
        model: a `VaswaniForConditionalGeneration` in which `find_obstacle` finds nothing.
        products: how to multiply.
        encodes: also lay out the encoder; a borrowed engine decodes only.
        releases: free the float matrices of the model, which afterwards can translate through this engine only.
    """

    @torch.inference_mode(False)  # an engine outlives the search during which it may have been built
    @torch.no_grad()
    def __init__(self, model, products: Products, *, encodes: bool = True, releases: bool = False):
        encoder, decoder = model.get_encoder(), model.get_decoder()
        self.model, self.config, self.device = weakref.ref(model), model.config, model.device
        self.dtype, self.model_dtype = products.dtype or model.dtype, model.dtype
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

    def is_of(self, model) -> bool:
        """True if `model` is the one that this engine was built of."""
        return self.model() is model
