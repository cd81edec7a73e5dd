"""Say a phrasebook meaning in German.

A German clause is a frame of two brackets. The finite verb is the left one (second in a statement, first in a yes-no
question, last in a subordinate clause); prefix, participle and infinitive are the right one. The *middle field* between
them has an order of its own, in which `nicht` has a fixed place:

    Heute | hat | der Mann dem Kind das Buch nicht | gegeben     verb second
          | hat | der Mann dem Kind das Buch nicht | gegeben     verb first
    weil  |     | der Mann dem Kind das Buch nicht | gegeben hat verb last
"""

from .lexicon import (
    CONJUNCTIONS,
    GERMAN_AUXILIARIES,
    NEGATORS,
    POSSESSIVES,
    QUANTIFIERS,
    QUESTION_WORDS,
    SITE_PREPOSITIONS,
    Adverb,
    GermanVerb,
    Noun,
    Pronoun,
    TimeAdverb,
)
from .meaning import Clause, NounPhrase, PrepositionalPhrase, Sentence, Who

Endings = dict[str, tuple[str, str, str, str]]  # per case, for m, f, n and plural

# Endings of dieser; adjectives take them where no determiner shows gender and case.
_STRONG = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("es", "er", "es", "er"),
}
_ARTICLES = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
    "genitive": ("des", "der", "des", "der"),
}
# Endings of adjectives after der, dieser and jeder, and after ein, kein and mein if these have an ending.
_WEAK = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
    "genitive": ("en", "en", "en", "en"),
}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
}
_WHERE_TO = "wohin"
_WHEN_IN_THE_PAST = "als"  # wenn is "whenever" there


def say_german(sentence: Sentence) -> str:
    """Return the sentence in German, with its capital and its full stop or question mark."""
    mark = "?" if sentence.main.question else "."
    if sentence.subordinate is None:
        return _punctuate(_main_clause(sentence.main), mark)
    subordinate = [_conjunction(sentence), *_subordinate_clause(sentence.subordinate)]
    if not sentence.subordinate_first:
        return _punctuate([*_main_clause(sentence.main), ",", *subordinate], mark)
    # The subordinate clause is the first constituent, so the finite verb follows it.
    return _punctuate([*subordinate, ",", *_verb_first_clause(sentence.main)], mark)


def _conjunction(sentence: Sentence) -> str:
    assert sentence.subordinate is not None
    if sentence.conjunction == "when" and sentence.subordinate.tense == "past":
        return _WHEN_IN_THE_PAST
    return CONJUNCTIONS[sentence.conjunction].german


