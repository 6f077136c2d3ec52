"""The English-German grammar of the demo corpus: one tree, read aloud in two languages.

A tree holds what both languages share: who does what to whom, when, how and where. `english()` and
`german()` put it into words. What a translator has to learn lies between them:

- English tells subject from object by order alone, German by case, in article, adjective and noun;
- the German finite verb comes second, so a fronted time makes subject and verb change places;
- participles, infinitives and separable particles go to the end of a German main clause;
- after a subordinating conjunction or a relative pronoun the whole verb goes to the end;
- English says object, recipient, place, manner, time; German recipient, time, manner, object,
  place.

The English simple past is always the German perfect tense.
"""

from typing import NamedTuple

from pipelines.corpora.demo import morphology
from pipelines.corpora.demo.morphology import ACCUSATIVE, DATIVE, NOMINATIVE, PLURAL

PRESENT, PAST = "present", "past"
Mood = str | morphology.Modal  # PRESENT, PAST, or the modal verb on which the infinitive depends


class Pronoun(NamedTuple):
    english_form: str
    german_form: str
    plural: bool

    def english(self) -> str:
        return self.english_form

    def german(self, case: int) -> str:
        if case != NOMINATIVE:
            raise ValueError(f"pronouns are subjects only, got case {case}")
        return self.german_form


class NounPhrase(NamedTuple):
    determiner: morphology.Determiner
    adjective: morphology.Adjective | None
    noun: morphology.Noun
    plural: bool = False
    relative: "Relative | None" = None

    def english(self) -> str:
        determiner, adjective, noun, plural, relative = self
        words = noun.english_plural if plural else noun.english
        if adjective:
            words = f"{adjective.english} {words}"
        article = determiner.english_plural if plural else determiner.english
        if article == "a" and words[0] in "aeiou":
            article = "an"
        words = f"{article} {words}"
        return f"{words} {relative.english(plural)}" if relative else words

    def german(self, case: int) -> str:
        """The phrase in a case; a relative clause brings both its commas along."""
        determiner, adjective, noun, plural, relative = self
        if plural:
            column = PLURAL
            words = noun.german_dative_plural if case == DATIVE else noun.german_plural
        else:
            column, words = noun.gender, noun.german
        if adjective:
            words = f"{adjective.stem}{determiner.endings[case][column]} {words}"
        words = f"{determiner.german[case][column]} {words}"
        return f"{words}, {relative.german(column)}," if relative else words


class Pair(NamedTuple):
    """Two noun phrases joined by "and"; a plural subject, whatever its parts."""

    first: NounPhrase
    second: NounPhrase
    plural: bool = True

    def english(self) -> str:
        return f"{self.first.english()} and {self.second.english()}"

    def german(self, case: int) -> str:
        return f"{self.first.german(case)} und {self.second.german(case)}"


class Relative(NamedTuple):
    """A clause with a gap that its head fills as subject or object; English order tells which."""

    verb: morphology.Verb
    mood: Mood
    other: NounPhrase  # the object if the head is the subject, else the subject
    head_is_subject: bool

    def english(self, head_plural: bool) -> str:
        if self.head_is_subject:
            verb = english_verb(self.verb, self.mood, head_plural)
            return f"that {verb} {self.other.english()}"
        return (
            f"that {self.other.english()} {english_verb(self.verb, self.mood, self.other.plural)}"
        )

    def german(self, head_column: int) -> str:
        case = self.verb.object_case
        if self.head_is_subject:
            pronoun_case, other_case, plural = NOMINATIVE, case, head_column == PLURAL
        else:
            pronoun_case, other_case, plural = case, NOMINATIVE, self.other.plural
        finite, rest = german_verb(self.verb, self.mood, plural)
        pronoun = morphology.RELATIVE_PRONOUN[pronoun_case][head_column]
        return f"{pronoun} {self.other.german(other_case)} {_at_end(self.mood, finite, rest)}"


class Adverbial(NamedTuple):
    """A preposition and its noun phrase, in the case that the German preposition takes."""

    preposition: morphology.Phrase
    phrase: NounPhrase
    case: int

    def english(self) -> str:
        return f"{self.preposition.english} {self.phrase.english()}"

    def german(self) -> str:
        words = f"{self.preposition.german} {self.phrase.german(self.case)}"
        return "im" + words[6:] if words.startswith("in dem ") else words


