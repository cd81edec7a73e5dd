"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) for Hugging Face transformers."""

import sys

__version__ = "0.1.0"

if "vaswani_cli" not in sys.modules:  # the command line, whose help need not wait for torch and transformers
    from . import registration  # noqa: F401 - its import registers
    from .data.tokenization import train_tokenizer
    from .model.configuration_vaswani import VaswaniConfig
    from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
    from .model.pipeline_vaswani import TranslationPipeline
    from .translation.pipeline import pipeline

    __all__ = [
        "TranslationPipeline",
        "VaswaniConfig",
        "VaswaniForConditionalGeneration",
        "VaswaniModel",
        "pipeline",
        "train_tokenizer",
    ]