def _punctuate(words: list[str], mark: str) -> str:
    """Join words; a comma follows a word without a space and gives way to a comma or the end after it."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",").removesuffix(",")
    return text[0].upper() + text[1:] + mark


def _main_clause(clause: Clause) -> list[str]:
    """Return a clause with its verb second in statements and wh-questions, first in yes-no questions."""
    if clause.question in ("what", "where", "when", "why"):
        return [_question_word(clause), *_verb_first_clause(clause)]
    if clause.question == "yes-no":
        return _verb_first_clause(clause)
    if clause.fronted == "time":
        return [clause.time.german, *_verb_first_clause(clause)]
    if clause.fronted == "location":
        return [*_prepositional(clause.location), *_verb_first_clause(clause)]
    finite, right_bracket, _ = _verb_complex(clause)
    return [*_subject(clause.subject), finite, *_middle_field(clause), *right_bracket]


def _verb_first_clause(clause: Clause) -> list[str]:
    finite, right_bracket, _ = _verb_complex(clause)
    return [finite, *_subject(clause.subject), *_middle_field(clause), *right_bracket]


def _subordinate_clause(clause: Clause) -> list[str]:
    _, _, final = _verb_complex(clause)
    return [*_subject(clause.subject), *_middle_field(clause), *final]


def _question_word(clause: Clause) -> str:
    if clause.question == "where" and clause.has_goal_verb:
        return _WHERE_TO
    return QUESTION_WORDS[clause.question].german


def _verb_complex(clause: Clause) -> tuple[str, list[str], list[str]]:
    """Return the finite verb, the right bracket of a main clause, and both as they end a subordinate clause."""
    person = clause.subject.person
    verb = clause.verb.german
    if clause.modal is not None:
        finite = _finite(clause.modal.german, clause.tense, person)
        return finite, [verb.infinitive], [verb.infinitive, finite]
    if clause.tense == "past" and verb.preterite is None:
        finite = GERMAN_AUXILIARIES[verb.auxiliary][person]
        return finite, [verb.participle], [verb.participle, finite]
    finite = _finite(verb, clause.tense, person)
    return finite, [verb.prefix] if verb.prefix else [], [verb.prefix + finite]


def _finite(verb: GermanVerb, tense: str, person: int) -> str:
    forms = verb.preterite if tense == "past" and verb.preterite else verb.present
    return forms[person]


def _middle_field(clause: Clause) -> list[str]:
    """Return the words between the subject and the right bracket, in the neutral German order.

    Pronouns come first and known objects before the negation. New information (einen Apfel, keinen Apfel) comes after
    adverbials, and the complements closest to the verb (preposition, goal, predicate) come last.
    """
    pronouns, definite, indefinite, prepositional = _objects(clause)
    dative = []
    if isinstance(clause.recipient, Pronoun):
        pronouns = [clause.recipient.dative]
    elif clause.recipient is not None:
        dative = _noun_phrase(clause.recipient, "dative")
    negation = [] if _has_kein(clause) or not clause.is_negative else [NEGATORS[clause.polarity].german]
    adverbials = [*_word(clause.manner), *_prepositional(clause.companion)]
    if clause.fronted != "location":
        adverbials += _prepositional(clause.location)
    time = _word(clause.time) if clause.fronted != "time" else []
    return [
        *pronouns,
        *time,
        *_word(clause.frequency),
        *dative,
        *definite,
        *([*adverbials, *negation] if indefinite else [*negation, *adverbials]),
        *indefinite,
        *prepositional,
        *_prepositional(clause.goal),
        *([*_word(clause.degree), clause.predicate.german] if clause.predicate else []),
    ]


def _objects(clause: Clause) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the object in one of four places: pronoun, definite, indefinite, prepositional."""
    phrase, verb = clause.object, clause.verb.german
    if phrase is None:
        return [], [], [], []
    if verb.preposition:
        return [], [], [], _after_preposition(verb.preposition, verb.case, phrase)
    if isinstance(phrase, Pronoun):
        return [_pronoun(phrase, verb.case)], [], [], []
    words = _noun_phrase(phrase, verb.case, is_negated=_has_kein(clause))
    if phrase.determiner in ("a", "every", *QUANTIFIERS):
        return [], [], words, []
    return [], words, [], []


def _has_kein(clause: Clause) -> bool:
    """Return True if the object carries the negation: kein Buch. `nie` does not merge: nie ein Buch."""
    return (
        clause.polarity == "not"
        and isinstance(clause.object, NounPhrase)
        and clause.object.determiner == "a"
        and not clause.verb.german.preposition
    )


def _subject(subject: NounPhrase | Pronoun | Who) -> list[str]:
    if isinstance(subject, Pronoun):
        return [subject.nominative]
    if isinstance(subject, NounPhrase):
        return _noun_phrase(subject, "nominative")
    if subject.antecedent is None:
        return [QUESTION_WORDS["who"].german]
    # The relative pronoun looks like the article, and agrees with its antecedent.
    return [_ARTICLES["nominative"][_gender(subject.antecedent)]]


def _pronoun(pronoun: Pronoun, case: str) -> str:
    return pronoun.dative if case == "dative" else pronoun.accusative


def _prepositional(phrase: PrepositionalPhrase | None) -> list[str]:
    if phrase is None:
        return []
    preposition = phrase.relation.german
    if not preposition and isinstance(phrase.phrase, NounPhrase):
        preposition = SITE_PREPOSITIONS[phrase.phrase.noun.english]
    return _after_preposition(preposition, phrase.relation.case, phrase.phrase)


