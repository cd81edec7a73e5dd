"""`pipeline("translation")` as in transformers v4, for models of this package and every other encoder-decoder."""

from pathlib import Path
from typing import Any

import transformers
from transformers import Pipeline, PreTrainedModel

from ..model.configuration_vaswani import VaswaniConfig
from ..model.pipeline_vaswani import TranslationPipeline
from ..runs import find_model_folder

GENERATION_DEFAULTS = {"max_new_tokens": 256, "num_beams": 4}  # those of v4, where a model says nothing


class AnyTranslationPipeline(TranslationPipeline):
    """Translate with Marian, mBART, M2M100, NLLB, T5 or another encoder-decoder of transformers, as v4 did.

        translate = transformers.pipeline("translation_en_to_de", model="google-t5/t5-small")
        translate = transformers.pipeline("translation", model="facebook/nllb-200-distilled-600M", src_lang="eng_Latn")
        translate("A dog runs.", tgt_lang="deu_Latn")

    A model of this package is served as by `TranslationPipeline`, for its own languages. Another model gets the prefix
    and the search options that `task_specific_params` of its config has for the task (T5). Where its tokenizer needs
    languages (mBART, M2M100, NLLB), they are those of the call, the constructor or the task name. Its text is not split
    at line breaks, but into sentences where `split_sentences` is given.

    Raises:
        ValueError: if the tokenizer needs languages and none are given, or if our model has others.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not self._is_own:
            specific = dict((getattr(self.model.config, "task_specific_params", None) or {}).get(self.task, {}))
            self.prefix = specific.pop("prefix", self.prefix) or ""
            self._generate_kwargs = specific | self._generate_kwargs
            self._generation_defaults = GENERATION_DEFAULTS | self._generation_defaults

    @property
    def _splits_lines(self) -> bool:
        return self._is_own

    @property
    def _is_own(self) -> bool:
        return self.model.config.model_type == VaswaniConfig.model_type

    def _check_languages(self, **languages: Any) -> None:
        if self._is_own:
            super()._check_languages(**languages)

    def _encode(self, sentence: str, truncation: bool, **languages: str) -> dict[str, Any]:
        if self._is_own:
            return super()._encode(sentence, truncation)
        text = self.prefix + (sentence or self.tokenizer.pad_token)  # a model needs a token
        options = {"truncation": truncation, "return_tensors": "pt"}
        if hasattr(self.tokenizer, "_build_translation_inputs"):
            source, target = self._read_languages(**languages)
            inputs = self.tokenizer._build_translation_inputs(text, **options, src_lang=source, tgt_lang=target)
        else:
            inputs = self.tokenizer(text, **options)
        inputs.pop("token_type_ids", None)
        return dict(inputs)


def pipeline(
    task: str = "translation",
    model: str | Path | PreTrainedModel | None = None,
    tokenizer: object = None,
    **kwargs,
) -> Pipeline:
    """Return `transformers.pipeline(task, model, ...)`; the model may be a run folder too.

    Args:
        model: a model folder, a run folder (its newest model), a Hub id, or a model object (then give `tokenizer` too).
        kwargs: as of `transformers.pipeline`, such as `dtype`, `device`, `batch_size` or arguments of `generate()`.
    """
    if model is None:
        raise ValueError(f'task {task!r} has no default model: give model="folder or Hub id".')
    if isinstance(model, str | Path) and Path(model).is_dir():
        model = str(find_model_folder(Path(model)))
    # No code beside a model is run: transformers would ask for it on standard input.
    return transformers.pipeline(task, model, tokenizer=tokenizer, **kwargs | {"trust_remote_code": False})
