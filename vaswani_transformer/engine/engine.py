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
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, logging

from ..devices import limit_threads
from ..model.generation_vaswani import VaswaniGenerationMixin
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_vaswani import agree
from .layers import DecoderProducts, EncoderProducts
from .obstacles import describe_state, find_obstacle, sum_weights
from .products import build_products
from .steps import EngineSteps

logger = logging.get_logger(__name__)

MOST_COMPARED = 130  # most tokens in a sentence on which an engine and its model are compared

# For each model and kind of engine: the state of the model when it was compared with an engine, and a sentence about
# the difference, or `None` if they agreed. The kind is True for whole engines, and False for engines that only decode.
COMPARED: weakref.WeakKeyDictionary[nn.Module, dict[bool, tuple[list, str | None]]] = weakref.WeakKeyDictionary()


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
        state, sums: what `describe_state` and `sum_weights` returned when the engine was built. An engine for one call
            has neither.
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
        if not for_one_call:
            self.state = describe_state(model)
            self.sums = sum_weights(model)
            self.source_positions = copy.deepcopy(encoder.positions)
            is_shared = encoder.embed_tokens.weight is decoder.embed_tokens.weight
            self.source_embedding = self.target_embedding if is_shared else keep(encoder.embed_tokens.weight)
            self.encoder_layers = [EncoderProducts(layer, products) for layer in encoder.layers]

    def generate(self, *args, **kwargs) -> LongTensor | ModelOutput:
        """Search as the model's `generate` does. Options that need the model's `forward` raise a ValueError."""
        with limit_threads(self.device):
            return super().generate(*args, **{"engine": self} | kwargs)

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


def build_engine(model: VaswaniForConditionalGeneration, *, dtype: torch.dtype | str | None = None) -> Engine:
    """Return an engine of `model` for any number of calls.

    Raises:
        ValueError: if an engine would not compute what the model computes; the message says why.
    """
    engine = None
    if not (reason := find_obstacle(model)):
        engine, reason = _build_compared(model, dtype=dtype)
    if reason:
        raise ValueError(
            f"an engine cannot be built of this model: {reason}. Call the model's generate() without an engine."
        )
    return engine


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
    if kept is not None and kept.state == describe_state(model) and kept.sums == sum_weights(model):
        return kept
    engine, difference = _build_compared(model, for_one_call=for_one_call)
    if difference:
        logger.warning_once(
            f"this {type(model).__name__} decodes by its forward, which is correct but slower than an engine: "
            f"{difference}."
        )
        return None
    return engine


def _build_compared(
    model: VaswaniForConditionalGeneration,
    *,
    dtype: torch.dtype | str | None = None,
    for_one_call: bool = False,
) -> tuple[Engine | None, str | None]:
    """Return an engine of `model`, and a sentence that says how the results of engine and model differ.

    If the results agree, the sentence is `None`. If they differ, the caller must not use the engine, which may be
    `None`.
    """
    compared, state = COMPARED.setdefault(model, {}), describe_state(model)
    is_whole = not for_one_call
    known_state, difference = compared.get(is_whole) or compared.get(True) or (None, None)
    is_known = known_state == state
    if is_known and difference:
        return None, difference
    products = build_products(dtype or model.dtype, model.device)  # raises an error for a wrong dtype
    try:
        engine = Engine(model, dtype=products.dtype, for_one_call=for_one_call)
        if not is_known:
            # The engine and the model are compared in the model's dtype, because coarser rounding would hide small
            # differences.
            compared_engine = engine if engine.dtype == model.dtype else Engine(model)
            difference = (
                None
                if _computes_the_same(compared_engine, model)
                else "its forward computes other logits than an engine"
            )
    except (MemoryError, torch.OutOfMemoryError):  # A lack of memory says nothing about the layers, and may pass.
        raise
    except Exception as error:  # A changed layer may lack anything that an engine reads.
        engine = None
        difference = f"an engine can read the paper's layers only ({error})"
    compared[is_whole] = state, difference
    return engine, difference


@torch.no_grad()
def _computes_the_same(engine: Engine, model: VaswaniForConditionalGeneration) -> bool:
    """Return True if `engine` and `model` give the same logits for three sentences of made-up tokens.

    One sentence is padded. All are long, because some changes of attention, such as a window or a limit on the number
    of keys, show only in long sentences.
    """
    length = MOST_COMPARED
    if model.config.position_embedding_type == "learned":  # sinusoids have no limit
        length = min(length, model.config.max_position_embeddings)
    tokens = torch.arange(6 * length, device=model.device) * 7 % model.config.vocab_size
    source, target = tokens.view(2, 3, length)
    mask = torch.ones_like(source)
    mask[1, -2:] = 0
    expected = model.get_encoder()(input_ids=source, attention_mask=mask)[0]
    encoding = expected
    if hasattr(engine, "encoder_layers"):
        encoding = engine.encode(source, mask)
        if not agree(encoding[mask.bool()], expected[mask.bool()]):
            return False
    steps, _ = engine.start(encoding, mask, prompt=target[:, :-1], num_beams=1)
    steps.reorder(target.new_zeros(3, 1), None)
    # Not a tuple, because the `forward` of a subclass may read `encoder_outputs.last_hidden_state`.
    encoded = BaseModelOutput(expected)
    outputs = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target, logits_to_keep=1)
    return agree(steps(target), outputs.logits[:, -1])
