"""Decoding steps of beam search: logits of the next words for every open hypothesis.

`ForwardSteps` calls the model's `forward` each time, for whatever `generate` may ask for. `BeamSteps` is for the
usual search, where only the logits are asked for: it runs the same layers, but computes once what does not change
from step to step, and moves no keys or values when hypotheses change places.

Shapes: L sentences still open, b beams, T tokens so far, V vocab_size, D d_model, H heads, K d_k or d_v,
N slots of keys: those of the prompt, then b for each step.
"""

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

SHARED_ENCODING_KERNELS = ("eager", "sdpa")
ROOM = 16  # steps that a `BeamMemory` makes room for at least
MOST_BEAMS = 32  # more of them read too many keys of each other: with 50 beams and 70 tokens it took longer


class ForwardSteps:
    """One call of the model's `forward` a step.

    Args:
        model: a `VaswaniForConditionalGeneration`.
        generation_config: of the search.
        model_kwargs: what `generate` prepared for `forward`.
    """

    def __init__(self, model, generation_config: GenerationConfig, model_kwargs: dict):
        self.model = model
        self.generation_config = generation_config
        self.model_kwargs = model_kwargs
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
        return self.outputs.logits[:, -1]

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
        encoder_states = self.model_kwargs["encoder_outputs"].last_hidden_state
        copies = encoder_states.shape[0] // num_open  # 1, or b where the kernel cannot share
        source_rows = (staying[:, None] * copies + torch.arange(copies, device=staying.device)).flatten()
        self.model_kwargs["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoder_states[source_rows])
        for name, index in (("attention_mask", source_rows), ("decoder_attention_mask", rows)):
            if self.model_kwargs.get(name) is not None:
                self.model_kwargs[name] = self.model_kwargs[name][index]
        if self.cache is not None:
            self.cache.cross_attention_cache.reorder_cache(source_rows)


class BeamMemory:
    """What one decoder layer remembers of a search: keys and values of the hypotheses and of the source.

    Those of all beams of a sentence lie in one row, where they were written, whichever hypothesis goes on from them;
    the mask of `BeamSteps` knows whose they are. Attention reads as many bytes as from a row for each beam, and
    nothing is copied but where sentences leave.

    Args:
        keys, values: of the prompt, (L, H, P, K).
        source_keys, source_values: (L, H, S, K).
        num_beams: b.
    """

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        source_keys: torch.Tensor,
        source_values: torch.Tensor,
        *,
        num_beams: int,
    ):
        self.keys, self.values = keys, values
        self.source_keys, self.source_values = source_keys, source_values
        self.num_beams = num_beams
        self.length = keys.shape[2]  # N; behind it there may be room for more

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add (L, H, b, K) of a step; all keys and values so far, (L, H, N, K)."""
        start, self.length = self.length, self.length + self.num_beams
        if self.length > self.keys.shape[2]:
            room = max(start, ROOM * self.num_beams)
            self.keys, self.values = (nn.functional.pad(x, (0, 0, 0, room)) for x in (self.keys, self.values))
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def leave(self, staying: torch.LongTensor) -> None:
        """Go on with the sentences of index `staying` only."""
        self.keys, self.values = self.keys[staying], self.values[staying]
        self.source_keys, self.source_values = self.source_keys[staying], self.source_values[staying]


class BeamSteps:
    """Steps of a search that asks for nothing but logits: `suit` says when. For the arguments see `ForwardSteps`."""

    outputs = cache = None  # of `forward`, which it does not call
    OPTIONS = frozenset(("encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep"))

    def __init__(self, model, generation_config: GenerationConfig, model_kwargs: dict):
        self.model = model
        self.decoder = model.get_decoder()
        self.generation_config = generation_config
        self.model_kwargs = model_kwargs
        self.memories: list[BeamMemory] = []  # one a layer, from the first step on

    @classmethod
    def suit(cls, model, generation_config: GenerationConfig, model_kwargs: dict) -> bool:
        """Whether they give the logits that `ForwardSteps` would give, and sooner."""
        given = {name for name, value in model_kwargs.items() if value is not None and value is not False}
        return (
            model.has_plain_forward()
            and model.config._attn_implementation in SHARED_ENCODING_KERNELS
            and model.config.attention_window is None
            and generation_config.num_beams <= MOST_BEAMS
            and given <= cls.OPTIONS
            and _is_usual(model_kwargs.get("past_key_values"))
        )

    def __call__(self, tokens: torch.LongTensor) -> torch.Tensor:
        """(L * b, T) -> logits (L * b, V)."""
        if not self.memories:
            return self._read_prompt(tokens)
        mask = self.mask[:, None]
        with torch.inference_mode():  # a step takes 6 % less; the logits, made outside, are ordinary tensors again
            hidden_states = self.decoder.step(
                tokens[:, -1], next(self.encodings), self.memories, mask=mask, source_mask=self.source_mask
            )
        return self.model.lm_head(hidden_states)

    def _read_prompt(self, tokens: torch.LongTensor) -> torch.Tensor:
        """Logits (L * b, V) of the first step, where all beams of a sentence are equal: one is enough."""
        num_beams, prompt_length = self.generation_config.num_beams, tokens.shape[1]
        outputs = self.model._prefill(tokens[::num_beams], self.generation_config, self.model_kwargs)
        cache = self.model_kwargs["past_key_values"]
        self.memories = [
            BeamMemory(own.keys, own.values, source.keys, source.values, num_beams=num_beams)
            for own, source in zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        ]
        cache.reset()  # or it would hold the source of sentences that left
        states = self.model_kwargs["encoder_outputs"].last_hidden_state
        self.source_mask = self.decoder.mask_source(states[:, :1], states, self.model_kwargs.get("attention_mask"))
        self.encodings = self.decoder.positions.onwards(prompt_length, device=tokens.device)
        # (L, b, N): 0 at the keys that a beam goes on from, and those of the next step.
        self.mask = states.new_zeros(len(states), num_beams, prompt_length)
        self.next_mask = states.new_full((1, num_beams, num_beams), torch.finfo(states.dtype).min)
        self.next_mask.diagonal(dim1=1, dim2=2).zero_()
        return outputs.logits[:, -1].repeat_interleave(num_beams, dim=0)

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        """Go on from the beams (L, b) of the sentences `staying`, or of all."""
        mask = self.mask.gather(1, beams[..., None].expand_as(self.mask))
        if staying is not None:
            mask = mask[staying]
            for memory in self.memories:
                memory.leave(staying)
            if self.source_mask is not None:
                self.source_mask = self.source_mask[staying]
        self.mask = torch.cat([mask, self.next_mask.expand(len(mask), -1, -1)], dim=-1)


def _is_usual(cache: Cache | None) -> bool:
    """Whether `cache` is what `generate` makes when not told otherwise."""
    return (
        isinstance(cache, EncoderDecoderCache)
        and not getattr(cache, "_is_user_defined", False)
        and all(
            type(part) is DynamicCache and not part.offloading
            for part in (cache.self_attention_cache, cache.cross_attention_cache)
        )
    )
