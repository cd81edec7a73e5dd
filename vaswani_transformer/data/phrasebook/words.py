"""Read the words of the phrasebook, with all their forms, from the tables of `lexicon.txt`."""

from functools import cache
from importlib.resources import files
from types import SimpleNamespace

CASES = ("nominative", "accusative", "dative", "genitive")
PERSONS = ("I", "you", "he", "we", "they")  # "you" is one person and familiar (du); "she" is inflected as "he"
_FORMS = {"by case": CASES, "by person": PERSONS}

Forms = dict[str, str]


class Word(SimpleNamespace):
    """A row of a table: an attribute for each column."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


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
    """Return the name of the column and the text of the cell, or its parts as the title says."""
    name, _, layout = title.partition(" ")
    text = "" if cell == "-" else cell
    if layout in _FORMS:
        return name, dict(zip(_FORMS[layout], text.split(", "), strict=False))  # pronouns have no genitive here
    return name, text.split() if layout == "list" else text


@cache
def nouns_in(names: str) -> tuple[Word, ...]:
    """Return the nouns of all groups in `names`, each once; a kind of nouns and a single noun are groups, too."""
    nouns: list[Word] = []
    for name in names.split():
        members = [group.nouns for group in TABLES["groups"] if group.name == name]
        nouns += nouns_in(members[0]) if members else [noun for noun in NOUNS if name in (noun.kind, noun.english)]
    return tuple(dict.fromkeys(nouns))


TABLES = _read_tables()
NOUNS = tuple(TABLES["nouns"])
ADJECTIVES = tuple(TABLES["adjectives"])
VERBS = tuple(TABLES["verbs"])
DETERMINERS = {word.english: word for word in TABLES["determiners"]}
MODALS = {word.english: word for word in TABLES["modals"]}
AUXILIARIES = {word.name: word.forms for word in TABLES["auxiliaries"]}
