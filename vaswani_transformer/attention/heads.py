"""Score every head by the words that it attends to, such as the word before, the same word, or words far away.

    tally = measure_heads(model, tokenizer, [("The dog that barks runs.", "Der Hund, der bellt, rennt."), ...])
    for found in tally.scores():
        if found.is_named:
            print(found.relation, found.kind, found.layer, found.head, found.score)

Figures 3 to 5 of the paper show some heads in one sentence. Here all heads are measured on many sentences. For each of
`RELATIONS`, a *place* is a word that has this relation to at least one word. Sub-words are first merged into words
(`AttentionMaps.by_words`). Then

    share   = the part of a place's attention that a head gives to words with this relation, mean over all places
    uniform = this share if attention is spread evenly over all visible sub-words
    score   = (share - uniform) / (1 - uniform)

So evenly spread attention scores 0, and attention to nothing but related words scores 1. A head is *named* after a
relation if it scores at least the threshold of the relation over at least `FEWEST_PLACES` places. A word that sees
only related words is not a place. For example, the first word of the decoder sees only itself, so it is no place of
"itself". For alignment, each word that may have a link is a place, because the weights decide where the links are.

The thresholds lie above the scores of 40 untrained models (4 and 6 layers, 4 and 8 heads, d_model 64 to 512), measured
on 40 or 60 sentences of Multi30k. In relations with threshold `BY_POSITION`, no head scored more than 0.19. In
relations with threshold `BY_SPELLING`, the highest score was 0.39, because a head may prefer a token by chance. With
sentences cut to five words, the highest scores were 0.26 (`BY_POSITION`) and 0.59 (`BY_SPELLING`).

The decoder reads a given translation. In each step, the decoder's self-attention belongs to the word that it reads, and
the encoder-decoder attention belongs to the word that it writes (see `AttentionMaps`).

Shapes: L layers, H heads, T queries, S keys. Queries and keys are words. Layers and heads are counted from 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import KINDS
from .maps import MOST_TOKENS, PAIRS_PER_BATCH, AttentionMaps, collect_attention_batch, find_mutual_best
from .words import mark_words

FEWEST_PLACES = 20  # Over few words, a share may be large by chance.
FAR = 5  # words

BY_POSITION = 0.3  # threshold of relations that depend on positions or weights
BY_SPELLING = 0.6  # threshold of relations that depend on the spelling of words


# Relations between words. Each relation has a threshold and a definition. The threshold is the lowest score with which
# a head is named after the relation. The definition completes the words "the part of a word's attention that goes ...".
# Not every relation exists in every kind of attention, see `find_links`.
RELATIONS = {
    "previous word": (BY_POSITION, "to the word before it"),
    "next word": (BY_POSITION, "to the word after it"),
    "itself": (BY_POSITION, "to the word itself"),
    "same word": (BY_SPELLING, "to the same word at other places, in upper or lower case"),
    "copy": (BY_SPELLING, "to a source word with the same spelling, in upper or lower case"),
    "alignment": (
        BY_POSITION,
        "to the source word with the greatest weight, if no other target word gives this source word more",
    ),
    "diagonal": (
        BY_POSITION,
        "to the source words up to one and a half words away from the same relative position in the sentence",
    ),
    "separator": (BY_SPELLING, "to punctuation, <s> and </s>"),
    "long distance": (BY_POSITION, f"to words more than {FAR} words away, without punctuation, <s> and </s>"),
}


def find_links(kind: str, queries: Sequence[str], keys: Sequence[str], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the links of each relation that exists in one kind of attention, in the order of `RELATIONS`.

    Links are True where query and key have the relation: (T, S), or (L, H, T, S) if weights decide the relation.

    Args:
        kind: one of `KINDS`.
        queries: T words.
        keys: S words.
        weights: (L, H, T, S). Only the links of "alignment" depend on the weights.
    """
    rows, columns = np.arange(len(queries))[:, None], np.arange(len(keys))
    from_words = mark_words(queries)[:, None]
    to_words = mark_words(keys)
    between_words = from_words & to_words
    folded_queries, folded_keys = (np.array([text.casefold() for text in texts]) for texts in (queries, keys))
    spelt_alike = (folded_queries[:, None] == folded_keys) & between_words
    separator = {"separator": from_words & ~to_words}
    if kind == "cross":
        relative = rows / max(1, len(queries) - 1)
        diagonal = abs(columns - relative * (len(keys) - 1)) < 1.5
        # A link is the greatest weight of its query and also of its key. So a word has at most one link.
        alignment = find_mutual_best(np.where(between_words, weights, -1.0)) & between_words
        return {"copy": spelt_alike, "alignment": alignment, "diagonal": diagonal} | separator
    offset = columns - rows
    links = {"previous word": offset == -1, "next word": offset == 1, "itself": offset == 0}
    if kind == "decoder":
        del links["next word"]  # The causal mask hides the next word.
    far_away = between_words & (abs(offset) > FAR)
    return links | {"same word": spelt_alike & (offset != 0)} | separator | {"long distance": far_away}


