"""Score every head by the words that it attends to: the word before, the same word, the end, words far away.

    tally = measure_heads(model, tokenizer, [("The dog that barks runs.", "Der Hund, der bellt, rennt."), ...])
    for found in tally.scores():
        if found.is_named:
            print(found.relation, found.kind, found.layer, found.head, found.score)

Figures 3 to 5 show some heads in one sentence; here all heads are measured on many sentences. For each of `RELATIONS`,
a *place* is a word that is in this relation to some word. In maps folded to words (`AttentionMaps.by_words`)

    share   = the part of its attention that a head gives along the relation, mean over all places
    uniform = this share if attention is spread evenly over all visible sub-words
    score   = (share - uniform) / (1 - uniform)

so that evenly spread attention scores 0, and attention along the relation alone scores 1. A head is *named* after a
relation if it scores at least `Relation.named_from` over at least `FEWEST_PLACES`. A place without a choice does not
count, such as the first word of the decoder, which sees only itself.

Thresholds lie above the scores of untrained models. In 40 of them (4 and 6 layers, 4 and 8 heads, d_model 64 to 512;
Multi30k, 40 or 60 sentences) no head scored more than 0.19 in a relation by place. In relations by spelling, where a
head may prefer a token by chance, the highest score was 0.39. In sentences cut to five words they were 0.26 and 0.59.

The decoder is forced through a given translation. Its self-attention belongs to the word that it reads, its
encoder-decoder attention to the word that it writes in the same step (see `AttentionMaps`).

Shapes: L layers, H heads, T queries, S keys, in words. Layers and heads are counted from 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import KINDS
from .maps import MOST_TOKENS, PAIRS_PER_BATCH, AttentionMaps, collect_attention_batch, find_mutual_best
from .words import is_word

Pair = tuple[str, str]
Links = np.ndarray  # (T, S), or (..., T, S) if it depends on the weights: True where query and key are in a relation

FEWEST_PLACES = 20  # The share of fewer words may be large by chance.
FAR = 5  # words
NO_CHOICE = 1 - 1e-6  # A uniform share from here on is 1 up to rounding.
BY_PLACE = 0.3  # the threshold of relations by place or weight
BY_WORD = 0.6  # the threshold of relations by spelling


class Relation(NamedTuple):
    """A relation between words. `find_links` says which relations exist in which kind of attention."""

    name: str
    named_from: float  # the lowest score of a head that is named after it
    definition: str  # completes "the share of a word's attention that goes ..."


RELATIONS = (
    Relation("previous word", BY_PLACE, "to the word before it"),
    Relation("next word", BY_PLACE, "to the word after it"),
    Relation("itself", BY_PLACE, "to the word itself"),
    Relation("same word", BY_WORD, "to other places of the same word, upper or lower case"),
    Relation("copy", BY_WORD, "to a source word of the same spelling, upper or lower case"),
    Relation(
        "alignment",
        BY_PLACE,
        "to the source word with its greatest weight, if no other target word gives this source word more",
    ),
    Relation(
        "diagonal",
        BY_PLACE,
        "to the source words at the same part of the sentence, one and a half words more or less",
    ),
    Relation("separator", BY_WORD, "to punctuation, <s> and </s>"),
    Relation("long distance", BY_PLACE, f"to words more than {FAR} words away, without punctuation, <s> and </s>"),
)
THRESHOLDS = {relation.name: relation.named_from for relation in RELATIONS}


def find_links(kind: str, queries: Sequence[str], keys: Sequence[str], weights: np.ndarray) -> dict[str, Links]:
    """Return the links of each relation that exists in one kind of attention, in the order of `RELATIONS`."""
    rows, columns = np.arange(len(queries))[:, None], np.arange(len(keys))
    from_words, to_words = (np.array([is_word(text) for text in texts]) for texts in (queries, keys))
    from_words = from_words[:, None]
    between_words = from_words & to_words
    folded_queries, folded_keys = (np.array([text.casefold() for text in texts]) for texts in (queries, keys))
    spelt_alike = (folded_queries[:, None] == folded_keys) & between_words
    separator = {"separator": from_words & ~to_words}
    if kind == "cross":
        relative = rows / max(1, len(queries) - 1)
        diagonal = abs(columns - relative * (len(keys) - 1)) < 1.5
        # A word has at most one link. It must be the strongest link of both its words.
        alignment = find_mutual_best(np.where(between_words, weights, -1.0)) & between_words
        return {"copy": spelt_alike, "alignment": alignment, "diagonal": diagonal} | separator
    offset = columns - rows
    links = {"previous word": offset == -1, "next word": offset == 1, "itself": offset == 0}
    if kind == "decoder":
        del links["next word"]  # hidden from the decoder
    far_away = between_words & (abs(offset) > FAR)
    return links | {"same word": spelt_alike & (offset != 0)} | separator | {"long distance": far_away}


@dataclass(frozen=True)
class HeadScore:
    """The score of one head in one relation. The docstring of the module defines `share`, `uniform` and `score`."""

    relation: str
    kind: str
    layer: int
    head: int
    share: float
    uniform: float
    places: int  # number of words in the means; `share` and `uniform` are 0 if there are none

    @property
    def score(self) -> float:
        return (self.share - self.uniform) / (1 - self.uniform)

    @property
    def is_judged(self) -> bool:
        """True if there were enough places to judge the head."""
        return self.places >= FEWEST_PLACES

    @property
    def is_named(self) -> bool:
        return self.is_judged and self.score >= THRESHOLDS[self.relation]


@dataclass
class _Sums:
    """Sums for the means of one relation in one kind of attention."""

    share: np.ndarray  # (L, H)
    uniform: float = 0.0
    places: int = 0


class HeadTally:
    """Sums over sentences. The memory does not grow with the number of sentences.

    Attributes:
        num_sentences: counted so far.
        num_left_out: the number of sentences that `measure_heads` left out.
    """

    def __init__(self):
        self.num_sentences = 0
        self.num_left_out = 0
        self._sums: dict[tuple[str, str], _Sums] = {}

    def add(self, maps: AttentionMaps) -> None:
        """Count one sentence by its `maps`, by sub-words or words."""
        words, uniform = maps.by_words(), _spread_evenly(maps).by_words()
        for kind in KINDS:
            queries, keys, weights = words.view(kind)
            even_weights = uniform.view(kind)[2]
            even_links = find_links(kind, queries, keys, even_weights)
            for relation, links in find_links(kind, queries, keys, weights).items():
                links = links & (even_weights[0, 0] > 0)
                if relation == "alignment":  # depends on the weights: each word that may have a link counts
                    is_place = np.array([is_word(query) for query in queries]) & any(map(is_word, keys))
                else:
                    is_place = links.any(axis=-1)
                even = _share(even_weights, even_links[relation])[0, 0]
                is_place &= even < NO_CHOICE
                sums = self._sums.setdefault((relation, kind), _Sums(np.zeros(weights.shape[:2])))
                sums.share += _share(weights, links)[..., is_place].sum(axis=-1)
                sums.uniform += even[is_place].sum()
                sums.places += int(is_place.sum())
        self.num_sentences += 1

    def scores(self) -> list[HeadScore]:
        """Return every relation of every head, in the order of `KINDS`, `RELATIONS`, layers and heads."""
        found = []
        for (relation, kind), sums in self._sums.items():
            places = max(1, sums.places)
            for layer, head in np.ndindex(sums.share.shape):
                share, uniform = float(sums.share[layer, head]) / places, float(sums.uniform) / places
                found.append(HeadScore(relation, kind, layer, head, share, uniform, sums.places))
        return found


def _spread_evenly(maps: AttentionMaps) -> AttentionMaps:
    """Return the maps of one head of one layer that attends evenly to all visible words."""
    even = {}
    for kind in KINDS:
        # A masked key has weight 0 in all heads: later words in the decoder, and words outside of a window.
        is_visible = (maps.view(kind)[2] > 0).any(axis=(0, 1))
        even[kind] = (is_visible / is_visible.sum(axis=-1, keepdims=True))[None, None]
    return replace(maps, **even)


def _share(weights: np.ndarray, links: Links) -> np.ndarray:
    """Return the part of the attention of each query that goes along `links`, (L, H, T)."""
    return (weights * links).sum(axis=-1, dtype=np.float64)


def measure_heads(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[Pair]) -> HeadTally:
    """Measure all heads on sentences and their translations, a batch at a time; memory does not grow with their number.

    Pairs with an empty side or more than `MOST_TOKENS` tokens on a side are left out and counted.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: its tokenizer.
        pairs: sentence and translation; the translation is forced through the decoder.
    """
    tally, pairs = HeadTally(), iter(pairs)
    while batch := list(islice(pairs, PAIRS_PER_BATCH)):
        sources = [tokenizer(source, verbose=False).input_ids for source, _ in batch]
        targets = [tokenizer(text_target=target, verbose=False).input_ids for _, target in batch]
        kept = [
            row
            for row, pair in enumerate(batch)
            if all(text.strip() for text in pair) and max(len(sources[row]), len(targets[row])) <= MOST_TOKENS
        ]
        tally.num_left_out += len(batch) - len(kept)
        if kept:
            ids = ([side[row] for row in kept] for side in (sources, targets))
            for maps in collect_attention_batch(model, tokenizer, *ids):
                tally.add(maps)
    return tally
