"""Text in, translation out: the `pipeline("translation")` that transformers v5 no longer has.

The folder of a saved model holds this file, and the config of the model names the file, so that

    transformers.pipeline("translation", model="folder or Hub id", trust_remote_code=True)

finds the pipeline without the package. With the package, `vaswani_transformer.pipeline("translation", model=...)` works
without trust_remote_code.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline

logger = transformers.utils.logging.get_logger(__name__)
# A sentence with more tokens is cut, because the time of a search is quadratic in the number of tokens.
MOST_SOURCE_TOKENS = 4_096
LANGUAGE = r"([A-Za-z]+(?:[-_][A-Za-z0-9]{1,8})*)"  # en, en-US, zh_Hant_TW
LINE_BREAK = re.compile("(\r\n|\n|\r)")
# Matches the end of a sentence and the beginning of the next. A period counts only after three lower-case letters,
# because the periods in "3. May" and "J. K." end no sentence. The marks in the last line belong to scripts without
# capitals. They count before any letter.
SEVERAL_SENTENCES = re.compile(
    r"([!?]|(?<=[^\W\d_A-Z]{3})(?<!Prof)\.)[^\w\s.!?,;:-]*\s+[^\w\s.!?,;:-]*[A-ZÀ-ÞΆ-ΫЀ-Я]"
    r"|[\u3002\uff01\uff1f\u0964\u061f\u06d4]\s*\w"
)
TRANSLATION_TASK = re.compile(f"translation(?:_{LANGUAGE}_to_{LANGUAGE})?")


def custom_pipelines(*tasks: str) -> dict[str, dict]:
    """Return the `custom_pipelines` of a config: `TranslationPipeline` for "translation" and for each of `tasks`.

    transformers looks up the whole name of a task. So `tasks` must hold the name with the languages of the model, such
    as "translation_en_to_de". Tasks other than translation are left out.
    """
    entry = {"impl": "pipeline_vaswani.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    return dict.fromkeys(("translation", *filter(TRANSLATION_TASK.fullmatch, tasks)), entry)


def find_languages(config: Mapping) -> tuple[str, str] | None:
    """Return the languages in the name of a task in `config`, such as "translation_en_to_de", or `None`."""
    for field in ("custom_pipelines", "task_specific_params"):
        names = config.get(field)
        for name in names if isinstance(names, Mapping) else ():
            task = TRANSLATION_TASK.fullmatch(name)
            if task and task[1]:
                return task.groups()
    return None


def is_blank(text: str) -> bool:
    """Return True if `text` has nothing but white space, control characters and format characters."""
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text)


def split_text(text: str, language: str | None = None) -> list[tuple[str, str]]:
    """Split `text` into sentences, each with the white space after it, or into lines, each with its line break.

    The returned strings, joined, are `text`. If `text` begins with white space, the first sentence is empty.

    Args:
        language: the language of the sentences, such as "en" or "en-US". sentencex treats an unknown language as
            English. With `None`, `text` is split into lines.

    Raises:
        ImportError: if there is a `language`, and sentencex is not installed.
        ValueError: if sentencex loses characters of `text`.
    """
    parts = [*LINE_BREAK.split(text), ""]  # in turn a line and its line break
    lines = list(zip(parts[::2], parts[1::2], strict=True))
    if language is None:
        return lines
    try:  # transformers loads this file only if all its imports outside of `try` are installed
        from sentencex import segment
    except ImportError as error:
        raise ImportError("split_sentences needs a library: pip install sentencex") from error
    offset = 0
    edges = []  # start and end of each sentence, without the white space around it
    for part in parts:
        # Each white-space character becomes a space, because sentencex crashes at some white space.
        for sentence in segment(re.split("[-_]", language)[0].lower(), re.sub(r"\s", " ", part)):
            start, end = offset + len(sentence) - len(sentence.lstrip()), offset + len(sentence.rstrip())
            edges += [start, end] if start < end else []
            offset += len(sentence)
    if offset != len(text):
        raise ValueError(f"sentencex returned {offset} of {len(text)} characters: {text!r:.200}. Split the text first.")
    if not edges:
        return lines
    if edges[0] > 0:
        edges = [0, 0, *edges]
    pieces = [text[start:end] for start, end in pairwise([*edges, len(text)])]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def find_scripts(text: str) -> frozenset[str]:
    """Return the scripts of the letters in `text`, such as LATIN, GREEK or CJK, from the letters' Unicode names."""
    letters = [letter for letter in set(text) if unicodedata.category(letter) in ("Lu", "Ll", "Lt", "Lo")]
    normalised = unicodedata.normalize("NFKC", "".join(letters))
    return frozenset(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in normalised)


