"""The words of the phrasebook: what each is in English and German, and how it is inflected.

Words stand in tables, one per line, columns split by `|`; a form that a rule predicts is left out. English
words are unique within their word class, so a table is also a dictionary, and a *group* names the nouns (by
their English form) that a verb or adjective goes with: one may eat what is `edible` and drink a `drink`.

Verb forms and pronouns are tuples over PERSONS: I, you (one person, familiar), he or she, we, they.
"""

from dataclasses import dataclass
from functools import cache

PERSONS = ("I", "you", "he", "we", "they")

Forms = tuple[str, str, str, str, str]  # one form for each of PERSONS


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun; an English plural of "" marks a mass noun (bread), which has neither plural nor "a"."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    german_gender: str  # m, f or n
    is_weak: bool  # n-declension: der Junge, but den, dem, des Jungen

    @property
    def is_mass(self) -> bool:
        return not self.english_plural


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective and the nouns it goes with."""

    english: str
    german: str  # as a predicate: das Hotel ist teuer
    german_stem: str  # before an ending: das teure Hotel
    groups: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class EnglishVerb:
    """An English verb; in "look at" the first word is inflected and the second stays with it."""

    base: str
    past: str
    is_auxiliary: bool = False  # can, will: no -s, no do-support


@dataclass(frozen=True, eq=False)
class GermanVerb:
    """A German verb and the case or preposition it governs."""

    infinitive: str  # with the prefix: anrufen
    prefix: str  # separable prefix, or ""
    present: Forms  # without the prefix
    participle: str
    auxiliary: str  # haben or sein
    preterite: Forms | None = None  # the past tense of sein and of modal verbs; others use the perfect
    preposition: str = ""  # warten auf
    case: str = "accusative"  # of the object, or of what follows the preposition


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages, and what may stand around it.

    `traits` holds any of: `state` (present tense only, no adverbials), `known` (the object is not a new one:
    not "he forgets books"), a key of LOCATIONS, `located` (the location is required), `company` (with
    somebody), `for` (for somebody), `manner`, `recipient` (to somebody, required) and keys of GOALS (one of
    them is required).
    """

    english: EnglishVerb
    german: GermanVerb
    subjects: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TimeAdverb:
    """An adverbial of time and the time frames it fits: past, present, modal (can, want to) and future."""

    english: str
    german: str
    frames: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb that does not inflect."""

    english: str
    german: str


@dataclass(frozen=True, eq=False)
class Relation:
    """A preposition of place or company, and the case it governs in this meaning.

    German "" for `at` says that the noun decides: see SITE_PREPOSITIONS.
    """

    english: str
    german: str
    case: str


def _rows(table: str) -> list[list[str]]:
    """The lines of a table, split into stripped columns."""
    return [[column.strip() for column in line.split("|")] for line in table.strip().split("\n")]


def _english_plural(singular: str) -> str:
    """The regular English plural."""
    if singular.endswith(("s", "x", "ch", "sh")):
        return singular + "es"
    if singular.endswith("y") and singular[-2] not in "aeiou":
        return singular[:-1] + "ies"
    return singular + "s"


def _parse_noun(row: list[str]) -> Noun:
    """`mouse, mice | die Maus, Mäuse`; `, weak` ends a weak German noun, `, -` a mass noun."""
    english, *english_plural = row[0].split(", ")
    (article, german), *german_more = row[1].split(", ")[0].split(" "), *row[1].split(", ")[1:]
    plural = english_plural[0] if english_plural else _english_plural(english)
    return Noun(
        english=english,
        english_plural="" if plural == "-" else plural,
        german=german,
        german_plural=german_more[0] if german_more else german,
        german_gender={"der": "m", "die": "f", "das": "n"}[article],
        is_weak=german_more[-1:] == ["weak"],
    )


_NOUN_TABLES = {
    "person": """
        man, men | der Mann, Männer
        woman, women | die Frau, Frauen
        child, children | das Kind, Kinder
        boy | der Junge, Jungen, weak
        girl | das Mädchen, Mädchen
        king | der König, Könige
        queen | die Königin, Königinnen
        prince | der Prinz, Prinzen, weak
        princess | die Prinzessin, Prinzessinnen
        farmer | der Bauer, Bauern, weak
        teacher | der Lehrer, Lehrer
        student | der Student, Studenten, weak
        doctor | der Arzt, Ärzte
        nurse | die Krankenschwester, Krankenschwestern
        baker | der Bäcker, Bäcker
        soldier | der Soldat, Soldaten, weak
        policeman, policemen | der Polizist, Polizisten, weak
        waiter | der Kellner, Kellner
        painter | der Maler, Maler
        hero, heroes | der Held, Helden, weak
        guest | der Gast, Gäste
        thief, thieves | der Dieb, Diebe
        singer | der Sänger, Sänger
        witch | die Hexe, Hexen""",
    "kin": """
        father | der Vater, Väter
        mother | die Mutter, Mütter
        brother | der Bruder, Brüder
        sister | die Schwester, Schwestern
        son | der Sohn, Söhne
        daughter | die Tochter, Töchter
        uncle | der Onkel, Onkel
        aunt | die Tante, Tanten
        grandfather | der Großvater, Großväter
        grandmother | die Großmutter, Großmütter
        friend | der Freund, Freunde
        neighbor | der Nachbar, Nachbarn, weak""",
    "animal": """
        dog | der Hund, Hunde
        cat | die Katze, Katzen
        horse | das Pferd, Pferde
        bird | der Vogel, Vögel
        cow | die Kuh, Kühe
        mouse, mice | die Maus, Mäuse
        lion | der Löwe, Löwen, weak
        bear | der Bär, Bären, weak
        monkey | der Affe, Affen, weak
        elephant | der Elefant, Elefanten, weak
        wolf, wolves | der Wolf, Wölfe
        fox | der Fuchs, Füchse
        rabbit | das Kaninchen, Kaninchen
        duck | die Ente, Enten
        snake | die Schlange, Schlangen""",
    "fruit": """
        apple | der Apfel, Äpfel
        orange | die Orange, Orangen
        banana | die Banane, Bananen
        cherry | die Kirsche, Kirschen
        tomato, tomatoes | die Tomate, Tomaten
        carrot | die Karotte, Karotten""",
    "dish": """
        egg | das Ei, Eier
        potato, potatoes | die Kartoffel, Kartoffeln
        soup | die Suppe, Suppen
        cake | der Kuchen, Kuchen
        sausage | die Wurst, Würste""",
    "staple": """
        bread, - | das Brot
        cheese, - | der Käse
        rice, - | der Reis
        meat, - | das Fleisch
        butter, - | die Butter
        chocolate, - | die Schokolade""",
    "drink": """
        water, - | das Wasser
        milk, - | die Milch
        coffee, - | der Kaffee
        tea, - | der Tee
        wine, - | der Wein
        beer, - | das Bier""",
    "text": """
        book | das Buch, Bücher
        letter | der Brief, Briefe
        newspaper | die Zeitung, Zeitungen
        poem | das Gedicht, Gedichte
        story | die Geschichte, Geschichten
        report | der Bericht, Berichte
        message | die Nachricht, Nachrichten
        contract | der Vertrag, Verträge""",
    "device": """
        lamp | die Lampe, Lampen
        clock | die Uhr, Uhren
        phone | das Telefon, Telefone
        computer | der Computer, Computer
        radio | das Radio, Radios
        television | der Fernseher, Fernseher""",
    "thing": """
        key | der Schlüssel, Schlüssel
        knife, knives | das Messer, Messer
        bottle | die Flasche, Flaschen
        glass | das Glas, Gläser
        cup | die Tasse, Tassen
        plate | der Teller, Teller
        box | die Kiste, Kisten
        suitcase | der Koffer, Koffer
        bag | die Tasche, Taschen
        ball | der Ball, Bälle
        painting | das Gemälde, Gemälde
        photo | das Foto, Fotos
        mirror | der Spiegel, Spiegel
        umbrella | der Regenschirm, Regenschirme
        gift | das Geschenk, Geschenke
        pencil | der Bleistift, Bleistifte
        ring | der Ring, Ringe
        guitar | die Gitarre, Gitarren
        map | die Karte, Karten
        flower | die Blume, Blumen""",
    "clothes": """
        shirt | das Hemd, Hemden
        coat | der Mantel, Mäntel
        hat | der Hut, Hüte
        dress | das Kleid, Kleider
        shoe | der Schuh, Schuhe
        jacket | die Jacke, Jacken
        scarf, scarves | der Schal, Schals""",
    "vehicle": """
        car | das Auto, Autos
        bicycle | das Fahrrad, Fahrräder
        bus | der Bus, Busse
        train | der Zug, Züge
        boat | das Boot, Boote
        airplane | das Flugzeug, Flugzeuge""",
    "furniture": """
        table | der Tisch, Tische
        chair | der Stuhl, Stühle
        bed | das Bett, Betten
        bench | die Bank, Bänke
        shelf, shelves | das Regal, Regale
        carpet | der Teppich, Teppiche""",
    "part": """
        door | die Tür, Türen
        window | das Fenster, Fenster
        roof | das Dach, Dächer
        wall | die Mauer, Mauern""",
    "interior": """
        garden | der Garten, Gärten
        kitchen | die Küche, Küchen
        house | das Haus, Häuser
        room | das Zimmer, Zimmer
        forest | der Wald, Wälder
        city | die Stadt, Städte
        village | das Dorf, Dörfer
        castle | das Schloss, Schlösser
        church | die Kirche, Kirchen
        hotel | das Hotel, Hotels
        park | der Park, Parks
        restaurant | das Restaurant, Restaurants
        museum | das Museum, Museen""",
    "site": """
        station | der Bahnhof, Bahnhöfe
        school | die Schule, Schulen
        market | der Markt, Märkte
        airport | der Flughafen, Flughäfen
        beach | der Strand, Strände
        hospital | das Krankenhaus, Krankenhäuser
        lake | der See, Seen
        university | die Universität, Universitäten""",
    "landscape": """
        tree | der Baum, Bäume
        mountain | der Berg, Berge
        tower | der Turm, Türme
        river | der Fluss, Flüsse
        street | die Straße, Straßen
        bridge | die Brücke, Brücken""",
}

# The German for "at" these sites.
SITE_PREPOSITIONS = {
    "station": "an",
    "school": "in",
    "market": "auf",
    "airport": "an",
    "beach": "an",
    "hospital": "in",
    "lake": "an",
    "university": "an",
}

# Groups made of whole tables (in angle brackets) and single nouns.
_GROUP_TABLES = {
    "human": "<person> <kin>",
    "edible": "<fruit> <dish> <staple>",
    "cookable": "egg potato rice meat soup carrot sausage",
    "warm-food": "soup potato sausage rice milk tea water",
    "cold-food": "soup meat milk water beer tea",
    "fresh-food": "<fruit> egg bread butter milk meat cheese",
    "sweet-food": "orange banana cherry cake tea chocolate",
    "pet": "dog cat horse cow rabbit duck bird",
    "wild": "lion bear monkey elephant wolf fox snake",
    "runner": "dog cat horse mouse rabbit fox wolf",
    "jumper": "dog cat mouse monkey fox",
    "climber": "cat monkey mouse",
    "swimmer": "dog duck bear",
    "catchable": "mouse bird rabbit snake ball thief",
    "flier": "bird duck",
    "writable": "book letter poem story report message",
    "tellable": "story",
    "sendable": "book letter report message contract gift photo painting map flower",
    "explainable": "poem story report contract map painting",
    "lendable": "book car bicycle knife suitcase umbrella pencil computer boat coat",
    "openable": "door window box suitcase bottle letter gift bag",
    "closable": "door window box suitcase bottle bag",
    "washable": "<clothes> car bicycle bus plate cup glass dog horse tomato carrot",
    "cleanable": "kitchen room house window church table shoe carpet hotel mirror",
    "repairable": "<vehicle> clock lamp radio television computer roof wall door window bed chair table",
    "buildable": "house wall bridge castle boat tower table church school bed shelf",
    "switchable": "lamp radio television computer",
    "drawable": "<animal> tree flower house castle bridge mountain map tower",
    "discardable": "newspaper letter bottle shoe box chair lamp hat map",
    "takeable": "key knife bottle cup plate umbrella bag suitcase book apple orange",
    "crossable": "river street bridge",
    "pushable": "car bicycle table bed box chair",
    "carryable": "box suitcase bag chair lamp guitar mirror bottle book painting plate",
    "layable": "book letter newspaper map knife key photo coat hat pencil ring",
    "throwable": "ball bottle shoe key hat box",
    "hideable": "<device> key gift letter ring photo map bottle chocolate contract ball",
    "hangable": "painting coat mirror map photo jacket lamp",
    "waterable": "tree flower tomato garden",
    "findable": "<text> <thing> <clothes> <device>",
    "sellable": "<thing> <device> <clothes> <vehicle> <furniture> <fruit> <staple> <pet> house castle boat",
    "visitable": "museum castle city village church school university hospital tower",
    "public-transport": "train bus boat",
    "surface": "table chair bed bench shelf carpet roof wall",
    "cover": "table bed chair bench tree bridge",
    "landmark": "house mountain tree school church castle station tower museum hotel bridge wall bed door",
    "vicinity": "<landmark> lake river street",
    "breakable": "<device> glass cup plate chair bed table mirror umbrella guitar window bicycle",
    "fast-thing": "<vehicle> horse dog",
    "important-text": "book letter report message contract",
    "sad-text": "book poem story letter",
    "strong-being": "man woman king soldier policeman farmer hero boy horse bear lion dog elephant",
    "wild-being": "horse duck rabbit cat",
    "dwelling": "city village house hotel castle forest",
    "movable": "<thing> <device> <clothes> book letter newspaper",
    "vessel": "bottle glass box suitcase bag bus train room hotel",
    "long-thing": "letter report story poem message contract dress coat scarf street bridge",
    "high-thing": "wall tower tree mountain bridge",
    "deep-thing": "lake river forest",
    "narrow-thing": "street bridge bed room",
    "dark-place": "forest room street kitchen church castle",
    "loud-thing": "city street restaurant radio bus market school",
    "quiet-thing": "village room street child park hotel lake forest",
    "modern-thing": "<device> <vehicle> museum hospital airport hotel kitchen",
    "dear-thing": "<clothes> <device> <vehicle> <furniture> ring painting guitar hotel gift",
    "heavy-thing": "<furniture> box suitcase bag clock mirror computer television coat book",
    "colored": "<clothes> <vehicle> <furniture> bag bottle cup box ball umbrella pencil door roof bird",
    "round-thing": "table mirror box plate carpet lake cake tower",
    "old-thing": "<text> <device> <clothes> <vehicle> <furniture> <interior> key tree tower wall station",
    "new-thing": "<device> <clothes> <vehicle> <furniture> book key guitar map bag house hotel bridge roof",
    "small-thing": "<animal> <furniture> <interior> box key bag ring ball lake boat child boy girl",
    "big-thing": "<animal> <furniture> <interior> box bag ball lake boat tree tower clock apple",
    "beautiful-thing": "<interior> <clothes> woman queen princess bird horse flower ring photo"
    " painting lake mountain river tree beach poem story",
    "famous-thing": "book poem story painting museum university hotel painter singer doctor king",
    "dangerous-thing": "<wild> dog street knife thief river",
    "good-thing": "<edible> <drink> book poem story teacher doctor king friend student baker hotel",
    "bad-thing": "<drink> book poem hotel restaurant student soup meat cake photo message report",
    "dirty-thing": "<clothes> <vehicle> plate glass cup knife kitchen room window street dog",
    "wet-thing": "<clothes> dog cat street bench roof carpet newspaper",
    "ownable": "<kin> <pet> <edible> <drink> <text> <device> <thing> <clothes> <vehicle> <furniture> house"
    " garden kitchen room",
}


def _build_groups(nouns: dict[str, Noun]) -> dict[str, tuple[Noun, ...]]:
    """Every table and every named group, as tuples of nouns in the order they are written."""
    groups = {name: tuple(nouns[row[0].split(", ")[0]] for row in _rows(table)) for name, table in _NOUN_TABLES.items()}
    for name, members in _GROUP_TABLES.items():
        listed: list[Noun] = []
        for member in members.split():
            listed.extend(groups[member[1:-1]] if member.startswith("<") else [nouns[member]])
        groups[name] = tuple(dict.fromkeys(listed))
    return groups


NOUNS = {noun.english: noun for table in _NOUN_TABLES.values() for noun in (_parse_noun(row) for row in _rows(table))}
GROUPS = _build_groups(NOUNS)


@cache
def nouns_in(groups: tuple[str, ...]) -> tuple[Noun, ...]:
    """The nouns of several groups, each once; a noun's own English form counts as a group."""
    listed = [noun for group in groups for noun in (GROUPS[group] if group in GROUPS else (NOUNS[group],))]
    return tuple(dict.fromkeys(listed))