class Clause(NamedTuple):
    """Who does what to whom, where, how and when; `fronted` puts the time before everything."""

    subject: Pronoun | NounPhrase | Pair
    verb: morphology.Verb
    mood: Mood = PRESENT
    object: NounPhrase | None = None
    recipient: NounPhrase | None = None
    place: Adverbial | None = None
    manner: Adverbial | morphology.Phrase | None = None
    time: morphology.Phrase | None = None
    fronted: bool = False

    def english(self) -> str:
        words = [self.subject.english(), english_verb(self.verb, self.mood, self.subject.plural)]
        if self.object:
            words.append(self.object.english())
        if self.recipient:
            words.append(f"to {self.recipient.english()}")
        if self.place:
            words.append(self.place.english())
        if self.manner:
            manner = self.manner
            words.append(manner.english() if isinstance(manner, Adverbial) else manner.english)
        if self.time:
            words.insert(0 if self.fronted else len(words), self.time.english)
        return " ".join(words)

    def german_main(self, before: str = "") -> str:
        """Verb second, after one of the subject, the fronted time, the clause `before`."""
        finite, rest = german_verb(self.verb, self.mood, self.subject.plural)
        words = [self.subject.german(NOMINATIVE), finite]
        if self.time and self.fronted:
            before = before or self.time.german
        if before:
            words = [before, finite, words[0]]
        self._add_german_middle(words, with_time=not self.fronted)
        if rest:
            words.append(rest)
        return " ".join(words)

    def german_subordinate(self) -> str:
        """Verb last, as after a subordinating conjunction."""
        finite, rest = german_verb(self.verb, self.mood, self.subject.plural)
        words = [self.subject.german(NOMINATIVE)]
        self._add_german_middle(words, with_time=True)
        words.append(_at_end(self.mood, finite, rest))
        return " ".join(words)

    def _add_german_middle(self, words: list[str], *, with_time: bool) -> None:
        """Append recipient, time, manner, object, place; a dative object stands as recipient."""
        dative = self.object if self.verb.object_case == DATIVE else None
        if self.recipient:
            words.append(self.recipient.german(DATIVE))
        if dative:
            words.append(dative.german(DATIVE))
        if self.time and with_time:
            words.append(self.time.german)
        if self.manner:
            manner = self.manner
            words.append(manner.german() if isinstance(manner, Adverbial) else manner.german)
        if self.object and not dative:
            words.append(self.object.german(ACCUSATIVE))
        if self.place:
            words.append(self.place.german())


class Sentence(NamedTuple):
    """A main clause, alone or joined to a second one, which comes first with `second_first`."""

    first: Clause
    conjunction: morphology.Conjunction | None = None
    second: Clause | None = None
    second_first: bool = False

    def english(self) -> str:
        first, conjunction, second, second_first = self
        if not second or not conjunction:
            return _finish(first.english())
        joined = f"{conjunction.english} {second.english()}"
        if second_first:
            return _finish(f"{joined}, {first.english()}")
        return _finish(f"{first.english()}{conjunction.english_comma} {joined}")

    def german(self) -> str:
        first, conjunction, second, second_first = self
        if not second or not conjunction:
            return _finish(first.german_main())
        word = conjunction.german_past if second.mood == PAST else conjunction.german
        subordinate = conjunction.subordinating
        clause = second.german_subordinate() if subordinate else second.german_main()
        joined = f"{word} {clause}"
        if second_first:
            return _finish(first.german_main(before=f"{joined},"))
        return _finish(f"{first.german_main()}{conjunction.german_comma} {joined}")


def english_verb(verb: morphology.Verb, mood: Mood, plural: bool) -> str:
    if isinstance(mood, morphology.Modal):
        return f"{mood.english_plural if plural else mood.english} {verb.english}"
    if mood == PAST:
        return verb.english_past
    return verb.english if plural else verb.english_singular


def german_verb(verb: morphology.Verb, mood: Mood, plural: bool) -> tuple[str, str]:
    """The finite verb, and the particle, participle or infinitive that ends a main clause."""
    if isinstance(mood, morphology.Modal):
        return (mood.german_plural if plural else mood.german), verb.particle + verb.infinitive
    if mood == PAST:
        return verb.auxiliary[plural], verb.participle
    return (verb.infinitive if plural else verb.singular), verb.particle


def _at_end(mood: Mood, finite: str, rest: str) -> str:
    """The whole verb at the end of a clause: a particle is joined on, other parts stand before."""
    return rest + finite if mood == PRESENT else f"{rest} {finite}"


def _finish(words: str) -> str:
    """Capital and full stop; a comma that closes a relative clause yields to other punctuation."""
    words = f"{words[0].upper()}{words[1:]}."
    return words.replace(",,", ",").replace(",.", ".")
