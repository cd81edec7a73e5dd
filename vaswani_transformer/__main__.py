"""The command line for `python -m vaswani_transformer` and `accelerate launch -m vaswani_transformer train ...`."""

from vaswani_transformer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