def _parse_adjective(row: list[str]) -> Adjective:
    """`dark | dunkel, dunkl | groups`."""
    german, *german_stem = row[1].split(", ")
    return Adjective(
        english=row[0],
        german=german,
        german_stem=german_stem[0] if german_stem else german,
        groups=tuple(row[2].split()),
    )


_ADJECTIVE_TABLE = """
    old | alt | human animal old-thing
    young | jung | human animal
    small | klein | small-thing
    big | groß | big-thing
    beautiful | schön | beautiful-thing
    good | gut | good-thing
    bad | schlecht | bad-thing
    new | neu | new-thing
    long | lang | long-thing
    short | kurz | long-thing
    high | hoch, hoh | high-thing
    deep | tief | deep-thing
    narrow | schmal | narrow-thing
    dark | dunkel, dunkl | dark-place
    loud | laut | loud-thing
    quiet | ruhig | quiet-thing
    modern | modern | modern-thing
    expensive | teuer, teur | dear-thing
    heavy | schwer | heavy-thing
    red | rot | colored
    blue | blau | colored
    green | grün | colored
    yellow | gelb | colored
    white | weiß | colored
    black | schwarz | colored
    round | rund | round-thing
    famous | berühmt | famous-thing
    dangerous | gefährlich | dangerous-thing
    dirty | schmutzig | dirty-thing
    clean | sauber | dirty-thing
    wet | nass | wet-thing
    broken | kaputt | breakable
    empty | leer | vessel
    full | voll | vessel
    warm | warm | warm-food
    cold | kalt | cold-food
    fresh | frisch | fresh-food
    sweet | süß | sweet-food
    delicious | lecker | edible drink
    interesting | interessant | text museum
    boring | langweilig | text
    important | wichtig | important-text
    strange | seltsam | human text
    sad | traurig | human sad-text
    funny | lustig | human story poem
    happy | glücklich | human
    tired | müde, müd | human animal
    sick | krank | human animal
    poor | arm | human
    rich | reich | human
    strong | stark | strong-being
    weak | schwach | human
    angry | wütend | human dog lion
    polite | höflich | human
    brave | mutig | human
    lazy | faul | human cat
    intelligent | intelligent | human dog
    curious | neugierig | human cat monkey
    honest | ehrlich | human
    friendly | freundlich | human
    proud | stolz | human
    wild | wild | wild-being
    fast | schnell | fast-thing
    slow | langsam | fast-thing
"""
ADJECTIVES = {row[0]: _parse_adjective(row) for row in _rows(_ADJECTIVE_TABLE)}
ADJECTIVES_OF = {
    noun: tuple(adjective for adjective in ADJECTIVES.values() if noun in nouns_in(adjective.groups))
    for noun in NOUNS.values()
}

