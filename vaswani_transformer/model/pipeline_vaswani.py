"""Text in, translation out: the `pipeline("translation")` that transformers v5 no longer has.

A saved model carries this file and names it in its config, so that

    transformers.pipeline("translation", model="folder or Hub id", trust_remote_code=True)

finds it without the package. With the package, `vaswani_transformer.pipeline("translation", model=...)` works without
trust_remote_code. It does not use the package's `Translator`, because it must work without it.
"""

import re
from typing import Any

import torch
import transformers
from transformers import Pipeline

logger = transformers.utils.logging.get_logger(__name__)
# A megabyte in one line is no sentence, and the search takes quadratic time in its tokens: what is longer is cut.
MOST_SOURCE_TOKENS = 4_096
LANGUAGE = r"([A-Za-z]+(?:[-_][A-Za-z0-9]{1,8})*)"  # en, en-US, zh_Hant_TW
TRANSLATION_TASK = re.compile(f"translation(?:_{LANGUAGE}_to_{LANGUAGE})?")


def custom_pipelines(*tasks: str) -> dict[str, dict]:
    """What a config says so that transformers finds `TranslationPipeline` for `tasks` and for "translation".

    transformers looks tasks up by their whole name: "translation_en_to_de" must be among `tasks` to work.
    """
    entry = {"impl": "pipeline_vaswani.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
    return dict.fromkeys(("translation", *tasks), entry)


def check_sentence(sentence: object) -> None:
    """Refuse what no tokenizer takes.

    Raises:
        ValueError: if `sentence` is no text, or holds what is no character.
    """
    if not isinstance(sentence, str):
        raise ValueError(
            f"a sentence to translate is a str, got {type(sentence).__name__}: {sentence!r}. For rows of a "
            f"dataset use transformers.pipelines.pt_utils.KeyDataset(dataset, column)."
        )
    try:
        sentence.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a sentence holds half of a surrogate pair at position {error.start}, {sentence[error.start]!a}, which is "
            f"no character: read its file as UTF-8, or remove it."
        ) from None


class TranslationPipeline(Pipeline):
    """Translates a sentence, a list or an iterator of sentences, in batches of `batch_size`.

        translate = vaswani_transformer.pipeline("translation", model="runs/base/model")
        translate("A little girl climbs into a wooden playhouse.")
        [{"translation_text": "Ein kleines Mädchen klettert in ein Spielhaus aus Holz."}]

    As in transformers v4 a list of sentences gives a flat list of such dicts, any other iterable a list for each
    sentence; with `num_return_sequences=n` each sentence yields a list of n dicts, best first. A sentence of nothing
    but blanks stays empty.

    Arguments of `generate()` may be given to the constructor or to a call, and those of v4's pipeline: `truncation` to
    the longest sentence of training, `clean_up_tokenization_spaces` to remove spaces before punctuation,
    `return_tensors=True` for `translation_token_ids` instead of the text, or beside it with `return_text=True`;
    `src_lang` and `tgt_lang` are for models of several languages, and change nothing here.

    With the package, `model` is an engine afterwards, which translates faster with the weights of that moment, and the
    model itself is let go; load it again to save or train it, to stream, or to draw several samples.
    """

    _pipeline_calls_generate = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if getattr(self.model, "find_engine", None) is not None:
            self.model = self.model.find_engine() or self.model

    def __call__(self, inputs: Any, **kwargs) -> Any:
        if not isinstance(inputs, list):
            return super().__call__(inputs, **kwargs)
        results = super().__call__(inputs, **kwargs) if inputs else []
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _sanitize_parameters(
        self, *, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs
    ) -> tuple[dict, dict, dict]:
        names = ("truncation",), ("return_tensors", "return_text", "clean_up_tokenization_spaces")
        preprocess, postprocess = ({name: kwargs.pop(name) for name in own if name in kwargs} for own in names)
        return preprocess, kwargs, postprocess

    def preprocess(self, sentence: str, truncation: bool = False) -> dict[str, Any]:
        check_sentence(sentence)
        sentence = sentence if sentence.strip() else ""
        # verbose=False: transformers would warn of indexing errors, which sinusoidal positions cannot cause.
        inputs = self.tokenizer(sentence, truncation=truncation, return_tensors="pt", verbose=False)
        if inputs["input_ids"].shape[1] > MOST_SOURCE_TOKENS:
            logger.warning(
                f"a sentence of {inputs['input_ids'].shape[1]} tokens was cut to the first {MOST_SOURCE_TOKENS}; split "
                f"it into sentences."
            )
            kept = [*range(MOST_SOURCE_TOKENS - 1), -1]  # with the last token, </s>
            inputs = {name: value[:, kept] for name, value in inputs.items()}
        elif inputs["input_ids"].shape[1] > self.tokenizer.model_max_length:
            logger.warning(
                f"a sentence of {inputs['input_ids'].shape[1]} tokens is longer than the "
                f"{self.tokenizer.model_max_length} that training saw at most; it is translated whole, but less well."
            )
        return {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}

    def _forward(self, model_inputs: dict[str, torch.Tensor], **generate_kwargs) -> dict[str, torch.Tensor]:
        num_sentences = model_inputs["input_ids"].shape[0]
        tokens = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs))
        if not isinstance(tokens, torch.Tensor):  # return_dict_in_generate
            tokens = tokens.sequences
        source_lengths = model_inputs["attention_mask"].sum(dim=-1)
        return {"tokens": tokens.unflatten(0, (num_sentences, -1)), "source_length": source_lengths}

    def postprocess(
        self,
        model_outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, str | torch.Tensor]]:
        tokens = model_outputs["tokens"][0]  # (n, T)
        if int(model_outputs["source_length"]) <= 1:  # nothing but </s>
            tokens = tokens[:, :1]  # the start token
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        if clean_up_tokenization_spaces:  # transformers v5 does not for BPE, even where asked to
            texts = map(self.tokenizer.clean_up_tokenization, texts)
        records = [{"translation_token_ids": row} if return_tensors else {} for row in tokens]
        if return_text or not return_tensors:
            records = [{**record, "translation_text": text} for record, text in zip(records, texts, strict=True)]
        return records
