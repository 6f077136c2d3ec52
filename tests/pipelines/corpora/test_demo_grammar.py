"""The demo grammar against translations written by hand, one phenomenon at a time."""

import pytest

from pipelines.corpora.demo import lexicon
from pipelines.corpora.demo.grammar import (
    PAST,
    Adverbial,
    Clause,
    NounPhrase,
    Pair,
    Pronoun,
    Relative,
    Sentence,
)
from pipelines.corpora.demo.morphology import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
)

NOUNS = lexicon.PEOPLE + lexicon.ANIMALS + lexicon.THINGS + lexicon.PLACES
ADJECTIVES = lexicon.ANIMATE_ADJECTIVES + lexicon.THING_ADJECTIVES
VERBS = (
    lexicon.VERBS_ON_ANYTHING
    + lexicon.VERBS_ON_ANIMATES
    + lexicon.VERBS_ON_THINGS
    + lexicon.VERBS_ON_CLOSABLES
    + lexicon.VERBS_OF_GIVING
    + lexicon.VERBS_ALONE
    + lexicon.VERBS_OF_SAYING
)
HE, SHE, THEY, WE = (Pronoun(*row) for row in lexicon.PRONOUNS)


def named(entries, english):
    return next(entry for entry in entries if entry.english == english)


def np(text: str) -> NounPhrase:
    """ "these old men" as a tree; the noun's form gives the number."""
    *before, last = text.split()
    noun = next(noun for noun in NOUNS if last in (noun.english, noun.english_plural))
    plural = last == noun.english_plural
    determiners = PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS
    forms = [item.english_plural if plural else item.english for item in determiners]
    determiner = determiners[forms.index("a" if before[0] == "an" else before[0])]
    adjective = named(ADJECTIVES, before[1]) if len(before) > 1 else None
    return NounPhrase(determiner, adjective, noun, plural)


def clause(subject, verb: str, direct=None, to=None, **rest) -> Clause:
    subject = np(subject) if isinstance(subject, str) else subject
    if "time" in rest:
        rest["time"] = named(lexicon.TIMES + lexicon.PAST_TIMES, rest["time"])
    if "place" in rest:
        preposition, phrase = rest["place"]
        preposition = named(lexicon.PLACE_PREPOSITIONS, preposition)
        rest["place"] = Adverbial(preposition, np(phrase), DATIVE)
    return Clause(
        subject,
        named(VERBS, verb),
        object=np(direct) if direct else None,
        recipient=np(to) if to else None,
        **rest,
    )


def modal(english: str):
    return named(lexicon.MODALS, english)


def conjunction(english: str):
    return named((*lexicon.COORDINATING, *lexicon.SUBORDINATING, lexicon.THAT), english)


def check(sentence, english: str, german: str):
    if isinstance(sentence, Clause):
        sentence = Sentence(sentence)
    assert sentence.english() == english
    assert sentence.german() == german


# Nominative, accusative and dative of each, as a German grammar book declines them.
DECLENSIONS = {
    "the old man": "der alte Mann, den alten Mann, dem alten Mann",
    "the old woman": "die alte Frau, die alte Frau, der alten Frau",
    "the old child": "das alte Kind, das alte Kind, dem alten Kind",
    "the old men": "die alten Männer, die alten Männer, den alten Männern",
    "a young man": "ein junger Mann, einen jungen Mann, einem jungen Mann",
    "a young woman": "eine junge Frau, eine junge Frau, einer jungen Frau",
    "a young child": "ein junges Kind, ein junges Kind, einem jungen Kind",
    "my small dog": "mein kleiner Hund, meinen kleinen Hund, meinem kleinen Hund",
    "my small cats": "meine kleinen Katzen, meine kleinen Katzen, meinen kleinen Katzen",
    "our green book": "unser grünes Buch, unser grünes Buch, unserem grünen Buch",
    "our green bag": "unsere grüne Tasche, unsere grüne Tasche, unserer grünen Tasche",
    "this tired king": "dieser müde König, diesen müden König, diesem müden König",
    "this tired queen": "diese müde Königin, diese müde Königin, dieser müden Königin",
    "this tired horse": "dieses müde Pferd, dieses müde Pferd, diesem müden Pferd",
    "these tired queens": "diese müden Königinnen, diese müden Königinnen, diesen müden Königinnen",
    "every new hat": "jeder neue Hut, jeden neuen Hut, jedem neuen Hut",
    "every new clock": "jede neue Uhr, jede neue Uhr, jeder neuen Uhr",
    "every new knife": "jedes neue Messer, jedes neue Messer, jedem neuen Messer",
    "some big houses": "einige große Häuser, einige große Häuser, einigen großen Häusern",
    "the key": "der Schlüssel, den Schlüssel, dem Schlüssel",
    "the parks": "die Parks, die Parks, den Parks",
}


