"""Say noun phrases and clauses in English and in German.

A German clause is a frame of two brackets. The left bracket is the finite verb: the second part of a statement, or the
first word of a yes-no question. In a subordinate clause the finite verb comes last. The right bracket is a prefix, a
participle or an infinitive. The words between the brackets are the *middle field*. They have a fixed order, which also
gives `nicht` its place:

    der Mann | hat | dem Kind das Buch nicht          | gegeben     verb second
             | hat | der Mann dem Kind das Buch nicht | gegeben     verb first
    weil     |     | der Mann dem Kind das Buch nicht | gegeben hat verb last
"""

from dataclasses import dataclass

from .words import TABLES, Forms, Word

# The places of a clause in their order. A pronoun without preposition has its own place, because German puts it first.
_ENGLISH_ORDER = ("object", "pronoun", "recipient", "prepositional", "time")
_GERMAN_ORDER = ("pronoun", "time", "recipient", "object", "negation", "prepositional")
_AUXILIARIES = {word.name: word for word in TABLES["auxiliaries"]}
_ENDINGS = {row.declension: vars(row) for row in TABLES["endings"]}  # declension -> gender -> case -> ending


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun in both languages."""

    english: str
    english_object: str
    person: str
    meaning: str  # It is equal in phrases that may mean the same people or things.
    german: Forms


PRONOUNS = [Phrase(**vars(word)) for word in TABLES["pronouns"]]


@dataclass
class Clause:
    """A verb with its subject and other parts.

    Attributes:
        tense: "present", "past" or an English modal verb.
        parts: the words of each place, in English and in German. `_GERMAN_ORDER` lists the places.
    """

    verb: Word
    tense: str
    subject: Phrase
    parts: dict[str, tuple[str, str]]


def say_english(clause: Clause, *, is_question: bool = False) -> str:
    """Return the clause in English, as a statement or as a yes-no question."""
    verb = clause.verb
    subject = clause.subject.english
    person = clause.subject.person
    auxiliary = _AUXILIARIES[clause.tense].english[person]
    negation = "not" if "negation" in clause.parts else ""
    rest = [clause.parts[place][0] for place in _ENGLISH_ORDER if place in clause.parts]
    if is_question:
        return _join(auxiliary, subject, negation, verb.english, *rest)
    if negation or clause.tense not in ("present", "past"):
        return _join(subject, auxiliary, negation, verb.english, *rest).replace("can not ", "cannot ")
    present = verb.third_person if person == "he" else verb.english
    return _join(subject, verb.past if clause.tense == "past" else present, *rest)


def say_german(clause: Clause, finite_verb: str) -> str:
    """Return the clause in German, with its finite verb "first", "second" or "last"."""
    verb = clause.verb
    prefix = ""
    if clause.tense == "present":
        forms = verb.present
        infinite = ""
        prefix = verb.prefix
    elif clause.tense == "past":
        forms = _AUXILIARIES[verb.auxiliary].german
        infinite = verb.participle
    else:
        forms = _AUXILIARIES[clause.tense].german
        infinite = verb.prefix + verb.german
    finite = forms[clause.subject.person]
    subject = clause.subject.german["nominative"]
    middle = [clause.parts[place][1] for place in _GERMAN_ORDER if place in clause.parts]
    if finite_verb == "first":
        return _join(finite, subject, *middle, infinite, prefix)
    if finite_verb == "second":
        return _join(subject, finite, *middle, infinite, prefix)
    return _join(subject, *middle, infinite, prefix + finite)


def noun_phrase(noun: Word, determiner: Word, adjective: Word | None) -> Phrase:
    """Return a noun phrase in both languages."""
    english = _join(determiner.english, adjective and adjective.english, noun.english)
    german = {}
    for case, form in noun.german.items():
        ending = _ENDINGS[determiner.declension][noun.gender][case]
        # The adjective has a strong ending if the determiner has no ending: ein alter Mann, but dieser alte Mann.
        other_ending = _ENDINGS["weak" if ending else "strong"][noun.gender][case]
        german[case] = _join(determiner.german_stem + ending, adjective and adjective.german_stem + other_ending, form)
    return Phrase(english, english, "they" if noun.number == "plural" else "he", noun.name, german)


def _join(*words: str | None) -> str:
    """Return the words that are not empty, with a space between them."""
    return " ".join(filter(None, words))
