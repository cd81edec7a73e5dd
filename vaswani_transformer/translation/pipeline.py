"""`pipeline("translation")` as in transformers v4, for models of this package and for all other encoder-decoders."""

from pathlib import Path
from typing import Any

import transformers
from torch import Tensor
from transformers import Pipeline, PreTrainedModel

from ..data.tokenization import warn_of_lost_tokens
from ..devices import limit_threads
from ..loading import check_place
from ..model import pipeline_vaswani
from ..model.configuration_vaswani import VaswaniConfig
from ..model.pipeline_vaswani import find_languages
from ..runs import find_model_folder
from ..text import BROKEN, drop_broken, end_sentence, find_hints, split_sentences

logger = transformers.utils.logging.get_logger(__name__)


class TranslationPipeline(pipeline_vaswani.TranslationPipeline):
    """A pipeline for Marian, mBART, M2M100, NLLB, T5 and other encoder-decoders, as in transformers v4.

        translate = transformers.pipeline("translation_en_to_de", model="google-t5/t5-small")
        translate = transformers.pipeline("translation", model="facebook/nllb-200-distilled-600M", src_lang="eng_Latn")
        translate("A dog runs.", tgt_lang="deu_Latn")

    A model of this package is treated as in `pipeline_vaswani`, and translates by an engine, which is faster. The
    engine holds a second copy of the weights, and is built again after the model has changed. A `Translator`, which the
    command line uses, keeps only the engine. Other models differ in three points:

    - A prefix and search options for the task are read from `task_specific_params` of the config (T5).
    - If the tokenizer needs languages (mBART, M2M100, NLLB), the call, the constructor or the task name gives them.
    - Text is not split at line breaks. It is split into sentences if `split_sentences` is given.

    Raises:
        ValueError: if the model is no encoder-decoder, if the tokenizer needs languages and none are given, or if a
            model of this package was trained on other languages than the given ones.
    """

    _engine = None  # built at the first translation

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not self.model.config.is_encoder_decoder:
            raise ValueError(
                f"translation needs an encoder-decoder, such as Marian or T5, and {type(self.model).__name__} is none. "
                f'For a decoder use the task "text-generation".'
            )
        if self._is_own:
            warn_of_lost_tokens(self.tokenizer)
        else:
            specific = dict((getattr(self.model.config, "task_specific_params", None) or {}).get(self.task, {}))
            self.prefix = specific.pop("prefix", self.prefix) or ""
            self._generate_kwargs = specific | self._generate_kwargs
            # The defaults of the translation pipeline of transformers v4, for models without these options.
            self._generation_defaults = {"max_new_tokens": 256, "num_beams": 4} | self._generation_defaults

    def __getstate__(self) -> dict:
        """Return the attributes to pickle: all but the engine, which a loaded pipeline builds again."""
        return super().__getstate__() | {"_engine": None}

    @property
    def _is_own(self) -> bool:
        """True for a model of this package."""
        return self.model.config.model_type == VaswaniConfig.model_type

    def _find_engine(self) -> dict[str, Any]:
        """Return {"engine": ...} for `generate`, or {} for models of other packages."""
        # The class is examined, because an adapter object of peft would return the method of the model that it wraps.
        # An engine from this method may lack the adapter.
        if getattr(type(self.model), "faster", None) is None:
            return {}
        self._engine = self.model.faster.find_engine(self.model, kept=self._engine)
        return {"engine": self._engine}

    def _forward(self, model_inputs: dict[str, Any], **generate_kwargs) -> dict[str, Any]:
        with limit_threads(self.device):
            return super()._forward(model_inputs, **self._find_engine() | generate_kwargs)

    def _split(self, sentence: str, is_split: bool, **languages: str) -> list[tuple[str, str]]:
        of_model = find_languages(vars(self.model.config)) or ("en",)
        language = self._read_languages(**languages)[0] or of_model[0]
        if not (is_split or self._is_own):
            return [(sentence, "")]
        parts = split_sentences(sentence, language) if is_split else super()._split(sentence, is_split)
        if self._is_own:
            hints = find_hints([line for line, _ in parts], language, self.tokenizer, is_split=is_split)
            for hint, lines in hints.items():
                if lines:
                    logger.warning_once(f"a line has {hint}.")
        return parts

    def _decode(self, line: dict[str, Any], clean_up: bool) -> list[tuple[Tensor, str]]:
        decoded = []
        for tokens, text in super()._decode(line, clean_up):
            whole = drop_broken(text, line["source"])
            if whole != text:
                logger.warning_once(f"a line has {BROKEN}.")
            decoded.append((tokens, end_sentence(whole, line["source"], line["space"])))
        return decoded

    def _check_languages(self, **languages: Any) -> None:
        if self._is_own:
            super()._check_languages(**languages)

    def _encode(self, sentence: str, truncation: bool, **languages: str) -> dict[str, Any]:
        if self._is_own:
            return super()._encode(sentence, truncation)
        text = self.prefix + (sentence or self.tokenizer.pad_token)  # A model needs at least one token.
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
    """Return `transformers.pipeline(task, model, ...)`, where `model` may also be a run folder.

    Args:
        model: a model folder, a run folder (then its newest model is taken), a Hub id, or a model object. With a model
            object, give `tokenizer` too.
        kwargs: arguments of `transformers.pipeline`, such as `dtype`, `device`, `batch_size`, or of `generate()`.

    Raises:
        FileNotFoundError: if `model` is a path that does not exist, and no Hub id.
        OSError: if `model` is no folder, and the Hub has no such model or does not answer.
        ValueError: if no `model` is given for a translation, or if the model needs code that lies beside it. Such code
            never runs here.
    """
    if isinstance(model, str | Path):
        path = Path(model)
        if path.is_dir():
            model = str(find_model_folder(path))
        elif "/" in str(model):
            check_place(model)
    try:
        # Without a value for `trust_remote_code`, transformers would ask on standard input.
        return transformers.pipeline(task, model, tokenizer=tokenizer, **kwargs | {"trust_remote_code": False})
    except OSError as error:
        if not isinstance(model, str) or Path(model).exists():
            raise
        raise OSError(f"{model} is no folder in {Path.cwd()}, and was not loaded from the Hub: {error}") from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):  # transformers has no class for this error.
            raise
        raise ValueError(
            f"{model} needs code that lies beside it, and vaswani_transformer.pipeline never runs such code: first "
            f"import the module that defines its class, or call transformers.pipeline with trust_remote_code=True."
        ) from None
