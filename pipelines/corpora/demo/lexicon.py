"""The words of the demo corpus, in every English and German form that its grammar may need.

Each English word has exactly one German counterpart in its place, so that a translation is a
function of its source. Rows are written as text, one lexeme a line, because that is how a
dictionary is proof-read; an underscore stands for a space inside a field.
"""

from pipelines.corpora.demo.morphology import (
    ACCUSATIVE,
    DATIVE,
    Adjective,
    Conjunction,
    Modal,
    Noun,
    Phrase,
    Verb,
    rows,
)


def _nouns(text: str) -> tuple[Noun, ...]:
    return tuple(
        Noun(row[0], row[1], "mfn".index(row[2]), row[3], row[4], row[5]) for row in rows(text)
    )


def _verbs(text: str) -> tuple[Verb, ...]:
    """After the six forms come marks: the particle, `sein`, `dative`, in any order."""
    verbs = []
    for row in rows(text):
        marks = row[6:]
        particle = "".join(mark for mark in marks if mark not in ("sein", "dative"))
        auxiliary = ("ist", "sind") if "sein" in marks else ("hat", "haben")
        case = DATIVE if "dative" in marks else ACCUSATIVE
        forms = row[0], row[1], row[2], row[3], row[4], row[5]
        verbs.append(Verb(*forms, particle, auxiliary, case))
    return tuple(verbs)


def _adjectives(text: str) -> tuple[Adjective, ...]:
    return tuple(Adjective(*row) for row in rows(text))


def _modals(text: str) -> tuple[Modal, ...]:
    return tuple(Modal(*row) for row in rows(text))


def _phrases(text: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*row) for row in rows(text))


PEOPLE = _nouns("""
man      men       m Mann     Männer     Männern
woman    women     f Frau     Frauen     Frauen
child    children  n Kind     Kinder     Kindern
girl     girls     n Mädchen  Mädchen    Mädchen
teacher  teachers  m Lehrer   Lehrer     Lehrern
doctor   doctors   m Arzt     Ärzte      Ärzten
friend   friends   m Freund   Freunde    Freunden
mother   mothers   f Mutter   Mütter     Müttern
brother  brothers  m Bruder   Brüder     Brüdern
sister   sisters   f Schwester Schwestern Schwestern
daughter daughters f Tochter  Töchter    Töchtern
son      sons      m Sohn     Söhne      Söhnen
aunt     aunts     f Tante    Tanten     Tanten
king     kings     m König    Könige     Königen
queen    queens    f Königin  Königinnen Königinnen
guest    guests    m Gast     Gäste      Gästen
""")

ANIMALS = _nouns("""
dog    dogs    m Hund   Hunde   Hunden
cat    cats    f Katze  Katzen  Katzen
horse  horses  n Pferd  Pferde  Pferden
bird   birds   m Vogel  Vögel   Vögeln
cow    cows    f Kuh    Kühe    Kühen
mouse  mice    f Maus   Mäuse   Mäusen
pig    pigs    n Schwein Schweine Schweinen
goat   goats   f Ziege  Ziegen  Ziegen
""")

THINGS = _nouns("""
book      books      n Buch     Bücher    Büchern
letter    letters    m Brief    Briefe    Briefen
picture   pictures   n Bild     Bilder    Bildern
key       keys       m Schlüssel Schlüssel Schlüsseln
bag       bags       f Tasche   Taschen   Taschen
lamp      lamps      f Lampe    Lampen    Lampen
chair     chairs     m Stuhl    Stühle    Stühlen
bottle    bottles    f Flasche  Flaschen  Flaschen
knife     knives     n Messer   Messer    Messern
hat       hats       m Hut      Hüte      Hüten
bicycle   bicycles   n Fahrrad  Fahrräder Fahrrädern
clock     clocks     f Uhr      Uhren     Uhren
newspaper newspapers f Zeitung  Zeitungen Zeitungen
box       boxes      f Kiste    Kisten    Kisten
present   presents   n Geschenk Geschenke Geschenken
umbrella  umbrellas  m Regenschirm Regenschirme Regenschirmen
""")

# Things that open and close.
CLOSABLES = tuple(
    noun
    for noun in THINGS
    if noun.english in ("book", "letter", "bag", "bottle", "box", "present", "umbrella")
)

PLACES = _nouns("""
house   houses   n Haus    Häuser    Häusern
garden  gardens  m Garten  Gärten    Gärten
city    cities   f Stadt   Städte    Städten
forest  forests  m Wald    Wälder    Wäldern
school  schools  f Schule  Schulen   Schulen
church  churches f Kirche  Kirchen   Kirchen
park    parks    m Park    Parks     Parks
castle  castles  n Schloss Schlösser Schlössern
hotel   hotels   n Hotel   Hotels    Hotels
village villages n Dorf    Dörfer    Dörfern
""")

