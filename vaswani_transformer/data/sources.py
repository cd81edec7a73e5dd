"""Parallel text that a user names: files, a folder, a dataset of the Hub, or the built-in corpus."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .corpus import Pair, describe_source, open_parallel
from .phrasebook.pairs import generate_pairs

PHRASEBOOK = "phrasebook"  # The name of the built-in corpus.


def find_languages(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the languages in the endings of two text files, such as train.en and train.de.gz.

    If the endings do not name two languages, return `None`.
    """
    endings = [Path(name.removesuffix(".gz")).suffix.removeprefix(".") for name in names]
    are_codes = len(set(endings)) == 2 and all(re.fullmatch("[a-z]{2}", ending) for ending in endings)  # ISO 639-1
    return (endings[0], endings[1]) if are_codes else None


@dataclass(frozen=True)
class Source:
    """Parallel text, as a user names it on the command line.

    Attributes:
        names: "phrasebook" alone, or names in one of the forms that `corpus.ACCEPTED_FORMS` lists.
        languages: the languages of source and target.
        columns: the names of the columns of source and target. `None` means that a column has its language as name.
        split: see `open_parallel`.
        num_pairs: the number of pairs to generate if the text is the phrasebook. Other text ignores it.
        cache: see `open_parallel`.

    Raises:
        ValueError: if the text is the phrasebook and the languages are not from English to German, or if the endings of
            two files name the two languages in reverse order.
    """

    names: Sequence[str]
    languages: tuple[str, str]
    columns: tuple[str | None, str | None]
    split: str
    num_pairs: int
    cache: Path | None = None

    def __post_init__(self) -> None:
        source, target = self.languages
        if self._is_phrasebook and self.languages != ("en", "de"):
            raise ValueError(
                f"the phrasebook is from en to de, not from {source} to {target}: leave the languages out."
            )
        if find_languages(self.names) == (target, source):
            raise ValueError(
                f"{' '.join(self.names)}: by their endings these files are from {target} to {source}, but the "
                f"languages are {source} to {target}. Name the file of the source first."
            )

    @property
    def _is_phrasebook(self) -> bool:
        return self.names == [PHRASEBOOK]

    def read(self) -> Iterable[Pair]:
        """Return the pairs, at each call from the first pair on."""
        if self._is_phrasebook:
            # Hub datasets call the development set "validation", the phrasebook calls it "dev".
            return generate_pairs(split={"validation": "dev"}.get(self.split, self.split), num_pairs=self.num_pairs)
        columns = tuple(column or language for column, language in zip(self.columns, self.languages, strict=True))
        return open_parallel(self.names, columns, split=self.split, cache=self.cache)

    def describe(self) -> list[dict]:
        """Return JSON values that identify the text, for a fingerprint."""
        if self._is_phrasebook:
            return [{"dataset": PHRASEBOOK, "split": self.split, "num_pairs": self.num_pairs}]
        return describe_source(self.names, split=self.split)