# Adjectives for what comes and goes, so that one may say when: tired today, but not famous today.
_PASSING_STATES = "happy sad tired sick angry curious lazy empty full dirty clean wet warm cold loud quiet broken"
PASSING_STATES = tuple(ADJECTIVES[name] for name in _PASSING_STATES.split(" "))
# Adjectives without degrees: not "very broken".
ABSOLUTE_STATES = (ADJECTIVES["broken"], ADJECTIVES["empty"])


def _german_present(infinitive: str, third_person: str) -> Forms:
    """The present tense, from the infinitive (lesen) and the form of er (liest)."""
    if not third_person.endswith("t"):  # kann, weiß, sollte: er has no ending of its own
        second = third_person + ("t" if third_person[-1] in "sß" else "st")
        return third_person, second, third_person, infinitive, infinitive
    stem = third_person[:-1]
    second = third_person if stem[-1] in "sßxz" else stem + "st"
    if infinitive.endswith("eln"):
        first = infinitive[:-3] + "le"
    else:
        first = infinitive.removesuffix("n").removesuffix("e") + "e"
    return first, second, third_person, infinitive, infinitive


def _parse_german_verb(entry: str) -> GermanVerb:
    """`an/kommen kommt ist angekommen`; at the end `+dat`, or a preposition and its case: `auf+acc`."""
    infinitive, third_person, auxiliary, participle, *government = entry.split(" ")
    prefix, slash, stem = infinitive.rpartition("/")
    preposition, _, case = government[0].partition("+") if government else ("", "", "acc")
    return GermanVerb(
        infinitive=prefix + stem,
        prefix=prefix if slash else "",
        present=_german_present(stem, third_person),
        participle=participle,
        auxiliary={"hat": "haben", "ist": "sein"}[auxiliary],
        preposition=preposition,
        case={"acc": "accusative", "dat": "dative"}[case],
    )