@pytest.mark.parametrize("english", DECLENSIONS)
def test_declension(english):
    phrase = np(english)
    assert phrase.english() == english
    forms = [phrase.german(case) for case in (NOMINATIVE, ACCUSATIVE, DATIVE)]
    assert ", ".join(forms) == DECLENSIONS[english]


def test_indefinite_article_before_a_vowel():
    assert np("an old man").english() == "an old man"
    assert np("an umbrella").english() == "an umbrella"
    assert np("a big umbrella").english() == "a big umbrella"


def test_order_alone_tells_subject_from_object():
    check(
        clause("the old man", "visit", "the young king"),
        "The old man visits the young king.",
        "Der alte Mann besucht den jungen König.",
    )
    check(
        clause("the young king", "visit", "the old man"),
        "The young king visits the old man.",
        "Der junge König besucht den alten Mann.",
    )


def test_order_alone_tells_which_adjective_belongs_to_which_noun():
    one = Sentence(clause("the old dog", "see", "a small bird"))
    other = Sentence(clause("the small dog", "see", "an old bird"))
    assert one.german() == "Der alte Hund sieht einen kleinen Vogel."
    assert other.german() == "Der kleine Hund sieht einen alten Vogel."


def test_plural_agreement():
    check(
        clause("these dogs", "follow", "my cat"),
        "These dogs follow my cat.",
        "Diese Hunde folgen meiner Katze.",
    )
    subject = Pair(np("the man"), np("a child"))
    check(
        clause(subject, "carry", "the box"),
        "The man and a child carry the box.",
        "Der Mann und ein Kind tragen die Kiste.",
    )


def test_pronouns():
    check(
        clause(SHE, "sleep", time="today", fronted=True),
        "Today she sleeps.",
        "Heute schläft sie.",
    )
    check(clause(THEY, "get up", time="now"), "They get up now.", "Sie stehen jetzt auf.")
    check(clause(WE, "work", mood=PAST), "We worked.", "Wir haben gearbeitet.")
    check(clause(HE, "arrive", mood=PAST), "He arrived.", "Er ist angekommen.")


def test_fronted_time_inverts_the_german_main_clause():
    check(
        clause("the old doctor", "buy", "a lamp", time="in the evening", fronted=True),
        "In the evening the old doctor buys a lamp.",
        "Am Abend kauft der alte Arzt eine Lampe.",
    )


def test_time_manner_place_and_its_opposite():
    check(
        clause(
            "the woman",
            "find",
            "the red key",
            place=("in", "the small garden"),
            manner=Adverbial(lexicon.WITH, np("a dog"), DATIVE),
            time="on Monday",
        ),
        "The woman finds the red key in the small garden with a dog on Monday.",
        "Die Frau findet am Montag mit einem Hund den roten Schlüssel im kleinen Garten.",
    )
    check(
        clause(
            "the woman",
            "dance",
            place=("in", "the city"),
            manner=named(lexicon.MANNERS, "quietly"),
            time="at night",
        ),
        "The woman dances in the city quietly at night.",
        "Die Frau tanzt in der Nacht leise in der Stadt.",
    )


def test_prepositions_and_their_cases():
    assert Adverbial(lexicon.WITHOUT, np("a young dog"), ACCUSATIVE).german() == (
        "ohne einen jungen Hund"
    )
    place = Adverbial(named(lexicon.PLACE_PREPOSITIONS, "in"), np("the old castle"), DATIVE)
    assert place.german() == "im alten Schloss"
    assert place._replace(phrase=np("the old castles")).german() == "in den alten Schlössern"
    assert place._replace(phrase=np("this castle")).german() == "in diesem Schloss"
    before = named(lexicon.PLACE_PREPOSITIONS, "in front of")
    assert place._replace(preposition=before).german() == "vor dem alten Schloss"


def test_dative_objects_and_recipients():
    check(
        clause("the teacher", "give", "an old book", to="the hungry children", time="today"),
        "The teacher gives an old book to the hungry children today.",
        "Der Lehrer gibt den hungrigen Kindern heute ein altes Buch.",
    )
    check(
        clause("the girl", "help", "a tired goat", time="today"),
        "The girl helps a tired goat today.",
        "Das Mädchen hilft einer müden Ziege heute.",
    )


def test_perfect_tense():
    check(
        clause("the pig", "see", "the mice", mood=PAST, time="yesterday", fronted=True),
        "Yesterday the pig saw the mice.",
        "Gestern hat das Schwein die Mäuse gesehen.",
    )
    check(
        clause("the cows", "follow", "the guest", mood=PAST),
        "The cows followed the guest.",
        "Die Kühe sind dem Gast gefolgt.",
    )


def test_modal_verbs():
    check(
        clause("my son", "sell", "the bicycle", mood=modal("wants to")),
        "My son wants to sell the bicycle.",
        "Mein Sohn will das Fahrrad verkaufen.",
    )
    check(
        clause("my sons", "sell", "the bicycle", mood=modal("wants to")),
        "My sons want to sell the bicycle.",
        "Meine Söhne wollen das Fahrrad verkaufen.",
    )


