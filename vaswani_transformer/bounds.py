"""Bounds for numbers on the command line, in recipes and in files.

Without bounds, a mistyped number or a damaged file could make the program request all memory.
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """The numbers from `least` to `most`. If `least` is an int, only whole numbers are allowed."""

    least: float
    most: float

    def __contains__(self, value: object) -> bool:
        kinds = int if isinstance(self.least, int) else int | float
        return isinstance(value, kinds) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a {'whole ' if isinstance(self.least, int) else ''}number from {self.least:,} to {self.most:,}"

    def __call__(self, text: str) -> float:
        """Return the number in `text`. argparse calls this for an option with this object as its `type`.

        Raises:
            argparse.ArgumentTypeError: if `text` is no number within these bounds.
        """
        try:
            value = type(self.least)(text)
        except ValueError:
            value = None
        if value not in self:
            raise argparse.ArgumentTypeError(f"expected {self}, got {text!r:.40}")
        return value


SEARCH_BOUNDS = {  # for options of the search, on the command line and in a generation config
    "num_beams": Number(1, 1_000),
    "length_penalty": Number(-10.0, 10.0),
    "max_length_offset": Number(0, 10_000),
    "max_length": Number(1, 100_000),
}
