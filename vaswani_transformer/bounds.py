"""Numbers that a user gives, on the command line, in recipes or in files, lie between bounds.

Without bounds, a typing error or a damaged file could request all memory.
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """The numbers from `least` to `most`: whole ones, if `least` is a whole number."""

    least: float
    most: float

    def __contains__(self, value: object) -> bool:
        kinds = int if isinstance(self.least, int) else int | float
        return isinstance(value, kinds) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a {'whole ' if isinstance(self.least, int) else ''}number from {self.least:,} to {self.most:,}"

    def __call__(self, text: str) -> float:
        """Parse an option, as argparse calls its `type`."""
        try:
            value = type(self.least)(text)
        except ValueError:
            value = None
        if value not in self:
            raise argparse.ArgumentTypeError(f"expected {self}, got {text!r:.40}")
        return value