def test_separable_verbs_in_every_clause():
    closing = clause("the aunt", "close", "the box")
    check(closing, "The aunt closes the box.", "Die Tante macht die Kiste zu.")
    check(
        closing._replace(mood=PAST),
        "The aunt closed the box.",
        "Die Tante hat die Kiste zugemacht.",
    )
    check(
        closing._replace(mood=modal("must")),
        "The aunt must close the box.",
        "Die Tante muss die Kiste zumachen.",
    )
    assert closing.german_subordinate() == "die Tante die Kiste zumacht"
    assert closing._replace(mood=PAST).german_subordinate() == "die Tante die Kiste zugemacht hat"
    assert (
        closing._replace(mood=modal("can")).german_subordinate()
        == "die Tante die Kiste zumachen kann"
    )


def test_subordinate_clauses():
    sleeping = clause("the old king", "sleep", time="at night")
    inviting = clause("the queen", "invite", "a clever doctor")
    check(
        Sentence(inviting, conjunction("because"), sleeping),
        "The queen invites a clever doctor because the old king sleeps at night.",
        "Die Königin lädt einen klugen Arzt ein, weil der alte König in der Nacht schläft.",
    )
    check(
        Sentence(sleeping, conjunction("although"), inviting, second_first=True),
        "Although the queen invites a clever doctor, the old king sleeps at night.",
        "Obwohl die Königin einen klugen Arzt einlädt, schläft der alte König in der Nacht.",
    )
    check(
        Sentence(clause("the girl", "hope"), lexicon.THAT, clause(SHE, "wait", mood=modal("can"))),
        "The girl hopes that she can wait.",
        "Das Mädchen hofft, dass sie warten kann.",
    )


def test_when_depends_on_the_tense():
    first, second = clause(WE, "wait"), clause("the bird", "sleep")
    check(
        Sentence(first, conjunction("when"), second),
        "We wait when the bird sleeps.",
        "Wir warten, wenn der Vogel schläft.",
    )
    check(
        Sentence(first._replace(mood=PAST), conjunction("when"), second._replace(mood=PAST)),
        "We waited when the bird slept.",
        "Wir haben gewartet, als der Vogel geschlafen hat.",
    )


def test_coordination_keeps_the_verb_second():
    first = clause("the dog", "sleep")
    second = clause("the cat", "wake", "the mouse", time="at night", fronted=True)
    check(
        Sentence(first, lexicon.AND, second),
        "The dog sleeps and at night the cat wakes the mouse.",
        "Der Hund schläft und in der Nacht weckt die Katze die Maus.",
    )
    check(
        Sentence(first, lexicon.BUT, second._replace(fronted=False)),
        "The dog sleeps, but the cat wakes the mouse at night.",
        "Der Hund schläft, aber die Katze weckt in der Nacht die Maus.",
    )


def relative(head: str, verb: str, other: str, *, head_is_subject: bool) -> NounPhrase:
    inner = Relative(named(VERBS, verb), "present", np(other), head_is_subject)
    return np(head)._replace(relative=inner)


def test_relative_clauses():
    check(
        clause(relative("the old dog", "see", "a man", head_is_subject=True), "sleep"),
        "The old dog that sees a man sleeps.",
        "Der alte Hund, der einen Mann sieht, schläft.",
    )
    check(
        clause(relative("the old dog", "see", "a man", head_is_subject=False), "sleep"),
        "The old dog that a man sees sleeps.",
        "Der alte Hund, den ein Mann sieht, schläft.",
    )
    check(
        clause(relative("the women", "thank", "the guests", head_is_subject=False), "sleep"),
        "The women that the guests thank sleep.",
        "Die Frauen, denen die Gäste danken, schlafen.",
    )


def test_commas_after_relative_clauses():
    subject = relative("the women", "call", "the guests", head_is_subject=True)
    sleeping = clause(subject, "sleep", time="now", fronted=True)
    check(
        sleeping,
        "Now the women that call the guests sleep.",
        "Jetzt schlafen die Frauen, die die Gäste anrufen.",
    )
    german = Sentence(sleeping, conjunction("because"), clause(WE, "wait")).german()
    assert german == "Jetzt schlafen die Frauen, die die Gäste anrufen, weil wir warten."


def test_english_words_have_one_translation():
    for entries in (NOUNS, VERBS, lexicon.TIMES + lexicon.PAST_TIMES, ADJECTIVES):
        by_english = {}
        for entry in entries:
            assert by_english.setdefault(entry.english, entry) == entry
    forms = [form for noun in NOUNS for form in (noun.english, noun.english_plural)]
    assert len(set(forms)) == len(forms)  # so English shows the number of every noun
    forms = [form for verb in VERBS for form in verb[:3]]
    assert len(set(forms)) == len(forms)  # and the tense and number of every verb


def test_pronouns_are_subjects():
    with pytest.raises(ValueError, match="subjects only"):
        HE.german(DATIVE)
