"""The meaning of a phrasebook sentence, before any language.

A `Sentence` is a main clause and perhaps a subordinate one; a `Clause` is a subject, a verb and their complements.
`english` and `german` choose order and endings.
"""

from __future__ import annotations

from dataclasses import dataclass

from .lexicon import GOALS, PERSONS, Adjective, Adverb, Noun, Pronoun, Relation, TimeAdverb, Verb


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner; `possessor` (the teacher's book) and `relative` need the determiner "the".

    `determiner` is the, a, this, every, a possessive (my) or a quantifier (two). "a" with a plural or mass noun is no
    word in English: books, bread.
    """

    noun: Noun
    determiner: str = "the"
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
    """The subject of a who-question, or that of a relative clause about its `antecedent`."""

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
    """One clause, mutable because it is drawn piece by piece; its subject is `None` until it is drawn.

    `polarity` is positive, not or never; `tense` is present or past (the future is the modal "will"); `question` is ""
    or one of yes-no, who, what, where, when, why; `fronted` is subject, time or location.
    """

    subject: NounPhrase | Pronoun | Who | None
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
    tense: str = "present"
    modal: Verb | None = None
    polarity: str = "positive"
    question: str = ""
    fronted: str = "subject"

    @property
    def is_negative(self) -> bool:
        return self.polarity != "positive"

    @property
    def has_goal_verb(self) -> bool:
        """True if "where" asks for a direction (German wohin), as it does of go and carry."""
        return any(trait in GOALS for trait in self.verb.traits)


@dataclass(frozen=True)
class Sentence:
    """A main clause and, joined by a conjunction, a subordinate clause before or after it."""

    main: Clause
    conjunction: str = ""  # a key of CONJUNCTIONS, or "" when there is no subordinate clause
    subordinate: Clause | None = None
    subordinate_first: bool = False
