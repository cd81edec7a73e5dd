"""The entry point of `vaswani`. It stands outside the package, whose import loads torch and transformers."""

from vaswani_transformer.cli import main  # noqa: F401
