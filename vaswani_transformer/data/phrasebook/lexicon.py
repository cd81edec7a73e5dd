"""The words of the phrasebook: what each is in English, German and French, and how it is inflected.

Words stand in tables, one a line, columns split by `|`; a form that a rule predicts is left out. English
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
    french: str
    french_plural: str
    french_gender: str  # m or f

    @property
    def is_mass(self) -> bool:
        return not self.english_plural


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective and the nouns it goes with."""

    english: str
    german: str  # as a predicate: das Hotel ist teuer
    german_stem: str  # before an ending: das teure Hotel
    french: tuple[str, str, str]  # masculine, feminine, masculine before a vowel: beau, belle, bel
    precedes_french_noun: bool
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
class FrenchVerb:
    """A French verb and how it takes its object."""

    infinitive: str
    present: Forms
    participle: str
    auxiliary: str  # avoir or être
    imperfect: Forms | None = None  # the past tense of être and of modal verbs; others use the passé composé
    preposition: str = ""  # répondre à, penser à, parler avec
    has_dative_pronoun: bool = False  # lui répond, but pense à lui


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in three languages, and what may stand around it.

    `traits` holds any of: `state` (present tense only, no adverbials), `known` (the object is not a new one:
    not "he forgets books"), a key of LOCATIONS, `located` (the location is required), `company` (with
    somebody), `for` (for somebody), `manner`, `recipient` (to somebody, required) and keys of GOALS (one of
    them is required).
    """

    english: EnglishVerb
    german: GermanVerb
    french: FrenchVerb
    subjects: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TimeAdverb:
    """An adverbial of time and the time frames it fits: past, present, modal (can, want to) and future."""

    english: str
    german: str
    french: str
    frames: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb that does not inflect."""

    english: str
    german: str
    french: str


@dataclass(frozen=True, eq=False)
class Relation:
    """A preposition of place or company, and the case it governs in this meaning.

    German "" for `at` says that the noun decides: see SITE_PREPOSITIONS.
    """

    english: str
    german: str
    case: str
    french: str


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


def french_plural(singular: str) -> str:
    """The regular French plural of a noun or adjective: gâteau, gâteaux; cheval, chevaux; gris, gris."""
    if singular.endswith(("s", "x", "z")):
        return singular
    if singular.endswith("eau"):
        return singular + "x"
    if singular.endswith("al"):
        return singular[:-2] + "aux"
    return singular + "s"


def _parse_noun(row: list[str]) -> Noun:
    """`mouse, mice | die Maus, Mäuse | f souris`; `, weak` ends a weak German noun, `, -` a mass noun."""
    english, *english_plural = row[0].split(", ")
    (article, german), *german_more = row[1].split(", ")[0].split(" "), *row[1].split(", ")[1:]
    gender, french_forms = row[2].split(" ", 1)
    french, *french_more = french_forms.split(", ")
    plural = english_plural[0] if english_plural else _english_plural(english)
    return Noun(
        english=english,
        english_plural="" if plural == "-" else plural,
        german=german,
        german_plural=german_more[0] if german_more else german,
        german_gender={"der": "m", "die": "f", "das": "n"}[article],
        is_weak=german_more[-1:] == ["weak"],
        french=french,
        french_plural=french_more[0] if french_more else french_plural(french),
        french_gender=gender,
    )


