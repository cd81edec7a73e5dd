"""Align the words of sentences with those of their translations, by the attention of one head or a few.

    for links in align(model, tokenizer, [("Good morning, Tom.", "Guten Morgen, Tom.")]):
        print(format_links(links))  # 0-0 1-1 2-2

Words are separated by white space. The attention of a target word is that of the decoder step which reads it, one after
the step which writes it (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation"). A link
joins two words if each has the greatest weight of all for the other.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, tee

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .maps import MOST_TOKENS, eager_evaluation, find_mutual_best

Pairs = Iterable[tuple[str, str]]  # sentences and their translations
Links = set[tuple[int, int]]  # (source word, target word), counted from 0

PAIRS_PER_BATCH = 8
PAIRS_TO_FIND_HEADS = 300


def align(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs) -> Iterator[Links]:
    """Yield the links between the words of each pair.

    The heads are `model.generation_config.alignment_heads`, [[layer, head], ...] from 0, as Whisper names its own. A
    model without that field gets the head that `find_alignment_heads` finds in the first pairs, with a warning.
    """
    heads = getattr(model.generation_config, "alignment_heads", None)
    if heads is None:
        first, pairs = tee(pairs)
        heads = find_alignment_heads(attend_words(model, tokenizer, islice(first, PAIRS_TO_FIND_HEADS)))
        advice = f'To keep it, add "alignment_heads": {heads} to generation_config.json.'
        warnings.warn(f"the model names no alignment_heads; this text gives {heads}. {advice}", stacklevel=2)
    for weights in attend_words(model, tokenizer, pairs):
        mean = np.mean([weights[layer, head] for layer, head in heads], axis=0)
        yield {(int(source), int(target)) for target, source in zip(*find_mutual_best(mean).nonzero(), strict=True)}


def attend_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs) -> Iterator[np.ndarray]:
    """Yield the encoder-decoder attention of each pair, by words: (layers, heads, target words, source words).

    A source word has the sum of the weights of its sub-words, a target word the mean of those of its own. A side of
    more than `MOST_TOKENS` tokens counts as having no words, because attention grows with the product of both sides.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: its tokenizer.
        pairs: the translations are forced through the decoder.
    """
    pairs = iter(pairs)
    while batch := list(islice(pairs, PAIRS_PER_BATCH)):
        sources = [_encode(tokenizer, source, "text") for source, _ in batch]
        targets = [_encode(tokenizer, target, "text_target") for _, target in batch]
        start = model.config.decoder_start_token_id
        rows = [[ids for ids, _ in sources], [[start, *ids] for ids, _ in targets]]
        inputs, outputs = (
            tokenizer.pad({"input_ids": ids}, padding_side="right", return_tensors="pt").to(model.device)
            for ids in rows
        )
        with eager_evaluation(model), torch.no_grad():
            attentions = model(
                **inputs, decoder_input_ids=outputs.input_ids, output_attentions=True, use_cache=False
            ).cross_attentions
        weights = torch.stack(attentions, dim=1).float().cpu().numpy()  # (batch, L, H, T, S)
        for of_pair, (_, source_words), (_, target_words) in zip(weights, sources, targets, strict=True):
            num_read, num_words = target_words.shape
            by_source = of_pair[:, :, 1 : num_read + 1, : len(source_words)] @ source_words
            yield target_words.T @ by_source / np.maximum(1, target_words.sum(axis=0))[:num_words, None]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, side: str) -> tuple[list[int], np.ndarray]:
    """Return the tokens of `text`, and (tokens, words): 1 where a token belongs to a word."""
    encoded = tokenizer(**{side: text}, return_offsets_mapping=True, verbose=False)
    if len(encoded.input_ids) > MOST_TOKENS:
        return _encode(tokenizer, "", side)
    ends = np.array([end for _, end in encoded.offset_mapping])[:, None]  # 0 of special tokens
    words = np.array([word.span() for word in re.finditer(r"\S+", text)]).reshape(-1, 2)
    return encoded.input_ids, ((words[:, 0] < ends) & (ends <= words[:, 1])).astype(np.float32)


def find_alignment_heads(attention: Iterable[np.ndarray]) -> list[list[int]]:
    """Return [[layer, head]] of the head with the most links in `attention`, which `attend_words` yields.

    In this head the two directions agree most often; no alignment by hand is needed.
    """
    num_links = sum(find_mutual_best(weights).sum(axis=(-2, -1)) for weights in attention)
    return [[int(index) for index in np.unravel_index(num_links.argmax(), num_links.shape)]]


def format_links(links: Links) -> str:
    """Return the links of one pair as fast_align writes them: `i-j`, source word and target word, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_links(line: str) -> Links:
    """Return the links of one line; the opposite of `format_links`."""
    if not all(re.fullmatch(r"\d+-\d+", link) for link in line.split()):
        raise ValueError(f"expected links such as 0-0 1-2, got {line!r:.60}.")
    return {tuple(map(int, link.split("-"))) for link in line.split()}


def score_links(found: Sequence[Links], gold: Sequence[Links]) -> tuple[float, float, float]:
    """Return alignment error rate, precision and recall over all sentences, all links of `gold` being sure ones."""
    num_found, num_gold = (sum(map(len, links)) for links in (found, gold))
    num_right = sum(len(links & expected) for links, expected in zip(found, gold, strict=True))
    return 1 - 2 * num_right / (num_found + num_gold), num_right / max(1, num_found), num_right / max(1, num_gold)