def _parse_verb(row: list[str]) -> Verb:
    """English base and past | German | groups of subjects | groups of objects | traits."""
    base, past = row[0].split(", ")
    return Verb(
        english=EnglishVerb(base, past),
        german=_parse_german_verb(row[1]),
        subjects=tuple(row[2].split()),
        objects=tuple(row[3].split()),
        traits=tuple(row[4].split()),
    )


_VERB_TABLE = """
    sleep, slept | schlafen schläft hat geschlafen | human animal | | spot
    laugh, laughed | lachen lacht hat gelacht | human | | place company
    work, worked | arbeiten arbeitet hat gearbeitet | human | | place company manner
    cry, cried | weinen weint hat geweint | human | | spot
    dance, danced | tanzen tanzt hat getanzt | human | | place company manner
    sing, sang | singen singt hat gesungen | human | | place company manner
    swim, swam | schwimmen schwimmt ist geschwommen | human swimmer | | company manner
    play, played | spielen spielt hat gespielt | child boy girl dog cat monkey | | spot company
    travel, traveled | reisen reist ist gereist | human | | company manner
    speak, spoke | sprechen spricht hat gesprochen | human | | manner
    stay, stayed | bleiben bleibt ist geblieben | human | | building located company
    live, lived | wohnen wohnt hat gewohnt | human | | dwelling located state
    arrive, arrived | an/kommen kommt ist angekommen | human public-transport | | building
    depart, departed | ab/fahren fährt ist abgefahren | public-transport | |
    leave, left | weg/gehen geht ist weggegangen | human | | company manner
    come back, came back | zurück/kommen kommt ist zurückgekommen | human | | company
    go out, went out | aus/gehen geht ist ausgegangen | human | | company
    come in, came in | herein/kommen kommt ist hereingekommen | human dog cat | | company manner
    give up, gave up | auf/geben gibt hat aufgegeben | human | |
    go, went | gehen geht ist gegangen | human | | into to company
    come, came | kommen kommt ist gekommen | human | | into to company
    return, returned | zurück/kehren kehrt ist zurückgekehrt | human | | into to
    run, ran | laufen läuft ist gelaufen | human runner | | into to
    jump, jumped | springen springt ist gesprungen | jumper | | onto
    climb, climbed | klettern klettert ist geklettert | climber boy girl thief | | onto
    fly, flew | fliegen fliegt ist geflogen | flier | | into onto
    see, saw | sehen sieht hat gesehen | human animal | human animal vehicle landscape thing | place
    hear, heard | hören hört hat gehört | human animal | human animal | place
    find, found | finden findet hat gefunden | human | findable pet | spot
    look for, looked for | suchen sucht hat gesucht | human | human pet findable | place
    look at, looked at | an/sehen sieht hat angesehen | human animal | human animal mountain |
    paint, painted | malen malt hat gemalt | human | drawable landscape | place manner
    call, called | an/rufen ruft hat angerufen | human | human |
    invite, invited | ein/laden lädt hat eingeladen | human | human |
    meet, met | treffen trifft hat getroffen | human | human | place
    visit, visited | besuchen besucht hat besucht | human | visitable | company
    understand, understood | verstehen versteht hat verstanden | human | human text | known
    forget, forgot | vergessen vergisst hat vergessen | human | human findable | known
    rescue, rescued | retten rettet hat gerettet | human | human pet |
    cross, crossed | überqueren überquert hat überquert | human animal | crossable |
    disturb, disturbed | stören stört hat gestört | human animal | human | place
    kiss, kissed | küssen küsst hat geküsst | human | human | place
    know, knew | kennen kennt hat gekannt | human | human interior book story | state
    love, loved | lieben liebt hat geliebt | human | human pet | state
    hate, hated | hassen hasst hat gehasst | human | human wild city | state
    fear, feared | fürchten fürchtet hat gefürchtet | human | wild king witch thief | state
    help, helped | helfen hilft hat geholfen +dat | human | human | place
    thank, thanked | danken dankt hat gedankt +dat | human | human |
    answer, answered | antworten antwortet hat geantwortet +dat | human | human |
    follow, followed | folgen folgt ist gefolgt +dat | human animal | human animal |
    congratulate, congratulated | gratulieren gratuliert hat gratuliert +dat | human | human |
    listen to, listened to | zu/hören hört hat zugehört +dat | human | human | place
    believe, believed | glauben glaubt hat geglaubt +dat | human | human | state
    write to, wrote to | schreiben schreibt hat geschrieben +dat | human | human |
    belong to, belonged to | gehören gehört hat gehört +dat | findable vehicle | human | state
    wait for, waited for | warten wartet hat gewartet auf+acc | human | human bus train | place
    think of, thought of | denken denkt hat gedacht an+acc | human | human |
    dream of, dreamed of | träumen träumt hat geträumt von+dat | human | human animal |
    talk with, talked with | reden redet hat geredet mit+dat | human | human | place
    read, read | lesen liest hat gelesen | human | text | place company
    write, wrote | schreiben schreibt hat geschrieben | human | writable | place manner
    translate, translated | übersetzen übersetzt hat übersetzt | human | text | for manner
    buy, bought | kaufen kauft hat gekauft | human | sellable | for place
    sell, sold | verkaufen verkauft hat verkauft | human | sellable | recipient
    eat, ate | essen isst hat gegessen | human | edible | place company manner
    drink, drank | trinken trinkt hat getrunken | human | drink | place company manner
    cook, cooked | kochen kocht hat gekocht | human | cookable | for place
    prepare, prepared | vor/bereiten bereitet hat vorbereitet | human | soup cake gift report | for
    order, ordered | bestellen bestellt hat bestellt | human | dish drink meat cheese book | for
    open, opened | öffnen öffnet hat geöffnet | human | openable | manner
    close, closed | zu/machen macht hat zugemacht | human | closable | manner
    wash, washed | waschen wäscht hat gewaschen | human | washable | place
    clean, cleaned | putzen putzt hat geputzt | human | cleanable | manner
    repair, repaired | reparieren repariert hat repariert | human | repairable | for manner
    build, built | bauen baut hat gebaut | human | buildable | for
    wear, wore | tragen trägt hat getragen | human | clothes |
    try on, tried on | an/probieren probiert hat anprobiert | human | clothes |
    lose, lost | verlieren verliert hat verloren | human | findable | place
    take, took | nehmen nimmt hat genommen | human | takeable |
    choose, chose | aus/wählen wählt hat ausgewählt | human | sellable text | for
    steal, stole | stehlen stiehlt hat gestohlen | human | findable bicycle car horse |
    throw away, threw away | weg/werfen wirft hat weggeworfen | human | discardable |
    turn on, turned on | ein/schalten schaltet hat eingeschaltet | human | switchable |
    turn off, turned off | aus/schalten schaltet hat ausgeschaltet | human | switchable |
    hide, hid | verstecken versteckt hat versteckt | human | hideable | spot
    hang up, hung up | auf/hängen hängt hat aufgehängt | human | hangable | place
    catch, caught | fangen fängt hat gefangen | human cat fox | catchable |
    feed, fed | füttern füttert hat gefüttert | human | pet | place
    water, watered | gießen gießt hat gegossen | human | waterable |
    bring back, brought back | zurück/bringen bringt hat zurückgebracht | human | lendable |
    take along, took along | mit/nehmen nimmt hat mitgenommen | human | thing text clothes |
    bring, brought | bringen bringt hat gebracht | human | thing text dish | recipient
    give, gave | geben gibt hat gegeben | human | thing text clothes fruit | recipient
    show, showed | zeigen zeigt hat gezeigt | human | thing text clothes animal | recipient
    send, sent | schicken schickt hat geschickt | human | sendable | recipient
    lend, lent | leihen leiht hat geliehen | human | lendable | recipient
    explain, explained | erklären erklärt hat erklärt | human | explainable | recipient
    tell, told | erzählen erzählt hat erzählt | human | tellable | recipient
    give back, gave back | zurück/geben gibt hat zurückgegeben | human | lendable | recipient
    carry, carried | tragen trägt hat getragen | human | carryable | into to
    push, pushed | schieben schiebt hat geschoben | human | pushable | into
    lay, laid | legen legt hat gelegt | human | layable | onto
    throw, threw | werfen wirft hat geworfen | human | throwable | into onto
"""
VERBS = {verb.english.base: verb for verb in (_parse_verb(row) for row in _rows(_VERB_TABLE))}