_NOUN_TABLES = {
    "person": """
        man, men | der Mann, Männer | m homme
        woman, women | die Frau, Frauen | f femme
        child, children | das Kind, Kinder | m enfant
        boy | der Junge, Jungen, weak | m garçon
        girl | das Mädchen, Mädchen | f fille
        king | der König, Könige | m roi
        queen | die Königin, Königinnen | f reine
        prince | der Prinz, Prinzen, weak | m prince
        princess | die Prinzessin, Prinzessinnen | f princesse
        farmer | der Bauer, Bauern, weak | m agriculteur
        teacher | der Lehrer, Lehrer | m professeur
        student | der Student, Studenten, weak | m étudiant
        doctor | der Arzt, Ärzte | m médecin
        nurse | die Krankenschwester, Krankenschwestern | f infirmière
        baker | der Bäcker, Bäcker | m boulanger
        soldier | der Soldat, Soldaten, weak | m soldat
        policeman, policemen | der Polizist, Polizisten, weak | m policier
        waiter | der Kellner, Kellner | m serveur
        painter | der Maler, Maler | m peintre
        hero, heroes | der Held, Helden, weak | m héros
        guest | der Gast, Gäste | m invité
        thief, thieves | der Dieb, Diebe | m voleur
        singer | der Sänger, Sänger | m chanteur
        witch | die Hexe, Hexen | f sorcière""",
    "kin": """
        father | der Vater, Väter | m père
        mother | die Mutter, Mütter | f mère
        brother | der Bruder, Brüder | m frère
        sister | die Schwester, Schwestern | f sœur
        son | der Sohn, Söhne | m fils
        daughter | die Tochter, Töchter | f fille
        uncle | der Onkel, Onkel | m oncle
        aunt | die Tante, Tanten | f tante
        grandfather | der Großvater, Großväter | m grand-père, grands-pères
        grandmother | die Großmutter, Großmütter | f grand-mère, grands-mères
        friend | der Freund, Freunde | m ami
        neighbor | der Nachbar, Nachbarn, weak | m voisin""",
    "animal": """
        dog | der Hund, Hunde | m chien
        cat | die Katze, Katzen | m chat
        horse | das Pferd, Pferde | m cheval
        bird | der Vogel, Vögel | m oiseau
        cow | die Kuh, Kühe | f vache
        mouse, mice | die Maus, Mäuse | f souris
        lion | der Löwe, Löwen, weak | m lion
        bear | der Bär, Bären, weak | m ours
        monkey | der Affe, Affen, weak | m singe
        elephant | der Elefant, Elefanten, weak | m éléphant
        wolf, wolves | der Wolf, Wölfe | m loup
        fox | der Fuchs, Füchse | m renard
        rabbit | das Kaninchen, Kaninchen | m lapin
        duck | die Ente, Enten | m canard
        snake | die Schlange, Schlangen | m serpent""",
    "fruit": """
        apple | der Apfel, Äpfel | f pomme
        orange | die Orange, Orangen | f orange
        banana | die Banane, Bananen | f banane
        cherry | die Kirsche, Kirschen | f cerise
        tomato, tomatoes | die Tomate, Tomaten | f tomate
        carrot | die Karotte, Karotten | f carotte""",
    "dish": """
        egg | das Ei, Eier | m œuf
        potato, potatoes | die Kartoffel, Kartoffeln | f pomme de terre, pommes de terre
        soup | die Suppe, Suppen | f soupe
        cake | der Kuchen, Kuchen | m gâteau
        sausage | die Wurst, Würste | f saucisse""",
    "staple": """
        bread, - | das Brot | m pain
        cheese, - | der Käse | m fromage
        rice, - | der Reis | m riz
        meat, - | das Fleisch | f viande
        butter, - | die Butter | m beurre
        chocolate, - | die Schokolade | m chocolat""",
    "drink": """
        water, - | das Wasser | f eau
        milk, - | die Milch | m lait
        coffee, - | der Kaffee | m café
        tea, - | der Tee | m thé
        wine, - | der Wein | m vin
        beer, - | das Bier | f bière""",
    "text": """
        book | das Buch, Bücher | m livre
        letter | der Brief, Briefe | f lettre
        newspaper | die Zeitung, Zeitungen | m journal
        poem | das Gedicht, Gedichte | m poème
        story | die Geschichte, Geschichten | f histoire
        report | der Bericht, Berichte | m rapport
        message | die Nachricht, Nachrichten | m message
        contract | der Vertrag, Verträge | m contrat""",
    "device": """
        lamp | die Lampe, Lampen | f lampe
        clock | die Uhr, Uhren | f horloge
        phone | das Telefon, Telefone | m téléphone
        computer | der Computer, Computer | m ordinateur
        radio | das Radio, Radios | f radio
        television | der Fernseher, Fernseher | m téléviseur""",
    "thing": """
        key | der Schlüssel, Schlüssel | f clé
        knife, knives | das Messer, Messer | m couteau
        bottle | die Flasche, Flaschen | f bouteille
        glass | das Glas, Gläser | m verre
        cup | die Tasse, Tassen | f tasse
        plate | der Teller, Teller | f assiette
        box | die Kiste, Kisten | f caisse
        suitcase | der Koffer, Koffer | f valise
        bag | die Tasche, Taschen | m sac
        ball | der Ball, Bälle | m ballon
        painting | das Gemälde, Gemälde | m tableau
        photo | das Foto, Fotos | f photo
        mirror | der Spiegel, Spiegel | m miroir
        umbrella | der Regenschirm, Regenschirme | m parapluie
        gift | das Geschenk, Geschenke | m cadeau
        pencil | der Bleistift, Bleistifte | m crayon
        ring | der Ring, Ringe | f bague
        guitar | die Gitarre, Gitarren | f guitare
        map | die Karte, Karten | f carte
        flower | die Blume, Blumen | f fleur""",
    "clothes": """
        shirt | das Hemd, Hemden | f chemise
        coat | der Mantel, Mäntel | m manteau
        hat | der Hut, Hüte | m chapeau
        dress | das Kleid, Kleider | f robe
        shoe | der Schuh, Schuhe | f chaussure
        jacket | die Jacke, Jacken | f veste
        scarf, scarves | der Schal, Schals | f écharpe""",
    "vehicle": """
        car | das Auto, Autos | f voiture
        bicycle | das Fahrrad, Fahrräder | m vélo
        bus | der Bus, Busse | m bus
        train | der Zug, Züge | m train
        boat | das Boot, Boote | m bateau
        airplane | das Flugzeug, Flugzeuge | m avion""",
    "furniture": """
        table | der Tisch, Tische | f table
        chair | der Stuhl, Stühle | f chaise
        bed | das Bett, Betten | m lit
        bench | die Bank, Bänke | m banc
        shelf, shelves | das Regal, Regale | f étagère
        carpet | der Teppich, Teppiche | m tapis""",
    "part": """
        door | die Tür, Türen | f porte
        window | das Fenster, Fenster | f fenêtre
        roof | das Dach, Dächer | m toit
        wall | die Mauer, Mauern | m mur""",
    "interior": """
        garden | der Garten, Gärten | m jardin
        kitchen | die Küche, Küchen | f cuisine
        house | das Haus, Häuser | f maison
        room | das Zimmer, Zimmer | f chambre
        forest | der Wald, Wälder | f forêt
        city | die Stadt, Städte | f ville
        village | das Dorf, Dörfer | m village
        castle | das Schloss, Schlösser | m château
        church | die Kirche, Kirchen | f église
        hotel | das Hotel, Hotels | m hôtel
        park | der Park, Parks | m parc
        restaurant | das Restaurant, Restaurants | m restaurant
        museum | das Museum, Museen | m musée""",
    "site": """
        station | der Bahnhof, Bahnhöfe | f gare
        school | die Schule, Schulen | f école
        market | der Markt, Märkte | m marché
        airport | der Flughafen, Flughäfen | m aéroport
        beach | der Strand, Strände | f plage
        hospital | das Krankenhaus, Krankenhäuser | m hôpital
        lake | der See, Seen | m lac
        university | die Universität, Universitäten | f université""",
    "landscape": """
        tree | der Baum, Bäume | m arbre
        mountain | der Berg, Berge | f montagne
        tower | der Turm, Türme | f tour
        river | der Fluss, Flüsse | f rivière
        street | die Straße, Straßen | f rue
        bridge | die Brücke, Brücken | m pont""",
}

