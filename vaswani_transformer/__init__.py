"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017) for Hugging Face transformers."""

import sys

__version__ = "0.1.0"

# The command line imports torch and transformers late, so that its help does not wait for them, and Ctrl+C prints one
# line instead of a traceback. So the command line skips the imports below. The command line is recognised by one of two
# signs. The script `vaswani` imports vaswani_cli before this file. With `python -m vaswani_transformer`, sys.orig_argv
# holds "-m" and "vaswani_transformer", and sys.argv[0] is still "-m" while this file is imported.
_is_run = sys.argv[:1] == ["-m"] and ("-m", __name__) in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
if "vaswani_cli" not in sys.modules and not _is_run:
    from . import registration  # noqa: F401 - Its import registers the model with transformers.
    from .data.tokenization import train_tokenizer
    from .model.configuration_vaswani import VaswaniConfig
    from .model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
    from .translation.pipeline import TranslationPipeline, pipeline

    __all__ = [
        "TranslationPipeline",
        "VaswaniConfig",
        "VaswaniForConditionalGeneration",
        "VaswaniModel",
        "pipeline",
        "train_tokenizer",
    ]

    def __dir__() -> list[str]:
        return __all__
