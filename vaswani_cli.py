"""The entry point of `vaswani`. It stands outside the package, whose import loads torch and transformers."""


def main() -> int:
    from vaswani_transformer.cli import main

    return main()