# The German for "at" these sites; French says à for all of them.
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
    """`dark | dunkel, dunkl | sombre | groups`; `<` before the French says that it precedes its noun."""
    german, *german_stem = row[1].split(", ")
    masculine, *french_more = row[2].removeprefix("< ").split(" ")
    feminine = french_more[0] if french_more else masculine
    return Adjective(
        english=row[0],
        german=german,
        german_stem=german_stem[0] if german_stem else german,
        french=(masculine, feminine, french_more[1] if len(french_more) > 1 else masculine),
        precedes_french_noun=row[2].startswith("< "),
        groups=tuple(row[3].split()),
    )


_ADJECTIVE_TABLE = """
    old | alt | < vieux vieille vieil | human animal old-thing
    young | jung | < jeune | human animal
    small | klein | < petit petite | small-thing
    big | groß | < grand grande | big-thing
    beautiful | schön | < beau belle bel | beautiful-thing
    good | gut | < bon bonne | good-thing
    bad | schlecht | < mauvais mauvaise | bad-thing
    new | neu | neuf neuve | new-thing
    long | lang | < long longue | long-thing
    short | kurz | court courte | long-thing
    high | hoch, hoh | < haut haute | high-thing
    deep | tief | profond profonde | deep-thing
    narrow | schmal | étroit étroite | narrow-thing
    dark | dunkel, dunkl | sombre | dark-place
    loud | laut | bruyant bruyante | loud-thing
    quiet | ruhig | calme | quiet-thing
    modern | modern | moderne | modern-thing
    expensive | teuer, teur | cher chère | dear-thing
    heavy | schwer | lourd lourde | heavy-thing
    red | rot | rouge | colored
    blue | blau | bleu bleue | colored
    green | grün | vert verte | colored
    yellow | gelb | jaune | colored
    white | weiß | blanc blanche | colored
    black | schwarz | noir noire | colored
    round | rund | rond ronde | round-thing
    famous | berühmt | célèbre | famous-thing
    dangerous | gefährlich | dangereux dangereuse | dangerous-thing
    dirty | schmutzig | sale | dirty-thing
    clean | sauber | propre | dirty-thing
    wet | nass | mouillé mouillée | wet-thing
    broken | kaputt | cassé cassée | breakable
    empty | leer | vide | vessel
    full | voll | plein pleine | vessel
    warm | warm | chaud chaude | warm-food
    cold | kalt | froid froide | cold-food
    fresh | frisch | frais fraîche | fresh-food
    sweet | süß | sucré sucrée | sweet-food
    delicious | lecker | savoureux savoureuse | edible drink
    interesting | interessant | intéressant intéressante | text museum
    boring | langweilig | ennuyeux ennuyeuse | text
    important | wichtig | important importante | important-text
    strange | seltsam | étrange | human text
    sad | traurig | triste | human sad-text
    funny | lustig | drôle | human story poem
    happy | glücklich | heureux heureuse | human
    tired | müde, müd | fatigué fatiguée | human animal
    sick | krank | malade | human animal
    poor | arm | pauvre | human
    rich | reich | riche | human
    strong | stark | fort forte | strong-being
    weak | schwach | faible | human
    angry | wütend | fâché fâchée | human dog lion
    polite | höflich | poli polie | human
    brave | mutig | courageux courageuse | human
    lazy | faul | paresseux paresseuse | human cat
    intelligent | intelligent | intelligent intelligente | human dog
    curious | neugierig | curieux curieuse | human cat monkey
    honest | ehrlich | honnête | human
    friendly | freundlich | aimable | human
    proud | stolz | fier fière | human
    wild | wild | sauvage | wild-being
    fast | schnell | rapide | fast-thing
    slow | langsam | lent lente | fast-thing
"""
ADJECTIVES = {row[0]: _parse_adjective(row) for row in _rows(_ADJECTIVE_TABLE)}
ADJECTIVES_OF = {
    noun: tuple(adjective for adjective in ADJECTIVES.values() if noun in nouns_in(adjective.groups))
    for noun in NOUNS.values()
}

