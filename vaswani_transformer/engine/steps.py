"""The decoding steps of one search. They hold the keys and values of this search.

An engine is a copy of a model for fast searches, see `engine.py`. It serves many searches, and starts new steps for
each of them.

Shapes: L sentences still in the search, b beams, S source tokens, T tokens so far, V vocab_size, D d_model, H heads,
K d_k or d_v, N slots for keys: first the slots of the prompt, then b slots for each step (without those that were
evicted), then free slots.
"""

from collections.abc import Callable, Iterator

import torch
from torch import LongTensor, Tensor, nn

from ..model.layers_vaswani import PositionEncoding, split_heads
from .layers import DecoderProducts

HIDDEN = -torch.inf  # in an additive mask
ROOM = 16  # If `LayerSteps` needs more slots, it adds slots for at least this number of steps.
FEW_KEYS = 32  # With fewer keys in use, a search evicts none.
# The number of slots is rounded up to a multiple of this, so that kernels get few different shapes. A register of
# AVX-512 holds 16 numbers in float32, and CUDA's fused attention aligns masks to 16 numbers.
VECTOR = 16


class LayerSteps:
    """A decoder layer for one token of each hypothesis at a time, with the keys and values of the search.

    All beams of a sentence share its slots. Keys and values stay in the slots where they were written. The mask of
    `EngineSteps` says which hypothesis sees which slot, and hides empty slots. The search copies keys and values only
    when sentences leave it, and from time to time to evict keys that no hypothesis needs.

    Args:
        attend: equation 1, as PyTorch's `scaled_dot_product_attention` computes it.
        encoding: (L, S, D), the output of the encoder.
        num_idle: how many hidden keys to append to the source, see `_count_idle_keys`.
    """

    def __init__(self, layer: DecoderProducts, attend: Callable, encoding: Tensor, *, num_idle: int):
        self.layer, self.attend = layer, attend
        attention = layer.cross_attention
        projected = nn.functional.pad(attention.keys_and_values(encoding), (0, 0, 0, num_idle))
        self._set_source(split_heads(projected, attention.num_heads).contiguous())
        # (L, H, N slots and room for more, d_k + d_v)
        self.memory = projected.new_zeros(len(encoding), attention.num_heads, 0, sum(layer.attention.widths))

    def __call__(self, x: Tensor, slots: slice, mask: Tensor, source_mask: Tensor | None) -> Tensor:
        """Return the output (L * b, D) for `x` (L * b, D).

        A prompt is read in one call. Its P tokens then take the place of the beams: b = P.

        Args:
            slots: the slots for the keys and values of this step.
            mask: (L, 1, b, N), 0 at the slots that a beam sees, `HIDDEN` at the others.
            source_mask: additive, broadcastable to (L, H, 1, S + num_idle).
        """
        attention, cross_attention = self.layer.attention, self.layer.cross_attention
        q, keys_and_values = map(self._split_heads, attention.project(x))
        keys, values = self.remember(keys_and_values, slots, mask.shape[-1]).split(attention.widths, dim=-1)
        context = self.attend(q, keys, values, mask, scale=attention.scaling)
        x = self.layer.norm(attention.add_out(_join_heads(context), x))
        q = self._split_heads(cross_attention.query(x))
        context = self.attend(q, self.source_keys, self.source_values, source_mask, scale=cross_attention.scaling)
        x = self.layer.cross_norm(cross_attention.add_out(_join_heads(context), x))
        return self.layer.feed_forward(x)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Return `x` (L * b, H * K) as (L, H, b, K). A single `view` splits sentences and heads, which saves time."""
        num_heads = self.layer.attention.num_heads
        return x.view(len(self.source), -1, num_heads, x.shape[-1] // num_heads).transpose(1, 2)

    def remember(self, keys_and_values: Tensor, slots: slice, num_slots: int) -> Tensor:
        """Write the keys and values of a step, (L, H, b, d_k + d_v), to `slots`; return the first `num_slots` slots."""
        num_new, room = keys_and_values.shape[2], self.memory.shape[2]
        if num_slots > room:
            self.memory = nn.functional.pad(self.memory, (0, 0, 0, num_slots - room + max(room, ROOM * num_new)))
        self.memory[:, :, slots] = keys_and_values
        return self.memory[:, :, :num_slots]

    def evict(self, rows: LongTensor) -> None:
        """Keep only n slots of each sentence and head: `rows` (L, H, n) are their indices in `memory.flatten(0, 2)`."""
        kept = self.memory.flatten(0, 2)[rows.flatten()].unflatten(0, rows.shape)
        self.memory[:, :, : rows.shape[2]] = kept

    def leave(self, staying: LongTensor, moved: LongTensor) -> None:
        """Keep only the sentences at the indices `staying`.

        Row i then holds the sentence that was in row `staying[i]`. `moved` lists the rows i with `staying[i] != i`, the
        only rows that are written.
        """
        self.memory = _keep(self.memory, staying, moved)
        self._set_source(_keep(self.source, staying, moved))

    def _set_source(self, source: Tensor) -> None:
        """Set the keys and values of the source, (L, H, S + num_idle, d_k + d_v)."""
        self.source = source
        self.source_keys, self.source_values = source.split(self.layer.cross_attention.widths, dim=-1)


class EngineSteps:
    """The decoding steps of one search: first `read` the prompt, then one call for each new token.

    Args:
        engine: the `Engine`, which holds the layers of the decoder.
        encoding, source_mask, prompt_length, num_beams: see `Engine.start`.

    Attributes:
        num_keys: slots in use.
        mask: (L, b, N), 0 at the keys that a beam sees, `HIDDEN` at the others.
    """

    outputs = None  # what the last call of `forward` returned, see `Steps`. An engine never calls `forward`.

    def __init__(self, engine, encoding: Tensor, source_mask: Tensor | None, *, prompt_length: int, num_beams: int):
        self.engine, self.way = engine, engine.way
        self.num_beams = num_beams
        num_idle = _count_idle_keys(encoding)
        # If all keys of a source are hidden, fused attention gives zeros, but `_attend_few` gives NaN.
        has_keys = source_mask is None or bool(source_mask.any(dim=-1).all())
        is_unfused = has_keys and encoding.device.type == "cpu" and encoding.dtype == torch.float32
        attend = _attend_few if is_unfused else nn.functional.scaled_dot_product_attention
        self.source_mask = _as_additive(source_mask, encoding, num_idle=num_idle)
        with torch.inference_mode(), engine.without_autocast():
            self.layers = [LayerSteps(layer, attend, encoding, num_idle=num_idle) for layer in engine.decoder_layers]
        self.positions = _yield_positions(engine.target_positions, engine.device)
        self.mask, self.num_keys = encoding.new_zeros(len(encoding), num_beams, prompt_length), prompt_length
        # for the keys of the next step: each beam sees its own key
        self.next_mask = encoding.new_full((num_beams, num_beams), HIDDEN).fill_diagonal_(0.0)
        self.most_keys = max(FEW_KEYS, 2 * prompt_length)

    def read(self, prompt: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `prompt` (L, P), computed once for all beams of a sentence."""
        num_sentences, length = prompt.shape
        positions = torch.cat([next(self.positions) for _ in range(length)]).repeat(num_sentences, 1)
        causal = _pad_slots(self.mask.new_full((1, length, length), HIDDEN).triu(1), length)
        with self.engine.without_autocast():
            x = self._run_layers(prompt.flatten(), positions, slice(length), causal)
            logits = self.engine.project(x.view(num_sentences, length, -1)[:, -1])
        return logits.repeat_interleave(self.num_beams, dim=0)

    def __call__(self, tokens: LongTensor) -> Tensor:
        """Return the logits (L * b, V) after `tokens` (L * b, T), of which the last is new."""
        slots = slice(self.num_keys - self.num_beams, self.num_keys)
        with self.engine.without_autocast():
            return self.engine.project(self._run_layers(tokens[:, -1], next(self.positions), slots, self.mask))

    # Inference mode saves 6 % of a step. The logits are computed outside of it, because the search overwrites them.
    @torch.inference_mode()
    def _run_layers(self, tokens: LongTensor, positions: Tensor, slots: slice, mask: Tensor) -> Tensor:
        """Return the output (rows, D) for tokens (rows,) at `positions` (1 or rows, D). The keys go into `slots`."""
        x = self.engine.embed(tokens, self.engine.target_embedding)
        x = x + positions.to(x.dtype)
        for layer in self.layers:
            x = layer(x, slots, mask[:, None], self.source_mask)
        return x

    def reorder(self, beams: Tensor, staying: Tensor | None) -> None:
        """Continue from `beams` (L, b): for each new beam of a sentence, the beam that it extends.

        Then only the sentences at the indices `staying` are kept, or all if it is `None`.
        """
        mask = self.mask.gather(1, beams[..., None].expand_as(self.mask))
        if staying is not None:
            mask = mask[staying]
            moved = (staying != torch.arange(len(staying), device=staying.device)).nonzero()[:, 0]
            with torch.inference_mode():  # The keys are inference tensors, which only this mode may change.
                for layer in self.layers:
                    layer.leave(staying, moved)
            if self.source_mask is not None:
                self.source_mask = self.source_mask[staying]
        if self.num_keys >= self.most_keys:
            mask = self._evict_keys(mask)
        start, self.num_keys = self.num_keys, self.num_keys + self.num_beams
        self.mask = _pad_slots(mask, self.num_keys)
        self.mask[:, :, start : self.num_keys] = self.next_mask

    def _evict_keys(self, mask: Tensor) -> Tensor:
        """Evict the keys that no beam sees. Return `mask` (L, b, N) without their slots.

        Each sentence keeps as many keys as the sentence that needs most, because one tensor holds the keys of all
        sentences.
        """
        is_seen = (mask == 0).any(dim=1)  # (L, N)
        self.num_keys = int(is_seen.sum(dim=1).max())
        # The next eviction waits until twice as many slots are in use. So each key is copied about once on average.
        self.most_keys = max(FEW_KEYS, 2 * self.num_keys)
        kept = is_seen.sort(dim=1, descending=True, stable=True).indices[:, : self.num_keys]
        num_rows, num_heads, num_slots = self.layers[0].memory.shape[:3]
        first_slots = torch.arange(num_rows * num_heads, device=kept.device).view(num_rows, num_heads, 1) * num_slots
        with torch.inference_mode():  # The keys are inference tensors, which only this mode may change.
            for layer in self.layers:
                layer.evict(first_slots + kept[:, None])
        return mask.gather(2, kept[:, None].expand(-1, mask.shape[1], -1))


