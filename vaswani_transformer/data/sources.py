"""Parallel text by the names that a user gives it: files, a folder, a dataset of the Hub, or the built-in corpus."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .corpus import Pair, describe_source, open_parallel, survey
from .phrasebook.pairs import generate_pairs

PHRASEBOOK = "phrasebook"  # the name of the built-in corpus


@dataclass(frozen=True)
class Source:
    """The text called `names`; see `corpus.ACCEPTED_FORMS`.

    Raises:
        ValueError: for languages that the phrasebook does not have.
    """

    names: Sequence[str]
    languages: tuple[str, str]
    columns: tuple[str | None, str | None]  # those of the languages if not given
    split: str
    num_pairs: int  # of the phrasebook
    cache: Path | None = None  # of `open_parallel`

    def __post_init__(self) -> None:
        if self._is_phrasebook and self.languages != ("en", "de"):
            languages = " to ".join(self.languages)
            raise ValueError(f"the phrasebook is from en to de, not {languages}: leave the languages out.")

    @property
    def _is_phrasebook(self) -> bool:
        return self.names == [PHRASEBOOK]

    @property
    def _columns(self) -> tuple[str, str]:
        return tuple(column or language for column, language in zip(self.columns, self.languages, strict=True))

    def read(self) -> Iterable[Pair]:
        """Read the pairs from the start."""
        if self._is_phrasebook:
            return generate_pairs(split={"validation": "dev"}.get(self.split, self.split), num_pairs=self.num_pairs)
        return open_parallel(self.names, self._columns, split=self.split, cache=self.cache)

    def describe(self) -> list[dict]:
        """Identify the text, for a fingerprint."""
        if self._is_phrasebook:
            return [{"dataset": PHRASEBOOK, "split": self.split, "num_pairs": self.num_pairs}]
        return describe_source(self.names, split=self.split)

    def survey(self) -> tuple[list[dict], int | None]:
        """Return what `describe` does and the number of pairs, if it is known, from one reading."""
        if self._is_phrasebook:
            return self.describe(), self.num_pairs
        return survey(self.names, self._columns, split=self.split)
