"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) for Hugging Face transformers."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .registration import AutoClassFinder

if TYPE_CHECKING:
    from .data.tokenization import train_tokenizer
    from .model.configuration_vaswani import VaswaniConfig
    from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
    from .model.pipeline_vaswani import TranslationPipeline, pipeline

__all__ = [
    "TranslationPipeline",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "pipeline",
    "train_tokenizer",
]
_MODULES = {
    "TranslationPipeline": "model.pipeline_vaswani",
    "VaswaniConfig": "model.configuration_vaswani",
    "VaswaniForConditionalGeneration": "model.modeling_vaswani",
    "VaswaniModel": "model.modeling_vaswani",
    "pipeline": "model.pipeline_vaswani",
    "train_tokenizer": "data.tokenization",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562): torch and transformers take seconds to import."""
    if name == "__version__":
        from importlib.metadata import version

        value = version("vaswani-transformer")
    elif name in _MODULES:
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


# So that `AutoModelForSeq2SeqLM.from_pretrained` and its like find our classes without trust_remote_code.
_finder = AutoClassFinder()
sys.meta_path.insert(0, _finder)
_finder.register()