def _pad_slots(mask: Tensor, num_keys: int) -> Tensor:
    """Return `mask` (..., N) with at least `num_keys` slots, a multiple of `VECTOR`. The new slots are hidden."""
    missing = -(-num_keys // VECTOR) * VECTOR - mask.shape[-1]
    return nn.functional.pad(mask, (0, missing), value=HIDDEN) if missing > 0 else mask


def _yield_positions(encode: PositionEncoding, device: torch.device) -> Iterator[Tensor]:
    """Yield the encodings (1, D) of positions 0, 1, 2 and so on.

    This is a function, because as a method of `EngineSteps` the generator and the steps would refer to each other. Then
    the keys and values would stay in memory until a garbage collection.
    """
    # A block of 32 sinusoids takes as long to compute as a single one. A learned table may end within a block.
    start, length = 0, 32 if encode.config.position_embedding_type == "sinusoidal" else 1
    while True:
        block = encode(length, start=start, mask=None, device=device)
        yield from block.unbind(dim=1)
        start += length


def _attend_few(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    """Compute equation 1 as written: queries (L, H, b, K), keys and values (L, H, S, K) -> (L, H, b, K).

    With 4 queries and 16 to 128 keys, 64 sentences and 8 heads, fused attention took 1.5 to 5 times as long as this
    function on a CPU.
    """
    scores = q @ k.transpose(-2, -1)
    scores = scores * scale if mask is None else torch.add(mask, scores, alpha=scale)
    return scores.softmax(dim=-1) @ v


def _join_heads(context: Tensor) -> Tensor:
    """Return (L, H, b, K) as (L * b, H * K)."""
    num_rows, num_heads, num_beams, width = context.shape
    return context.transpose(1, 2).reshape(num_rows * num_beams, num_heads * width)


def _count_idle_keys(encoding: Tensor) -> int:
    """Return how many hidden keys to append to a source (L, S, D): attention to a multiple of 16 keys is faster.

    On a CPU fused and unfused attention took 1.2 to 2.4 times as long with 12 to 15 keys as with 16, and 1.1 to 1.3
    times as long with 28 to 31 keys as with 32. With 17 to 20 keys they took less time than with 32. So on a CPU keys
    are appended only if at most 8 are missing. On other devices they are always appended, because CUDA's fused
    attention would otherwise align the mask in every call.
    """
    missing = -encoding.shape[1] % VECTOR
    return missing if encoding.device.type != "cpu" or missing <= VECTOR // 2 else 0


def _as_additive(mask: Tensor | None, encoding: Tensor, *, num_idle: int) -> Tensor | None:
    """Return the additive mask (L, 1, 1, S + num_idle) of a source (L, S, D); `None` if no key is hidden.

    Fused attention would turn a boolean mask into this mask at every call.
    """
    if mask is None or bool(mask.all()):
        if not num_idle:
            return None
        mask = encoding.new_ones(encoding.shape[:2])
    additive = encoding.new_zeros(mask.shape).masked_fill(mask == 0, HIDDEN)[:, None, None]
    return nn.functional.pad(additive, (0, num_idle), value=HIDDEN)


def _keep(x: Tensor, staying: LongTensor, moved: LongTensor) -> Tensor:
    """Return `x[staying]`, computed in place. Only the rows `moved`, where `staying[i] != i`, are written."""
    x[moved] = x[staying[moved]]
    return x[: len(staying)]