# Present forms for PERSONS and the participle; or, of a verb in -er, the stem of all present forms but nous.
_FRENCH_IRREGULAR_TABLE = """
    dormir | dors dors dort dormons dorment dormi
    rire | ris ris rit rions rient ri
    partir | pars pars part partons partent parti
    revenir | reviens reviens revient revenons reviennent revenu
    sortir | sors sors sort sortons sortent sorti
    aller | vais vas va allons vont allé
    venir | viens viens vient venons viennent venu
    courir | cours cours court courons courent couru
    voir | vois vois voit voyons voient vu
    entendre | entends entends entend entendons entendent entendu
    peindre | peins peins peint peignons peignent peint
    appeler | appell
    comprendre | comprends comprends comprend comprenons comprennent compris
    connaître | connais connais connaît connaissons connaissent connu
    craindre | crains crains craint craignons craignent craint
    répondre | réponds réponds répond répondons répondent répondu
    suivre | suis suis suit suivons suivent suivi
    croire | crois crois croit croyons croient cru
    écrire | écris écris écrit écrivons écrivent écrit
    appartenir | appartiens appartiens appartient appartenons appartiennent appartenu
    attendre | attends attends attend attendons attendent attendu
    lire | lis lis lit lisons lisent lu
    traduire | traduis traduis traduit traduisons traduisent traduit
    acheter | achèt
    vendre | vends vends vend vendons vendent vendu
    boire | bois bois boit buvons boivent bu
    ouvrir | ouvre ouvres ouvre ouvrons ouvrent ouvert
    nettoyer | nettoi
    construire | construis construis construit construisons construisent construit
    essayer | essai
    perdre | perds perds perd perdons perdent perdu
    prendre | prends prends prend prenons prennent pris
    choisir | choisis choisis choisit choisissons choisissent choisi
    jeter | jett
    éteindre | éteins éteins éteint éteignons éteignent éteint
    remplir | remplis remplis remplit remplissons remplissent rempli
    nourrir | nourris nourris nourrit nourrissons nourrissent nourri
    envoyer | envoi
    décrire | décris décris décrit décrivons décrivent décrit
    rendre | rends rends rend rendons rendent rendu
    dire | dis dis dit disons disent dit
    espérer | espèr
    savoir | sais sais sait savons savent su
"""
_FRENCH_IRREGULAR = {row[0]: row[1].split(" ") for row in _rows(_FRENCH_IRREGULAR_TABLE)}

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


def _french_er_forms(infinitive: str, strong_stem: str) -> list[str]:
    """Present forms and participle of a verb in -er; `strong_stem` is the stem of all forms but nous."""
    weak_stem = infinitive.removesuffix("er")
    nous_stem = weak_stem + "e" if weak_stem.endswith("g") else weak_stem
    return [strong_stem + ending for ending in ("e", "es", "e")] + [
        nous_stem + "ons",
        strong_stem + "ent",
        weak_stem + "é",
    ]


