"""Decoding steps of beam search: logits of the next words for every open hypothesis.

`ForwardSteps` calls the model's `forward` each time, for whatever `generate` may ask for. `BeamSteps` is for the
usual search, where only the logits are asked for: it runs the same layers, but computes once what does not change
from step to step, and moves no keys or values when hypotheses change places.

Shapes: L sentences still in the search, b beams, T tokens so far, V vocab_size, D d_model, H heads, K d_k or d_v,
N slots of keys: those of the prompt, then b for each step.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from .int8_vaswani import Int8Linear, project_jointly
from .layers_vaswani import (
    DecoderLayer,
    MultiHeadAttention,
    attention_of_few,
    find_attention_function,
    fused_attention,
    is_changed,
)
from .packed_vaswani import can_pack, pack

SHARED_ENCODING_KERNELS = ("eager", "sdpa")
ROOM = 16  # steps that a `LayerSteps` makes room for at least
FEW_KEYS = 32  # below, a search is too short to look for keys that no hypothesis goes on from any more
VECTOR = 16  # float32 numbers in a register of AVX-512
MOST_BEAMS = 32  # more of them read too many keys of each other: with 50 beams and 70 tokens it took longer


class ForwardSteps:
    """One call of the model's `forward` a step.

    `owns_logits` says whether nobody else sees what a step returns.

    Args:
        model: a `VaswaniForConditionalGeneration`.
        generation_config: of the search.
        model_kwargs: what `generate` prepared for `forward`.
    """

    owns_logits = False

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


class LayerSteps:
    """A decoder layer, one token of each hypothesis at a time, and what it remembers of the search.

    It computes what `DecoderLayer.forward` computes. Keys and values of all beams of a sentence lie in one row, where
    they were written, whichever hypothesis goes on from them; the mask of `BeamSteps` knows whose they are. Nothing is
    copied but where sentences leave and, now and then, where keys are forgotten that no hypothesis goes on from.

    Args:
        layer: a `DecoderLayer`.
        attend: equation 1, as attention kernels of transformers have it.
        encoding: of the source, (L, S, D).
        num_idle: keys of the source to add, which its mask hides.
        num_beams: b; at first the tokens of the prompt, which are read at once as if each were a beam.
    """

    def __init__(
        self,
        layer: DecoderLayer,
        attend: Callable,
        encoding: torch.Tensor,
        *,
        num_idle: int,
        num_beams: int,
    ):
        self.self_attention, self.cross_attention = layer.self_attention, layer.cross_attention
        self.attend = attend
        own, cross, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.project = _as_functions(own.q_proj, own.k_proj, own.v_proj)
        self.out = _as_function(own.out_proj)
        self.cross_q, self.cross_out = _as_function(cross.q_proj), _as_function(cross.out_proj)
        self.fc1, self.fc2 = _as_activated(feed_forward.fc1, feed_forward.activation), _as_function(feed_forward.fc2)
        residuals = (layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual)
        self.norm, self.cross_norm, self.last_norm = (_as_function(residual.norm) for residual in residuals)
        self.keys = self.values = None  # (L, H, N, K)
        self.length = 0  # N; behind it there may be room for more
        self.source_keys, self.source_values = (  # (L, H, S + num_idle, K)
            nn.functional.pad(projected, (0, 0, 0, num_idle))
            .unflatten(-1, (own.num_heads, -1))
            .transpose(1, 2)
            .contiguous()
            for projected in _as_functions(cross.k_proj, cross.v_proj)(encoding)
        )
        self.num_beams = num_beams

    def __call__(self, x: torch.Tensor, mask: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        """(L * b, D) -> (L * b, D).

        Args:
            mask: which of the remembered keys a beam sees, (L, 1, b, N).
            source_mask: broadcastable to (L, H, 1, S + num_idle).
        """
        q, k, v = self.project(x)
        keys, values = self.remember(self._split_heads(k).transpose(1, 2), self._split_heads(v).transpose(1, 2))
        attended = self._attend(self.self_attention, q, keys, values, mask)
        x = self.norm(x + self.out(attended))
        attended = self._attend(
            self.cross_attention, self.cross_q(x), self.source_keys, self.source_values, source_mask
        )
        x = self.cross_norm(x + self.cross_out(attended))
        return self.last_norm(x + self.fc2(self.fc1(x)))

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(L * b, H * K) -> (L, b, H, K)."""
        return x.view(-1, self.num_beams, self.self_attention.num_heads, x.shape[-1] // self.self_attention.num_heads)

    def _attend(
        self, module: MultiHeadAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Queries (L * b, H * K), keys and values (L, H, S, K) -> (L * b, H * K)."""
        q = self._split_heads(q).transpose(1, 2)
        context, _ = self.attend(module, q, k, v, mask, scaling=module.scaling)  # (L, b, H, K)
        return context.reshape(-1, context.shape[2] * context.shape[3])

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add (L, H, b, K) of a step; all keys and values so far, (L, H, N, K)."""
        start, self.length = self.length, self.length + self.num_beams
        if self.keys is None:
            self.keys, self.values = keys[:, :, :0], values[:, :, :0]
        if self.length > self.keys.shape[2]:
            room = max(start, ROOM * self.num_beams)
            self.keys, self.values = _make_room(self.keys, room), _make_room(self.values, room)
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def forget(self, kept: torch.LongTensor) -> None:
        """Go on with the slots `kept` (L, n) only, ascending in each row."""
        num_rows, num_heads, num_slots = self.keys.shape[:3]
        first = torch.arange(num_rows * num_heads, device=kept.device).view(num_rows, num_heads, 1) * num_slots
        rows, self.length = first + kept[:, None], kept.shape[1]
        for x in (self.keys, self.values):
            x[:, :, : self.length] = x.flatten(0, 2)[rows.flatten()].unflatten(0, rows.shape)

    def leave(self, staying: torch.LongTensor, moved: torch.LongTensor) -> None:
        """Go on with the sentences of index `staying` only, of which those at the new places `moved` lay elsewhere."""
        self.keys, self.values, self.source_keys, self.source_values = (
            _keep(x, staying, moved) for x in (self.keys, self.values, self.source_keys, self.source_values)
        )


class BeamSteps:
    """Steps of a search that asks for nothing but logits: `suit` says when. For the arguments see `ForwardSteps`."""

    outputs = cache = None  # of `forward`, which it does not call
    OPTIONS = frozenset(
        ("encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep", "shortlist")
    )

    def __init__(self, model, generation_config: GenerationConfig, model_kwargs: dict):
        self.model = model
        self.decoder = model.get_decoder()
        self.generation_config = generation_config
        self.model_kwargs = model_kwargs
        shortlist = model_kwargs.get("shortlist")
        self.project = _as_function(model.lm_head) if shortlist is None else model.projection(shortlist)
        self.owns_logits = model.device.type == "cpu" and not isinstance(self.project, nn.Module)
        self.layers: list[LayerSteps] = []  # from the first step on

    @classmethod
    def suit(cls, model, generation_config: GenerationConfig, model_kwargs: dict) -> bool:
        """Whether they give the logits that `ForwardSteps` would give, and sooner."""
        given = {name for name, value in model_kwargs.items() if value is not None and value is not False}
        return (
            not model.training
            and model.has_plain_forward()
            and model.config._attn_implementation in SHARED_ENCODING_KERNELS
            and model.config.attention_window is None
            and generation_config.num_beams <= MOST_BEAMS
            and given <= cls.OPTIONS
            and _is_usual(model_kwargs.get("past_key_values"))
        )

    def __call__(self, tokens: torch.LongTensor) -> torch.Tensor:
        """(L * b, T) -> logits (L * b, V)."""
        if not self.layers:
            return self._read_prompt(tokens)
        x = self._run_layers(tokens[:, -1], next(self.encodings), self.mask)
        return self.project(x)

    @torch.inference_mode()  # a step takes 6 % less; the logits, made outside, are ordinary tensors again
    def _run_layers(self, tokens: torch.LongTensor, encodings: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Tokens (rows,) at positions of `encodings` (1 or rows, D) -> (rows, D)."""
        x = self.decoder.embed_tokens(tokens)
        x = x + encodings.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask[:, None], self.source_mask)
        return x

    def _read_prompt(self, tokens: torch.LongTensor) -> torch.Tensor:
        """Logits (L * b, V) of the first step, where all beams of a sentence are equal: one is enough."""
        num_beams, prompt_length = self.generation_config.num_beams, tokens.shape[1]
        prompt = tokens[::num_beams]  # (L, P)
        states = self.model_kwargs["encoder_outputs"].last_hidden_state
        num_idle = _count_idle_keys(states)
        source_mask = self.decoder.mask_source(states[:, :1], states, self.model_kwargs.get("attention_mask"))
        self.source_mask = _as_additive(source_mask, states, num_idle=num_idle)
        kernel = self.model.config._attn_implementation
        attend = find_attention_function(kernel, None)
        if kernel == "sdpa":
            attend = attention_of_few if self._can_attend_unfused(states) else fused_attention
        with torch.inference_mode():
            self.layers = [
                LayerSteps(layer, attend, states, num_idle=num_idle, num_beams=prompt_length)
                for layer in self.decoder.layers
            ]
        self.encodings = self.decoder.positions.onwards(0, device=tokens.device)
        encodings = torch.cat([next(self.encodings) for _ in range(prompt_length)])
        hidden = torch.finfo(states.dtype).min
        causal = states.new_full((1, prompt_length, prompt_length), hidden).triu(1)
        x = self._run_layers(prompt.flatten(), encodings.repeat(len(prompt), 1), causal)
        for layer in self.layers:
            layer.num_beams = num_beams
        # (L, b, N): 0 at the keys that a beam goes on from, and those of the next step.
        self.mask = states.new_zeros(len(states), num_beams, prompt_length)
        self.next_mask = states.new_full((1, num_beams, num_beams), hidden)
        self.next_mask.diagonal(dim1=1, dim2=2).zero_()
        self.most_keys = max(FEW_KEYS, 2 * prompt_length)
        logits = self.project(x.view(*prompt.shape, -1)[:, -1])
        return logits.repeat_interleave(num_beams, dim=0)

    def _can_attend_unfused(self, states: torch.Tensor) -> bool:
        """Whether equation 1 as it stands gives what fused attention to `states` (L, S, D) gives, and sooner."""
        given = self.model_kwargs.get("attention_mask")
        return (
            states.device.type == "cpu"
            and states.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            # Of a source that is hidden altogether fused attention finds zeros, a softmax nothing.
            and (given is None or bool(given.any(dim=-1).all()))
        )

    def follow(self, beams: torch.Tensor, staying: torch.Tensor | None) -> None:
        """Go on from the beams (L, b) of the sentences `staying`, or of all."""
        mask = self.mask.gather(1, beams[..., None].expand_as(self.mask))
        if staying is not None:
            mask = mask[staying]
            moved = (staying != torch.arange(len(staying), device=staying.device)).nonzero()[:, 0]
            with torch.inference_mode():  # where the keys were made
                for layer in self.layers:
                    layer.leave(staying, moved)
            if self.source_mask is not None:
                self.source_mask = self.source_mask[staying]
        if mask.shape[-1] >= self.most_keys:
            mask = self._forget_keys(mask)
        self.mask = torch.cat([mask, self.next_mask.expand(len(mask), -1, -1)], dim=-1)

    def _forget_keys(self, mask: torch.Tensor) -> torch.Tensor:
        """Drop the keys that no beam sees from the layers and from `mask` (L, b, N).

        A sentence keeps as many as the one that needs most, so that all lie in one tensor.
        """
        is_seen = (mask == 0).any(dim=1)  # (L, N)
        num_kept = int(is_seen.sum(dim=1).max())
        self.most_keys = max(FEW_KEYS, 2 * num_kept)  # so that each key is copied about once
        kept = is_seen.sort(dim=1, descending=True, stable=True).indices[:, :num_kept]
        with torch.inference_mode():  # where the keys were made
            for layer in self.layers:
                layer.forget(kept)
        return mask.gather(2, kept[:, None].expand(-1, mask.shape[1], -1))


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


def _as_function(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """`module`, or what it computes without the time that calling a module takes, where that is the same."""
    if type(module) not in (nn.Linear, Int8Linear, nn.LayerNorm) or is_changed(module):
        return module
    if type(module) is Int8Linear:
        return module.forward
    weight, bias = module.weight, module.bias
    if type(module) is nn.Linear:
        return pack([module]) if can_pack([module]) else lambda x: nn.functional.linear(x, weight, bias)
    shape, eps = module.normalized_shape, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _as_activated(linear: nn.Module, activation: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """`activation` of what `linear` computes."""
    if type(activation) is not nn.ReLU or is_changed(activation):
        function = _as_function(linear)
        return lambda x: activation(function(x))
    if can_pack([linear]):
        return pack([linear], relu=True)
    function = _as_function(linear)
    return lambda x: torch.relu(function(x))


def _as_functions(*modules: nn.Module) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
    """What `modules` compute of one input; by one product where that is the same and faster."""
    if all(type(module) is Int8Linear and not is_changed(module) for module in modules):
        return lambda x: project_jointly(x, modules)
    if can_pack(modules):
        product, sizes = pack(modules), [module.out_features for module in modules]
        return lambda x: product(x).split(sizes, dim=-1)
    functions = [_as_function(module) for module in modules]
    return lambda x: [function(x) for function in functions]


def _count_idle_keys(encoding: torch.Tensor) -> int:
    """Keys to add to those of a source (L, S, D), so that attention to it is computed sooner.

    With 12 to 15 keys both kinds of attention on a CPU took 1.2 to 2.4 times as long as with 16, with 28 to 31 1.1 to
    1.3 times as long as with 32, but with 17 to 20 less: it pays where at least half of the register is there already.
    """
    rest = encoding.shape[1] % VECTOR
    return VECTOR - rest if encoding.device.type == "cpu" and rest >= VECTOR // 2 else 0


def _as_additive(mask: torch.Tensor | None, encoding: torch.Tensor, *, num_idle: int) -> torch.Tensor | None:
    """What the scores of a source (L, S, D) get added, (L, 1, 1, S + num_idle); `None` where nothing is hidden.

    A boolean mask would be turned into this by every call of fused attention.
    """
    if mask is None:
        if not num_idle:
            return None
        mask = encoding.new_zeros(len(encoding), 1, 1, encoding.shape[1])
    elif mask.dtype == torch.bool:
        mask = encoding.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return nn.functional.pad(mask, (0, num_idle), value=-torch.inf)


def _make_room(x: torch.Tensor, room: int) -> torch.Tensor:
    """`x` (L, H, N, K) with `room` more slots, (L, H, N + room, K), in which nothing is written yet."""
    larger = x.new_empty(*x.shape[:2], x.shape[2] + room, x.shape[3])
    larger[:, :, : x.shape[2]] = x
    return larger


def _keep(x: torch.Tensor, staying: torch.LongTensor, moved: torch.LongTensor) -> torch.Tensor:
    """`x[staying]`, written over `x`, of which only the rows `moved` have to be copied."""
    x[moved] = x[staying[moved]]
    return x[: len(staying)]
