"""Draw phrasebook meanings at random: sensible sentences with one translation.

Left out are sentences whose translation is no function of the English, or that a small model cannot learn:

- "you" is one person and familiar (du); people in general are masculine (der Lehrer).
- A verb whose past looks like its base ("read") is not used in the past.
- "do not have to" is not said. The subject of a negation has neither a quantifier nor "a", because its scope would be
  open: "a man does not sleep".
- An indefinite plural or mass noun is never a subject ("children sleep"), nor the object of love or fear.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from .lexicon import (
    ABSOLUTE_STATES,
    ADJECTIVES,
    ADJECTIVES_OF,
    BE,
    CLAUSE_VERBS,
    DEGREE_ADVERBS,
    FREQUENCY_ADVERBS,
    GOALS,
    GROUPS,
    LOCATIONS,
    MANNER_ADVERBS,
    MODALS,
    PASSING_STATES,
    POSSESSIVES,
    PRONOUNS,
    QUANTIFIERS,
    RELATIONS,
    TIME_ADVERBS,
    VERBS,
    Adjective,
    Noun,
    Pronoun,
    TimeAdverb,
    Verb,
    nouns_in,
)
from .meaning import Clause, NounPhrase, PrepositionalPhrase, Sentence, Who

T = TypeVar("T")

# Time frames of a clause, and how often each is drawn. "modal" is a modal verb in the present.
FRAMES = ("present",) * 4 + ("past",) * 4 + ("modal",) * 2 + ("past modal", "future", "future")

# How a noun phrase is determined, and how often: "own" is a possessive, "owner" another noun (the king's).
_KNOWN = ("the",) * 6 + ("this", "this", "own", "own", "owner")
_INDEFINITE = ("a",) * 4
_QUANTITY = ("every", "quantity")
_SENTENCE_KINDS = (
    ("statement",) * 40
    + ("yes-no",) * 12
    + ("who",) * 3
    + ("what", "where", "when", "why") * 3
    + ("relative",) * 4
    + ("because",) * 9
    + ("if",) * 6
    + ("when-clause",) * 5
    + ("that",) * 7
    + ("whether",) * 4
)


class Dice:
    """Random choices that are the same in every process and every version of Python.

    Python promises equal numbers of `random.Random(seed).random()`, but not of `choice` or `shuffle`.
    """

    def __init__(self, seed: str):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]


def draw_sentence(dice: Dice) -> Sentence:
    """Draw one sentence of any kind; the same one may be drawn again."""
    kind = dice.choose(_SENTENCE_KINDS)
    if kind == "statement":
        return Sentence(_draw_clause(dice, is_statement=True))
    if kind == "relative":
        return Sentence(_draw_clause(dice, subject=_draw_modified_subject(dice), is_short=True))
    if kind in ("that", "whether"):
        return _draw_reported(dice, kind)
    if kind in ("because", "if", "when-clause"):
        return _draw_joined(dice, kind.removesuffix("-clause"))
    return Sentence(_draw_clause(dice, question=kind))


def _draw_modified_subject(dice: Dice) -> NounPhrase:
    """Draw "the man who reads the book"."""
    head = NounPhrase(dice.choose(GROUPS["human"]), is_plural=dice.chance(0.3))
    relative = _draw_clause(dice, subject=Who(head), frames=("present", "past"), is_short=True)
    return replace(head, relative=relative)


def _draw_reported(dice: Dice, conjunction: str) -> Sentence:
    """Draw "the man says that ..." or "the man does not know whether ..."."""
    verb = dice.choose([verb for verb in CLAUSE_VERBS.values() if conjunction in verb.traits])
    main = Clause(subject=_draw_subject(dice, GROUPS["human"], is_short=True), verb=verb)
    if verb is CLAUSE_VERBS["know"]:
        # "He does not know that" would contradict itself, and "he knows whether" would tell little.
        ways = ("question", "statement") if conjunction == "that" else ("question", "not", "want to")
        way = dice.choose(ways)
        if way == "question":
            main.question, main.subject = "yes-no", PRONOUNS["you"]
        elif way == "not":
            main.polarity = "not"
        elif way == "want to":
            main.modal = MODALS["want to"]
    subordinate = _draw_clause(dice, is_short=True, is_positive=conjunction == "whether")
    return Sentence(main, conjunction, subordinate)


def _draw_joined(dice: Dice, conjunction: str) -> Sentence:
    """Draw two clauses joined by because, if or when, in time frames that fit together."""
    frame, reasons = "present", ("present",)
    if conjunction == "because":
        frame = dice.choose(FRAMES)
        reasons = ("past", "past modal") if frame.startswith("past") else ("present", "modal")
    elif conjunction == "if":
        frame = dice.choose(("present", "modal", "future"))
    elif dice.chance(0.5):
        frame, reasons = "past", ("was",)
    is_first = conjunction != "because" and dice.chance(0.5)
    main = _draw_clause(dice, frames=(frame,), is_short=True)
    subordinate = _draw_clause(dice, frames=reasons, is_short=True)
    return Sentence(main, conjunction, subordinate, is_first)


def _draw_clause(
    dice: Dice,
    *,
    frames: Sequence[str] = FRAMES,
    question: str = "",
    subject: NounPhrase | Who | None = None,
    is_statement: bool = False,
    is_short: bool = False,
    is_positive: bool = False,
) -> Clause:
    """Draw a clause in one of `frames`.

    Args:
        frames: of FRAMES, or "was" for a past state.
        question: "" or the kind of question.
        subject: people, if it is already known.
        is_statement: a whole sentence, which may begin with an adverbial.
        is_short: with few adjectives and adverbials, for a sentence that has another clause.
    """
    frame = dice.choose(frames)
    if question == "who":
        subject = Who()
    verb = BE if frame == "was" else _draw_verb(dice, frame, question, has_human_subject=subject is not None)
    is_modified = isinstance(subject, NounPhrase)  # a second "not" in its relative clause is too much
    polarity = "positive" if is_positive or is_modified else _draw_polarity(dice, question)
    if polarity == "never" and (frame == "was" or "state" in verb.traits):
        polarity = "not"
    tense = "past" if frame in ("past", "past modal", "was") else "present"
    clause = Clause(subject=subject, verb=verb, tense=tense, polarity=polarity, question=question)
    complete = _complete_being if verb is BE else _complete_doing
    complete(dice, clause, is_short=is_short)
    clause.modal = _draw_modal(dice, frame, polarity)
    if frame != "was" and "state" not in verb.traits and not (is_short and dice.chance(0.8)):
        _add_time(dice, clause, frame.removesuffix(" modal"))
    if is_statement:
        _draw_front(dice, clause)
    return clause


def _draw_verb(dice: Dice, frame: str, question: str, *, has_human_subject: bool) -> Verb:
    """Draw a verb that can be used in the frame and the question."""
    if question not in ("what", "where") and "modal" not in frame and dice.chance(0.15):
        return BE
    return dice.choose(_verbs_for(frame, question, has_human_subject))


@cache
def _verbs_for(frame: str, question: str, has_human_subject: bool) -> tuple[Verb, ...]:
    return tuple(
        verb
        for verb in VERBS.values()
        if (frame == "present" or "state" not in verb.traits)
        and (frame != "past" or verb.english.past != verb.english.base)
        and (not has_human_subject or "human" in verb.subjects)
        and (question != "what" or _can_ask_what(verb))
        and (question != "when" or "state" not in verb.traits)
        and (question != "where" or _can_ask_where(verb))
    )


def _has_direct_object(verb: Verb) -> bool:
    """Return True if the object is accusative in German, so that it may be asked or negated."""
    return bool(verb.objects) and verb.german.case == "accusative" and not verb.german.preposition


def _can_ask_what(verb: Verb) -> bool:
    """Return True if the object may be one of several things: "what does he tell" has one answer, a story."""
    has_things = set(verb.objects) != {"human"} and len(nouns_in(verb.objects)) > 1
    return has_things and _has_direct_object(verb)


def _can_ask_where(verb: Verb) -> bool:
    """Return True for verbs with a place or a goal; "where does he come" would ask for an origin."""
    return verb is not VERBS["come"] and any(trait in LOCATIONS or trait in GOALS for trait in verb.traits)


def _draw_polarity(dice: Dice, question: str) -> str:
    if question in ("", "why", "who") and dice.chance(0.22):
        return "not" if question or dice.chance(0.8) else "never"
    return "positive"


def _draw_modal(dice: Dice, frame: str, polarity: str) -> Verb | None:
    if frame == "future":
        return MODALS["will"]
    if not frame.endswith("modal"):
        return None
    names = ["can", "want to"]
    if polarity == "positive":
        names.append("have to")
    if frame == "modal":
        names += ["should"] if polarity == "never" else ["should", "would like to"]
    return MODALS[dice.choose(names)]


def _complete_being(dice: Dice, clause: Clause, *, is_short: bool) -> None:
    """Complete "the child is tired" or "the key is on the table"."""
    determiners = _subject_determiners(clause, is_short=is_short)
    has_subject = clause.subject is not None
    if not has_subject and not is_short and dice.chance(0.3):
        nouns, trait = dice.choose(((GROUPS["movable"], "spot"),) * 2 + ((GROUPS["human"], "place"),))
        clause.subject = _draw_subject(dice, nouns, determiners, has_pronoun=trait == "place")
        clause.location = _draw_location(dice, (trait,))
        return
    is_human = is_short or has_subject
    is_passing = clause.question == "when" or (is_short and not has_subject)
    adjective = clause.predicate = dice.choose(_adjectives_for_being(is_human, is_passing))
    if not has_subject:
        nouns = GROUPS["human"] if is_human else nouns_in(adjective.groups)
        known = tuple(determiner for determiner in determiners if determiner != "a")
        has_pronoun = "human" in adjective.groups
        subject = _draw_subject(dice, nouns, known, is_short=True, has_pronoun=has_pronoun)
        # One adjective is enough: not "the small house is small".
        clause.subject = replace(subject, adjective=None) if isinstance(subject, NounPhrase) else subject
    if adjective not in ABSOLUTE_STATES and dice.chance(0.25):
        clause.degree = DEGREE_ADVERBS["very" if clause.polarity == "never" else dice.choose(("very", "too"))]


@cache
def _adjectives_for_being(is_human: bool, is_passing: bool) -> tuple[Adjective, ...]:
    words = PASSING_STATES if is_passing else tuple(ADJECTIVES.values())
    return tuple(word for word in words if not is_human or "human" in word.groups)


def _complete_doing(dice: Dice, clause: Clause, *, is_short: bool) -> None:
    """Complete a full verb by its subject, its objects and adverbials other than those of time."""
    verb = clause.verb
    if clause.subject is None:
        determiners = _subject_determiners(clause, is_short=is_short)
        options = {"is_short": is_short, "has_pronoun": "human" in verb.subjects}
        clause.subject = _draw_subject(dice, nouns_in(verb.subjects), determiners, **options)
    if verb.objects and clause.question != "what":
        clause.object = _draw_object(dice, clause, is_short=is_short)
    if "recipient" in verb.traits:
        clause.recipient = _draw_person(dice, clause)
    if clause.question != "where":
        _add_goal(dice, clause)
        _add_adverbials(dice, clause, is_short=is_short)


def _add_goal(dice: Dice, clause: Clause) -> None:
    """Add a direction if the verb needs it."""
    goals = [trait for trait in clause.verb.traits if trait in GOALS]
    if goals:
        relation = dice.choose(goals)
        place = _draw_place(dice, dice.choose(GROUPS[GOALS[relation]]))
        clause.goal = PrepositionalPhrase(RELATIONS[relation], place)


def _add_adverbials(dice: Dice, clause: Clause, *, is_short: bool) -> None:
    """Add location, company, beneficiary or manner, if the verb allows it, or nothing."""
    traits = clause.verb.traits
    if "located" in traits:
        clause.location = _draw_location(dice, traits)
        return
    options = [trait for trait in ("company", "for", "manner") if trait in traits]
    if any(trait in LOCATIONS for trait in traits):
        options += ["location", "location"]
    if not options or dice.chance(0.85 if is_short else 0.5):
        return
    option = dice.choose(options)
    if option == "location":
        clause.location = _draw_location(dice, traits)
    elif option != "manner":
        relation = RELATIONS["with" if option == "company" else "for"]
        clause.companion = PrepositionalPhrase(relation, _draw_person(dice, clause))
    elif clause.polarity != "never":
        clause.manner = dice.choose(tuple(MANNER_ADVERBS.values()))


def _add_time(dice: Dice, clause: Clause, frame: str) -> None:
    """Add an adverbial of time or frequency, or nothing."""
    if clause.question == "when" or clause.polarity == "never" or dice.chance(0.6):
        return
    if clause.predicate is not None and clause.predicate not in PASSING_STATES:
        return
    if frame != "present":
        clause.time = dice.choose(_time_adverbs(frame))
    elif clause.polarity == "positive":
        # Not in negations: "not every day" and "not often" would negate the time, which moves `nicht`.
        if clause.manner is None and dice.chance(0.5):
            clause.frequency = dice.choose(tuple(FREQUENCY_ADVERBS.values()))
        else:
            clause.time = dice.choose(_time_adverbs(frame))


def _draw_front(dice: Dice, clause: Clause) -> None:
    """Sometimes move the time or the location before the subject."""
    is_optional = "located" not in clause.verb.traits and clause.verb is not BE
    if clause.time is not None and dice.chance(0.4):
        clause.fronted = "time"
    elif clause.location is not None and is_optional and dice.chance(0.3):
        clause.fronted = "location"


@cache
def _time_adverbs(frame: str) -> tuple[TimeAdverb, ...]:
    return tuple(adverb for adverb in TIME_ADVERBS.values() if frame in adverb.frames)


def _subject_determiners(clause: Clause, *, is_short: bool) -> tuple[str, ...]:
    """Return determiners of known things for questions and negations: the scope of others would be open."""
    is_plain = not clause.question and not clause.is_negative and not is_short
    return _KNOWN + _INDEFINITE[:2] + _QUANTITY if is_plain else _KNOWN


def _draw_subject(
    dice: Dice,
    nouns: Sequence[Noun],
    determiners: Sequence[str] = _KNOWN,
    *,
    is_short: bool = False,
    has_pronoun: bool = True,
) -> NounPhrase | Pronoun:
    """Draw a noun phrase, or sometimes a pronoun if the subject may be people."""
    if has_pronoun and dice.chance(0.4 if is_short else 0.25):
        return dice.choose(tuple(PRONOUNS.values()))
    noun = dice.choose(nouns)
    phrase = _draw_noun_phrase(dice, noun, determiners, adjective_chance=0.1 if is_short else 0.2)
    if phrase.determiner == "a":
        return replace(phrase, is_plural=False, determiner="the" if noun.is_mass else "a")
    return phrase


def _draw_object(dice: Dice, clause: Clause, *, is_short: bool) -> NounPhrase | Pronoun:
    """Draw an object: not the same noun as the subject, and indefinite only if both languages agree."""
    verb = clause.verb
    if "human" in verb.objects and dice.chance(0.35):
        return _draw_other_pronoun(dice, clause)
    noun = _draw_other_noun(dice, nouns_in(verb.objects), clause)
    determiners = _KNOWN
    is_direct = _has_direct_object(verb)
    is_known = "state" in verb.traits or "known" in verb.traits
    if not is_known and (not clause.is_negative or is_direct):
        determiners += _INDEFINITE
        if not clause.is_negative and not clause.question:
            determiners += _QUANTITY
    phrase = _draw_noun_phrase(dice, noun, determiners, adjective_chance=0.15 if is_short else 0.35)
    # Not "dreams of lions", nor "helps children".
    return replace(phrase, is_plural=False) if phrase.determiner == "a" and not is_direct else phrase


def _draw_person(dice: Dice, clause: Clause) -> NounPhrase | Pronoun:
    """Draw a person other than the subject, to give to, do with or do for."""
    if dice.chance(0.35):
        return _draw_other_pronoun(dice, clause)
    noun = _draw_other_noun(dice, GROUPS["human"], clause)
    return _draw_noun_phrase(dice, noun, _KNOWN[:-1], adjective_chance=0.1)


def _draw_other_pronoun(dice: Dice, clause: Clause) -> Pronoun:
    """Draw a pronoun that cannot mean the subject: not "I see us"."""
    taken = clause.subject.english if isinstance(clause.subject, Pronoun) else ""
    same = {"I": ("I", "we"), "we": ("I", "we"), "you": ("you",)}.get(taken, ())
    return dice.choose([pronoun for name, pronoun in PRONOUNS.items() if name not in same])


def _draw_other_noun(dice: Dice, nouns: Sequence[Noun], clause: Clause) -> Noun:
    """Draw a noun that is not yet the subject or the object."""
    used = [phrase.noun for phrase in (clause.subject, clause.object) if isinstance(phrase, NounPhrase)]
    noun = dice.choose(nouns)
    while noun in used:
        noun = dice.choose(nouns)
    return noun


def _draw_location(dice: Dice, traits: Sequence[str]) -> PrepositionalPhrase:
    """Draw a place by the location trait among `traits`."""
    options = [option for trait in traits if trait in LOCATIONS for option in LOCATIONS[trait]]
    relation, group = dice.choose(options)
    return PrepositionalPhrase(RELATIONS[relation], _draw_place(dice, dice.choose(GROUPS[group])))


def _draw_place(dice: Dice, noun: Noun) -> NounPhrase:
    """Draw one known place: the garden, this garden, my garden."""
    phrase = _draw_noun_phrase(dice, noun, ("the",) * 6 + ("this", "own"), adjective_chance=0.15)
    return replace(phrase, is_plural=False)


def _draw_noun_phrase(dice: Dice, noun: Noun, determiners: Sequence[str], *, adjective_chance: float) -> NounPhrase:
    """Draw the noun with one of `determiners`, or with "the" if it cannot have that one."""
    adjectives = ADJECTIVES_OF[noun]
    adjective = dice.choose(adjectives) if adjectives and dice.chance(adjective_chance) else None
    is_plural = not noun.is_mass and dice.chance(0.3)
    determiner = dice.choose(determiners)
    is_ownable = noun in GROUPS["ownable"]
    if determiner == "own" and is_ownable:
        # One has one father: "my fathers" would be odd.
        is_plural = is_plural and noun not in GROUPS["kin"]
        return NounPhrase(noun, dice.choose(tuple(POSSESSIVES)), is_plural, adjective)
    if determiner == "owner" and is_ownable and noun not in GROUPS["kin"]:
        owner = dice.choose(GROUPS["human"])
        own = dice.choose(tuple(POSSESSIVES)) if owner in GROUPS["kin"] and dice.chance(0.6) else "the"
        return NounPhrase(noun, "the", is_plural, adjective, possessor=NounPhrase(owner, own))
    if determiner == "quantity" and not noun.is_mass:
        return NounPhrase(noun, dice.choose(tuple(QUANTIFIERS)), True, adjective)
    if determiner == "every" and not noun.is_mass:
        return NounPhrase(noun, "every", False, adjective)
    return NounPhrase(noun, determiner if determiner in ("this", "a") else "the", is_plural, adjective)
