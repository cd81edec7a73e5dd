"""Measure what every head does: look at the word before, at the same word, at the end of the sentence, far away.

    tally = measure_heads(model, tokenizer, [("The dog that barks runs.", "Der Hund, der bellt, rennt."), ...])
    for found in tally.leaders():
        print(found.relation, found.kind, found.layer, found.head, found.score)

Figures 3 to 5 show what some heads do in one sentence; here every head is measured on many. For each of `RELATIONS` a
*place* is a word that has some word in the relation to it. In maps folded to words (`AttentionMaps.by_words`)

    share   = the part of its attention that a head gives along the relation, mean over all places
    uniform = the same of attention spread evenly over all sub-words that a place sees
    score   = (share - uniform) / (1 - uniform)

so that evenly spread attention scores 0, and a head that does nothing else scores 1. A head is *named* after a relation
if it scores at least `Relation.named_from` over at least `FEWEST_PLACES`. A place that sees nothing else does not
count, such as the first word of the decoder, which sees only itself.

Thresholds lie above the scores of untrained models. In 40 of them (4 and 6 layers, 4 and 8 heads, d_model 64 to 512;
Multi30k, 40 or 60 sentences) no head scored more than 0.19 in a relation by place (long distance in the decoder) and
0.39 in a relation by spelling (separator), which a head may prefer by chance; in sentences cut to five words, 0.26 and
0.59.

Decoder self-attention and encoder-decoder attention are those of a given translation. The decoder stands at the word it
has read last, and its encoder-decoder attention belongs to the word it writes then (see `AttentionMaps`).

Shapes: L layers, H heads, T queries, S keys, in words. Layers and heads are counted from 0.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import plan_batches
from .kinds import KINDS
from .maps import AttentionMaps, collect_attention_batch, is_word

Pair = tuple[str, str]
Links = np.ndarray  # (T, S), or (..., T, S) if it depends on the weights: True where query and key are in a relation

FEWEST_PLACES = 20  # a share of few words may be large by chance
FAR = 5  # words
LONGEST_EXAMPLE = 20  # words per side: a picture of more is unreadable
LONGEST_SENTENCE = 512  # tokens per side
PAIRS_PER_WINDOW = 1_024  # read, sorted by length and measured at a time
LINKS_PER_BATCH = 2**19  # sentences x the square of their padded tokens: 100 MB for each kind, 6 layers of 8 heads
NO_CHOICE = 1 - 1e-6  # a uniform share of at least this is 1 up to rounding


class View(NamedTuple):
    """Texts of the T queries and S keys, and weights (..., T, S): all that a relation depends on."""

    queries: Sequence[str]
    keys: Sequence[str]
    weights: np.ndarray


@dataclass(frozen=True)
class Relation:
    """A relation between words that a head may follow."""

    name: str
    kinds: tuple[str, ...]  # of attention that can follow it, from `KINDS`
    definition: str  # completes "the share of a word's attention that goes ..."
    named_from: float  # the lowest score of a head that is named after it
    find: Callable[[View], Links]
    find_places: Callable[[View], np.ndarray] | None = None  # (T,): queries that count, by default those with a link


def _offsets(view: View) -> np.ndarray:
    """Return (T, S): how many words after the query a key stands."""
    return np.arange(len(view.keys)) - np.arange(len(view.queries))[:, None]


def _are_words(texts: Sequence[str]) -> np.ndarray:
    return np.array([is_word(text) for text in texts])


def _between_words(view: View) -> Links:
    return _are_words(view.queries)[:, None] & _are_words(view.keys)


def _to_separators(view: View) -> Links:
    return _are_words(view.queries)[:, None] & ~_are_words(view.keys)


def _of_one_spelling(view: View) -> Links:
    queries, keys = ([text.casefold() for text in texts] for texts in (view.queries, view.keys))
    return np.array([[query == key for key in keys] for query in queries]) & _between_words(view)


def _near_the_diagonal(view: View) -> Links:
    """Return keys at the same part of the source as the query of the target, within one and a half words."""
    relative = np.arange(len(view.queries)) / max(1, len(view.queries) - 1)
    return abs(np.arange(len(view.keys)) - relative[:, None] * (len(view.keys) - 1)) < 1.5


def _mutual(view: View) -> Links:
    """Return at most one link per word: the link that is the strongest of both its ends."""
    links = _between_words(view)
    weights = np.where(links, view.weights, -1.0)
    is_best_key = np.arange(len(view.keys)) == weights.argmax(axis=-1)[..., None]
    is_best_query = np.arange(len(view.queries))[:, None] == weights.argmax(axis=-2)[..., None, :]
    return is_best_key & is_best_query & links


SELF = ("encoder", "decoder")
BY_PLACE, BY_WORD = 0.3, 0.6  # thresholds of relations by place or weight, and by spelling
RELATIONS = (
    Relation("previous word", SELF, "to the word before it", BY_PLACE, lambda view: _offsets(view) == -1),
    Relation("next word", ("encoder",), "to the word after it", BY_PLACE, lambda view: _offsets(view) == 1),
    Relation("itself", SELF, "to the word itself", BY_PLACE, lambda view: _offsets(view) == 0),
    Relation(
        "same word",
        SELF,
        "to other places of the same word, upper or lower case",
        BY_WORD,
        lambda view: _of_one_spelling(view) & (_offsets(view) != 0),
    ),
    Relation(
        "copy", ("cross",), "to a source word of the same spelling, upper or lower case", BY_WORD, _of_one_spelling
    ),
    Relation(
        "alignment",
        ("cross",),
        "to the source word it looks at most, where that word in turn is looked at by no target word more",
        BY_PLACE,
        _mutual,
        lambda view: _between_words(view).any(axis=-1),
    ),
    Relation(
        "diagonal",
        ("cross",),
        "to the source words at the same part of the sentence, one and a half words more or less",
        BY_PLACE,
        _near_the_diagonal,
    ),
    Relation(
        "separator", tuple(KINDS), "to punctuation, <s> and </s>, of words that are none", BY_WORD, _to_separators
    ),
    Relation(
        "long distance",
        SELF,
        f"to words more than {FAR} words away, punctuation, <s> and </s> apart",
        BY_PLACE,
        lambda view: _between_words(view) & (abs(_offsets(view)) > FAR),
    ),
)
THRESHOLDS = {relation.name: relation.named_from for relation in RELATIONS}


@dataclass(frozen=True)
class HeadScore:
    """The score of one head in one relation; see the docstring of the module for `share`, `uniform` and `score`.

    `example` is the sentence pair with the most attention along the relation beyond the uniform, among pairs of at most
    `LONGEST_EXAMPLE` words per side without control characters; `None` if no pair has any.
    """

    relation: str
    kind: str
    layer: int
    head: int
    share: float
    uniform: float
    places: int  # number of words in the means; `share` and `uniform` are 0 if there are none
    example: Pair | None

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


class _Sums:
    """Sums for the means of one relation in one kind of attention, and the best example of each head."""

    def __init__(self, shape: tuple[int, int]):
        self.share = np.zeros(shape)  # (L, H)
        self.uniform = 0.0
        self.places = 0
        self.gain = np.zeros(shape)
        self.example = np.full(shape, None, dtype=object)

    def add(self, shares: np.ndarray, uniform: np.ndarray, pair: Pair, *, is_example: bool) -> None:
        """Count the places of one sentence: shares (L, H, places), uniform (places,)."""
        self.share += shares.sum(axis=-1)
        self.uniform += uniform.sum()
        self.places += len(uniform)
        if is_example:
            gain = (shares - uniform).sum(axis=-1)
            for layer, head in np.argwhere(gain > self.gain):
                self.gain[layer, head], self.example[layer, head] = gain[layer, head], pair


class HeadTally:
    """Sums over sentences; its memory does not grow with their number.

    Attributes:
        num_sentences: counted so far.
        num_left_out: sentences that `measure_heads` could not count.
    """

    def __init__(self):
        self.num_sentences = 0
        self.num_left_out = 0
        self._sums: dict[tuple[str, str], _Sums] = {}

    def add(self, maps: AttentionMaps, pair: Pair) -> None:
        """Count one sentence: `maps`, by sub-words or words, of the source and target text `pair`."""
        words, uniform = maps.by_words(), _spread_evenly(maps).by_words()
        # An example is pasted into a shell: no control characters.
        is_example = all(text.isprintable() for text in pair) and (
            max(len(words.source_tokens), len(words.target_tokens)) <= LONGEST_EXAMPLE
        )
        for relation in RELATIONS:
            for kind in relation.kinds:
                view, even_view = View(*words.view(kind)), View(*uniform.view(kind))
                links = relation.find(view) & (even_view.weights[0, 0] > 0)  # not to a masked key
                is_place = links.any(axis=-1) if relation.find_places is None else relation.find_places(view)
                shares = _share(view.weights, links)
                even = _share(even_view.weights, relation.find(even_view))[0, 0]
                is_place = is_place & (even < NO_CHOICE)
                sums = self._sums.setdefault((relation.name, kind), _Sums(view.weights.shape[:2]))
                sums.add(shares[..., is_place], even[is_place], pair, is_example=is_example)
        self.num_sentences += 1

    def scores(self) -> list[HeadScore]:
        """Return every relation of every head, in the order of `KINDS`, `RELATIONS`, layers and heads."""
        found = []
        for (relation, kind), sums in sorted(self._sums.items(), key=lambda item: list(KINDS).index(item[0][1])):
            places = max(1, sums.places)
            for layer, head in np.ndindex(sums.share.shape):
                share, uniform = float(sums.share[layer, head]) / places, float(sums.uniform) / places
                example = sums.example[layer, head]
                found.append(HeadScore(relation, kind, layer, head, share, uniform, sums.places, example))
        return found

    def leaders(self) -> list[HeadScore]:
        """Return the best head of each relation in each kind of attention, named or not, in the same order."""
        leaders: dict[tuple[str, str], HeadScore] = {}
        for found in self.scores():
            key = found.relation, found.kind
            if key not in leaders or found.score > leaders[key].score:
                leaders[key] = found
        return list(leaders.values())


def _spread_evenly(maps: AttentionMaps) -> AttentionMaps:
    """Return the maps of one head of one layer that attends evenly to all it sees."""
    even = {}
    for kind in KINDS:
        # A masked key has weight 0 in all heads: later words in the decoder, and words outside of a window.
        is_visible = (maps.view(kind)[2] > 0).any(axis=(0, 1))
        even[kind] = (is_visible / is_visible.sum(axis=-1, keepdims=True))[None, None]
    return replace(maps, **even)


def _share(weights: np.ndarray, links: Links) -> np.ndarray:
    """Return (L, H, T): the part of its attention that each query gives along `links`."""
    return (weights * links).sum(axis=-1, dtype=np.float64)


def measure_heads(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Iterable[Pair]) -> HeadTally:
    """Measure all heads on sentences and their translations, in batches; memory does not grow with their number.

    Pairs with an empty side or more than `LONGEST_SENTENCE` tokens on a side are left out and counted.

    Args:
        model: an encoder-decoder, on any device.
        tokenizer: its tokenizer.
        pairs: sentence and translation; the translation is forced through the decoder.
    """
    tally, pairs = HeadTally(), iter(pairs)
    while window := list(islice(pairs, PAIRS_PER_WINDOW)):
        kept = [pair for pair in window if all(text.strip() for text in pair)]
        sources = tokenizer([source for source, _ in kept], verbose=False).input_ids if kept else []
        targets = tokenizer(text_target=[target for _, target in kept], verbose=False).input_ids if kept else []
        lengths = [max(map(len, sides)) for sides in zip(sources, targets, strict=True)]
        short = [row for row, length in enumerate(lengths) if length <= LONGEST_SENTENCE]
        for places in plan_batches([lengths[row] for row in short], limit=LINKS_PER_BATCH, power=2):
            rows = [short[place] for place in places]
            batch = collect_attention_batch(
                model, tokenizer, [sources[row] for row in rows], [targets[row] for row in rows]
            )
            for row, maps in zip(rows, batch, strict=True):
                tally.add(maps, kept[row])
        tally.num_left_out += len(window)
    tally.num_left_out -= tally.num_sentences
    return tally
