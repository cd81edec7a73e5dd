"""Translate many sentences in batches of similar lengths, with n-best lists and scores.

Only the sentences and `tokens_per_batch` decide which sentences share a batch. So every process computes the same bits
for a batch.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import ModelOutput

from ..data.batching import plan_batches
from ..data.tokenization import warn_of_lost_tokens
from ..devices import turn_off_cudnn_attention
from ..engine.engine import Engine, find_engine
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.pipeline_vaswani import (
    LINE_BREAK,
    MOST_SOURCE_TOKENS,
    check_sentence,
    copy_wordless,
    find_languages,
    is_blank,
    split_lines,
)
from ..text import (
    BROKEN,
    HINTS,
    drop_broken,
    end_sentence,
    find_hints,
    split_sentences,
    unwrap,
)
from .ensemble import Ensemble

TOKENS_PER_BATCH = {"cpu": 2_000}  # Larger batches would not fit the caches of a processor.
TEXTS_PER_CALL = 1_000  # This bounds the memory: the output of the tokenizer has about 100 bytes per token.
# The outputs of each step are not read here. So their records are off, even if the model's generation config asks for
# them.
NO_RECORDS = dict.fromkeys(("output_scores", "output_logits", "output_attentions", "output_hidden_states"), False) | {
    "return_dict_in_generate": True
}


class Hypothesis(NamedTuple):
    """A translation and its score (Wu et al. 2016, equation 14).

    If scores were not asked for, the score is `None`, except for a blank sentence, which always has a score.
    """

    text: str
    score: float | None = None


class Batch(NamedTuple):
    """Sentences that are translated together: their row numbers and their token ids.

    A blank sentence has no token ids.
    """

    rows: list[int]
    ids: list[list[int]]


class Lines:
    """The number of lines of a kind, and the first of these lines. Keeping all lines could fill the memory."""

    count = 0
    first = ""

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.first = self.first or line
            self.count += 1

    def __str__(self) -> str:
        plural = "s" * (self.count > 1)
        return f"{self.count} line{plural} (the first begins {self.first[:60]!r})"


class Translator:
    """A model and its search options, for many sentences.

    If the model has an engine, the translator copies the weights. So later changes of the model have no effect.

        translator = Translator(model, tokenizer, num_hypotheses=4, with_scores=True, num_beams=8)
        for hypotheses in translator(["A dog runs.", "Two cats sleep."]):
            print(hypotheses[0].score, hypotheses[0].text)

    Args:
        tokens_per_batch: the largest number of source tokens in a batch. Padding counts. The number of beams does
            not count. A longer sentence is alone in its batch. The default is 2,000 on a CPU and 8,192 on other
            devices.
        num_hypotheses: the number of different translations of each sentence, at most the number of beams.
        with_scores: give each hypothesis its score.
        split_sentences: translate the sentences of a text one by one, and keep the white space between them. Lines
            that end inside a sentence are joined. The library sentencex finds the sentences. It needs a language: the
            source language in the model's config, or English if the config has none.
        ensemble: further models that translate together with `model`, by the mean of their probabilities.
        generate_kwargs: arguments of `generate`.

    Attributes:
        num_sentences: sentences translated so far, without blank ones.
        num_over_long: sentences longer than the longest sentence of training.
        num_cut: sentences that were cut to their first `MOST_SOURCE_TOKENS` tokens.
        num_empty: sentences with an empty translation.
        num_joined: lines that `join_lines` has joined with the line before.
        hints: for each of `HINTS`, the lines with it.

    Raises:
        ValueError: if `num_hypotheses` is less than 1, or greater than the number of beams.
    """

    num_sentences = num_over_long = num_cut = num_empty = num_joined = 0

    def __init__(
        self,
        model: VaswaniForConditionalGeneration,
        tokenizer: PreTrainedTokenizerFast,
        *,
        tokens_per_batch: int | None = None,
        num_hypotheses: int = 1,
        with_scores: bool = False,
        split_sentences: bool = False,
        ensemble: Sequence[VaswaniForConditionalGeneration] = (),
        **generate_kwargs,
    ):
        turn_off_cudnn_attention(model.device.type)
        search, *_ = model.resolve_options(generate_kwargs.get("generation_config"), generate_kwargs)
        if not 1 <= num_hypotheses <= search.num_beams:
            raise ValueError(
                f"num_hypotheses (--nbest) must be from 1 to num_beams (--num_beams), which is {search.num_beams}; "
                f"got {num_hypotheses}."
            )
        warn_of_lost_tokens(tokenizer)
        self.tokenizer = tokenizer
        self.device = model.device
        self.num_hypotheses = num_hypotheses
        self.with_scores = with_scores
        self.language = (find_languages(vars(model.config)) or ("en",))[0]
        self.splits_sentences = split_sentences
        self.tokens_per_batch = tokens_per_batch or TOKENS_PER_BATCH.get(model.device.type, 8_192)
        self.generate_kwargs = generate_kwargs
        # From the first batch on, the translator keeps only the engine of a model that has one. The memory of the model
        # can then be freed.
        self.models = (model, *ensemble)
        self._set_members([find_engine(member) or member for member in self.models])
        self.hints = {hint: Lines() for hint in HINTS}

    def __call__(
        self, sentences: Sequence[str], *, on_batch: Callable[[int], object] = lambda num_sentences: None
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first.

        A text of several lines is translated line by line, or with `split_sentences` sentence by sentence. The
        translations are joined again, and their scores are added. Lines without letters are copied.

        Args:
            on_batch: called after each batch with the number of `sentences` that are done since the last call. The
                numbers add up to the number of all sentences.

        Raises:
            ValueError: if a sentence is no str, or cannot be written as UTF-8.
        """
        for sentence in sentences:
            check_sentence(sentence)
        if self.splits_sentences:
            parts_by_sentence = [split_sentences(sentence, self.language) for sentence in sentences]
        else:
            parts_by_sentence = list(map(split_lines, sentences))
        texts = [text for parts in parts_by_sentence for text, _ in parts]
        hints = find_hints(texts, self.language, self.tokenizer, is_split=self.splits_sentences)
        for hint, lines in hints.items():
            self.hints[hint].add(lines)
        copies = list(map(copy_wordless, texts))
        translations = [[]] * len(texts)
        done = 0
        for batch in self.plan(["" if copy else text for text, copy in zip(texts, copies, strict=True)]):
            for row, hypotheses in zip(batch.rows, self.translate(batch), strict=True):
                if copies[row]:
                    hypotheses[0] = hypotheses[0]._replace(text=copies[row])
                translations[row] = hypotheses
            before = done * len(sentences) // len(texts)
            done += len(batch.rows)
            on_batch(done * len(sentences) // len(texts) - before)
        rest = iter(translations)
        return [join_parts(list(islice(rest, len(parts))), parts) for parts in parts_by_sentence]

    def _set_members(self, members: Sequence[Engine | VaswaniForConditionalGeneration]) -> None:
        self.decoder, *others = self.members = members
        if others:
            self.generate_kwargs["engine"] = Ensemble(members)

    def plan(self, sentences: Sequence[str]) -> list[Batch]:
        """Return batches that together hold each sentence once.

        The first batch holds the blank sentences, if there are any. Then come the longest sentences, so that a lack of
        memory shows early.
        """
        ids = self._encode(sentences)
        empty = [row for row, tokens in enumerate(ids) if not tokens]
        full = [row for row, tokens in enumerate(ids) if tokens]
        planned = plan_batches([len(ids[row]) for row in full], limit=self.tokens_per_batch)
        batches = [empty] * bool(empty) + [[full[place] for place in places] for places in planned]
        return [Batch(rows, [ids[row] for row in rows]) for rows in batches]

    @torch.no_grad()
    def translate(self, batch: Batch) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence of `batch`, best first.

        The best hypothesis of a blank sentence is empty, with score 0. If there are fewer hypotheses than asked for,
        empty hypotheses of score -inf fill the list.
        """
        if not batch.ids[0]:
            rest = [Hypothesis("", -math.inf)] * (self.num_hypotheses - 1)
            return [[Hypothesis("", 0.0), *rest] for _ in batch.rows]
        self.num_over_long += sum(len(tokens) > self.tokenizer.model_max_length for tokens in batch.ids)
        self.num_cut += sum(len(tokens) > MOST_SOURCE_TOKENS for tokens in batch.ids)
        found = self.search(batch.ids, num_return_sequences=self.num_hypotheses)
        tokens = found.sequences
        scores = found.sequences_scores.tolist() if self.with_scores else [None] * len(tokens)
        # Each sentence must give one line of output, but a model may have learned line breaks from its training text.
        texts = [LINE_BREAK.sub(" ", text) for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        n = self.num_hypotheses
        for index, text in enumerate(texts):
            if "\ufffd" in text:
                texts[index] = drop_broken(text, self.tokenizer.decode(batch.ids[index // n]))
                self.hints[BROKEN].add([text] * (index % n == 0 and texts[index] != text))
        hypotheses = list(map(Hypothesis, texts, scores))
        self.num_sentences += len(batch.ids)
        self.num_empty += sum(is_blank(best.text) for best in hypotheses[::n])
        return [hypotheses[start : start + n] for start in range(0, len(hypotheses), n)]

    def search(self, ids: Sequence[list[int]], **options) -> ModelOutput:
        """Return the output of `generate` for sentences that are given as token ids.

        Args:
            ids: the token ids of each sentence. A sentence of more than `MOST_SOURCE_TOKENS` tokens is cut to this
                number, but keeps its last token.
            options: arguments of `generate`. They take precedence over the options of the translator.
        """
        cut = [[*tokens[: min(len(tokens), MOST_SOURCE_TOKENS) - 1], tokens[-1]] for tokens in ids]
        inputs = self.tokenizer.pad({"input_ids": cut}, return_tensors="pt").to(self.device)
        if self.models:  # A search of one sentence checks each engine while its model exists.
            for member in self.members:
                member.generate(**{name: x[-1:] for name, x in inputs.items()}, **NO_RECORDS)
            pairs = zip(self.models, self.members, strict=True)
            self._set_members([find_engine(model, kept=member) or model for model, member in pairs])
            self.models = ()
        return self.decoder.generate(**inputs, **self.generate_kwargs | NO_RECORDS | options)

    def find_warnings(self) -> list[str]:
        """Return a warning for each kind of doubtful translation that occurred so far, with its count."""
        longest = self.tokenizer.model_max_length
        counts = {
            f"number of sentences longer than the longest in training ({longest} tokens): {self.num_over_long}. Split "
            f"them.": self.num_over_long,
            f"number of sentences cut to {MOST_SOURCE_TOKENS:,} tokens, </s> included: {self.num_cut}. Split "
            f"them.": self.num_cut,
            f"{self.num_empty} of {self.num_sentences} translations are empty.": self.num_empty,
            f"number of lines that were joined with the line before, because a sentence goes on in them: "
            f"{self.num_joined}. The output has fewer lines than the input.": self.num_joined,
        }
        for hint, lines in self.hints.items():
            counts[f"{lines} with {hint}."] = lines.count
        return [text for text, count in counts.items() if count]

    def join_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines to translate. With `split_sentences`, lines that end inside a sentence are joined."""
        if not self.splits_sentences:
            yield from lines
            return

        def read() -> Iterator[str]:
            for line in lines:
                self.num_joined += 1
                yield line

        for line in unwrap(read()):
            self.num_joined -= 1
            yield line

    def _encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, `</s>` included. A blank sentence has no token ids."""
        ids = []
        for start in range(0, len(sentences), TEXTS_PER_CALL):
            texts = list(sentences[start : start + TEXTS_PER_CALL])
            # verbose=False hides a warning of transformers about indexing errors for long texts. Sinusoidal positions
            # cannot cause such errors.
            encoded = self.tokenizer(texts, verbose=False).input_ids
            ids += [[] if is_blank(text) else tokens for text, tokens in zip(texts, encoded, strict=True)]
        return ids


def translate(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    *,
    on_batch: Callable[[int], object] = lambda num_sentences: None,
    **options,
) -> list[str]:
    """Return the best translation of each sentence, and show the warnings of `Translator.find_warnings`.

    Args:
        on_batch: see `Translator.__call__`.
        options: arguments of `Translator`.
    """
    translator = Translator(model, tokenizer, **options)
    translations = [hypotheses[0].text for hypotheses in translator(sentences, on_batch=on_batch)]
    for warning in translator.find_warnings():
        warnings.warn(warning, stacklevel=2)
    return translations


def join_parts(found: Sequence[list[Hypothesis]], parts: Sequence[tuple[str, str]]) -> list[Hypothesis]:
    """Return the hypotheses of a text: the best hypotheses of its parts joined, then the second best, and so on.

    Args:
        found: the hypotheses of each part.
        parts: lines or sentences, each with the white space after it.
    """
    if len(parts) > 1:  # A part without letters has one real hypothesis, which all hypotheses of the text use.
        found = [
            n_best if copy_wordless(text) is None else n_best[:1] * len(n_best)
            for n_best, (text, _) in zip(found, parts, strict=True)
        ]
    return [
        Hypothesis(
            "".join(
                end_sentence(part.text, *source) + source[1] for part, source in zip(hypothesis, parts, strict=True)
            ),
            None if any(part.score is None for part in hypothesis) else sum(part.score for part in hypothesis),
        )
        for hypothesis in zip(*found, strict=True)
    ]


def format_lines(hypotheses: Sequence[Hypothesis], number: int, *, is_numbered: bool, is_scored: bool) -> str:
    """Return the lines of an output file for sentence `number`: a line for each of its `hypotheses`.

    Tabs separate the columns: the number if `is_numbered`, the score if `is_scored`, then the text. The text comes last
    because it may hold tabs.
    """
    start = f"{number}\t" if is_numbered else ""
    return "".join(start + (f"{score:.4f}\t" if is_scored else "") + f"{text}\n" for text, score in hypotheses)
