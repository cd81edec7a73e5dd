"""Translate many sentences: batches of like lengths, the order restored, n-best lists with scores.

The sentences alone decide which of them share a batch, so every process that translates a batch gets the same bits.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import ModelOutput

from ..data.batching import plan_batches
from ..devices import avoid_plans_per_shape
from ..engine.engine import find_engine
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import MOST_SOURCE_TOKENS, check_sentence
from .ensemble import Ensemble

TOKENS_PER_BATCH = {"cpu": 2_000}  # a cache of a processor is full long before its memory
TEXTS_PER_CALL = 1_000  # the tokenizer's answer takes some 100 bytes per token
# Per-step outputs are never read here, so they are off, whatever the model's generation config asks for.
NO_RECORDS = dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), False) | {
    "return_dict_in_generate": True
}


class Hypothesis(NamedTuple):
    """A translation of one line, and its score (Wu et al. 2016, equation 14) where asked for."""

    text: str
    score: float | None = None


class Batch(NamedTuple):
    """Sentences that are translated together: their row numbers, and their token ids, none for empty lines."""

    rows: list[int]
    ids: list[list[int]]


class Translator:
    """Translates with one model and search, by the weights of the moment when the translator was made.

        translator = Translator(model, tokenizer, num_hypotheses=4, with_scores=True, num_beams=8)
        for hypotheses in translator(["A dog runs.", "Two cats sleep."]):
            print(hypotheses[0].score, hypotheses[0].text)

    Args:
        tokens_per_batch: padded source tokens of a batch, before beams; a longer sentence is a batch of its own. When
            not given, 2,000 on a CPU and 8,192 on other devices.
        num_hypotheses: different translations of each sentence; the beam must be as wide.
        with_scores: give the scores of the search.
        ensemble: further models that translate together with this one, by the mean of their probabilities.
        generate_kwargs: for `generate`.

    Raises:
        ValueError: if the beam is too narrow for what is asked.
    """

    def __init__(
        self,
        model: VaswaniForConditionalGeneration,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tokens_per_batch: int | None = None,
        num_hypotheses: int = 1,
        with_scores: bool = False,
        ensemble: Sequence[VaswaniForConditionalGeneration] = (),
        **generate_kwargs,
    ):
        avoid_plans_per_shape(model.device.type)
        search, *_ = model.resolve_search(generate_kwargs.get("generation_config"), generate_kwargs)
        if not 1 <= num_hypotheses <= search.num_beams:
            raise ValueError(
                f"a beam of {search.num_beams} gives 1 to {search.num_beams} translations of a sentence, "
                f"{num_hypotheses} are asked for. Ask for fewer, or widen num_beams."
            )
        self.tokenizer, self.device = tokenizer, model.device
        self.num_hypotheses, self.with_scores = num_hypotheses, with_scores
        self.tokens_per_batch = tokens_per_batch or TOKENS_PER_BATCH.get(model.device.type, 8_192)
        # The models themselves are let go where an engine takes their place.
        members = [find_engine(member) or member for member in (model, *ensemble)]
        self.decoder = members[0]
        if len(members) > 1:
            generate_kwargs["engine"] = Ensemble(members)
        self.generate_kwargs = generate_kwargs
        self.num_over_long = 0  # sentences so far that are longer than any that training has seen
        self.num_cut = 0  # sentences so far that were cut to their first `MOST_SOURCE_TOKENS`

    def __call__(
        self, sentences: Sequence[str], *, on_batch: Callable[[int], object] = lambda num_sentences: None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first; `on_batch` gets the number of sentences of each batch done."""
        translations: list[list[Hypothesis]] = [[]] * len(sentences)
        for batch in self.plan(sentences):
            for row, hypotheses in zip(batch.rows, self.translate(batch), strict=True):
                translations[row] = hypotheses
            on_batch(len(batch.rows))
        return translations

    def plan(self, sentences: Sequence[str]) -> list[Batch]:
        """Batches that hold each sentence once: empty ones first, then the longest, so that memory runs out early."""
        ids = self._encode(sentences)
        empty = [row for row, tokens in enumerate(ids) if not tokens]
        full = [row for row, tokens in enumerate(ids) if tokens]
        planned = plan_batches([len(ids[row]) for row in full], limit=self.tokens_per_batch)
        batches = [empty] * bool(empty) + [[full[place] for place in places] for places in planned]
        return [Batch(rows, [ids[row] for row in rows]) for rows in batches]

    @torch.no_grad()
    def translate(self, batch: Batch) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence of `batch`, best first; empty sentences have an empty one.

        Where the search finds fewer than asked for, empty ones of score -inf fill the list.
        """
        if not batch.ids[0]:
            rest = [Hypothesis("", -math.inf)] * (self.num_hypotheses - 1)
            return [[Hypothesis("", 0.0), *rest] for _ in batch.rows]
        self.num_over_long += sum(len(tokens) > self.tokenizer.model_max_length for tokens in batch.ids)
        self.num_cut += sum(len(tokens) > MOST_SOURCE_TOKENS for tokens in batch.ids)
        found = self.search(batch.ids, num_return_sequences=self.num_hypotheses)
        tokens = found.sequences
        scores = found.sequences_scores.tolist() if self.with_scores else [None] * len(tokens)
        # One line for one line: a model may learn line breaks from its training text.
        texts = (text.replace("\n", " ") for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True))
        hypotheses = list(map(Hypothesis, texts, scores))
        n = self.num_hypotheses
        return [hypotheses[start : start + n] for start in range(0, len(hypotheses), n)]

    def search(self, ids: Sequence[list[int]], **options) -> ModelOutput:
        """Return what `generate` finds for the sentences of tokens `ids`, which are cut to `MOST_SOURCE_TOKENS`.

        Args:
            options: for `generate`, before those of the translator.
        """
        cut = [[*tokens[: min(len(tokens), MOST_SOURCE_TOKENS) - 1], tokens[-1]] for tokens in ids]
        inputs = self.tokenizer.pad({"input_ids": cut}, return_tensors="pt").to(self.device)
        return self.decoder.generate(**inputs, **self.generate_kwargs | NO_RECORDS | options)

    def _encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Token ids of each sentence, `</s>` included; none for a sentence without a word."""
        for sentence in sentences:
            check_sentence(sentence)
        ids: list[list[int]] = [[] for _ in sentences]
        rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
        for start in range(0, len(rows), TEXTS_PER_CALL):
            some_rows = rows[start : start + TEXTS_PER_CALL]
            # verbose=False: transformers would warn of indexing errors, which sinusoidal positions cannot cause.
            encoded = self.tokenizer([sentences[row] for row in some_rows], verbose=False).input_ids
            for row, tokens in zip(some_rows, encoded, strict=True):
                ids[row] = tokens
        return ids


def translate(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    *,
    on_batch: Callable[[int], object] = lambda num_sentences: None,
    **options,
) -> list[str]:
    """The best translation of each of `sentences`; warns of those that were cut. Arguments as of `Translator`."""
    translator = Translator(model, tokenizer, **options)
    translations = [hypotheses[0].text for hypotheses in translator(sentences, on_batch=on_batch)]
    if translator.num_cut:
        warnings.warn(
            f"sentences cut to their first {MOST_SOURCE_TOKENS:,} tokens: {translator.num_cut}. Split them.",
            stacklevel=2,
        )
    return translations


def format_lines(hypotheses: Sequence[Hypothesis], number: int, *, is_numbered: bool, is_scored: bool) -> str:
    """The lines of a file for the `hypotheses` of its sentence `number`, one line each.

    Columns are separated by tabs: the number if `is_numbered`, the score if `is_scored`, then the text, so that a tab
    inside it moves no other column.
    """
    start = f"{number}\t" if is_numbered else ""
    return "".join(start + (f"{score:.4f}\t" if is_scored else "") + f"{text}\n" for text, score in hypotheses)