# Verbs of saying and thinking, whose object is a clause; the last column says with which conjunctions.
_CLAUSE_VERB_TABLE = """
    say, said | sagen sagt hat gesagt | human | | that
    think, thought | denken denkt hat gedacht | human | | that
    believe, believed | glauben glaubt hat geglaubt | human | | that
    hope, hoped | hoffen hofft hat gehofft | human | | that
    see, saw | sehen sieht hat gesehen | human | | that
    hear, heard | hören hört hat gehört | human | | that
    know, knew | wissen weiß hat gewusst | human | | that whether
    ask, asked | fragen fragt hat gefragt | human | | whether
"""
CLAUSE_VERBS = {verb.english.base: verb for verb in (_parse_verb(row) for row in _rows(_CLAUSE_VERB_TABLE))}

BE = Verb(
    EnglishVerb("be", "was", is_auxiliary=True),
    GermanVerb(
        "sein",
        "",
        ("bin", "bist", "ist", "sind", "sind"),
        "gewesen",
        "sein",
        preterite=("war", "warst", "war", "waren", "waren"),
    ),
    traits=("spot",),
)
ENGLISH_BE = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
GERMAN_AUXILIARIES = {"haben": ("habe", "hast", "hat", "haben", "haben"), "sein": BE.german.present}


