"""Say noun phrases and clauses in English and in German.

A German clause is a frame of two brackets. The finite verb is the left one (second in a statement, first in a yes-no
question, last in a subordinate clause); prefix, participle and infinitive are the right one. The *middle field* between
them has an order of its own, in which `nicht` has a fixed place:

    Heute | hat | der Mann dem Kind das Buch nicht | gegeben     verb second
          | hat | der Mann dem Kind das Buch nicht | gegeben     verb first
    weil  |     | der Mann dem Kind das Buch nicht | gegeben hat verb last
"""

from dataclasses import dataclass, field

from .words import AUXILIARIES, CASES, TABLES, Forms, Word

_ENGLISH_ORDER = ("object", "predicate", "recipient", "goal", "adverbial", "time")
# New information (einen Apfel, keinen Apfel) comes late, and the complements closest to the verb come last.
_GERMAN_ORDER = ("pronoun", "time", "frequency", "recipient", "known", "negation", "adverbial", "new")
_GERMAN_ORDER += ("prepositional", "goal", "predicate")


def _endings(*rows: str) -> dict[str, Forms]:
    """Return endings by case and gender."""
    genders = ("m", "f", "n", "plural")
    return {case: dict(zip(genders, row.split(), strict=True)) for case, row in zip(CASES, rows, strict=True)}


_ARTICLES = _endings("der die das die", "den die das die", "dem der dem den", "des der des der")
_STRONG = _endings("er e es e", "en e es e", "em er em en", "es er es er")  # of dieser, and of adjectives without one
_WEAK = _endings("e e e en", "en e e en", "en en en en", "en en en en")  # of adjectives after dieser
_EIN_WITHOUT_ENDING = (("nominative", "m"), ("nominative", "n"), ("accusative", "n"))
_CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom"}
_SOUNDS = {"honest": "an", "university": "a"}  # against their first letter


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun in both languages."""

    english: str
    english_object: str
    person: str
    german: Forms  # by case
    news: str = "known"  # or "new" or "pronoun"; decides its place in the German middle field
    noun: Word | None = None


PERSONAL_PRONOUNS = {word.english: Phrase(**vars(word), news="pronoun") for word in TABLES["pronouns"]}
WHO = Phrase("who", "", "he", {"nominative": "wer"})


@dataclass
class Clause:
    """A verb with its subject, and the words of its other roles in each language.

    Roles are those of the two orders, "front" (before the subject) and in English "adverb" (after the finite verb).
    `tense` is present, past, modal or future; `modal` is the verb of the last two.
    """

    verb: Word
    tense: str
    modal: Word | None = None
    subject: Phrase = WHO
    english: dict[str, str] = field(default_factory=dict)
    german: dict[str, str] = field(default_factory=dict)

    def add(self, role: str, word: Word, german_role: str = "") -> None:
        self.english[role], self.german[german_role or role] = word.english, word.german


def say_english(clause: Clause, question: str | None = None) -> str:
    """Return the clause as a statement, or as a question after its question word, which may be ""."""
    verb, person, adverb = clause.verb, clause.subject.person, clause.english.get("adverb", "")
    finite, rest = "", verb.english
    if clause.modal:
        finite = clause.modal.english
    elif verb.english == "be":
        finite, rest = AUXILIARIES["was" if clause.tense == "past" else "am"][person], ""
    elif adverb == "not" or question is not None:
        finite = "did" if clause.tense == "past" else "does" if person == "he" else "do"
    elif clause.tense == "past":
        rest = verb.past
    elif person == "he":
        rest = verb.third_person
    tail = [adverb, rest, *(clause.english.get(role, "") for role in _ENGLISH_ORDER)]
    if question is not None:
        return _join(question, finite, clause.subject.english, *tail)
    return _join(clause.english.get("front", ""), clause.subject.english, finite, *tail).replace("can not ", "cannot ")


def say_german(clause: Clause, finite_verb: str = "second") -> str:
    """Return the clause with its finite verb first, second or last."""
    verb, subject, front = clause.verb, clause.subject.german["nominative"], clause.german.get("front", "")
    if clause.modal:
        forms, right = clause.modal.german, verb.prefix + verb.german
    elif clause.tense == "past":
        forms, right = AUXILIARIES[verb.auxiliary], verb.participle
    else:
        forms, right = verb.present, verb.prefix
    finite = forms[clause.subject.person]
    middle = [clause.german.get(role, "") for role in _GERMAN_ORDER]
    if finite_verb == "last":
        return _join(subject, *middle, right + finite if right == verb.prefix else f"{right} {finite}")
    if front or finite_verb == "first":
        return _join(front, finite, subject, *middle, right)
    return _join(subject, finite, *middle, right)


def noun_phrase(
    noun: Word, determiner: Word, *, is_plural: bool = False, adjective: Word | None = None, owner: Phrase | None = None
) -> Phrase:
    """Return a noun phrase in both languages; in English an owner (the king's) replaces the determiner."""
    gender = "plural" if is_plural else noun.gender
    is_bare = is_plural or not noun.english_plural  # without "a"
    words = _join(adjective.english if adjective else "", noun.english_plural if is_plural else noun.english)
    english = determiner.english_plural if is_plural else determiner.english
    if determiner.english in ("a", "not a"):
        by_letter = "an" if words[0] in "aeiou" else "a"
        english = "" if is_bare else _SOUNDS.get(words.split()[0], by_letter)
    english = _join(f"{owner.english}'s" if owner else english, words)
    german, genitive = {}, owner.german["genitive"] if owner else ""
    for case, form in (noun.german_plural if is_plural else noun.german).items():
        word, ending = _decline(determiner, case, gender)
        if determiner.english == "a" and is_bare:
            word, ending = "", _STRONG[case][gender]
        german[case] = _join(word, adjective.german_stem + ending if adjective else "", form, genitive)
    return Phrase(english, english, "they" if is_plural else "he", german, determiner.news, noun)


def _decline(determiner: Word, case: str, gender: str) -> tuple[str, str]:
    """Return the German determiner, and the ending of an adjective after it."""
    stem, strong, weak = determiner.german_stem, _STRONG[case][gender], _WEAK[case][gender]
    if determiner.declension == "article":
        return _ARTICLES[case][gender], weak
    is_ein = determiner.declension == "mixed" and (case, gender) in _EIN_WITHOUT_ENDING
    if is_ein or determiner.declension == "number":
        return stem, strong
    return stem + strong, strong if determiner.declension == "many" else weak


def after_preposition(preposition: str, phrase: str) -> str:
    """Return a German phrase with its preposition, which may merge with an article: im Garten, zur Schule."""
    first, *others = phrase.split(" ")
    both = _join(preposition, first)
    return _join(_CONTRACTIONS.get(both, both), *others)


def _join(*words: str) -> str:
    """Return the words that are not empty, with a space between them."""
    return " ".join(word for word in words if word)
