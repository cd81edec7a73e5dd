"""Say noun phrases and clauses in English and in German.

A German clause is a frame of two brackets. The left bracket is the finite verb: the second part of a statement, or the
first word of a yes-no question. In a subordinate clause the finite verb comes last. The right bracket is a prefix, a
participle or an infinitive. The words between the brackets are the *middle field*. They have a fixed order, which also
gives `nicht` its place:

    Heute | hat | der Mann dem Kind das Buch nicht | gegeben     verb second
          | hat | der Mann dem Kind das Buch nicht | gegeben     verb first
    weil  |     | der Mann dem Kind das Buch nicht | gegeben hat verb last
"""

from dataclasses import dataclass, field

from .words import AUXILIARIES, TABLES, Forms, Word

_ENGLISH_ORDER = ("object", "predicate", "recipient", "goal", "adverbial", "time")
# New information (einen Apfel, keinen Apfel) comes late. The complements that belong closest to the verb come last.
_GERMAN_ORDER = (
    "pronoun",
    "time",
    "frequency",
    "recipient",
    "known",
    "negation",
    "adverbial",
    "new",
    "prepositional",
    "goal",
    "predicate",
)
_ENDINGS = {row.name: vars(row) for row in TABLES["endings"]}  # name -> gender -> case -> ending
_CONTRACTIONS = {word.apart: word.merged for word in TABLES["contractions"]}
_SOUNDS = {"honest": "an", "university": "a"}  # Word -> its article, if its first letter suggests the other article.


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun in both languages."""

    english: str
    english_object: str
    person: str
    german: Forms  # by case
    news: str = "known"  # "known", "new" or "pronoun"; it decides the place in the German middle field
    noun: Word | None = None


PERSONAL_PRONOUNS = {word.english: Phrase(**vars(word), news="pronoun") for word in TABLES["pronouns"]}
WHO = Phrase("who", "", "he", {"nominative": "wer"})


@dataclass
class Clause:
    """A verb with its subject, and the words of the other roles in each language.

    Attributes:
        tense: "present", "past", "modal" or "future".
        modal: the modal verb of the tenses "modal" and "future".
        english, german: words by role. The roles are listed in `_ENGLISH_ORDER` and `_GERMAN_ORDER`. Both languages
            also have the role "front", before the subject. English has "adverb", after the finite verb.
    """

    verb: Word
    tense: str
    modal: Word | None = None
    subject: Phrase = WHO
    english: dict[str, str] = field(default_factory=dict)
    german: dict[str, str] = field(default_factory=dict)

    def add(self, role: str, word: Word, german_role: str = "") -> None:
        self.english[role] = word.english
        self.german[german_role or role] = word.german


def say_english(clause: Clause, question: str | None = None) -> str:
    """Return the clause in English, as a statement or as a question.

    Args:
        question: the question word, "" for a yes-no question, or `None` for a statement.
    """
    verb = clause.verb
    person = clause.subject.person
    adverb = clause.english.get("adverb", "")
    finite = ""
    rest = verb.english
    if clause.modal:
        finite = clause.modal.english
    elif verb.english == "be":
        finite = AUXILIARIES["was" if clause.tense == "past" else "am"][person]
        rest = ""
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
    """Return the clause in German, with its finite verb first, second or last."""
    verb = clause.verb
    subject = clause.subject.german["nominative"]
    front = clause.german.get("front", "")
    if clause.modal:
        forms = clause.modal.german
        right = verb.prefix + verb.german
    elif clause.tense == "past":
        forms = AUXILIARIES[verb.auxiliary]
        right = verb.participle
    else:
        forms = verb.present
        right = verb.prefix
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
    """Return a noun phrase in both languages. In English the `owner` (the king's) replaces the determiner."""
    gender = "plural" if is_plural else noun.gender
    is_bare = is_plural or not noun.english_plural  # True if the noun cannot have "a"
    words = _join(adjective.english if adjective else "", noun.english_plural if is_plural else noun.english)
    english = determiner.english_plural if is_plural else determiner.english
    if determiner.english in ("a", "not a"):
        by_letter = "an" if words[0] in "aeiou" else "a"
        english = "" if is_bare else _SOUNDS.get(words.split()[0], by_letter)
    english = _join(f"{owner.english}'s" if owner else english, words)
    german = {}
    genitive = owner.german["genitive"] if owner else ""
    for case, form in (noun.german_plural if is_plural else noun.german).items():
        word, ending = _decline(determiner, case, gender)
        if determiner.english == "a" and is_bare:
            word = ""
            ending = _ENDINGS["strong"][gender][case]
        german[case] = _join(word, adjective.german_stem + ending if adjective else "", form, genitive)
    return Phrase(english, english, "they" if is_plural else "he", german, determiner.news, noun)


def _decline(determiner: Word, case: str, gender: str) -> tuple[str, str]:
    """Return the German determiner, and the ending of an adjective after it."""
    ending = _ENDINGS[determiner.declension][gender][case]
    # The adjective has a strong ending if the determiner has no ending: ein alter Mann, but dieser alte Mann.
    strength = "weak" if ending and determiner.declension != "many" else "strong"
    return determiner.german_stem + ending, _ENDINGS[strength][gender][case]


def after_preposition(preposition: str, phrase: str) -> str:
    """Return a German preposition and phrase. The preposition may merge with the article: im Garten, zur Schule."""
    first_word, *other_words = phrase.split(" ")
    start = _join(preposition, first_word)
    return _join(_CONTRACTIONS.get(start, start), *other_words)


def _join(*words: str) -> str:
    """Return the words that are not empty, with a space between them."""
    return " ".join(filter(None, words))