def _german_modal(infinitive: str, third_person: str, preterite: str = "") -> GermanVerb:
    """A modal verb; without a `preterite` it is never used in the past."""
    past = (preterite, preterite + "st", preterite, preterite + "n", preterite + "n") if preterite else None
    return GermanVerb(infinitive, "", _german_present(infinitive, third_person), "", "haben", preterite=past)


# Verbs that take an infinitive. In English the first word is inflected and the others stay with it.
MODALS = {
    "can": Verb(
        EnglishVerb("can", "could", is_auxiliary=True),
        _german_modal("können", "kann", "konnte"),
    ),
    "want to": Verb(
        EnglishVerb("want to", "wanted to"),
        _german_modal("wollen", "will", "wollte"),
    ),
    "have to": Verb(
        EnglishVerb("have to", "had to"),
        _german_modal("müssen", "muss", "musste"),
    ),
    "should": Verb(
        EnglishVerb("should", "", is_auxiliary=True),
        _german_modal("sollten", "sollte"),
    ),
    "would like to": Verb(
        EnglishVerb("would like to", "", is_auxiliary=True),
        _german_modal("möchten", "möchte"),
    ),
    "will": Verb(
        EnglishVerb("will", "", is_auxiliary=True),
        GermanVerb("werden", "", ("werde", "wirst", "wird", "werden", "werden"), "", "sein"),
    ),
}

