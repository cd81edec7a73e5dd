"""Says a phrasebook meaning in French.

Words are first put in order with every vowel in place (le homme, que il), and `_spell` elides them at the
end, because what elides depends on the next word only. What a determiner or an adjective looks like depends
on the next word too (ce, cet; beau, bel; ma, mon) but on gender and number as well, so that is decided
earlier.
"""

from .lexicon import (
    CONJUNCTIONS,
    FRENCH_AUXILIARIES,
    NEGATORS,
    POSSESSIVES,
    QUANTIFIERS,
    QUESTION_WORDS,
    Adjective,
    Adverb,
    FrenchVerb,
    Pronoun,
    TimeAdverb,
    french_plural,
)
from .meaning import Clause, NounPhrase, PrepositionalPhrase, Sentence, Who

_VOWELS = "aàâeéèêëiîïoôuùûœ"
# Words whose h keeps its neighbors from eliding: le héros, un haut mur.
_ASPIRATED = ("héros", "haut", "hauts", "haute", "hautes")
_ELIDING = ("le", "la", "de", "ne", "que", "je", "me", "te")
_CONTRACTIONS = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


def say_french(sentence: Sentence) -> str:
    """The sentence in French, with its capital and its full stop, or question mark after a space."""
    words = _clause(sentence.main)
    if sentence.subordinate is not None:
        conjunction = CONJUNCTIONS[sentence.conjunction].french.split(" ")
        subordinate = [*conjunction, *_clause(sentence.subordinate)]
        words = [*subordinate, ",", *words] if sentence.subordinate_first else [*words, *subordinate]
    text = _spell(words)
    return text[0].upper() + text[1:] + (" ?" if sentence.main.question else ".")


def _starts_with_vowel(word: str) -> bool:
    """Whether the words before it elide: a vowel, or an h that is not aspirated."""
    return word[0] in _VOWELS or (word[0] == "h" and word not in _ASPIRATED)


def _spell(words: list[str]) -> str:
    """Join words, eliding le homme to l'homme and si il to s'il."""
    pieces = []
    for word, following in zip(words, [*words[1:], "."], strict=True):
        if (word in _ELIDING and _starts_with_vowel(following)) or (word == "si" and following in ("il", "ils")):
            pieces.append(word[:-1] + "'")
        else:
            pieces.append(word + " ")
    return "".join(pieces).rstrip().replace(" ,", ",")


def _clause(clause: Clause) -> list[str]:
    """The words of a clause; questions keep the order of statements, thanks to est-ce que."""
    return [
        *_opening(clause),
        *_subject(clause.subject),
        *(["ne"] if clause.is_negative else []),
        *_verbs(clause),
        *_complements(clause),
    ]


def _opening(clause: Clause) -> list[str]:
    """The question phrase, or the adverbial before the subject."""
    if clause.question == "yes-no":
        return ["est-ce", "que"]
    if clause.question not in ("", "who"):
        return QUESTION_WORDS[clause.question].french.split(" ")
    if clause.fronted == "time":
        return [*_word(clause.time), ","]
    return [*_prepositional(clause.location), ","] if clause.fronted == "location" else []


def _verbs(clause: Clause) -> list[str]:
    """Verbs with the pronoun objects before them and the second half of the negation between them.

    The pronoun goes before the verb it belongs to: l'a vu, but veut le voir.
    """
    verb, person = clause.verb.french, clause.subject.person
    clitic = _clitic(clause)
    adverb = [NEGATORS[clause.polarity].french] if clause.is_negative else _word(clause.frequency)
    if clause.modal is not None:
        return [_finite(clause.modal.french, clause.tense, person), *adverb, *clitic, verb.infinitive]
    if clause.tense == "past" and verb.imperfect is None:
        return [*clitic, FRENCH_AUXILIARIES[verb.auxiliary][person], *adverb, _participle(clause)]
    return [*clitic, _finite(verb, clause.tense, person), *adverb]


def _finite(verb: FrenchVerb, tense: str, person: int) -> str:
    forms = verb.imperfect if tense == "past" and verb.imperfect else verb.present
    return forms[person]


def _clitic(clause: Clause) -> list[str]:
    """The object or recipient as a pronoun before the verb, if it is one that goes there."""
    if isinstance(clause.recipient, Pronoun):
        return [clause.recipient.french_dative]
    if isinstance(clause.object, Pronoun):
        if not clause.verb.french.preposition:
            return [clause.object.french_direct]
        if clause.verb.french.has_dative_pronoun:
            return [clause.object.french_dative]
    return []


def _participle(clause: Clause) -> str:
    """It agrees with the subject after être, and with a direct object that stands before avoir."""
    verb = clause.verb.french
    if verb.auxiliary == "être":
        return _agree(verb.participle, clause.subject)
    if isinstance(clause.object, Pronoun) and not verb.preposition:
        return _agree(verb.participle, clause.object)
    return verb.participle


def _agree(participle: str, with_whom: NounPhrase | Pronoun | Who) -> str:
    feminine = participle + "e" if with_whom.is_feminine else participle
    return french_plural(feminine) if with_whom.is_plural else feminine


