"""Read the words of the phrasebook, with all their forms, from the tables of `lexicon.txt`."""

from functools import cache
from importlib.resources import files
from typing import Any

_FORMS = {
    "by case": ("nominative", "accusative", "dative", "genitive"),
    "by person": ("I", "you", "he", "we", "they"),  # "you" is singular and familiar (du); "she" is inflected like "he"
}

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
            cells = zip(titles.split(" | "), line.split(" | "), strict=True)
            tables[name].append(Word(**dict(_read_cell(title, cell) for title, cell in cells)))
    return tables


def _read_cell(title: str, cell: str) -> tuple[str, str | list[str] | Forms]:
    """Return the name of the column and the content of the cell.

    The title is the name of the column and the layout of its cells: "list", "by case" or "by person". Without a layout,
    the content is the text of the cell.
    """
    name, _, layout = title.partition(" ")
    text = "" if cell == "-" else cell
    if layout in _FORMS:
        forms = ["" if form == "-" else form for form in cell.split(", ")]
        return name, dict(zip(_FORMS[layout], forms, strict=False))  # Pronouns have no genitive here.
    return name, text.split() if layout == "list" else text


@cache
def nouns_in(names: str) -> tuple[Word, ...]:
    """Return the nouns of all `names`, each once. A name is a group, a kind of noun, or one English noun."""
    nouns: list[Word] = []
    for name in names.split():
        members = [group.nouns for group in TABLES["groups"] if group.name == name]
        nouns += nouns_in(members[0]) if members else [noun for noun in NOUNS if name in (noun.kind, noun.english)]
    return tuple(dict.fromkeys(nouns))


TABLES = _read_tables()
NOUNS = TABLES["nouns"]
ADJECTIVES = TABLES["adjectives"]
VERBS = TABLES["verbs"]
DETERMINERS = {word.english: word for word in TABLES["determiners"]}
AUXILIARIES = {word.name: word.forms for word in TABLES["auxiliaries"]}
ADJECTIVES_OF = {noun: [word for word in ADJECTIVES if noun in nouns_in(word.nouns)] for noun in NOUNS}