def _parse_french_verb(entry: str) -> FrenchVerb:
    """`donner`; a star marks the auxiliary être: `arriver*`.

    After it, `+à` takes its pronoun before the verb (lui répond) and `>à` after it (pense à lui).
    """
    starred, *government = entry.split(" ")
    infinitive = starred.removesuffix("*")
    forms = _FRENCH_IRREGULAR.get(infinitive, [infinitive[:-2]])
    if len(forms) == 1:
        forms = _french_er_forms(infinitive, forms[0])
    return FrenchVerb(
        infinitive=infinitive,
        present=(forms[0], forms[1], forms[2], forms[3], forms[4]),
        participle=forms[5],
        auxiliary="être" if starred.endswith("*") else "avoir",
        preposition=government[0][1:] if government else "",
        has_dative_pronoun=bool(government) and government[0].startswith("+"),
    )


def _parse_verb(row: list[str]) -> Verb:
    """English base and past | German | French | groups of subjects | groups of objects | traits."""
    base, past = row[0].split(", ")
    return Verb(
        english=EnglishVerb(base, past),
        german=_parse_german_verb(row[1]),
        french=_parse_french_verb(row[2]),
        subjects=tuple(row[3].split()),
        objects=tuple(row[4].split()),
        traits=tuple(row[5].split()),
    )