def _complements(clause: Clause) -> list[str]:
    """What follows the verbs: object, predicate, recipient, goal, manner, company, location and time."""
    words = _object(clause)
    if clause.predicate is not None:
        words += [*_word(clause.degree), _adjective(clause.predicate, clause.subject)]
    if isinstance(clause.recipient, NounPhrase):
        words += _contract("à", _noun_phrase(clause.recipient))
    words += [*_prepositional(clause.goal), *_word(clause.manner), *_prepositional(clause.companion)]
    if clause.fronted != "location":
        words += _prepositional(clause.location)
    if clause.fronted != "time":
        words += _word(clause.time)
    return words


def _object(clause: Clause) -> list[str]:
    """The object where it follows the verb: a noun, or a pronoun after a preposition (pense à lui)."""
    preposition, phrase = clause.verb.french.preposition, clause.object
    if phrase is None or _clitic(clause):
        # A clitic recipient leaves the object behind the verb: me donne le livre.
        return _noun_phrase(phrase, is_negated=clause.is_negative) if isinstance(phrase, NounPhrase) else []
    if isinstance(phrase, Pronoun):
        return [preposition, phrase.french_stressed]
    if preposition:
        return _contract(preposition, _noun_phrase(phrase))
    return _noun_phrase(phrase, is_negated=clause.is_negative)


def _subject(subject: NounPhrase | Pronoun | Who) -> list[str]:
    if isinstance(subject, Who):
        return ["qui"]
    return [subject.french] if isinstance(subject, Pronoun) else _noun_phrase(subject)


def _prepositional(phrase: PrepositionalPhrase | None) -> list[str]:
    if phrase is None:
        return []
    if isinstance(phrase.phrase, Pronoun):
        return [phrase.relation.french, phrase.phrase.french_stressed]
    return _contract(phrase.relation.french, _noun_phrase(phrase.phrase))


def _contract(preposition: str, words: list[str]) -> list[str]:
    """A preposition before a noun phrase: à le lac becomes au lac, but à le hôpital stays to be elided."""
    *others, last = preposition.split(" ")
    if (last, words[0]) in _CONTRACTIONS and not (words[0] == "le" and _starts_with_vowel(words[1])):
        return [*others, _CONTRACTIONS[last, words[0]], *words[1:]]
    return [*others, last, *words]


def _noun_phrase(phrase: NounPhrase, *, is_negated: bool = False) -> list[str]:
    """Determiner, adjective and noun in their order, possessor and relative clause."""
    words = [phrase.noun.french_plural if phrase.is_plural else phrase.noun.french]
    if phrase.adjective is not None and phrase.adjective.precedes_french_noun:
        words = [_adjective(phrase.adjective, phrase, next_word=words[0]), *words]
    elif phrase.adjective is not None:
        words.append(_adjective(phrase.adjective, phrase))
    words = _determine(phrase, words, is_negated=is_negated)
    if phrase.possessor is not None:
        words += _contract("de", _noun_phrase(phrase.possessor))
    return [*words, *(_clause(phrase.relative) if phrase.relative else [])]


def _adjective(adjective: Adjective, noun: NounPhrase | Pronoun | Who, *, next_word: str = ".") -> str:
    """The adjective in the gender and number of `noun`."""
    masculine, feminine, before_vowel = adjective.french
    if noun.is_plural:
        return french_plural(feminine if noun.is_feminine else masculine)
    if noun.is_feminine:
        return feminine
    return before_vowel if _starts_with_vowel(next_word) else masculine


def _determine(phrase: NounPhrase, words: list[str], *, is_negated: bool) -> list[str]:
    """Put the determiner before `words`, which are the noun and its adjective."""
    is_plural, is_feminine = phrase.is_plural, phrase.is_feminine
    before_vowel = _starts_with_vowel(words[0])
    article = "les" if is_plural else "la" if is_feminine else "le"
    if phrase.determiner == "the":
        return [article, *words]
    if phrase.determiner == "a":
        return _indefinite(phrase, [article, *words], is_negated=is_negated)
    if phrase.determiner == "every":
        return ["chaque", *words]
    if phrase.determiner in QUANTIFIERS:
        return [*QUANTIFIERS[phrase.determiner].french.split(" "), *words]
    if phrase.determiner == "this":
        singular = "cette" if is_feminine else "cet" if before_vowel else "ce"
        return ["ces" if is_plural else singular, *words]
    masculine, feminine, plural = POSSESSIVES[phrase.determiner][1]
    # mon before a vowel even if feminine: mon école.
    singular = feminine if is_feminine and not before_vowel else masculine
    return [plural if is_plural else singular, *words]


def _indefinite(phrase: NounPhrase, definite: list[str], *, is_negated: bool) -> list[str]:
    """un, une, des, or of a mass noun du, de la; only `de` after a negation or before a plural adjective."""
    words = definite[1:]
    has_adjective_first = phrase.adjective is not None and phrase.adjective.precedes_french_noun
    if is_negated or (phrase.is_plural and has_adjective_first):
        return ["de", *words]
    if phrase.is_plural:
        return ["des", *words]
    if phrase.noun.is_mass:
        return _contract("de", definite)
    return ["une" if phrase.is_feminine else "un", *words]


def _word(adverb: Adverb | TimeAdverb | None) -> list[str]:
    """An adverb as a list of none or one."""
    return [] if adverb is None else [adverb.french]
