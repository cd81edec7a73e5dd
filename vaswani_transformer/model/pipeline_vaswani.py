"""Text in, translation out: the `pipeline("translation")` that transformers v5 no longer has.

The folder of a saved model holds this file, and the config of the model names the file, so that

    transformers.pipeline("translation", model="folder or Hub id", trust_remote_code=True)

finds the pipeline without the package. With the package, `vaswani_transformer.pipeline("translation", model=...)` works
without trust_remote_code.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.pipelines.base import ChunkPipeline

logger = transformers.utils.logging.get_logger(__name__)
# A sentence with more tokens is cut, because the time of a search is quadratic in the number of tokens.
MOST_SOURCE_TOKENS = 4_096
LANGUAGE = r"([A-Za-z]+(?:[-_][A-Za-z0-9]{1,8})*)"  # en, en-US, zh_Hant_TW
LINE_BREAK = re.compile("(\r\n|\n|\r)")
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


def copy_wordless(text: str) -> str | None:
    """Return the translation of a text without letters, such as a number, or `None` if `text` has a letter.

    The translation is `text` without the white space at its ends, or "" if `text` is blank.
    """
    if any(map(str.isalpha, text)):
        return None
    return "" if is_blank(text) else text.strip()


def split_lines(text: str) -> list[tuple[str, str]]:
    """Split `text` into lines, each with its line break."""
    parts = [*LINE_BREAK.split(text), ""]  # in turn a line and its line break
    return list(zip(parts[::2], parts[1::2], strict=True))


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
    is translated alone, a blank line stays empty, and a line without letters is copied. `split_sentences=True`, which
    needs the package, translates each sentence of a text alone, and keeps the white space between sentences.

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
        parts = self._split(sentence, split_sentences, **languages)
        for number, (text, space) in enumerate(parts, start=1):
            marks = {"source": text, "space": space, "is_last": number == len(parts)}
            yield self._encode(text if copy_wordless(text) is None else "", truncation, **languages) | marks

    def _split(self, sentence: str, split_sentences: bool, **languages: str) -> list[tuple[str, str]]:
        """Return the parts of `sentence`, each with the white space after it."""
        if split_sentences:
            raise ValueError(
                "split_sentences needs the package vaswani_transformer: import it, and load the model by "
                "vaswani_transformer.pipeline."
            )
        return split_lines(sentence)

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
                parts = zip(texts, model_outputs, strict=True)
                record["translation_text"] = "".join(text + line["space"] for text, line in parts)
            records.append(record)
        return records

    def _decode(self, line: dict, clean_up: bool) -> list[tuple[Tensor, str]]:
        """Return the tokens and the text of each hypothesis of a line."""
        tokens = line["tokens"][0]  # (n, T)
        if (copied := copy_wordless(line["source"])) is not None:
            tokens = tokens[:, :1]  # the start token alone
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        if clean_up:  # transformers v5 ignores this argument for BPE
            texts = list(map(self.tokenizer.clean_up_tokenization, texts))
        return list(zip(tokens, texts if copied is None else [copied] * len(texts), strict=True))
