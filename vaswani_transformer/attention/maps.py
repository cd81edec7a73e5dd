"""The attention weights of every head for one sentence, as arrays. `drawing` and `page` draw them.

    maps = collect_attention(model, tokenizer, "It is in this spirit that laws were passed.").by_words()

Shapes: L layers, H heads, T queries, S keys. Layers and heads are counted from 0.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from . import KINDS
from .words import Words, choose_reader, mark_words, split_words

SIDES = {  # the texts of the queries and of the keys
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("output", "source"),
    "alignment": ("target", "source"),
}
# The most tokens of a source or target. At this length, an HTML page with 6 layers of 8 heads takes 67 MB.
MOST_TOKENS = 512
PAIRS_PER_BATCH = 8  # a batch of the longest pairs needs 400 MB for each kind of attention, with 6 layers of 8 heads


@dataclass(eq=False)
class AttentionMaps:
    """Attention weights of one sentence pair, with the text of every row and column.

    The decoder reads the target shifted right by one: at position t it reads token t and writes token t + 1. The tokens
    that it reads are `target_tokens`. They begin with the start token, and label the rows and columns of `decoder`. The
    tokens that it writes are `output_tokens`. They end with the end token, and label the rows of `cross`. At position
    t, an alignment head attends to the source token that belongs to token t, which the decoder reads. So
    `target_tokens` label the rows of `alignment`.

    Args:
        source_tokens: the S tokens of the source, as readable text.
        target_tokens: the T tokens that the decoder reads.
        encoder: encoder self-attention, (L, H, S, S).
        decoder: decoder self-attention, (L, H, T, T).
        cross: encoder-decoder attention, (L, H, T, S).
        output_tokens: the T tokens that the decoder writes.
        words: the words of "source", "target" and "output", each as (text, number of tokens). Empty if every token is a
            word.
        alignment: the same weights as `cross`, by default. `by_words` makes them differ: it groups the rows of
            `alignment` by the words that are read, and the rows of `cross` by the words that are written.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    output_tokens: list[str]
    words: dict[str, Words] = field(default_factory=dict)
    alignment: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.alignment is None:
            self.alignment = self.cross

    def view(self, kind: str) -> tuple[list[str], list[str], np.ndarray]:
        """Return the texts of the queries, the texts of the keys and the weights, (L, H, T, S).

        `kind` is a key of `SIDES`.
        """
        queries, keys = (getattr(self, f"{side}_tokens") for side in SIDES[kind])
        return queries, keys, getattr(self, kind)

    def word_links(self, kind: str, layer: int) -> np.ndarray:
        """Return the squared weights (H, T, S) between different words.

        The weights from or to punctuation and special tokens are 0. Squaring makes one strong link count more than many
        weak ones.
        """
        queries, keys, weights = self.view(kind)
        is_link = mark_words(queries)[:, None] & mark_words(keys)
        if queries is keys:
            is_link &= ~np.eye(len(keys), dtype=bool)
        return weights[layer] ** 2 * is_link

    def by_words(self) -> "AttentionMaps":
        """Return these maps with sub-words merged into words. The paper draws words.

        As a key, a word gets the sum of the weights of its sub-words. As a query, a word gets the mean. So rows still
        sum to 1. See `attention.words` for what counts as a word.
        """
        if not self.words:
            return self
        texts = {f"{side}_tokens": [text for text, _ in words] for side, words in self.words.items()}
        lengths = {side: [length for _, length in words] for side, words in self.words.items()}
        merged = {kind: _merge(getattr(self, kind), *(lengths[side] for side in SIDES[kind])) for kind in SIDES}
        return AttentionMaps(**texts, **merged)


def paper_layer(layers: int) -> int:
    """Return the index of the layer that figures 3 to 5 show: the last but one, or the only one.

    In the paper it is the fifth of six layers, so its index is 4.
    """
    return max(0, layers - 2)


def _merge(weights: np.ndarray, query_lengths: list[int], key_lengths: list[int]) -> np.ndarray:
    """Merge the tokens of weights (..., T, S) into words: sums over the keys of a word, means over its queries."""
    starts = [np.cumsum([0, *lengths[:-1]]) for lengths in (query_lengths, key_lengths)]
    summed = np.add.reduceat(np.add.reduceat(weights, starts[1], axis=-1), starts[0], axis=-2)
    return summed / np.array(query_lengths, dtype=summed.dtype)[:, None]


# Weights and words of one sentence


