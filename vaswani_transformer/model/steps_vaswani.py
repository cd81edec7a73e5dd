"""What a search asks for in each step, and the steps by the model's `forward`; an `Engine` takes faster ones.

Shapes: L sentences still in the search, b beams, T tokens so far, V vocab_size.
"""

from typing import Protocol

import torch
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

# An engine's beams read the keys of all beams: with 50 of them and 70 tokens it took longer than `forward`.
MOST_BEAMS = 32


class Steps(Protocol):
    """What a search asks for: the logits of the next words, for every open hypothesis.

    Attributes:
        owns_logits: the caller may overwrite the logits.
        outputs: of the last call of `forward`; `None` where none is made.
        cache: of `forward`; `None` where there is none.
    """

    owns_logits: bool
    outputs: ModelOutput | None
    cache: Cache | None

    def __call__(self, tokens: torch.LongTensor) -> torch.Tensor:
        """(L * b, T) -> logits (L * b, V)."""

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        """Go on from the beams (L, b) of the sentences `staying`, or of all."""


class ForwardSteps:
    """One call of the model's `forward` for each step.

    Args:
        model: a `VaswaniForConditionalGeneration`.
        generation_config: of the search.
        model_kwargs: what `generate` prepared for `forward`.
        shortlist: (V,) token ids that logits are asked of; `None` for all.
    """

    owns_logits = False

    def __init__(
        self,
        model,
        generation_config: GenerationConfig,
        model_kwargs: dict,
        *,
        shortlist: torch.LongTensor | None = None,
    ):
        self.model = model
        self.generation_config = generation_config
        self.model_kwargs, self.shortlist = model_kwargs, shortlist
        self.outputs = None  # of the last step

    @property
    def cache(self) -> Cache | None:
        return self.model_kwargs.get("past_key_values")

    def __call__(self, tokens: torch.LongTensor) -> torch.Tensor:
        """(L * b, T) -> logits (L * b, V)."""
        if self.outputs is None:
            self.outputs = self.model._prefill(tokens, self.generation_config, self.model_kwargs)
        else:
            inputs = self.model.prepare_inputs_for_generation(
                tokens, next_sequence_length=1 if self.model_kwargs["use_cache"] else None, **self.model_kwargs
            )
            self.outputs = self.model(**inputs, return_dict=True)
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            self.outputs, self.model_kwargs, is_encoder_decoder=True
        )
        logits = self.outputs.logits[:, -1]
        return logits if self.shortlist is None else logits[:, self.shortlist]

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        """Make cache and encoding follow the beams (L, b) of the sentences `staying`, or of all.

        Beams never leave their sentence, so what belongs to the source moves only when sentences leave.
        """
        num_open, num_beams = beams.shape
        sentences = torch.arange(num_open, device=beams.device) if staying is None else staying
        rows = (sentences[:, None] * num_beams + beams[sentences]).flatten()
        if self.cache is not None:
            self.cache.self_attention_cache.reorder_cache(rows)
        if staying is None:
            return
        states = self.model_kwargs["encoder_outputs"].last_hidden_state
        self.model_kwargs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states[rows])
        for name in ("attention_mask", "decoder_attention_mask"):
            if self.model_kwargs.get(name) is not None:
                self.model_kwargs[name] = self.model_kwargs[name][rows]
        if self.cache is not None:
            self.cache.cross_attention_cache.reorder_cache(rows)


def suits_engine(generation_config: GenerationConfig, model_kwargs: dict) -> bool:
    """True where a search asks for nothing that only `forward` can give.

    Args:
        model_kwargs: what `generate` prepared for `forward`.
    """
    given = {name for name, value in model_kwargs.items() if value is not None and value is not False}
    known = {"encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep"}
    cache = model_kwargs.get("past_key_values")
    is_usual = isinstance(cache, EncoderDecoderCache) and not getattr(cache, "_is_user_defined", False)
    return (
        given <= known
        and is_usual
        and all(
            type(part) is DynamicCache and not part.offloading
            for part in (cache.self_attention_cache, cache.cross_attention_cache)
        )
        and generation_config.num_beams <= MOST_BEAMS
    )