_VERB_TABLE = """
    sleep, slept | schlafen schläft hat geschlafen | dormir | human animal | | spot
    laugh, laughed | lachen lacht hat gelacht | rire | human | | place company
    work, worked | arbeiten arbeitet hat gearbeitet | travailler | human | | place company manner
    cry, cried | weinen weint hat geweint | pleurer | human | | spot
    dance, danced | tanzen tanzt hat getanzt | danser | human | | place company manner
    sing, sang | singen singt hat gesungen | chanter | human | | place company manner
    swim, swam | schwimmen schwimmt ist geschwommen | nager | human swimmer | | company manner
    play, played | spielen spielt hat gespielt | jouer | child boy girl dog cat monkey | | spot company
    travel, traveled | reisen reist ist gereist | voyager | human | | company manner
    speak, spoke | sprechen spricht hat gesprochen | parler | human | | manner
    stay, stayed | bleiben bleibt ist geblieben | rester* | human | | building located company
    live, lived | wohnen wohnt hat gewohnt | habiter | human | | dwelling located state
    arrive, arrived | an/kommen kommt ist angekommen | arriver* | human public-transport | | building
    depart, departed | ab/fahren fährt ist abgefahren | partir* | public-transport | |
    leave, left | weg/gehen geht ist weggegangen | partir* | human | | company manner
    come back, came back | zurück/kommen kommt ist zurückgekommen | revenir* | human | | company
    go out, went out | aus/gehen geht ist ausgegangen | sortir* | human | | company
    come in, came in | herein/kommen kommt ist hereingekommen | entrer* | human dog cat | | company manner
    give up, gave up | auf/geben gibt hat aufgegeben | abandonner | human | |
    go, went | gehen geht ist gegangen | aller* | human | | into to company
    come, came | kommen kommt ist gekommen | venir* | human | | into to company
    return, returned | zurück/kehren kehrt ist zurückgekehrt | retourner* | human | | into to
    run, ran | laufen läuft ist gelaufen | courir | human runner | | into to
    jump, jumped | springen springt ist gesprungen | sauter | jumper | | onto
    climb, climbed | klettern klettert ist geklettert | grimper | climber boy girl thief | | onto
    fly, flew | fliegen fliegt ist geflogen | voler | flier | | into onto
    see, saw | sehen sieht hat gesehen | voir | human animal | human animal vehicle landscape thing | place
    hear, heard | hören hört hat gehört | entendre | human animal | human animal | place
    find, found | finden findet hat gefunden | trouver | human | findable pet | spot
    look for, looked for | suchen sucht hat gesucht | chercher | human | human pet findable | place
    look at, looked at | an/sehen sieht hat angesehen | regarder | human animal | human animal mountain |
    paint, painted | malen malt hat gemalt | peindre | human | drawable landscape | place manner
    call, called | an/rufen ruft hat angerufen | appeler | human | human |
    invite, invited | ein/laden lädt hat eingeladen | inviter | human | human |
    meet, met | treffen trifft hat getroffen | rencontrer | human | human | place
    visit, visited | besuchen besucht hat besucht | visiter | human | visitable | company
    understand, understood | verstehen versteht hat verstanden | comprendre | human | human text | known
    forget, forgot | vergessen vergisst hat vergessen | oublier | human | human findable | known
    rescue, rescued | retten rettet hat gerettet | sauver | human | human pet |
    cross, crossed | überqueren überquert hat überquert | traverser | human animal | crossable |
    disturb, disturbed | stören stört hat gestört | déranger | human animal | human | place
    kiss, kissed | küssen küsst hat geküsst | embrasser | human | human | place
    know, knew | kennen kennt hat gekannt | connaître | human | human interior book story | state
    love, loved | lieben liebt hat geliebt | aimer | human | human pet | state
    hate, hated | hassen hasst hat gehasst | détester | human | human wild city | state
    fear, feared | fürchten fürchtet hat gefürchtet | craindre | human | wild king witch thief | state
    help, helped | helfen hilft hat geholfen +dat | aider | human | human | place
    thank, thanked | danken dankt hat gedankt +dat | remercier | human | human |
    answer, answered | antworten antwortet hat geantwortet +dat | répondre +à | human | human |
    follow, followed | folgen folgt ist gefolgt +dat | suivre | human animal | human animal |
    congratulate, congratulated | gratulieren gratuliert hat gratuliert +dat | féliciter | human | human |
    listen to, listened to | zu/hören hört hat zugehört +dat | écouter | human | human | place
    believe, believed | glauben glaubt hat geglaubt +dat | croire | human | human | state
    write to, wrote to | schreiben schreibt hat geschrieben +dat | écrire +à | human | human |
    belong to, belonged to | gehören gehört hat gehört +dat | appartenir +à | findable vehicle | human | state
    wait for, waited for | warten wartet hat gewartet auf+acc | attendre | human | human bus train | place
    think of, thought of | denken denkt hat gedacht an+acc | penser >à | human | human |
    dream of, dreamed of | träumen träumt hat geträumt von+dat | rêver >de | human | human animal |
    talk with, talked with | reden redet hat geredet mit+dat | parler >avec | human | human | place
    read, read | lesen liest hat gelesen | lire | human | text | place company
    write, wrote | schreiben schreibt hat geschrieben | écrire | human | writable | place manner
    translate, translated | übersetzen übersetzt hat übersetzt | traduire | human | text | for manner
    buy, bought | kaufen kauft hat gekauft | acheter | human | sellable | for place
    sell, sold | verkaufen verkauft hat verkauft | vendre | human | sellable | recipient
    eat, ate | essen isst hat gegessen | manger | human | edible | place company manner
    drink, drank | trinken trinkt hat getrunken | boire | human | drink | place company manner
    cook, cooked | kochen kocht hat gekocht | cuisiner | human | cookable | for place
    prepare, prepared | vor/bereiten bereitet hat vorbereitet | préparer | human | soup cake gift report | for
    order, ordered | bestellen bestellt hat bestellt | commander | human | dish drink meat cheese book | for
    open, opened | öffnen öffnet hat geöffnet | ouvrir | human | openable | manner
    close, closed | zu/machen macht hat zugemacht | fermer | human | closable | manner
    wash, washed | waschen wäscht hat gewaschen | laver | human | washable | place
    clean, cleaned | putzen putzt hat geputzt | nettoyer | human | cleanable | manner
    repair, repaired | reparieren repariert hat repariert | réparer | human | repairable | for manner
    build, built | bauen baut hat gebaut | construire | human | buildable | for
    wear, wore | tragen trägt hat getragen | porter | human | clothes |
    try on, tried on | an/probieren probiert hat anprobiert | essayer | human | clothes |
    lose, lost | verlieren verliert hat verloren | perdre | human | findable | place
    take, took | nehmen nimmt hat genommen | prendre | human | takeable |
    choose, chose | aus/wählen wählt hat ausgewählt | choisir | human | sellable text | for
    steal, stole | stehlen stiehlt hat gestohlen | voler | human | findable bicycle car horse |
    throw away, threw away | weg/werfen wirft hat weggeworfen | jeter | human | discardable |
    turn on, turned on | ein/schalten schaltet hat eingeschaltet | allumer | human | switchable |
    turn off, turned off | aus/schalten schaltet hat ausgeschaltet | éteindre | human | switchable |
    hide, hid | verstecken versteckt hat versteckt | cacher | human | hideable | spot
    hang up, hung up | auf/hängen hängt hat aufgehängt | accrocher | human | hangable | place
    catch, caught | fangen fängt hat gefangen | attraper | human cat fox | catchable |
    feed, fed | füttern füttert hat gefüttert | nourrir | human | pet | place
    water, watered | gießen gießt hat gegossen | arroser | human | waterable |
    bring back, brought back | zurück/bringen bringt hat zurückgebracht | rapporter | human | lendable |
    take along, took along | mit/nehmen nimmt hat mitgenommen | emporter | human | thing text clothes |
    bring, brought | bringen bringt hat gebracht | apporter | human | thing text dish | recipient
    give, gave | geben gibt hat gegeben | donner | human | thing text clothes fruit | recipient
    show, showed | zeigen zeigt hat gezeigt | montrer | human | thing text clothes animal | recipient
    send, sent | schicken schickt hat geschickt | envoyer | human | sendable | recipient
    lend, lent | leihen leiht hat geliehen | prêter | human | lendable | recipient
    explain, explained | erklären erklärt hat erklärt | expliquer | human | explainable | recipient
    tell, told | erzählen erzählt hat erzählt | raconter | human | tellable | recipient
    give back, gave back | zurück/geben gibt hat zurückgegeben | rendre | human | lendable | recipient
    carry, carried | tragen trägt hat getragen | porter | human | carryable | into to
    push, pushed | schieben schiebt hat geschoben | pousser | human | pushable | into
    lay, laid | legen legt hat gelegt | poser | human | layable | onto
    throw, threw | werfen wirft hat geworfen | jeter | human | throwable | into onto
"""
VERBS = {verb.english.base: verb for verb in (_parse_verb(row) for row in _rows(_VERB_TABLE))}

