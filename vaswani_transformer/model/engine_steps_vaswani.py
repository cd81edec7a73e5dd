"""The steps of one search through an engine, which owns the keys and values of that search.

Shapes: L sentences still in the search, b beams, S source tokens, T tokens so far, V vocab_size, D d_model, H heads,
K d_k or d_v, N slots of keys: those of the prompt, then b for each step.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from .cpu_vaswani import Product
from .engine_layers_vaswani import DecoderProducts
from .layers_vaswani import PositionEncoding, split_heads

ROOM = 16  # steps for which `LayerSteps` makes room at least
FEW_KEYS = 32  # below, a search is too short to look for keys that no hypothesis goes on from any more
VECTOR = 16  # float32 numbers in a register of AVX-512


class LayerSteps:
    """A decoder layer, one token of each hypothesis at a time, and what it remembers of the search.

    Keys and values of all beams of a sentence lie in one row, where they were written, whichever hypothesis goes on
    from them; the mask of `EngineSteps` knows whose they are. Copies are made where sentences leave and, now and then,
    where keys are forgotten that no hypothesis goes on from.

    Args:
        attend: equation 1, (queries, keys, values, mask, scaling) -> (L, H, b, K).
        encoding: of the source, (L, S, D).
        num_idle: keys of the source to add, which its mask hides.
    """

    def __init__(self, layer: DecoderProducts, attend: Callable, encoding: torch.Tensor, *, num_idle: int):
        self.layer, self.attend = layer, attend
        self.keys = self.values = None  # (L, H, N, K)
        self.length = 0  # N; behind it there may be room for more
        attention = layer.cross_attention
        self.source_keys, self.source_values = (  # (L, H, S + num_idle, K)
            split_heads(nn.functional.pad(projected, (0, 0, 0, num_idle)), attention.num_heads).contiguous()
            for projected in attention.keys_and_values(encoding)
        )

    def __call__(self, x: torch.Tensor, mask: torch.Tensor, source_mask: torch.Tensor | None) -> torch.Tensor:
        """(L * b, D) -> (L * b, D); the tokens of a prompt are read at once, as if each were a beam.

        Args:
            mask: which of the remembered keys a beam sees, (L, 1, b, N).
            source_mask: broadcastable to (L, H, 1, S + num_idle).
        """
        attention, cross_attention = self.layer.attention, self.layer.cross_attention
        q, k, v = map(self._split_heads, attention.project(x))
        keys, values = self.remember(k, v)
        context = self.attend(q, keys, values, mask, attention.scaling)
        x = self.layer.norm(x + attention.out(_join_heads(context)))
        q = self._split_heads(cross_attention.query(x))
        context = self.attend(q, self.source_keys, self.source_values, source_mask, cross_attention.scaling)
        x = self.layer.cross_norm(x + cross_attention.out(_join_heads(context)))
        return self.layer.feed_forward(x)

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(L * b, H * K) -> (L, H, b, K), by one operation: a step of a small model makes many."""
        num_heads = self.layer.attention.num_heads
        return x.view(len(self.source_keys), -1, num_heads, x.shape[-1] // num_heads).transpose(1, 2)

    def remember(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add (L, H, b, K) of a step; all keys and values so far, (L, H, N, K)."""
        num_new = keys.shape[2]
        start, self.length = self.length, self.length + num_new
        if self.keys is None:
            self.keys, self.values = keys[:, :, :0], values[:, :, :0]
        if self.length > self.keys.shape[2]:
            room = max(start, ROOM * num_new)
            self.keys, self.values = _make_room(self.keys, room), _make_room(self.values, room)
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def forget(self, kept: torch.LongTensor) -> None:
        """Go on with the slots `kept` (L, n) only; the mask hides those that fill up a row."""
        num_rows, num_heads, num_slots = self.keys.shape[:3]
        first = torch.arange(num_rows * num_heads, device=kept.device).view(num_rows, num_heads, 1) * num_slots
        rows, self.length = first + kept[:, None], kept.shape[1]
        for x in (self.keys, self.values):
            x[:, :, : self.length] = x.flatten(0, 2)[rows.flatten()].unflatten(0, rows.shape)

    def leave(self, staying: torch.LongTensor, moved: torch.LongTensor) -> None:
        """Go on with the sentences of index `staying` only; those at the new places `moved` lay elsewhere before."""
        self.keys, self.values, self.source_keys, self.source_values = (
            _keep(x, staying, moved) for x in (self.keys, self.values, self.source_keys, self.source_values)
        )


class EngineSteps:
    """The steps of one search.

    Args:
        layers: of the decoder.
        embed: token ids (...) -> (..., D).
        positions: what is added to the embeddings.
        project: (..., D) -> logits.
        encoding, source_mask, num_beams: see `Engine.start`.
    """

    owns_logits = True
    outputs = cache = None

    def __init__(
        self,
        *,
        layers: Sequence[DecoderProducts],
        embed: Product,
        positions: PositionEncoding,
        project: Product,
        encoding: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
    ):
        self.decoder_layers, self.embed, self.encode_positions, self.project = layers, embed, positions, project
        self.encoding, self.given_mask, self.num_beams = encoding, source_mask, num_beams
        self.layers: list[LayerSteps] = []  # from the first step on

    def __call__(self, tokens: torch.LongTensor) -> torch.Tensor:
        """(L * b, T) -> logits (L * b, V)."""
        with torch.autocast(self.encoding.device.type, enabled=False):  # an engine has the dtype it was built in
            if not self.layers:
                return self._read_prompt(tokens)
            return self.project(self._run_layers(tokens[:, -1], next(self.positions), self.mask))

    @torch.inference_mode()  # a step takes 6 % less; the logits, made outside, are ordinary tensors again
    def _run_layers(self, tokens: torch.LongTensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Tokens (rows,) at `positions` (1 or rows, D) -> (rows, D)."""
        x = self.embed(tokens)
        x = x + positions.to(x.dtype)
        for layer in self.layers:
            x = layer(x, mask[:, None], self.source_mask)
        return x

    def _read_prompt(self, tokens: torch.LongTensor) -> torch.Tensor:
        """Logits (L * b, V) of the first step, where all beams of a sentence are equal: one is enough."""
        num_beams, prompt_length, states = self.num_beams, tokens.shape[1], self.encoding
        prompt = tokens[::num_beams]  # (L, P)
        num_idle = _count_idle_keys(states)
        self.source_mask = _as_additive(self.given_mask, states, num_idle=num_idle)
        attend = _attend_few if _can_attend_unfused(states, self.given_mask) else _attend_fused
        with torch.inference_mode():
            self.layers = [LayerSteps(layer, attend, states, num_idle=num_idle) for layer in self.decoder_layers]
        self.positions = _count_positions(self.encode_positions, tokens.device)
        positions = torch.cat([next(self.positions) for _ in range(prompt_length)])
        hidden = torch.finfo(states.dtype).min
        causal = states.new_full((1, prompt_length, prompt_length), hidden).triu(1)
        x = self._run_layers(prompt.flatten(), positions.repeat(len(prompt), 1), causal)
        # (L, b, N): 0 at the keys that a beam goes on from, and those of the next step.
        self.mask = states.new_zeros(len(states), num_beams, prompt_length)
        self.next_mask = states.new_full((1, num_beams, num_beams), hidden)
        self.next_mask.diagonal(dim1=1, dim2=2).zero_()
        self.most_keys = max(FEW_KEYS, 2 * prompt_length)
        logits = self.project(x.view(*prompt.shape, -1)[:, -1])
        return logits.repeat_interleave(num_beams, dim=0)

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


def _count_positions(encode: PositionEncoding, device: torch.device) -> Iterator[torch.Tensor]:
    """Encodings (1, D) of position 0, 1, 2 and so on.

    No method: a generator that holds the steps would keep their keys and values until a garbage collection.
    """
    # Sinusoids of a block take as long as those of one position; a learned table may end within a block.
    start, length = 0, 32 if encode.config.position_embedding_type == "sinusoidal" else 1
    while True:
        block = encode(length, start=start, mask=None, device=device)
        yield from block.unbind(dim=1)
        start += length


def _attend_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Equation 1 by PyTorch's fused kernels: queries (L, H, b, K), keys and values (L, H, S, K) -> (L, H, b, K)."""
    return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scaling)


def _attend_few(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Equation 1 as written, for the few queries of a step.

    With 4 queries and 16 to 128 keys, 64 sentences and 8 heads, fused attention took 1.5 to 5 times as long on a CPU.
    """
    scores = q @ k.transpose(-2, -1)
    scores = scores * scaling if mask is None else torch.add(mask, scores, alpha=scaling)
    return scores.softmax(dim=-1) @ v


def _can_attend_unfused(states: torch.Tensor, source_mask: torch.Tensor | None) -> bool:
    """True where equation 1 as written gives what fused attention to `states` (L, S, D) gives, and sooner."""
    if states.device.type != "cpu" or states.dtype != torch.float32:
        return False
    # For a source that is hidden altogether fused attention gives zeros, a softmax nothing.
    return source_mask is None or bool(source_mask.any(dim=-1).all())


def _join_heads(context: torch.Tensor) -> torch.Tensor:
    """(L, H, b, K) -> (L * b, H * K)."""
    num_rows, num_heads, num_beams, width = context.shape
    return context.transpose(1, 2).reshape(num_rows * num_beams, num_heads * width)


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
    if mask is None or bool(mask.all()):
        if not num_idle:
            return None
        mask = encoding.new_ones(encoding.shape[:2])
    additive = encoding.new_zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None]
    return nn.functional.pad(additive, (0, num_idle), value=-torch.inf)


def _make_room(x: torch.Tensor, room: int) -> torch.Tensor:
    """`x` (L, H, N, K) with `room` more slots, (L, H, N + room, K), in which nothing is written yet."""
    larger = x.new_empty(*x.shape[:2], x.shape[2] + room, x.shape[3])
    larger[:, :, : x.shape[2]] = x
    return larger


def _keep(x: torch.Tensor, staying: torch.LongTensor, moved: torch.LongTensor) -> torch.Tensor:
    """`x[staying]`, written over `x`, of which only the rows `moved` have to be copied."""
    x[moved] = x[staying[moved]]
    return x[: len(staying)]