@dataclass(frozen=True)
class HeadScore:
    """The score of one head in one relation. The top of this file defines `share`, `uniform` and `score`."""

    relation: str
    kind: str
    layer: int
    head: int
    share: float
    uniform: float
    places: int  # the number of places over which `share` and `uniform` are means; if it is 0, both are 0

    @property
    def score(self) -> float:
        return (self.share - self.uniform) / (1 - self.uniform)

    @property
    def is_judged(self) -> bool:
        """True if there were at least `FEWEST_PLACES` places."""
        return self.places >= FEWEST_PLACES

    @property
    def is_named(self) -> bool:
        return self.is_judged and self.score >= RELATIONS[self.relation][0]


class HeadTally:
    """Sums over sentences, for the scores of all heads. The memory does not grow with the number of sentences.

    Attributes:
        num_sentences: the number of sentences counted so far.
        num_left_out: the number of pairs that `measure_heads` has left out.
    """

    def __init__(self):
        self.num_sentences = 0
        self.num_left_out = 0
        # Sums over places, for each relation in each kind of attention.
        self._shares = defaultdict(float)  # (L, H)
        self._uniform = defaultdict(float)
        self._places = defaultdict(int)

    def add(self, maps: AttentionMaps) -> None:
        """Count one sentence. Its `maps` may be by sub-words or by words."""
        words, uniform = maps.by_words(), _spread_evenly(maps).by_words()
        for kind in KINDS:
            queries, keys, weights = words.view(kind)
            even_weights = uniform.view(kind)[2]
            even_links = find_links(kind, queries, keys, even_weights)
            for relation, links in find_links(kind, queries, keys, weights).items():
                links = links & (even_weights[0, 0] > 0)
                if relation == "alignment":
                    # The weights decide where these links are, so each word that may have a link is a place.
                    is_place = mark_words(queries) & mark_words(keys).any()
                else:
                    is_place = links.any(axis=-1)
                # The part of each query's attention that goes along the links: if attention is spread evenly, (T,), and
                # in each head, (L, H, T).
                even_share = (even_weights * even_links[relation]).sum(axis=-1, dtype=float)[0, 0]
                share = (weights * links).sum(axis=-1, dtype=float)
                # Up to rounding, an even share of 1 means that the query sees only related words.
                is_place &= even_share < 1 - 1e-6
                self._shares[relation, kind] += share[..., is_place].sum(axis=-1)
                self._uniform[relation, kind] += float(even_share[is_place].sum())
                self._places[relation, kind] += int(is_place.sum())
        self.num_sentences += 1

    def scores(self) -> list[HeadScore]:
        """Return the scores of all heads in all relations, in the order of `KINDS`, `RELATIONS`, layers and heads."""
        found = []
        for (relation, kind), shares in self._shares.items():
            places = self._places[relation, kind]
            uniform = self._uniform[relation, kind] / max(1, places)
            for (layer, head), share in np.ndenumerate(shares / max(1, places)):
                found.append(HeadScore(relation, kind, layer, head, float(share), uniform, places))
        return found


def _spread_evenly(maps: AttentionMaps) -> AttentionMaps:
    """Return maps with one layer and one head, which attends evenly to all keys that are visible in `maps`."""
    even_maps = {}
    for kind in KINDS:
        # Keys with weight 0 in all heads are masked, such as later words in the decoder, or words outside of a window.
        is_visible = (maps.view(kind)[2] > 0).any(axis=(0, 1))
        even_maps[kind] = (is_visible / is_visible.sum(axis=-1, keepdims=True))[None, None]
    return replace(maps, **even_maps)


def measure_heads(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]
) -> HeadTally:
    """Measure all heads on sentences and their translations, and return the sums. Call `scores()` of the result.

    A pair is left out if one of its sides is empty or has more than `MOST_TOKENS` tokens. `num_left_out` counts these
    pairs.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: the tokenizer of the model.
        pairs: sentences and their translations. The decoder reads the translations.
    """
    tally = HeadTally()
    pairs = iter(pairs)
    while batch := list(islice(pairs, PAIRS_PER_BATCH)):
        encoded = [
            (tokenizer(source, verbose=False).input_ids, tokenizer(text_target=target, verbose=False).input_ids)
            for source, target in batch
            if source.strip() and target.strip()
        ]
        kept = [ids for ids in encoded if max(map(len, ids)) <= MOST_TOKENS]
        tally.num_left_out += len(batch) - len(kept)
        if kept:
            for maps in collect_attention_batch(model, tokenizer, *zip(*kept, strict=True)):
                tally.add(maps)
    return tally