def collect_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None
) -> AttentionMaps:
    """Return the attention weights of all layers for one sentence, from one forward pass without dropout.

    During the call the model uses eager attention, which returns its weights.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: the tokenizer of the model.
        source: the sentence.
        target: a translation for the decoder to read; by default the model translates the sentence.

    Raises:
        ValueError: if the source is blank, or if source or target has more than `MOST_TOKENS` tokens.
    """
    if not source.strip():
        raise ValueError("the sentence to draw has no words: give a sentence.")
    source_ids = [tokenizer(source).input_ids]
    target_ids = None if target is None else [tokenizer(text_target=target).input_ids]
    longest = max(map(len, source_ids + (target_ids or [])))
    if longest > MOST_TOKENS:
        raise ValueError(
            f"attention can be shown for sentences of up to {MOST_TOKENS} tokens, because the maps grow with the "
            f"square of the length; got {longest:,} tokens: shorten the sentence, or split it."
        )
    return collect_attention_batch(model, tokenizer, source_ids, target_ids)[0]


def collect_attention_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_ids: Sequence[list[int]],
    target_ids: Sequence[list[int]] | None = None,
) -> list[AttentionMaps]:
    """Return the maps of several sentences from one forward pass. The maps hold no padding.

    Args:
        source_ids: the token ids of each sentence.
        target_ids: the token ids of each translation, without the start token; by default the model translates.
    """
    inputs = pad_right(model, tokenizer, source_ids)
    start, end = model.config.decoder_start_token_id, tokenizer.eos_token_id
    with eager_evaluation(model), torch.no_grad():
        if target_ids is None:
            # A `Translator` would not be faster: inside this block the model uses eager attention.
            decoded = model.generate(**inputs, num_return_sequences=1, return_dict_in_generate=False).tolist()
            # `index` looks for the end token from position 1 on, because the start token may equal the end token. After
            # the end token comes padding.
            decoded = [ids[: ids.index(end, 1) + 1] if end in ids[1:] else ids for ids in decoded]
        else:
            decoded = [[start, *ids] for ids in target_ids]
        outputs = model(
            **inputs,
            decoder_input_ids=pad_right(model, tokenizer, [ids[:-1] for ids in decoded]).input_ids,
            output_attentions=True,
            use_cache=False,
            return_dict=True,
        )
    # Padding stands on the right. The causal mask hides it from the tokens on its left. The slices below cut it off.
    weights = {  # (B, L, H, T, S)
        kind: torch.stack(outputs[f"{kind}_attentions"], dim=1).float().cpu().numpy() for kind in KINDS
    }
    special = tokenizer.added_tokens_decoder
    read_token = choose_reader(tokenizer)
    maps = []
    for row, (source, tokens) in enumerate(zip(source_ids, decoded, strict=True)):
        pieces, words, lengths = {}, {}, {}
        for side, ids in (("source", source), ("target", tokens[:-1]), ("output", tokens[1:])):
            lengths[side] = len(ids)
            pieces[f"{side}_tokens"], words[side] = split_words(
                tokenizer.convert_ids_to_tokens(ids), [token_id in special for token_id in ids], read_token
            )
        sliced = {kind: weights[kind][row, ..., : lengths[SIDES[kind][0]], : lengths[SIDES[kind][1]]] for kind in KINDS}
        maps.append(AttentionMaps(**pieces, **sliced, words=words))
    return maps


def pad_right(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[list[int]]) -> BatchEncoding:
    """Return `rows` of token ids, padded on the right, with their mask, on the device of `model`."""
    return tokenizer.pad({"input_ids": rows}, padding_side="right", return_tensors="pt").to(model.device)


def find_mutual_best(weights: np.ndarray) -> np.ndarray:
    """Return True where a weight is the greatest one in its row and in its column, and False elsewhere.

    If weights are equal, the first of them counts as the greatest.

    Args:
        weights: (..., queries, keys). The result has this shape.
    """
    if not weights.size:
        return np.zeros(weights.shape, bool)
    rows, columns = np.indices(weights.shape[-2:], sparse=True)
    return (columns == weights.argmax(axis=-1, keepdims=True)) & (rows == weights.argmax(axis=-2, keepdims=True))


@contextmanager
def eager_evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` use eager attention without dropout inside the block, and restore its settings after the block."""
    implementation = model.config._attn_implementation
    in_training = [module for module in model.modules() if module.training]
    try:
        model.set_attn_implementation("eager")
        model.eval()
        yield
    finally:
        model.set_attn_implementation(implementation)
        for module in in_training:
            module.training = True