@lru_cache(maxsize=1)
def find_known_scripts(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the scripts of the letters in the vocabulary. Other scripts were rare in the training text, or missing."""
    return find_scripts("".join(tokenizer.batch_decode([[token] for token in range(len(tokenizer))])))


def is_foreign(text: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if `text` has letters of a script that the vocabulary does not have."""
    return not text.isascii() and not find_scripts(text) <= find_known_scripts(tokenizer)


def drop_broken(translation: str, source: str) -> str:
    """Return `translation` without U+FFFD, the sign for invalid bytes, or unchanged if `source` has this sign."""
    return translation if "\ufffd" in source else re.sub(" *\ufffd+", "", translation)


def check_sentence(sentence: object) -> None:
    """Raise a ValueError if `sentence` is not a str, or cannot be encoded as UTF-8."""
    if not isinstance(sentence, str):
        raise ValueError(
            f"a sentence to translate must be a str, got {type(sentence).__name__}: {sentence!r}. Give several "
            f"sentences as a list, and of a dataset or table give one column: dataset[NAME]."
        )
    try:
        sentence.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a sentence holds half of a surrogate pair, which is no character: {sentence!r:.200}. Remove it, or "
            f"decode the text again."
        ) from error


class TranslationPipeline(ChunkPipeline):
    """Translate a sentence, or a list or other iterable of sentences, in batches of `batch_size`.

        translate = vaswani_transformer.pipeline("translation", model="runs/base/model")
        translate("A little girl climbs into a wooden playhouse.")
        [{"translation_text": "Ein kleines Mädchen klettert in ein Spielhaus aus Holz."}]

    As in transformers v4, a list of sentences or the column of a dataset gives one flat list of such dicts. With a
    generator, a `KeyDataset` or another iterable, each sentence gives its own list, which holds one dict. With
    `num_return_sequences=n` each sentence gives a list of n dicts, best first. If a text has several lines, each line
    is translated alone, and a blank line stays empty. With `split_sentences=True`, which needs sentencex, each sentence
    of a text is translated alone, and the white space between sentences stays.

    The constructor and a call take the arguments of `generate()`, and these arguments of transformers v4:

    - `truncation=True` cuts a text to the longest sentence in training.
    - `clean_up_tokenization_spaces=True` removes spaces before punctuation.
    - `return_tensors=True` returns `translation_token_ids` instead of the text; with `return_text=True`, both.
    - `src_lang`, `tgt_lang` and the languages in the name of the task must be those of the model.
    """

    _pipeline_calls_generate = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    call_count = 0

    def __getstate__(self) -> dict:
        """Return the attributes to pickle. Without the number of calls, datasets.map finds its cached results."""
        return {name: value for name, value in vars(self).items() if name != "call_count"}

    def __call__(self, inputs: Any, **kwargs) -> Any:
        is_table = getattr(inputs, "ndim", 1) != 1  # Iteration over a pandas table gives the column names.
        if not (is_table or isinstance(inputs, str | tuple | Mapping)):
            if isinstance(inputs, Collection):  # such as the column of a dataset or of a table
                inputs = list(inputs)
            elif isinstance(inputs, Iterable):
                inputs = (sentence for sentence in inputs)  # transformers accepts a generator, not any iterable.
        if not isinstance(inputs, list):
            return super().__call__(inputs, **kwargs)
        for sentence in inputs:  # Check all sentences before the first is translated.
            check_sentence(sentence)
        results = super().__call__(inputs, **kwargs) if inputs else []
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _sanitize_parameters(self, **kwargs) -> tuple[dict, dict, dict]:
        of_input = ("truncation", "split_sentences", "src_lang", "tgt_lang")
        of_output = ("return_tensors", "return_text", "clean_up_tokenization_spaces")
        preprocess, postprocess = (
            {name: kwargs.pop(name) for name in names if name in kwargs} for names in (of_input, of_output)
        )
        self._check_languages(**preprocess)
        return preprocess, kwargs, postprocess

    def _read_languages(
        self, src_lang: str | None = None, tgt_lang: str | None = None, **_: Any
    ) -> tuple[str | None, str | None]:
        """Return the source and target language: as given, else from the name of the task, else `None`."""
        task = TRANSLATION_TASK.fullmatch(self.task)
        of_task = task.groups() if task else (None, None)
        return src_lang or of_task[0], tgt_lang or of_task[1]

    def _check_languages(self, **languages: Any) -> None:
        pair = find_languages(vars(self.model.config))
        given = self._read_languages(**languages)
        if pair is not None and any(name not in (None, expected) for name, expected in zip(given, pair, strict=True)):
            raise ValueError(
                f"this model translates from {pair[0]} to {pair[1]}; src_lang is {given[0]}, tgt_lang is {given[1]}."
            )

    def preprocess(
        self, sentence: str, truncation: bool = False, split_sentences: bool = False, **languages: str
    ) -> Iterator[dict]:
        """Yield the model inputs for each line of `sentence`, or with `split_sentences` for each sentence in it.

        Args:
            languages: `src_lang` and `tgt_lang`, if given.
        """
        check_sentence(sentence)
        language = None
        if split_sentences:
            source_language, _ = find_languages(vars(self.model.config)) or ("en", None)
            language = self._read_languages(**languages)[0] or source_language
        parts = self._split(sentence, language)
        for number, (text, space) in enumerate(parts, start=1):
            marks = {"source": text, "space": space, "is_last": number == len(parts)}
            yield self._encode("" if is_blank(text) else text, truncation, **languages) | marks

    def _split(self, sentence: str, language: str | None) -> list[tuple[str, str]]:
        """Return the parts of `sentence` (see `split_text`). Warn of parts that may not be translated well."""
        parts = split_text(sentence, language)
        for text, _ in parts:
            if language is None and SEVERAL_SENTENCES.search(text):
                logger.warning_once(
                    "a line seems to hold several sentences, and its translation may leave one out: give "
                    "split_sentences=True, or one sentence per line."
                )
            if is_foreign(text, self.tokenizer):
                logger.warning_once(
                    "a line has letters of a script that the vocabulary does not know: leave such lines out, or train "
                    "on such text."
                )
        return parts

    def _encode(self, sentence: str, truncation: bool, **languages: str) -> dict[str, Tensor]:
        # verbose=False hides transformers' warning of indexing errors in long texts. The warning below replaces it.
        inputs = self.tokenizer(sentence, truncation=truncation, return_tensors="pt", verbose=False)
        num_tokens = inputs["input_ids"].shape[1]
        num_kept = min(num_tokens, MOST_SOURCE_TOKENS)
        if num_tokens > (longest := min(self.tokenizer.model_max_length, MOST_SOURCE_TOKENS)):
            logger.warning(
                f"a sentence of {num_tokens} tokens is longer than {longest}, the longest in training; "
                f"{num_kept} of its tokens are translated. Split it into sentences."
            )
        kept = [*range(num_kept - 1), -1]  # the last token, </s>, is kept
        return {name: inputs[name][:, kept] for name in ("input_ids", "attention_mask")}

    def _forward(self, model_inputs: dict, **generate_kwargs) -> dict:
        marks = {name: model_inputs.pop(name) for name in ("source", "space", "is_last")}
        num_sentences = len(model_inputs["input_ids"])
        tokens = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs))
        if not isinstance(tokens, Tensor):  # return_dict_in_generate
            tokens = tokens.sequences
        return {"tokens": tokens.unflatten(0, (num_sentences, -1)), **marks}

    def postprocess(
        self,
        model_outputs: list[dict],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict]:
        lines = [self._decode(line, clean_up_tokenization_spaces) for line in model_outputs]
        records = []
        for hypothesis in zip(*lines, strict=True):  # the n-th best translations of all lines
            tokens, texts = zip(*hypothesis, strict=True)
            record = {"translation_token_ids": torch.cat(tokens)} if return_tensors else {}
            if return_text or not return_tensors:
                record["translation_text"] = "".join(texts)
            records.append(record)
        return records

    def _decode(self, line: dict, clean_up: bool) -> list[tuple[Tensor, str]]:
        """Return the tokens of each hypothesis of a line, and its text with the white space after the line."""
        tokens = line["tokens"][0]  # (n, T)
        if is_blank(line["source"]):
            tokens = tokens[:, :1]  # the start token alone
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        if clean_up:  # transformers v5 ignores this argument for BPE
            texts = list(map(self.tokenizer.clean_up_tokenization, texts))
        cleaned = [drop_broken(text, line["source"]) for text in texts]
        if cleaned != texts:
            logger.warning_once(
                "a translation held bytes that are no character, such as half of an emoji: they were left out."
            )
        return [(row, text + line["space"]) for row, text in zip(tokens, cleaned, strict=True)]