# Verbs of saying and thinking, whose object is a clause; the last column says with which conjunctions.
_CLAUSE_VERB_TABLE = """
    say, said | sagen sagt hat gesagt | dire | human | | that
    think, thought | denken denkt hat gedacht | penser | human | | that
    believe, believed | glauben glaubt hat geglaubt | croire | human | | that
    hope, hoped | hoffen hofft hat gehofft | espérer | human | | that
    see, saw | sehen sieht hat gesehen | voir | human | | that
    hear, heard | hören hört hat gehört | entendre | human | | that
    know, knew | wissen weiß hat gewusst | savoir | human | | that whether
    ask, asked | fragen fragt hat gefragt | demander | human | | whether
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
    FrenchVerb(
        "être",
        ("suis", "es", "est", "sommes", "sont"),
        "été",
        "avoir",
        imperfect=("étais", "étais", "était", "étions", "étaient"),
    ),
    traits=("spot",),
)
ENGLISH_BE = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
GERMAN_AUXILIARIES = {"haben": ("habe", "hast", "hat", "haben", "haben"), "sein": BE.german.present}
FRENCH_AUXILIARIES = {"avoir": ("ai", "as", "a", "avons", "ont"), "être": BE.french.present}


def _german_modal(infinitive: str, third_person: str, preterite: str = "") -> GermanVerb:
    """A modal verb; without a `preterite` it is never used in the past."""
    past = (preterite, preterite + "st", preterite, preterite + "n", preterite + "n") if preterite else None
    return GermanVerb(infinitive, "", _german_present(infinitive, third_person), "", "haben", preterite=past)


def _french_modal(infinitive: str, present: str, imperfect: str = "") -> FrenchVerb:
    """A verb that takes an infinitive: its present forms, and its imperfect where it has a past."""
    je, tu, il, nous, ils = present.split(" ")
    past = imperfect.split(" ") if imperfect else []
    imperfect_forms = (past[0], past[1], past[2], past[3], past[4]) if past else None
    return FrenchVerb(infinitive, (je, tu, il, nous, ils), "", "avoir", imperfect=imperfect_forms)


# Verbs that take an infinitive. In English the first word is inflected and the others stay with it.
MODALS = {
    "can": Verb(
        EnglishVerb("can", "could", is_auxiliary=True),
        _german_modal("können", "kann", "konnte"),
        _french_modal("pouvoir", "peux peux peut pouvons peuvent", "pouvais pouvais pouvait pouvions pouvaient"),
    ),
    "want to": Verb(
        EnglishVerb("want to", "wanted to"),
        _german_modal("wollen", "will", "wollte"),
        _french_modal("vouloir", "veux veux veut voulons veulent", "voulais voulais voulait voulions voulaient"),
    ),
    "have to": Verb(
        EnglishVerb("have to", "had to"),
        _german_modal("müssen", "muss", "musste"),
        _french_modal("devoir", "dois dois doit devons doivent", "devais devais devait devions devaient"),
    ),
    "should": Verb(
        EnglishVerb("should", "", is_auxiliary=True),
        _german_modal("sollten", "sollte"),
        _french_modal("devoir", "devrais devrais devrait devrions devraient"),
    ),
    "would like to": Verb(
        EnglishVerb("would like to", "", is_auxiliary=True),
        _german_modal("möchten", "möchte"),
        _french_modal("vouloir", "voudrais voudrais voudrait voudrions voudraient"),
    ),
    "will": Verb(
        EnglishVerb("will", "", is_auxiliary=True),
        GermanVerb("werden", "", ("werde", "wirst", "wird", "werden", "werden"), "", "sein"),
        _french_modal("aller", "vais vas va allons vont"),
    ),
}

_TIME_TABLE = """
    yesterday | gestern | hier | past
    last week | letzte Woche | la semaine dernière | past
    on Monday | am Montag | lundi | past future
    on Friday | am Freitag | vendredi | past future
    on Sunday | am Sonntag | dimanche | past future
    today | heute | aujourd'hui | past modal future
    this evening | heute Abend | ce soir | past modal future
    now | jetzt | maintenant | modal
    tomorrow | morgen | demain | modal future
    soon | bald | bientôt | future
    next week | nächste Woche | la semaine prochaine | future
    later | später | plus tard | future
    every day | jeden Tag | tous les jours | present
    in the morning | am Morgen | le matin | present
    in the evening | am Abend | le soir | present
    at night | nachts | la nuit | present
    in summer | im Sommer | en été | present
    in winter | im Winter | en hiver | present
