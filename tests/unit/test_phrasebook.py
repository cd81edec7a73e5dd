"""The phrasebook: what its two realisers say for given meanings, and what its corpus promises."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer.data.phrasebook import pairs as phrasebook
from vaswani_transformer.data.phrasebook.drawing import Dice, draw_sentence
from vaswani_transformer.data.phrasebook.english import say_english
from vaswani_transformer.data.phrasebook.german import say_german
from vaswani_transformer.data.phrasebook.lexicon import (
    ADJECTIVES,
    BE,
    CLAUSE_VERBS,
    DEGREE_ADVERBS,
    FREQUENCY_ADVERBS,
    GROUPS,
    MANNER_ADVERBS,
    MODALS,
    NOUNS,
    PRONOUNS,
    RELATIONS,
    TIME_ADVERBS,
    VERBS,
    nouns_in,
)
from vaswani_transformer.data.phrasebook.meaning import Clause, NounPhrase, PrepositionalPhrase, Sentence, Who
from vaswani_transformer.data.phrasebook.pairs import PHRASEBOOK_SPLITS, generate_pairs, split_of


def phrase(text: str, **others) -> NounPhrase:
    """A noun phrase from its words in the singular: "the old man", "a bread"; plurals say is_plural=True."""
    determiner, *adjective, noun = text.split(" ")
    chosen = ADJECTIVES[adjective[0]] if adjective else None
    return NounPhrase(NOUNS[noun], determiner, adjective=chosen, **others)


def pronoun_or_phrase(text: str) -> NounPhrase:
    return PRONOUNS[text] if text in PRONOUNS else phrase(text)


def where(relation: str, text: str) -> PrepositionalPhrase:
    return PrepositionalPhrase(RELATIONS[relation], pronoun_or_phrase(text))


def clause(subject, verb: str, thing=None, **others) -> Clause:
    """A clause; nouns, verbs, modals and adverbs are given by their English words."""
    tables = {"modal": MODALS, "time": TIME_ADVERBS, "frequency": FREQUENCY_ADVERBS, "manner": MANNER_ADVERBS}
    tables |= {"predicate": ADJECTIVES, "degree": DEGREE_ADVERBS}
    words = {name: tables[name][word] if name in tables else word for name, word in others.items()}
    return Clause(
        subject=pronoun_or_phrase(subject) if isinstance(subject, str) else subject,
        verb=BE if verb == "be" else VERBS[verb],
        object=pronoun_or_phrase(thing) if isinstance(thing, str) else thing,
        **words,
    )


MANY = {"is_plural": True}
BOOKS = phrase("a book", **MANY)

# What is said, and how: a clause or sentence, then English and German.
EXAMPLES = {
    "German weak endings follow the article in three genders": (
        clause("the old man", "see", phrase("the small child")),
        "The old man sees the small child.",
        "Der alte Mann sieht das kleine Kind.",
    ),
    "German mixed endings follow ein": (
        clause("a young man", "buy", "a new car"),
        "A young man buys a new car.",
        "Ein junger Mann kauft ein neues Auto.",
    ),
    "German strong endings stand alone": (
        clause("the woman", "drink", "a cold milk"),
        "The woman drinks cold milk.",
        "Die Frau trinkt kalte Milch.",
    ),
    "German strong endings stand alone in the plural": (
        clause("I", "buy", phrase("a beautiful apple", **MANY), tense="past"),
        "I bought beautiful apples.",
        "Ich habe schöne Äpfel gekauft.",
    ),
    "a direct verb in English may take the dative in German": (
        clause("we", "help", phrase("the child", **MANY)),
        "We help the children.",
        "Wir helfen den Kindern.",
    ),
    "giving has dative before accusative": (
        clause("the teacher", "give", "a book", recipient=phrase("the boy"), tense="past"),
        "The teacher gave a book to the boy.",
        "Der Lehrer hat dem Jungen ein Buch gegeben.",
    ),
    "a pronoun recipient comes early": (
        clause("the man", "show", "the letter", recipient=PRONOUNS["she"], modal="want to"),
        "The man wants to show the letter to her.",
        "Der Mann will ihr den Brief zeigen.",
    ),
    "an owner can be owned": (
        clause("he", "steal", phrase("the key", possessor=phrase("my neighbor"))),
        "He steals my neighbor's key.",
        "Er stiehlt den Schlüssel meines Nachbarn.",
    ),
    "a quantifier declines in German": (
        clause(phrase("some child", **MANY), "dream of", phrase("many lion", **MANY)),
        "Some children dream of many lions.",
        "Einige Kinder träumen von vielen Löwen.",
    ),
    "an adjective after a number is strong": (
        clause("every baker", "sell", phrase("two old table", **MANY), recipient=PRONOUNS["they"]),
        "Every baker sells two old tables to them.",
        "Jeder Bäcker verkauft ihnen zwei alte Tische.",
    ),
    "a stem drops its e before an ending": (
        clause("the dark forest", "be", predicate="quiet"),
        "The dark forest is quiet.",
        "Der dunkle Wald ist ruhig.",
    ),
    "a separable prefix ends a main clause": (
        clause("I", "call", "the doctor", time="today", tense="present"),
        "I call the doctor today.",
        "Ich rufe heute den Arzt an.",
    ),
    "a separable verb is one word after a modal": (
        clause("I", "call", "the doctor", modal="want to", polarity="not"),
        "I do not want to call the doctor.",
        "Ich will den Arzt nicht anrufen.",
    ),
    "a separable verb is one word in a subordinate clause": (
        Sentence(
            Clause(subject=PRONOUNS["she"], verb=CLAUSE_VERBS["say"]),
            "that",
            clause("I", "call", "the doctor"),
        ),
        "She says that I call the doctor.",
        "Sie sagt, dass ich den Arzt anrufe.",
    ),
    "a fronted adverbial inverts the German clause": (
        clause("the man", "read", "the newspaper", time="in the morning", fronted="time"),
        "In the morning the man reads the newspaper.",
        "Am Morgen liest der Mann die Zeitung.",
    ),
    "a fronted place is a constituent too": (
        clause("they", "dance", location=where("in", "the garden"), tense="past", fronted="location"),
        "In the garden they danced.",
        "Im Garten haben sie getanzt.",
    ),
    "verbs of motion form the perfect with sein": (
        clause("she", "arrive", location=where("at", "the station"), time="yesterday", tense="past"),
        "She arrived at the station yesterday.",
        "Sie ist gestern am Bahnhof angekommen.",
    ),
    "a place is in the dative": (
        clause("the cat", "sleep", location=where("under", "the table")),
        "The cat sleeps under the table.",
        "Die Katze schläft unter dem Tisch.",
    ),
    "a direction is in the accusative": (
        clause("the cat", "run", goal=where("into", "the house")),
        "The cat runs into the house.",
        "Die Katze läuft ins Haus.",
    ),
    "zu contracts with its article": (
        clause("we", "go", goal=where("to", "the market"), companion=where("with", "he"), modal="will"),
        "We will go to the market with him.",
        "Wir werden mit ihm zum Markt gehen.",
    ),
    "a preposition may belong to the verb": (
        clause("the guest", "wait for", "she", location=where("at", "the station"), tense="past"),
        "The guest waited for her at the station.",
        "Der Gast hat am Bahnhof auf sie gewartet.",
    ),
    "nicht follows a known object": (
        clause("the boy", "open", "the door", tense="past", polarity="not"),
        "The boy did not open the door.",
        "Der Junge hat die Tür nicht geöffnet.",
    ),
    "nicht precedes a place": (
        clause("the boy", "play", location=where("in", "the park"), polarity="not"),
        "The boy does not play in the park.",
        "Der Junge spielt nicht im Park.",
    ),
    "kein negates an indefinite object": (
        clause("I", "eat", "a orange", polarity="not"),
        "I do not eat an orange.",
        "Ich esse keine Orange.",
    ),
    "kein has no ending where ein has none": (
        clause("we", "eat", "a fresh bread", polarity="not", modal="can"),
        "We cannot eat fresh bread.",
        "Wir können kein frisches Brot essen.",
    ),
    "nie keeps the indefinite article apart": (
        clause("he", "write", BOOKS, polarity="never", tense="past"),
        "He never wrote books.",
        "Er hat nie Bücher geschrieben.",
    ),
    "an indefinite object follows the place in German": (
        clause("the woman", "eat", "a apple", location=where("in", "the kitchen")),
        "The woman eats an apple in the kitchen.",
        "Die Frau isst in der Küche einen Apfel.",
    ),
    "manner follows a known object": (
        clause("you", "close", "the window", manner="slowly", modal="should"),
        "You should close the window slowly.",
        "Du solltest das Fenster langsam zumachen.",
    ),
    "frequency has a place of its own in each language": (
        clause("my uncle", "visit", "the museum", frequency="often"),
        "My uncle often visits the museum.",
        "Mein Onkel besucht oft das Museum.",
    ),
    "a yes-no question": (
        clause("he", "repair", "the bicycle", tense="past", question="yes-no"),
        "Did he repair the bicycle?",
        "Hat er das Fahrrad repariert?",
    ),
    "who asks for the subject": (
        clause(Who(), "be", predicate="tired", time="yesterday", tense="past", question="who"),
        "Who was tired yesterday?",
        "Wer war gestern müde?",
    ),
    "what asks for the object": (
        clause("she", "bring", recipient=phrase("the queen"), question="what"),
        "What does she bring to the queen?",
        "Was bringt sie der Königin?",
    ),
    "where asks for a place": (
        clause("the nurse", "live", question="where"),
        "Where does the nurse live?",
        "Wo wohnt die Krankenschwester?",
    ),
    "where asks for a direction": (
        clause("the farmer", "carry", "the box", question="where", tense="past"),
        "Where did the farmer carry the box?",
        "Wohin hat der Bauer die Kiste getragen?",
    ),
    "why asks for a reason": (
        clause("you", "sleep", polarity="not", question="why"),
        "Why do you not sleep?",
        "Warum schläfst du nicht?",
    ),
    "weil sends the verb to the end": (
        Sentence(clause("the child", "cry"), "because", clause("he", "lose", "the ball", tense="past")),
        "The child cries because he lost the ball.",
        "Das Kind weint, weil er den Ball verloren hat.",
    ),
    "a leading if-clause is followed by the verb": (
        Sentence(clause("the horse", "be", predicate="tired", modal="will"), "if", clause("he", "come"), True),
        "If he comes, the horse will be tired.",
        "Wenn er kommt, wird das Pferd müde sein.",
    ),
    "when is als in the past": (
        Sentence(
            clause("I", "help", "he", tense="past"),
            "when",
            clause("he", "be", predicate="sick", tense="past"),
        ),
        "I helped him when he was sick.",
        "Ich habe ihm geholfen, als er krank war.",
    ),
    "when is wenn in the present": (
        Sentence(clause("the dog", "sleep"), "when", clause("she", "read", BOOKS)),
        "The dog sleeps when she reads books.",
        "Der Hund schläft, wenn sie Bücher liest.",
    ),
    "ob asks indirectly": (
        Sentence(
            Clause(subject=PRONOUNS["I"], verb=CLAUSE_VERBS["know"], polarity="not"),
            "whether",
            clause("they", "come back", modal="can"),
        ),
        "I do not know whether they can come back.",
        "Ich weiß nicht, ob sie zurückkommen können.",
    ),
    "a relative clause is set off by commas in German": (
        clause(phrase("the woman", relative=clause(Who(phrase("the woman")), "sing")), "laugh"),
        "The woman who sings laughs.",
        "Die Frau, die singt, lacht.",
    ),
}


def say(language: str, meaning: Clause | Sentence) -> str:
    sentence = meaning if isinstance(meaning, Sentence) else Sentence(meaning)
    return {"en": say_english, "de": say_german}[language](sentence)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_checked_by_hand(name):
    meaning, *expected = EXAMPLES[name]
    assert [say(language, meaning) for language in ("en", "de")] == expected


@pytest.mark.parametrize(
    ("noun", "declension"),
    [
        ("man", "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes"),
        ("woman", "die alte Frau, die alte Frau, der alten Frau, der alten Frau"),
        ("girl", "das alte Mädchen, das alte Mädchen, dem alten Mädchen, des alten Mädchens"),
        ("farmer", "der alte Bauer, den alten Bauern, dem alten Bauern, des alten Bauern"),
        ("uncle", "der alte Onkel, den alten Onkel, dem alten Onkel, des alten Onkels"),
    ],
)
def test_german_nouns_decline_in_four_cases(noun, declension):
    person = phrase(f"the old {noun}")
    said = [
        say("de", clause(person, "laugh")).removesuffix(" lacht.").replace("D", "d", 1),
        say("de", clause("he", "hear", person)).removeprefix("Er hört ").removesuffix("."),
        say("de", clause("he", "thank", person)).removeprefix("Er dankt ").removesuffix("."),
        say("de", clause("he", "hear", phrase("the dog", possessor=person)))
        .removeprefix("Er hört den Hund ")
        .removesuffix("."),
    ]
    assert ", ".join(said) == declension


@pytest.mark.parametrize(
    ("verb", "person", "english", "german"),
    [
        ("read", "you", "You read", "Du liest"),
        ("wash", "he", "He washes", "Er wäscht"),
        ("buy", "we", "We buy", "Wir kaufen"),
        ("buy", "they", "They buy", "Sie kaufen"),
        ("eat", "we", "We eat", "Wir essen"),
        ("carry", "she", "She carries", "Sie trägt"),
        ("build", "you", "You build", "Du baust"),
        ("feed", "I", "I feed", "Ich füttere"),
        ("clean", "you", "You clean", "Du putzt"),
    ],
)
def test_verbs_agree_with_their_subject(verb, person, english, german):
    said = [say(language, clause(person, verb)).removesuffix(".") for language in ("en", "de")]
    assert said == [english, german]


def test_english_chooses_a_or_an_by_sound():
    said = [
        say("en", clause("I", "see", text)) for text in ("a university", "a honest man", "a umbrella", "a young aunt")
    ]
    nouns = [sentence.removeprefix("I see ").removesuffix(".") for sentence in said]
    assert nouns == ["a university", "an honest man", "an umbrella", "a young aunt"]


def test_irregular_english_plurals():
    nouns = ("mouse", "child", "knife", "wolf", "hero", "city", "woman")
    plurals = ["mice", "children", "knives", "wolves", "heroes", "cities", "women"]
    assert [NOUNS[noun].english_plural for noun in nouns] == plurals


def test_no_word_lacks_its_german():
    verbs = [BE, *MODALS.values(), *VERBS.values(), *CLAUSE_VERBS.values()]
    assert all(verb.english.base and verb.german.infinitive for verb in verbs)
    tables = (NOUNS, ADJECTIVES, TIME_ADVERBS, FREQUENCY_ADVERBS, MANNER_ADVERBS, DEGREE_ADVERBS)
    assert all(word.english and word.german for table in tables for word in table.values())


@pytest.mark.parametrize("split", PHRASEBOOK_SPLITS)
def test_the_number_of_pairs_asked_for_comes_without_repetition(split):
    pairs = list(generate_pairs(split=split, num_pairs=200))
    assert len({english for english, _ in pairs}) == len(pairs) == 200


def test_fewer_pairs_are_the_beginning_of_more_and_another_seed_draws_others():
    more, other = (list(generate_pairs(split="train", num_pairs=100, seed=seed)) for seed in (3, 4))
    assert more[:40] == list(generate_pairs(split="train", num_pairs=40, seed=3))
    assert more != other


def test_pairs_are_the_same_in_every_process_and_version_of_python():
    # Strings hash differently in every process, so this fails if anything depends on the order of a set.
    assert next(generate_pairs(split="train", num_pairs=1)) == (
        "Every policeman hung up coats in the garden.",
        "Jeder Polizist hat im Garten Mäntel aufgehängt.",
    )


@given(st.integers(), st.sampled_from(PHRASEBOOK_SPLITS))
@settings(max_examples=15)
def test_no_seed_puts_a_sentence_into_another_split(seed, split):
    pairs = generate_pairs(split=split, num_pairs=20, seed=seed)
    assert {split_of(english) for english, _ in pairs} == {split}


def test_about_five_percent_of_the_sentences_are_held_out_for_each_purpose():
    dice = Dice("shares")
    shares = Counter(split_of(say_english(draw_sentence(dice))) for _ in range(4_000))
    assert 150 < shares["dev"] < 250
    assert 150 < shares["test"] < 250


def test_an_english_sentence_has_one_translation_whatever_it_was_drawn_from():
    translations = {}
    dice = Dice("function")
    for _ in range(8_000):
        meaning = draw_sentence(dice)
        english, translation = say("en", meaning), say("de", meaning)
        assert translations.setdefault(english, translation) == translation


@given(st.text(max_size=20))
@settings(max_examples=300)
def test_sentences_are_well_formed_in_every_language(seed):
    meaning = draw_sentence(Dice(seed))
    for language in ("en", "de"):
        sentence = say(language, meaning)
        assert sentence[0].isupper()
        assert sentence[-1] == ("?" if meaning.main.question else ".")
        assert not re.search(r"  |^ | ,|,,|,[^ ]|[,.?][.?]|None", sentence)
    german = say("de", meaning)
    assert not re.search(r"\b(in|an|zu|von) dem\b(?! ,)|\bzu der\b|\b(in) das\b", german)


def test_corpus_sentences_have_4_to_14_words():
    lengths = Counter(len(english.split()) for english, _ in generate_pairs(split="train", num_pairs=2_000))
    assert min(lengths) == 4
    assert max(lengths) == 14


def test_every_noun_verb_and_adjective_is_used():
    pairs = generate_pairs(split="train", num_pairs=10_000)
    used = {word.strip(".,?").lower() for english, _ in pairs for word in english.split()}
    assert not {word for word in (*NOUNS, *ADJECTIVES) if word not in used}
    bases = {verb.split(" ")[0] for verb in VERBS}
    assert not {base for base in bases if base not in used}


def test_groups_of_the_lexicon_hold_nouns():
    assert all(GROUPS.values())
    assert all(nouns_in(verb.subjects) for verb in VERBS.values())


@pytest.mark.parametrize(
    ("split", "num_pairs", "message"),
    [
        ("valid", 1, r"split is 'valid', but must be one of \('train', 'dev', 'test'\)"),
        ("train", 0, "num_pairs is 0, but must be at least 1"),
    ],
)
def test_an_unknown_split_and_no_pairs_are_refused(split, num_pairs, message):
    with pytest.raises(ValueError, match=message):
        generate_pairs(split=split, num_pairs=num_pairs)


def test_more_pairs_than_the_grammar_makes_are_refused(monkeypatch):
    small = [Sentence(clause("the cat", "sleep", location=where("on", f"the {x}"))) for x in ("bed", "table")]
    monkeypatch.setattr(phrasebook, "draw_sentence", lambda dice: dice.choose(small))
    monkeypatch.setattr(phrasebook, "split_of", lambda english: "train")
    monkeypatch.setattr(phrasebook, "_MAX_FAILED_DRAWS", 50)
    drawn = generate_pairs(split="train", num_pairs=3)
    assert {next(drawn), next(drawn)} == {
        ("The cat sleeps on the bed.", "Die Katze schläft auf dem Bett."),
        ("The cat sleeps on the table.", "Die Katze schläft auf dem Tisch."),
    }
    with pytest.raises(ValueError, match=r"num_pairs is 3, but .* ran out of new train sentences after 2"):
        next(drawn)
