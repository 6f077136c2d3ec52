"""The built-in corpus: as many English-German pairs as asked for, from a grammar."""

import hashlib
from collections.abc import Iterator
from random import Random

from pipelines.corpora.demo import lexicon
from pipelines.corpora.demo.grammar import (
    PAST,
    PRESENT,
    Adverbial,
    Clause,
    Mood,
    NounPhrase,
    Pair,
    Pronoun,
    Relative,
    Sentence,
)
from pipelines.corpora.demo.morphology import (
    ACCUSATIVE,
    DATIVE,
    PLURAL_DETERMINERS,
    SINGULAR_DETERMINERS,
    Adjective,
    Noun,
    Phrase,
    Verb,
)
from pipelines.errors import InputError

MIN_WORDS, MAX_WORDS = 4, 30
# The remainder of a source's hash by 16 says to which split it belongs; the rest is for training.
_HASH_CLASSES = 16
_SPLIT_OF_CLASS = {0: "valid", 1: "test"}
# One sentence in 16 suits the rarest split: so many failures in a row mean that no more exist.
_MAX_FRUITLESS = 20_000

_ANIMATES = lexicon.PEOPLE + lexicon.ANIMALS
_PRONOUNS = tuple(Pronoun(*row) for row in lexicon.PRONOUNS)


