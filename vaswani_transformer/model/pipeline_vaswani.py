"""Text in, translation out: the `pipeline("translation")` that transformers v5 no longer has.

A saved model carries this file and names it in its config, so that

    transformers.pipeline("translation", model="folder or Hub id", trust_remote_code=True)

finds it without the package. With the package, `vaswani_transformer.pipeline("translation", model=...)` asks for
no trust.
"""

import re
from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, Pipeline, PreTrainedModel

logger = transformers.utils.logging.get_logger(__name__)
# A megabyte in one line is no sentence, and the search takes quadratic time in its tokens: what is longer is cut.
MOST_SOURCE_TOKENS = 4_096
PLACES = ("revision", "subfolder", "token", "cache_dir", "local_files_only")  # arguments of `from_pretrained`
TRANSLATION_TASK = re.compile(r"translation(_[a-z]+_to_[a-z]+)?")


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


def cut_source(tokens: torch.Tensor) -> torch.Tensor:
    """(1, S) of an over-long sentence as (1, `MOST_SOURCE_TOKENS`), its last token, `</s>`, kept."""
    return torch.cat([tokens[:, : MOST_SOURCE_TOKENS - 1], tokens[:, -1:]], dim=1)


class TranslationPipeline(Pipeline):
    """Translates a sentence, a list or an iterator of sentences, in batches of `batch_size`.

        translate = vaswani_transformer.pipeline("translation", model="runs/base/model")
        translate("A little girl climbs into a wooden playhouse.")
        [{"translation_text": "Ein kleines Mädchen klettert in ein Spielhaus aus Holz."}]

    Arguments of `generate()` may be given to the constructor or to a call. With `num_return_sequences=n` each
    sentence yields n such dicts, best first. An empty sentence stays empty.
    """

    _pipeline_calls_generate = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(self, **generate_kwargs) -> tuple[dict, dict, dict]:
        preprocess = {name: generate_kwargs.pop(name) for name in ("truncation",) if name in generate_kwargs}
        return preprocess, generate_kwargs, {}

    def preprocess(self, sentence: str, truncation: bool = False) -> dict[str, Any]:
        check_sentence(sentence)
        # verbose=False: transformers would warn of indexing errors, which sinusoidal positions cannot cause.
        inputs = self.tokenizer(sentence, truncation=truncation, return_tensors="pt", verbose=False)
        if inputs["input_ids"].shape[1] > MOST_SOURCE_TOKENS:
            logger.warning(
                f"a sentence of {inputs['input_ids'].shape[1]} tokens was cut to the first {MOST_SOURCE_TOKENS}; split "
                f"it into sentences."
            )
            inputs = {name: cut_source(value) for name, value in inputs.items()}
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

    def postprocess(self, model_outputs: dict[str, torch.Tensor]) -> list[dict[str, str]]:
        tokens = model_outputs["tokens"][0]  # (n, T)
        is_empty = int(model_outputs["source_length"]) <= 1  # nothing but </s>
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [{"translation_text": "" if is_empty else text} for text in texts]


def pipeline(
    task: str = "translation",
    model: str | PreTrainedModel | None = None,
    tokenizer: Any = None,
    *,
    generation_config: GenerationConfig | None = None,
    dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    **kwargs,
) -> Pipeline:
    """`transformers.pipeline`, with "translation" and "translation_xx_to_yy" working for models of this package.

    Args:
        task: any other task is handed to transformers.
        model: a folder, a Hub id, or a model object (then give `tokenizer` too).
        tokenizer: folder, Hub id or object; that of `model` when not given.
        dtype: for `from_pretrained`: "float32", "bfloat16", ..., or "int8" for a model that multiplies in int8 on CPUs.
        model_kwargs: whatever else is for `from_pretrained`; what says where to find files is the tokenizer's too.

    Raises:
        ValueError: if there is no model, or no tokenizer for a model object.
    """
    if generation_config is not None:
        kwargs["generation_config"] = generation_config
    if dtype is not None:
        model_kwargs = {**(model_kwargs or {}), "dtype": dtype}
    if not TRANSLATION_TASK.fullmatch(task):
        return transformers.pipeline(task, model, tokenizer=tokenizer, model_kwargs=model_kwargs, **kwargs)
    if model is None:
        raise ValueError(f'task {task!r} has no default model: give model="folder or Hub id".')
    if tokenizer is None:
        if not isinstance(model, str):
            raise ValueError("a model object brings no tokenizer: give tokenizer= too.")
        tokenizer = model
    if isinstance(tokenizer, str):
        places = {name: value for name, value in (model_kwargs or {}).items() if name in PLACES}
        tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False, **places)
    if isinstance(model, str):
        model = AutoModelForSeq2SeqLM.from_pretrained(model, trust_remote_code=False, **(model_kwargs or {}))
    return TranslationPipeline(model=model, tokenizer=tokenizer, task=task, **kwargs)
