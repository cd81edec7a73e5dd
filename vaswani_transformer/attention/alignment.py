"""Align the words of sentences with the words of their translations, by the attention of one head or of a few heads.

    for links in align(model, tokenizer, [("Good morning, Tom.", "Guten Morgen, Tom.")]):
        print(format_links(links))  # 0-0 1-1 2-2

Words are separated by ASCII spaces and tabs, as in fast_align and Moses. A no-break space, for example, is a part of a
word. The attention of a target word is taken from the step in which the decoder reads the word as its input, one step
after the decoder has written the word (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine
Translation"). Let A (target words, source words) be the attention weights, summed over sub-words. Then

    share[t, s] = A[t, s] / (1 / S + sum of A[:, s])

and a link joins t and s if share[t, s] is the greatest share in row t and also in column s. Some source words, such as
punctuation, get attention from many target words. Without the division, these source words would win links that should
join other source words. The sum counts one more target word, which attends evenly to the S source words. Without it,
all shares of a single target word would be 1, and so would those of source words to which no other word attends.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice, tee

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .maps import (
    MOST_TOKENS,
    PAIRS_PER_BATCH,
    AttentionMaps,
    eager_evaluation,
    find_mutual_best,
    pad_right,
)

Pairs = Iterable[tuple[str, str]]  # sentences and their translations
Links = set[tuple[int, int]]  # (source word, target word), counted from 0

WORD = re.compile(r"[^ \t]+")
PAIRS_TO_FIND_HEADS = 300


def align(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs) -> Iterator[Links]:
    """Yield the links between the words of each pair.

    The heads are `model.generation_config.alignment_heads`, [[layer, head], ...] counted from 0, as in Whisper. Of
    several heads, the mean attention is used. If the field is missing, one head is used: the head that gives the most
    links in the first `PAIRS_TO_FIND_HEADS` pairs. A warning names this head. To find it, no alignments made by hand
    are needed. Links are defined at the top of this file.
    """
    heads = getattr(model.generation_config, "alignment_heads", None)
    if heads is None:
        sample, pairs = tee(pairs)
        attention = attend_words(model, tokenizer, islice(sample, PAIRS_TO_FIND_HEADS))
        num_links = sum((link_words(weights).sum(axis=(-2, -1)) for weights in attention), start=np.zeros((1, 1)))
        heads = [_find_greatest(num_links)]
        warnings.warn(
            f"generation_config has no alignment_heads; using {heads} (most links). To keep this head, add "
            f'"alignment_heads": {heads} to generation_config.json.',
            stacklevel=2,
        )
    for weights in attend_words(model, tokenizer, pairs):
        mean = np.mean([weights[layer, head] for layer, head in heads], axis=0)
        yield {(source, target) for target, source in np.argwhere(link_words(mean)).tolist()}


def find_alignment_head(model: PreTrainedModel, maps: AttentionMaps) -> tuple[int, int]:
    """Return (layer, head): the first of the model's `alignment_heads`, or else the head with most links in `maps`."""
    heads = getattr(model.generation_config, "alignment_heads", None)
    return tuple(heads[0] if heads else _find_greatest(link_words(maps.by_words().alignment).sum(axis=(-2, -1))))


def _find_greatest(num_links: np.ndarray) -> list[int]:
    """Return [layer, head] of the greatest number in `num_links` (layers, heads)."""
    return np.argwhere(num_links == num_links.max())[0].tolist()


def link_words(weights: np.ndarray) -> np.ndarray:
    """Return True where a link joins two words, by the rule at the top of this file.

    Args:
        weights: (..., target words, source words). The result has this shape.
    """
    share = weights / (1 / max(1, weights.shape[-1]) + weights.sum(axis=-2, keepdims=True))
    return find_mutual_best(share) & (share > 0)  # A word without tokens has weight 0, and no link.


def attend_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs) -> Iterator[np.ndarray]:
    """Yield the encoder-decoder attention of each pair, (layers, heads, target words, source words).

    The weight between two words is the sum of the weights between their sub-words. The decoder reads the given
    translations. Only the first `MOST_TOKENS` tokens of a side are read, so later words have weight 0. After the last
    pair, a warning gives the number of pairs with such words.
    """
    pairs = iter(pairs)
    num_cut = 0
    start = model.config.decoder_start_token_id
    end = tokenizer.eos_token_id
    while batch := list(islice(pairs, PAIRS_PER_BATCH)):
        encoded = [
            (_encode(tokenizer, source, "text"), _encode(tokenizer, target, "text_target")) for source, target in batch
        ]
        num_cut += sum(any(is_cut for *_, is_cut in sides) for sides in encoded)
        sources = pad_right(model, tokenizer, [[*ids, end] for (ids, *_), _ in encoded])
        targets = pad_right(model, tokenizer, [[start, *ids] for _, (ids, *_) in encoded])
        # A call of the whole model would also compute logits and keep the encoder's attention, which takes more memory.
        with eager_evaluation(model), torch.no_grad():
            attentions = model.get_decoder()(
                input_ids=targets.input_ids,
                encoder_hidden_states=model.get_encoder()(**sources).last_hidden_state,
                encoder_attention_mask=sources.attention_mask,
                output_attentions=True,
            ).cross_attentions
        for row, ((source, source_membership, _), (target, target_membership, _)) in enumerate(encoded):
            # Position 0 of the decoder reads the start token.
            weights = torch.stack([layer[row, :, 1 : len(target) + 1, : len(source)] for layer in attentions])
            yield target_membership.T @ weights.float().cpu().numpy() @ source_membership
    if num_cut:
        warnings.warn(f"number of pairs cut to {MOST_TOKENS} tokens per side: {num_cut}. Split them.", stacklevel=2)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, side: str) -> tuple[list[int], np.ndarray, bool]:
    """Encode `text` word by word, because not every tokenizer can tell to which word a token belongs.

    Args:
        side: "text" for a source, "text_target" for a translation.

    Returns:
        the token ids without </s>; a matrix (tokens, words) with 1 where a token belongs to a word, and 0 elsewhere;
        True if words at the end were left out.
    """
    words = WORD.findall(text)
    pieces = tokenizer(**{side: words}, add_special_tokens=False).input_ids if words else []
    lengths = np.fromiter(map(len, pieces), int)
    is_kept = lengths.cumsum() < MOST_TOKENS
    ids = [token for piece in compress(pieces, is_kept) for token in piece]
    return ids, np.repeat(np.eye(len(words), dtype=np.float32), lengths * is_kept, axis=0), not is_kept.all()


def format_links(links: Links) -> str:
    """Return the links of one pair as fast_align writes them: sorted `i-j`, source word i and target word j."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_links(line: str) -> Links:
    """Return the links of one line that `format_links` or fast_align wrote.

    Raises:
        ValueError: if the line holds anything but links i-j.
    """
    links = WORD.findall(line)
    for link in links:
        if not re.fullmatch("[0-9]+-[0-9]+", link):
            raise ValueError(f"{link!r} is not a link: write i-j, the numbers (from 0) of a source and a target word.")
    return {tuple(map(int, link.split("-"))) for link in links}


def score_links(found: Sequence[Links], gold: Sequence[Links]) -> tuple[float, float, float]:
    """Return alignment error rate, precision and recall over all sentences.

    All links of `gold` count as sure links, none as possible links.
    """
    num_found, num_gold = (sum(map(len, links)) for links in (found, gold))
    num_right = sum(len(links & expected) for links, expected in zip(found, gold, strict=True))
    error_rate = 1 - 2 * num_right / max(1, num_found + num_gold)
    return error_rate, num_right / max(1, num_found), num_right / max(1, num_gold)