_GENERAL_ADJECTIVES = _adjectives("""
old alt
small klein
big groß
beautiful schön
ugly hässlich
strange seltsam
famous berühmt
dirty schmutzig
clean sauber
black schwarz
white weiß
brown braun
funny lustig
quiet ruhig
loud laut
dangerous gefährlich
""")
ANIMATE_ADJECTIVES = _GENERAL_ADJECTIVES + _adjectives("""
young jung
hungry hungrig
tired müd
friendly freundlich
clever klug
strong stark
""")
THING_ADJECTIVES = _GENERAL_ADJECTIVES + _adjectives("""
new neu
cheap billig
red rot
green grün
round rund
heavy schwer
""")

# English base, third person, past; German plural without particle, third person, participle; marks.
VERBS_ON_ANYTHING = _verbs("""
see        sees        saw         sehen       sieht       gesehen
find       finds       found       finden      findet      gefunden
draw       draws       drew        zeichnen    zeichnet    gezeichnet
describe   describes   described   beschreiben beschreibt  beschrieben
need       needs       needed      brauchen    braucht     gebraucht
love       loves       loved       lieben      liebt       geliebt
forget     forgets     forgot      vergessen   vergisst    vergessen
fetch      fetches     fetched     holen       holt        abgeholt      ab
""")
VERBS_ON_ANIMATES = _verbs("""
visit      visits      visited     besuchen    besucht     besucht
meet       meets       met         treffen     trifft      getroffen
praise     praises     praised     loben       lobt        gelobt
wake       wakes       woke        wecken      weckt       geweckt
call       calls       called      rufen       ruft        angerufen     an
invite     invites     invited     laden       lädt        eingeladen    ein
help       helps       helped      helfen      hilft       geholfen      dative
thank      thanks      thanked     danken      dankt       gedankt       dative
follow     follows     followed    folgen      folgt       gefolgt       dative sein
listen_to  listens_to  listened_to hören       hört        zugehört      zu dative
""")
VERBS_ON_THINGS = _verbs("""
buy        buys        bought      kaufen      kauft       gekauft
sell       sells       sold        verkaufen   verkauft    verkauft
carry      carries     carried     tragen      trägt       getragen
steal      steals      stole       stehlen     stiehlt     gestohlen
""")
VERBS_ON_CLOSABLES = _verbs("""
open       opens       opened      machen      macht       aufgemacht    auf
close      closes      closed      machen      macht       zugemacht     zu
""")
VERBS_OF_GIVING = _verbs("""
give       gives       gave        geben       gibt        gegeben
show       shows       showed      zeigen      zeigt       gezeigt
send       sends       sent        schicken    schickt     geschickt
bring      brings      brought     bringen     bringt      gebracht
lend       lends       lent        leihen      leiht       geliehen
offer      offers      offered     bieten      bietet      angeboten     an
""")
VERBS_ALONE = _verbs("""
sleep      sleeps      slept       schlafen    schläft     geschlafen
work       works       worked      arbeiten    arbeitet    gearbeitet
dance      dances      danced      tanzen      tanzt       getanzt
wait       waits       waited      warten      wartet      gewartet
arrive     arrives     arrived     kommen      kommt       angekommen    an sein
get_up     gets_up     got_up      stehen      steht       aufgestanden  auf sein
""")
VERBS_OF_SAYING = _verbs("""
say        says        said        sagen       sagt        gesagt
know       knows       knew        wissen      weiß        gewusst
believe    believes    believed    glauben     glaubt      geglaubt
hope       hopes       hoped       hoffen      hofft       gehofft
""")

MODALS = _modals("""
can      can     kann   können
must     must    muss   müssen
will     will    wird   werden
should   should  sollte sollten
wants_to want_to will   wollen
""")

PRONOUNS = (
    ("he", "er", False),
    ("she", "sie", False),
    ("they", "sie", True),
    ("we", "wir", True),
)

_ANY_TIME = _phrases("""
today           heute
on_Monday       am_Montag
on_Friday       am_Freitag
in_the_morning  am_Morgen
in_the_evening  am_Abend
at_night        in_der_Nacht
every_day       jeden_Tag
""")
TIMES = _ANY_TIME + _phrases("""
now             jetzt
tomorrow        morgen
next_week       nächste_Woche
""")
PAST_TIMES = _ANY_TIME + _phrases("""
yesterday       gestern
last_week       letzte_Woche
""")
MANNERS = _phrases("""
quickly    schnell
slowly     langsam
quietly    leise
carefully  vorsichtig
patiently  geduldig
""")
PLACE_PREPOSITIONS = _phrases("""
in          in
behind      hinter
in_front_of vor
next_to     neben
""")
WITH = Phrase("with", "mit")
WITHOUT = Phrase("without", "ohne")

AND = Conjunction("and", "und", "und", german_comma="", subordinating=False)
BUT = Conjunction("but", "aber", "aber", english_comma=",", subordinating=False)
THAT = Conjunction("that", "dass", "dass")
COORDINATING = (AND, BUT)
SUBORDINATING = (
    Conjunction("because", "weil", "weil"),
    Conjunction("although", "obwohl", "obwohl"),
    Conjunction("when", "wenn", "als"),
    Conjunction("before", "bevor", "bevor"),
)