_TIME_TABLE = """
    yesterday | gestern | past
    last week | letzte Woche | past
    on Monday | am Montag | past future
    on Friday | am Freitag | past future
    on Sunday | am Sonntag | past future
    today | heute | past modal future
    this evening | heute Abend | past modal future
    now | jetzt | modal
    tomorrow | morgen | modal future
    soon | bald | future
    next week | nächste Woche | future
    later | später | future
    every day | jeden Tag | present
    in the morning | am Morgen | present
    in the evening | am Abend | present
    at night | nachts | present
    in summer | im Sommer | present
    in winter | im Winter | present
"""
TIME_ADVERBS = {row[0]: TimeAdverb(row[0], row[1], tuple(row[2].split())) for row in _rows(_TIME_TABLE)}


def _adverbs(table: str) -> dict[str, Adverb]:
    """Adverbs, or other words that do not inflect, by their English form."""
    return {row[0]: Adverb(*row) for row in _rows(table)}


FREQUENCY_ADVERBS = _adverbs("""
    often | oft
    always | immer
    sometimes | manchmal
    rarely | selten
""")
MANNER_ADVERBS = _adverbs("""
    slowly | langsam
    quickly | schnell
    carefully | vorsichtig
    quietly | leise
""")
DEGREE_ADVERBS = _adverbs("""
    very | sehr
    too | zu
""")
NEGATORS = _adverbs("""
    not | nicht
    never | nie
""")
CONJUNCTIONS = _adverbs("""
    because | weil
    if | wenn
    when | wenn
    that | dass
    whether | ob
""")
QUESTION_WORDS = _adverbs("""
    who | wer
    what | was
    where | wo
    when | wann
    why | warum
""")

