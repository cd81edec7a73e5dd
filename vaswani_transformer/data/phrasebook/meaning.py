"""Meanings of phrasebook sentences, without the order and the endings of any language."""

from __future__ import annotations

from dataclasses import dataclass

from .lexicon import GOALS, PERSONS, Adjective, Adverb, Noun, Pronoun, Relation, TimeAdverb, Verb


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner; `possessor` (the teacher's book) and `relative` need the determiner "the"."""

    noun: Noun
    determiner: str = "the"  # or this, every, my, two; or a, which has no word before a plural or mass noun
    is_plural: bool = False
    adjective: Adjective | None = None
    possessor: NounPhrase | None = None
    relative: Clause | None = None

    @property
    def person(self) -> int:
        """Index into the verb forms."""
        return PERSONS.index("they" if self.is_plural else "he")


@dataclass(frozen=True)
class Who:
    """The subject of a who-question, or of a relative clause about its `antecedent`."""

    antecedent: NounPhrase | None = None

    @property
    def person(self) -> int:
        """Index into the verb forms."""
        return self.antecedent.person if self.antecedent else PERSONS.index("he")


@dataclass(frozen=True)
class PrepositionalPhrase:
    """With the child, in the garden, into the garden."""

    relation: Relation
    phrase: NounPhrase | Pronoun


@dataclass(kw_only=True)
class Clause:
    """A clause; it can be changed, because it is drawn piece by piece."""

    subject: NounPhrase | Pronoun | Who
    verb: Verb
    object: NounPhrase | Pronoun | None = None
    recipient: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None  # of "be": the child is tired
    degree: Adverb | None = None  # very tired
    companion: PrepositionalPhrase | None = None  # with or for a person
    location: PrepositionalPhrase | None = None
    goal: PrepositionalPhrase | None = None
    time: TimeAdverb | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    tense: str = "present"  # or past; the future is the modal "will"
    modal: Verb | None = None
    polarity: str = "positive"  # or not, never
    question: str = ""  # or yes-no, who, what, where, when, why
    fronted: str = "subject"  # or time, location

    @property
    def is_negative(self) -> bool:
        return self.polarity != "positive"

    @property
    def has_goal_verb(self) -> bool:
        """True if "where" asks for a direction (German wohin), as with go and carry."""
        return any(trait in GOALS for trait in self.verb.traits)


@dataclass(frozen=True)
class Sentence:
    """A main clause and, joined by a conjunction, a subordinate clause before or after it."""

    main: Clause
    conjunction: str = ""  # a key of CONJUNCTIONS, or "" when there is no subordinate clause
    subordinate: Clause | None = None
    subordinate_first: bool = False