class DemoCorpus:
    """English-German sentences of 4 to 30 words with one correct translation each.

    What the two languages do differently is described in `pipelines.corpora.demo.grammar`. No
    English sentence occurs twice, in one split or in two, and a sentence's split depends on the
    sentence alone, so that no seed and no size puts a test sentence into training. The same seed
    gives the same pairs on every machine. Remembering which sentences have been used takes about
    100 bytes a pair.

    Args:
        seed: any integer; the pairs follow from it.
        train_pairs, valid_pairs, test_pairs: number of pairs in each split, 0 for no such split.

    Raises:
        InputError: if a number of pairs is negative, or, while iterating, more than the grammar
            can make.
    """

    name = "demo"
    source_language = "en"
    target_language = "de"
    files: tuple[str, ...] = ()

    def __init__(
        self,
        seed: int = 1,
        train_pairs: int = 30_000,
        valid_pairs: int = 200,
        test_pairs: int = 500,
    ):
        self.seed = seed
        self.sizes = {"train": train_pairs, "valid": valid_pairs, "test": test_pairs}
        for split, size in self.sizes.items():
            if size < 0:
                raise InputError(f"{split}_pairs must not be negative, got {size}")
        self.splits = tuple(split for split, size in self.sizes.items() if size)
        self.text_bytes = None

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the (English, German) pairs of a split, in the same order every time."""
        if split not in self.splits:
            raise InputError(f"split must be one of {', '.join(self.splits)}, got {split!r}")
        return distinct_pairs(sentences(f"{self.seed} {split}"), split, self.sizes[split])


def distinct_pairs(
    candidates: Iterator[Sentence], split: str, count: int
) -> Iterator[tuple[str, str]]:
    """The pairs of `distinct_sentences`."""
    return ((source, target) for _, source, target in distinct_sentences(candidates, split, count))


def distinct_sentences(
    candidates: Iterator[Sentence], split: str, count: int
) -> Iterator[tuple[Sentence, str, str]]:
    """Yield `count` of the candidates that belong to the split, each source once.

    Each comes with its English and its German text.

    Raises:
        InputError: when candidates bring nothing new for a long time.
    """
    seen: set[int] = set()
    fruitless = 0
    while len(seen) < count:
        sentence = next(candidates)
        source = sentence.english()
        key = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "little")
        fruitless += 1
        if fruitless > _MAX_FRUITLESS:
            raise InputError(
                f"{split}_pairs must not exceed what the demo grammar can make, "
                f"got {count} and found {len(seen)}"
            )
        if _SPLIT_OF_CLASS.get(key % _HASH_CLASSES, "train") != split or key in seen:
            continue
        target = sentence.german()
        if all(MIN_WORDS <= text.count(" ") + 1 <= MAX_WORDS for text in (source, target)):
            seen.add(key)
            fruitless = 0
            yield sentence, source, target


def sentences(seed: str) -> Iterator[Sentence]:
    """Yield random sentences without end, repetitions and overlong ones included."""
    author = _Author(Random(seed))
    while True:
        yield author.sentence()


class _Author:
    """Makes sentences up, from `Random.random` alone: Python promises to keep its sequence."""

    def __init__(self, random: Random):
        self._random = random.random
        self._used: set[Noun] = set()  # no noun comes twice in a sentence

    def sentence(self) -> Sentence:
        self._used.clear()
        past = self._random() < 0.35
        kind = self._random()
        if kind < 0.3:
            return Sentence(self._clause(past, adverbials=0.45, fronting=0.4))
        if kind < 0.5:
            conjunction = self._pick(lexicon.COORDINATING)
            first, second = (self._clause(past, adverbials=0.1, fronting=0.4) for _ in range(2))
            return Sentence(first, conjunction, second)
        if kind < 0.7:
            return Sentence(self._saying(past), lexicon.THAT, self._clause(past, adverbials=0.2))
        second_first = kind > 0.85
        first = self._clause(past, adverbials=0.1, fronting=0.0 if second_first else 0.4)
        second = self._clause(past, adverbials=0.1)
        return Sentence(first, self._pick(lexicon.SUBORDINATING), second, second_first)

    def _pick(self, options):
        return options[int(self._random() * len(options))]

    def _clause(self, past: bool, *, adverbials: float, fronting: float = 0.0) -> Clause:
        """A clause; place, manner and time are as frequent as `adverbials`, a probability, says."""
        random = self._random
        subject, mood = self._subject(past), self._mood(past)
        verb, direct, recipient = self._predicate()
        alone = 0.25 if direct is None else 0.0  # a verb without an object has room for more
        place = self._place() if random() < 0.8 * adverbials + alone else None
        manner = self._manner() if random() < 0.5 * adverbials + alone else None
        time = self._time(past) if random() < adverbials + alone else None
        fronted = time is not None and random() < fronting
        return Clause(subject, verb, mood, direct, recipient, place, manner, time, fronted)

    def _saying(self, past: bool) -> Clause:
        time = self._time(past) if self._random() < 0.3 else None
        fronted = time is not None and self._random() < 0.5
        subject, verb = self._subject(past), self._pick(lexicon.VERBS_OF_SAYING)
        return Clause(subject, verb, self._mood(past), time=time, fronted=fronted)

    def _mood(self, past: bool) -> Mood:
        if past:
            return PAST
        return self._pick(lexicon.MODALS) if self._random() < 0.4 else PRESENT

    def _time(self, past: bool) -> Phrase:
        return self._pick(lexicon.PAST_TIMES if past else lexicon.TIMES)

    def _subject(self, past: bool) -> Pronoun | NounPhrase | Pair:
        kind = self._random()
        if kind < 0.08:
            return self._pick(_PRONOUNS)
        phrase = self._animate()
        if kind < 0.13:
            return Pair(phrase, self._animate())
        if kind < 0.22:
            verb, other = self._transitive(onto_things=False)
            return phrase._replace(
                relative=Relative(verb, self._mood(past), other, self._random() < 0.5)
            )
        return phrase

    def _predicate(self) -> tuple[Verb, NounPhrase | None, NounPhrase | None]:
        """A verb with its object and its recipient."""
        kind = self._random()
        if kind < 0.18:
            return self._pick(lexicon.VERBS_ALONE), None, None
        if kind < 0.32:
            return self._pick(lexicon.VERBS_OF_GIVING), self._thing(), self._animate()
        return *self._transitive(onto_things=kind > 0.75), None

    def _transitive(self, *, onto_things: bool) -> tuple[Verb, NounPhrase]:
        if not onto_things:
            verbs = lexicon.VERBS_ON_ANYTHING + lexicon.VERBS_ON_ANIMATES
            return self._pick(verbs), self._animate()
        if self._random() < 0.25:
            return self._pick(lexicon.VERBS_ON_CLOSABLES), self._thing(lexicon.CLOSABLES)
        verbs = lexicon.VERBS_ON_ANYTHING + lexicon.VERBS_ON_THINGS
        return self._pick(verbs), self._thing()

    def _place(self) -> Adverbial:
        phrase = self._phrase(lexicon.PLACES, lexicon.THING_ADJECTIVES)
        return Adverbial(self._pick(lexicon.PLACE_PREPOSITIONS), phrase, DATIVE)

    def _manner(self) -> Adverbial | Phrase:
        kind = self._random()
        if kind < 0.4:
            return self._pick(lexicon.MANNERS)
        if kind < 0.8:
            return Adverbial(lexicon.WITH, self._animate(), DATIVE)
        return Adverbial(lexicon.WITHOUT, self._animate(), ACCUSATIVE)

    def _animate(self) -> NounPhrase:
        return self._phrase(_ANIMATES, lexicon.ANIMATE_ADJECTIVES)

    def _thing(self, nouns: tuple[Noun, ...] = lexicon.THINGS) -> NounPhrase:
        return self._phrase(nouns, lexicon.THING_ADJECTIVES)

    def _phrase(self, nouns: tuple[Noun, ...], adjectives: tuple[Adjective, ...]) -> NounPhrase:
        noun = self._pick(nouns)
        while noun in self._used:
            noun = self._pick(nouns)
        self._used.add(noun)
        plural = self._random() < 0.3
        determiners = PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS
        adjective = self._pick(adjectives) if self._random() < 0.85 else None
        return NounPhrase(self._pick(determiners), adjective, noun, plural)