RELATIONS = {
    row[0]: Relation(*row)
    for row in _rows("""
    with | mit | dative
    for | für | accusative
    in | in | dative
    into | in | accusative
    on | auf | dative
    onto | auf | accusative
    at | | dative
    to | zu | dative
    under | unter | dative
    behind | hinter | dative
    in front of | vor | dative
    next to | neben | dative
""")
}
_NEARBY = (("behind", "landmark"), ("in front of", "landmark"), ("next to", "vicinity"))
# Traits of a verb that say where it can happen: relations, each with the group of places it goes with.
LOCATIONS = {
    "dwelling": (("in", "dwelling"),),
    "building": (("in", "interior"), ("at", "site")),
    "place": (("in", "interior"), ("at", "site"), *_NEARBY),
    "spot": (("in", "interior"), ("on", "surface"), ("under", "cover"), *_NEARBY),
}
GOALS = {"into": "interior", "onto": "surface", "to": "site"}


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal pronoun in every form."""

    english: str
    english_object: str
    nominative: str
    accusative: str
    dative: str

    @property
    def person(self) -> int:
        """Index into the verb forms."""
        return PERSONS.index("he" if self.english == "she" else self.english)


PRONOUNS = {
    row[0]: Pronoun(*row)
    for row in _rows("""
    I | me | ich | mich | mir
    you | you | du | dich | dir
    he | him | er | ihn | ihm
    she | her | sie | sie | ihr
    we | us | wir | uns | uns
    they | them | sie | sie | ihnen
""")
}

# English possessive | German stem
POSSESSIVES = {
    row[0]: row[1]
    for row in _rows("""
    my | mein
    your | dein
    his | sein
    her | ihr
    our | unser
    their | ihr
""")
}
# English | German; they need a plural noun.
QUANTIFIERS = _adverbs("""
    two | zwei
    three | drei
    ten | zehn
    some | einige
    many | viele
""")
