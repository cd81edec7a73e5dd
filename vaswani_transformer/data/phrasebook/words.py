"""Read the words of the phrasebook, with all their forms, from the tables of `lexicon.txt`."""

from functools import cache
from importlib.resources import files
from typing import Any

# The names of the forms in a cell, by how many forms it has. "she" is inflected like "he".
_FORM_NAMES = {3: ("nominative", "accusative", "dative"), 5: ("I", "you", "he", "we", "they")}

Forms = dict[str, str]


class Word:
    """A row of a table, with an attribute for each column."""

    def __init__(self, **columns: Any):
        self.__dict__.update(columns)


def _read_tables() -> dict[str, list[Word]]:
    tables: dict[str, list[Word]] = {}
    for line in (files(__package__) / "lexicon.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name, titles = line.strip("[]").split(": ")
            tables[name] = []
        elif line and not line.startswith("#"):
            cells = map(_read_cell, line.split(" | "))
            tables[name].append(Word(**dict(zip(titles.split(" | "), cells, strict=True))))
    return tables


def _read_cell(cell: str) -> str | Forms:
    """Return the text of a cell, or its forms by case or by person."""
    forms = ["" if form == "-" else form for form in cell.split(", ")]
    return forms[0] if len(forms) == 1 else dict(zip(_FORM_NAMES[len(forms)], forms, strict=True))


@cache
def nouns_in(names: str, excluded: str = "") -> list[Word]:
    """Return the nouns that `names` means, without the noun `excluded`.

    Spaces separate the names. A name is a group, a kind of noun, or the name of one noun.
    """
    members = {member for name in names.split() for member in _GROUPS.get(name, name).split()}
    return [noun for noun in NOUNS if members & {noun.kind, noun.name} and noun.name != excluded]


TABLES = _read_tables()
NOUNS = TABLES["nouns"]
_GROUPS = {group.name: group.nouns for group in TABLES["groups"]}
ADJECTIVES_OF = {noun: [word for word in TABLES["adjectives"] if noun in nouns_in(word.nouns)] for noun in NOUNS}
