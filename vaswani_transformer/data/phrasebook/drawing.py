"""Draw random sentences that have one translation each. The lexicon says which nouns fit a verb or an adjective.

Two kinds of ambiguous sentences are never drawn: the past of verbs whose past equals the base ("I read"), and negations
with a quantified subject ("every man does not sleep").
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from . import grammar
from .grammar import WHO, Clause, Phrase, say_english, say_german
from .words import ADJECTIVES, ADJECTIVES_OF, DETERMINERS, TABLES, VERBS, Word, nouns_in

# Kinds of sentences. A frequent kind is repeated.
_KINDS = ("statement",) * 40 + ("joined",) * 20 + ("reported",) * 14 + ("yes-no",) * 12 + ("who", "what", "why") * 4
# Question words in English and German. In these questions the verb stands before the subject.
_QUESTIONS = {"yes-no": ("", ""), "what": ("what", "was"), "why": ("why", "warum")}
_CAN, _SHOULD, _WILL = TABLES["modals"]
_TENSES = ("present",) * 4 + ("past",) * 4 + ("modal", "future") * 2
# Determiners of noun phrases. A frequent determiner is repeated. "own" is a possessive (my), and "quantity" is a
# quantifier (two, some). "owner" is a noun in the genitive (the king's). "new" makes a phrase indefinite: a book,
# books, bread. "not a" is "new" in a negative clause.
_PLACE_DETERMINERS = ("the",) * 6 + ("this", "own")
_DEFINITE = (*_PLACE_DETERMINERS, "this", "own", "owner")
_QUANTITIES = ("every", "quantity")
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_QUANTIFIERS = ("two", "three", "ten", "some", "many")
# Subject -> objects that are not drawn, because they would mean the same people, as in "I see us".
_SAME_PEOPLE = {"I": ("I", "we"), "we": ("I", "we"), "you": ("you",)}


class Dice:
    """Random choices that are equal in all versions of Python. Only `random.random()` guarantees this."""

    def __init__(self, seed: str):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self._random() * len(options))]


def draw_sentence(dice: Dice) -> tuple[str, str]:
    """Return a sentence of any kind in English and German. The same sentence may be drawn again."""
    kind = dice.choose(_KINDS)
    if kind in ("statement", "who"):
        clause = _draw_clause(dice, kind)
        english = say_english(clause)
        german = say_german(clause)
    elif kind in _QUESTIONS:
        clause = _draw_clause(dice, kind)
        english_word, german_word = _QUESTIONS[kind]
        english = say_english(clause, english_word)
        german = f"{german_word} {say_german(clause, 'first')}".strip()
    else:
        english, german = _draw_joined(dice) if kind == "joined" else _draw_reported(dice)
    mark = "?" if kind in ("who", *_QUESTIONS) else "."
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


def _draw_joined(dice: Dice) -> tuple[str, str]:
    """Return a sentence of two clauses that are joined by "because", "if" or "when", in English and German."""
    word = dice.choose(TABLES["conjunctions"])
    main = _draw_clause(dice, tense=word.main_tense)
    other = _draw_clause(dice, tense=word.tense)
    english = f"{word.english} {say_english(other)}"
    german = f"{word.german} {say_german(other, 'last')}"
    if word.english != "because" and dice.chance(0.5):
        return f"{english}, {say_english(main)}", f"{german}, {say_german(main, 'first')}"
    return f"{say_english(main)} {english}", f"{say_german(main)}, {german}"


def _draw_reported(dice: Dice) -> tuple[str, str]:
    """Return a sentence such as "the man says that ..." or "the man does not know whether ...", and its translation."""
    english, german = dice.choose((("that", "dass"), ("whether", "ob")))
    verb = dice.choose([verb for verb in VERBS if english in verb.marks])
    main = Clause(verb, "present", subject=_draw_phrase(dice, "human"))
    other = _draw_clause(dice)
    if "doubt" in verb.marks:
        main.english["adverb"] = "not"
        main.german["negation"] = "nicht"
    return (
        f"{say_english(main)} {english} {say_english(other)}",
        f"{say_german(main)}, {german} {say_german(other, 'last')}",
    )


def _draw_clause(dice: Dice, kind: str = "", tense: str = "") -> Clause:
    """Draw a clause.

    Args:
        kind: the kind of the sentence to which the clause belongs; "" for a sentence of two clauses.
        tense: the tense of the clause; "" to draw a tense.
    """
    tense = tense or dice.choose(_TENSES)
    clause = Clause(dice.choose(_verbs_for(tense, kind)), tense)
    subjects = clause.verb.subjects
    marks = clause.verb.marks
    is_statement = kind in ("", "statement")
    is_negative = kind not in ("yes-no", "what") and dice.chance(0.2)
    if is_statement and not is_negative and "state" not in marks and tense in ("present", "past") and dice.chance(0.1):
        clause.add("adverb", dice.choose(TABLES["frequencies"]), "frequency")
    if tense in ("modal", "future"):
        clause.modal = _WILL if tense == "future" else dice.choose((_CAN, _SHOULD))
    if "predicate" in marks:
        adjective = dice.choose([word for word in ADJECTIVES if kind != "who" or "human" in word.nouns.split()])
        clause.add("predicate", adjective)
        subjects = adjective.nouns
    is_plain = is_statement and not is_negative and not clause.english
    if kind != "who":
        determiners = (*_DEFINITE, "a", "a", *_QUANTITIES) if kind and is_plain else _DEFINITE
        clause.subject = _draw_phrase(dice, subjects, determiners, has_adjective="predicate" not in marks)
    if clause.verb.objects and kind != "what":
        _add_object(dice, clause, is_negative=is_negative, is_plain=is_plain)
    if "recipient" in marks:
        recipient = _draw_phrase(dice, "human", subject=clause.subject)
        clause.english["recipient"] = f"to {recipient.english_object}"
        clause.german["pronoun" if recipient.news == "pronoun" else "recipient"] = recipient.german["dative"]
    if is_negative:
        clause.english["adverb"] = "not"
        clause.german["negation"] = "" if "new" in clause.german else "nicht"  # "kein" negates a new object.
    _add_adverbials(dice, clause, is_long=kind != "")
    if kind == "statement" and "time" in clause.english and dice.chance(0.4):
        for words in (clause.english, clause.german):
            words["front"] = words.pop("time")
    return clause


@cache
def _verbs_for(tense: str, kind: str) -> tuple[Word, ...]:
    """Return the verbs that fit `tense` and `kind`. "be" is repeated, so that it is drawn more often."""
    return tuple(
        verb
        for verb in VERBS
        if not {"that", "whether"}.intersection(verb.marks)
        and (tense == "present" or "state" not in verb.marks)
        and (tense != "past" or verb.past != verb.english)
        and (kind != "who" or "predicate" in verb.marks or "human" in verb.subjects.split())
        and (kind != "what" or ("new" in verb.marks and verb.objects != "human"))
        for _ in range(8 if verb.english == "be" else 1)
    )


def _add_object(dice: Dice, clause: Clause, *, is_negative: bool, is_plain: bool) -> None:
    """Add an object. It is indefinite ("new") only if the verb allows it in both languages."""
    verb = clause.verb
    determiners = _DEFINITE
    if "new" in verb.marks:
        determiners += ("not a" if is_negative else "new",) * 4
    if is_plain and "state" not in verb.marks:
        determiners += ("a", *_QUANTITIES)
    phrase = _draw_phrase(dice, verb.objects, determiners, clause.subject)
    role = "prepositional" if verb.preposition else phrase.news
    clause.english["object"] = phrase.english_object
    clause.german[role] = grammar.after_preposition(verb.preposition, phrase.german[verb.case])


def _add_adverbials(dice: Dice, clause: Clause, *, is_long: bool) -> None:
    """Add the goal or place that the verb requires, and perhaps another adverbial and a time."""
    verb = clause.verb
    for role, uses, chance in (("goal", verb.required, 1), ("adverbial", verb.adverbials, 0.4 if is_long else 0.1)):
        if uses and dice.chance(chance):
            use = dice.choose(uses)
            word = dice.choose([word for word in TABLES["prepositions"] if use in word.uses])
            phrase = _draw_phrase(dice, word.nouns, _PLACE_DETERMINERS, clause.subject)
            clause.english[role] = f"{word.english} {phrase.english_object}"
            clause.german[role] = grammar.after_preposition(word.german, phrase.german[word.case])
    # In the present tense, a clause with "not" or an adverb of frequency gets no time: "not ... every day" would negate
    # the time, and "sometimes ... every day" would contradict itself.
    may_have_time = clause.tense != "present" or "adverb" not in clause.english
    if may_have_time and {"state", "predicate"}.isdisjoint(verb.marks) and dice.chance(0.35 if is_long else 0.1):
        clause.add("time", dice.choose([word for word in TABLES["times"] if clause.tense in word.tenses]))


def _draw_phrase(
    dice: Dice, names: str, determiners: Sequence[str] = _DEFINITE, subject: Phrase = WHO, *, has_adjective: bool = True
) -> Phrase:
    """Draw a pronoun or a noun phrase.

    Args:
        names: the nouns to choose from, as names of groups that spaces separate, see `nouns_in`.
        determiners: the determiners to choose from. If the chosen determiner does not fit the noun, it becomes "the".
        subject: the subject of the clause. The phrase will not mean the people or things that the subject means.
        has_adjective: True if the noun may have an adjective.
    """
    if "human" in names.split() and dice.chance(0.35):
        excluded = _SAME_PEOPLE.get(subject.english, ())
        return dice.choose([phrase for name, phrase in grammar.PERSONAL_PRONOUNS.items() if name not in excluded])
    noun = dice.choose([noun for noun in nouns_in(names) if noun is not subject.noun])
    is_kin = noun.kind == "kin"
    is_mass = not noun.english_plural
    is_ownable = noun in nouns_in("ownable")
    name = dice.choose(determiners)
    is_plural = not is_mass and dice.chance(0.3)
    owner = None
    if is_mass and name in ("a", *_QUANTITIES):
        name = "the"
    elif name in ("a", "every"):
        is_plural = False
    elif name == "new":
        name = "a"
    elif name == "quantity":
        name = dice.choose(_QUANTIFIERS)
        is_plural = True
    elif name == "own" and is_ownable:
        name = dice.choose(_POSSESSIVES)
        is_plural = is_plural and not is_kin  # "my fathers" is not drawn.
    elif name == "owner" and is_ownable and not is_kin:
        person = dice.choose(nouns_in("human"))
        owner = grammar.noun_phrase(person, DETERMINERS["my" if person.kind == "kin" else "the"])
    options = ADJECTIVES_OF[noun] if has_adjective else []
    adjective = dice.choose(options) if options and dice.chance(0.2) else None
    determiner = DETERMINERS.get(name, DETERMINERS["the"])
    return grammar.noun_phrase(noun, determiner, is_plural=is_plural, adjective=adjective, owner=owner)