def _after_preposition(preposition: str, case: str, phrase: NounPhrase | Pronoun) -> list[str]:
    """Return the preposition and its phrase; with an article they may merge: im Garten, zur Schule."""
    if isinstance(phrase, Pronoun):
        return [preposition, _pronoun(phrase, case)]
    first, *others = _noun_phrase(phrase, case)
    if phrase.determiner == "the" and (preposition, first) in _CONTRACTIONS:
        return [_CONTRACTIONS[preposition, first], *others]
    return [preposition, first, *others]


def _gender(phrase: NounPhrase) -> int:
    """Return the column of the ending tables."""
    return 3 if phrase.is_plural else "mfn".index(phrase.noun.german_gender)


def _noun_phrase(phrase: NounPhrase, case: str, *, is_negated: bool = False) -> list[str]:
    """Return determiner, adjective, noun, possessor and relative clause."""
    determiner, endings = _determiner(phrase, case, is_negated=is_negated)
    words = [determiner] if determiner else []
    if phrase.adjective is not None:
        words.append(phrase.adjective.german_stem + endings[case][_gender(phrase)])
    words.append(_noun(phrase.noun, case, is_plural=phrase.is_plural))
    if phrase.possessor is not None:
        words += _noun_phrase(phrase.possessor, "genitive")
    if phrase.relative is not None:
        words += [",", *_subordinate_clause(phrase.relative), ","]
    return words


def _determiner(phrase: NounPhrase, case: str, *, is_negated: bool) -> tuple[str, Endings]:
    """Return the determiner, or "" for none, and the endings it leaves to the adjective."""
    gender = _gender(phrase)
    if phrase.determiner == "the":
        return _ARTICLES[case][gender], _WEAK
    if phrase.determiner in ("this", "every"):
        return {"this": "dies", "every": "jed"}[phrase.determiner] + _STRONG[case][gender], _WEAK
    if phrase.determiner in QUANTIFIERS:
        quantifier = QUANTIFIERS[phrase.determiner].german
        # einige and viele decline like a strong adjective, numbers not at all.
        return quantifier[:-1] + _STRONG[case][gender] if quantifier[-1] == "e" else quantifier, _STRONG
    if phrase.determiner != "a":
        stem = POSSESSIVES[phrase.determiner]
    elif is_negated:
        stem = "kein"
    elif phrase.is_plural or phrase.noun.is_mass:
        return "", _STRONG
    else:
        stem = "ein"
    # Masculine nominative, neuter nominative and accusative: ein has no ending, so the adjective shows it.
    if gender in (0, 2) and (case == "nominative" or (case == "accusative" and gender == 2)):
        return stem, _STRONG
    return stem + _STRONG[case][gender], _WEAK


def _noun(noun: Noun, case: str, *, is_plural: bool) -> str:
    """Return the noun in its case: den Jungen, des Mannes, den Kindern."""
    if is_plural:
        needs_n = case == "dative" and not noun.german_plural.endswith(("n", "s"))
        return noun.german_plural + "n" if needs_n else noun.german_plural
    if noun.is_weak and case != "nominative":
        return noun.german_plural
    if case == "genitive" and noun.german_gender != "f":
        return noun.german + _genitive_ending(noun.german)
    return noun.german


def _genitive_ending(noun: str) -> str:
    """Return -es after a hiss and in words of one syllable (Gastes, Kindes), else -s (Lehrers)."""
    vowels = [letter in "aeiouyäöü" for letter in noun.lower()]
    syllables = sum(now and not before for before, now in zip([False, *vowels], vowels, strict=False))
    return "es" if noun.endswith(("s", "ß", "z", "x")) or syllables == 1 else "s"


def _word(adverb: Adverb | TimeAdverb | None) -> list[str]:
    """Return an adverb as a list of none or one."""
    return [] if adverb is None else [adverb.german]
