"""Says a phrasebook meaning in English."""

from .lexicon import BE, ENGLISH_BE, PERSONS, Adverb, Pronoun, TimeAdverb, Verb
from .meaning import Clause, NounPhrase, PrepositionalPhrase, Sentence, Who

_THIRD_PERSON = PERSONS.index("he")
# Spelled with a consonant but spoken with a vowel, and the reverse.
_AN_BEFORE = ("honest",)
_A_BEFORE = ("university",)


def say_english(sentence: Sentence) -> str:
    """The sentence in English, with its capital and its full stop or question mark."""
    main = _clause(sentence.main)
    if sentence.subordinate is not None:
        subordinate = [sentence.conjunction, *_clause(sentence.subordinate)]
        if sentence.subordinate_first:
            main = [*subordinate[:-1], subordinate[-1] + ",", *main]
        else:
            main = [*main, *subordinate]
    text = " ".join(main)
    return text[0].upper() + text[1:] + ("?" if sentence.main.question else ".")


def _clause(clause: Clause) -> list[str]:
    """The words of a clause, in the order of a statement or a question."""
    auxiliary, rest = _verb_group(clause)
    adverb = [clause.polarity] if clause.is_negative else _words(clause.frequency)
    tail = [*rest, *_complements(clause)]
    if clause.question in ("", "who"):
        if auxiliary == "can" and adverb == ["not"]:
            auxiliary, adverb = "cannot", []
        return [*_fronted(clause), *_subject(clause.subject), *_some(auxiliary), *adverb, *tail]
    question_word = "" if clause.question == "yes-no" else clause.question
    return [*_some(question_word), auxiliary, *_subject(clause.subject), *adverb, *tail]


def _verb_group(clause: Clause) -> tuple[str, list[str]]:
    """The auxiliary, or "" if there is none, and the rest of the verb: does, [want, to, read]."""
    verbs = [verb for verb in (clause.modal, clause.verb) if verb is not None]
    words = [word for verb in verbs for word in verb.english.base.split(" ")]
    person = clause.subject.person
    if verbs[0] is BE:
        return ENGLISH_BE[clause.tense][person], words[1:]
    if verbs[0].english.is_auxiliary:
        past = verbs[0].english.past
        return (past if clause.tense == "past" else words[0]), words[1:]
    if clause.polarity == "not" or clause.question not in ("", "who"):
        present = "does" if person == _THIRD_PERSON else "do"
        return ("did" if clause.tense == "past" else present), words
    return "", [*_inflect(verbs[0], clause.tense, person), *words[len(verbs[0].english.base.split(" ")) :]]


def _inflect(verb: Verb, tense: str, person: int) -> list[str]:
    """A full verb in the simple present or past; only the first of its words changes."""
    if tense == "past":
        return verb.english.past.split(" ")
    first, *others = verb.english.base.split(" ")
    return [_third_person(first) if person == _THIRD_PERSON else first, *others]


def _third_person(base: str) -> str:
    """The form of he and she: reads, washes, cries, has."""
    if base == "have":
        return "has"
    if base.endswith(("s", "x", "ch", "sh", "o")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


def _complements(clause: Clause) -> list[str]:
    """The words after the verb: object, recipient, goal, manner, company, location and time."""
    words: list[str] = []
    if clause.object is not None:
        words += _object(clause.object)
    if clause.predicate is not None:
        words += [*_words(clause.degree), clause.predicate.english]
    if clause.recipient is not None:
        words += ["to", *_object(clause.recipient)]
    words += [*_prepositional(clause.goal), *_words(clause.manner), *_prepositional(clause.companion)]
    if clause.fronted != "location":
        words += _prepositional(clause.location)
    if clause.fronted != "time":
        words += _words(clause.time)
    return words


def _fronted(clause: Clause) -> list[str]:
    """The adverbial before the subject, if any."""
    if clause.fronted == "time":
        return _words(clause.time)
    return _prepositional(clause.location) if clause.fronted == "location" else []


def _subject(subject: NounPhrase | Pronoun | Who) -> list[str]:
    if isinstance(subject, Who):
        return ["who"]
    return [subject.english] if isinstance(subject, Pronoun) else _noun_phrase(subject)


def _object(phrase: NounPhrase | Pronoun) -> list[str]:
    return [phrase.english_object] if isinstance(phrase, Pronoun) else _noun_phrase(phrase)


def _prepositional(phrase: PrepositionalPhrase | None) -> list[str]:
    return [] if phrase is None else [phrase.relation.english, *_object(phrase.phrase)]


def _noun_phrase(phrase: NounPhrase) -> list[str]:
    """Determiner, adjective, noun and relative clause."""
    words = [phrase.adjective.english] if phrase.adjective else []
    words.append(phrase.noun.english_plural if phrase.is_plural else phrase.noun.english)
    return [*_determiner(phrase, words[0]), *words, *(_clause(phrase.relative) if phrase.relative else [])]


def _determiner(phrase: NounPhrase, next_word: str) -> list[str]:
    """The determiner, or the possessor in its place: the teacher's."""
    if phrase.possessor is not None:
        *others, owner = _noun_phrase(phrase.possessor)
        has_plural_s = phrase.possessor.is_plural and owner.endswith("s")
        return [*others, owner + ("'" if has_plural_s else "'s")]
    if phrase.determiner == "this":
        return ["these" if phrase.is_plural else "this"]
    if phrase.determiner != "a":
        return [phrase.determiner]
    if phrase.is_plural or phrase.noun.is_mass:
        return []
    has_vowel = next_word[0] in "aeiou" and next_word not in _A_BEFORE
    return ["an" if has_vowel or next_word in _AN_BEFORE else "a"]


def _words(adverb: Adverb | TimeAdverb | None) -> list[str]:
    """The adverb, if there is one."""
    return [] if adverb is None else [adverb.english]


def _some(word: str) -> list[str]:
    """The word, unless it is ""."""
    return [word] if word else []