"""
TIME_ADVERBS = {row[0]: TimeAdverb(row[0], row[1], row[2], tuple(row[3].split())) for row in _rows(_TIME_TABLE)}


def _adverbs(table: str) -> dict[str, Adverb]:
    """Adverbs, or other words that do not inflect, by their English form."""
    return {row[0]: Adverb(*row) for row in _rows(table)}


FREQUENCY_ADVERBS = _adverbs("""
    often | oft | souvent
    always | immer | toujours
    sometimes | manchmal | parfois
    rarely | selten | rarement
""")
MANNER_ADVERBS = _adverbs("""
    slowly | langsam | lentement
    quickly | schnell | rapidement
    carefully | vorsichtig | prudemment
    quietly | leise | silencieusement
""")
DEGREE_ADVERBS = _adverbs("""
    very | sehr | très
    too | zu | trop
""")
NEGATORS = _adverbs("""
    not | nicht | pas
    never | nie | jamais
""")
CONJUNCTIONS = _adverbs("""
    because | weil | parce que
    if | wenn | si
    when | wenn | quand
    that | dass | que
    whether | ob | si
""")
QUESTION_WORDS = _adverbs("""
    who | wer | qui
    what | was | qu'est-ce que
    where | wo | où est-ce que
    when | wann | quand est-ce que
    why | warum | pourquoi est-ce que
""")

RELATIONS = {
    row[0]: Relation(*row)
    for row in _rows("""
    with | mit | dative | avec
    for | für | accusative | pour
    in | in | dative | dans
    into | in | accusative | dans
    on | auf | dative | sur
    onto | auf | accusative | sur
    at | | dative | à
    to | zu | dative | à
    under | unter | dative | sous
    behind | hinter | dative | derrière
    in front of | vor | dative | devant
    next to | neben | dative | à côté de
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
    """A personal pronoun in every form; I, you, we and they are masculine where French must choose."""

    english: str
    english_object: str
    nominative: str
    accusative: str
    dative: str
    french: str
    french_direct: str
    french_dative: str
    french_stressed: str

    @property
    def person(self) -> int:
        """Index into the verb forms."""
        return PERSONS.index("he" if self.english == "she" else self.english)

    @property
    def is_plural(self) -> bool:
        return self.english in ("we", "they")

    @property
    def is_feminine(self) -> bool:
        return self.english == "she"


PRONOUNS = {
    row[0]: Pronoun(*row)
    for row in _rows("""
    I | me | ich | mich | mir | je | me | me | moi
    you | you | du | dich | dir | tu | te | te | toi
    he | him | er | ihn | ihm | il | le | lui | lui
    she | her | sie | sie | ihr | elle | la | lui | elle
    we | us | wir | uns | uns | nous | nous | nous | nous
    they | them | sie | sie | ihnen | ils | les | leur | eux
""")
}

# English possessive | German stem | French before masculine, feminine, plural
POSSESSIVES = {
    row[0]: (row[1], row[2].split(" "))
    for row in _rows("""
    my | mein | mon ma mes
    your | dein | ton ta tes
    his | sein | son sa ses
    her | ihr | son sa ses
    our | unser | notre notre nos
    their | ihr | leur leur leurs
""")
}
# English | German | French; they need a plural noun.
QUANTIFIERS = _adverbs("""
    two | zwei | deux
    three | drei | trois
    ten | zehn | dix
    some | einige | quelques
    many | viele | beaucoup de
""")


def list_words(language: str) -> list[tuple[str, str]]:
    """All words as (English, translation), with verbs in the infinitive; `language` is german or french."""
    words = [
        *NOUNS.values(),
        *ADJECTIVES.values(),
        *TIME_ADVERBS.values(),
        *FREQUENCY_ADVERBS.values(),
        *MANNER_ADVERBS.values(),
        *DEGREE_ADVERBS.values(),
        *NEGATORS.values(),
        *CONJUNCTIONS.values(),
        *QUESTION_WORDS.values(),
        *QUANTIFIERS.values(),
    ]
    pairs = []
    for word in words:
        translation = getattr(word, language)
        pairs.append((word.english, translation if isinstance(translation, str) else translation[0]))
    for verb in [BE, *MODALS.values(), *VERBS.values(), *CLAUSE_VERBS.values()]:
        pairs.append((verb.english.base, getattr(verb, language).infinitive))
    return list(dict.fromkeys(pairs))
