"""Draw random sentences that have one translation each. The lexicon says which nouns fit a verb or an adjective."""

import random
import re
from collections.abc import Sequence
from typing import Any

from .grammar import PRONOUNS, Clause, Phrase, noun_phrase, say_english, say_german
from .words import ADJECTIVES_OF, TABLES, Word, nouns_in

_TENSES = "present past can should will"  # A modal verb counts as a tense.
_DEFINITE = ("article", "article", "demonstrative", "possessive")  # kinds of determiners


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
    english, german = dice.choose((_draw_simple, _draw_simple, _draw_complex))(dice)
    english = re.sub(r"\ba (?=[aeiou])", "an ", english)
    for word in TABLES["contractions"]:
        german = german.replace(f" {word.apart} ", f" {word.merged} ")
    return english[0].upper() + english[1:], german[0].upper() + german[1:]


def _draw_simple(dice: Dice) -> tuple[str, str]:
    """Draw a statement or a yes-no question."""
    clause = _draw_clause(dice)
    if dice.chance(0.3):
        return f"{say_english(clause, is_question=True)}?", f"{say_german(clause, 'first')}?"
    return f"{say_english(clause)}.", f"{say_german(clause, 'second')}."


def _draw_complex(dice: Dice) -> tuple[str, str]:
    """Draw a main clause and a subordinate clause. Clauses with "that" and "whether" come last, the others first."""
    word = dice.choose(TABLES["conjunctions"])
    main = _draw_clause(dice, word.main_tenses, TABLES[word.main_verbs])
    other = _draw_clause(dice, word.tenses)
    english = f"{word.english} {say_english(other)}"
    german = f"{word.german} {say_german(other, 'last')}"
    if word.main_verbs == "verbs":
        return f"{english}, {say_english(main)}.", f"{german}, {say_german(main, 'first')}."
    return f"{say_english(main)} {english}.", f"{say_german(main, 'second')}, {german}."


def _draw_clause(dice: Dice, tenses: str = _TENSES, verbs: Sequence[Word] = TABLES["verbs"]) -> Clause:
    """Draw a clause with one of the `tenses`, which spaces separate, and one of the `verbs`."""
    verb = dice.choose(verbs)
    clause = Clause(verb, dice.choose(tenses.split()), _draw_phrase(dice, verb.subjects), {})
    is_negative = dice.chance(0.2)
    if verb.objects:
        kinds = _DEFINITE
        if verb.case == "accusative":  # A dative needs a determiner: "er hat Hexen geschrieben" would be unclear.
            kinds += ("negative" if is_negative else "indefinite",) * 4
        phrase = _draw_phrase(dice, verb.objects, kinds, clause.subject.meaning)
        place = "pronoun" if phrase in PRONOUNS else "object"
        clause.parts[place] = phrase.english_object, phrase.german[verb.case]
    if verb.use:
        _add_preposition(dice, clause)
    if is_negative:
        has_kein = any(german.startswith("kein") for _, german in clause.parts.values())
        clause.parts["negation"] = "not", "" if has_kein else "nicht"
    elif verb.times and dice.chance(0.3):
        # A negative clause has no time, because "he does not sleep every day" has two readings.
        time = dice.choose([time for time in TABLES["times"] if clause.tense in time.tenses])
        clause.parts["time"] = time.english, time.german
    return clause


def _add_preposition(dice: Dice, clause: Clause) -> None:
    """Add the preposition of the verb, and a phrase after it. German says "to" a person by the dative alone."""
    word = dice.choose([word for word in TABLES["prepositions"] if clause.verb.use in word.uses])
    phrase = _draw_phrase(dice, word.nouns, excluded=clause.subject.meaning)
    place = "prepositional" if word.german else "pronoun" if phrase in PRONOUNS else "recipient"
    german = f"{word.german} {phrase.german[word.case]}".strip()
    clause.parts[place] = f"{word.english} {phrase.english_object}", german


def _draw_phrase(dice: Dice, names: str, kinds: Sequence[str] = _DEFINITE, excluded: str = "") -> Phrase:
    """Draw a pronoun or a noun phrase.

    Args:
        names: the nouns to choose from, as names of groups that spaces separate, see `nouns_in`.
        kinds: the kinds of determiners to choose from.
        excluded: the meaning of the subject, which no other phrase of the clause may have.
    """
    if "human" in names.split() and dice.chance(0.35):
        return dice.choose([pronoun for pronoun in PRONOUNS if pronoun.meaning != excluded])
    noun = dice.choose(nouns_in(names, excluded))
    kind = dice.choose(kinds)
    determiners = [word for word in TABLES["determiners"] if word.kind == kind and noun.number in word.numbers]
    adjective = dice.choose(ADJECTIVES_OF[noun]) if dice.chance(0.2) else None
    return noun_phrase(noun, dice.choose(determiners), adjective)
