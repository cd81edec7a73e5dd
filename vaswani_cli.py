"""The entry point of `vaswani`. It stands outside the package, whose import loads torch and transformers."""

import signal


def main() -> int:
    try:
        from vaswani_transformer.cli import main
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    return main()
