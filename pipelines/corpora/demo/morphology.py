"""What the demo's dictionary entries hold, and how German articles and adjectives decline."""

from typing import NamedTuple

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)  # columns of a declension; the plural has no gender


class Noun(NamedTuple):
    """English singular and plural, gender, German singular, plural and dative plural."""

    english: str
    english_plural: str
    gender: int
    german: str
    german_plural: str
    german_dative_plural: str


class Adjective(NamedTuple):
    english: str
    stem: str  # German; the endings depend on the determiner


class Determiner(NamedTuple):
    """`german` and `endings` are indexed `[case][column]`; an empty English form does not exist."""

    english: str
    english_plural: str
    german: tuple[tuple[str, ...], ...]
    endings: tuple[tuple[str, ...], ...]  # of the adjective that follows


class Verb(NamedTuple):
    """`infinitive` leaves out the separable `particle`; it is the German plural as well."""

    english: str
    english_singular: str
    english_past: str
    infinitive: str
    singular: str
    participle: str
    particle: str = ""
    auxiliary: tuple[str, str] = ("hat", "haben")
    object_case: int = ACCUSATIVE


class Modal(NamedTuple):
    english: str
    english_plural: str
    german: str
    german_plural: str


class Conjunction(NamedTuple):
    """What joins two clauses; `german_past` is the German word if the second is in the past."""

    english: str
    german: str
    german_past: str
    english_comma: str = ""
    german_comma: str = ","
    subordinating: bool = True


class Phrase(NamedTuple):
    english: str
    german: str


def rows(text: str) -> list[list[str]]:
    """The fields of each line, separated by spaces; an underscore is a space inside a field."""
    return [
        [field.replace("_", " ") for field in line.split()] for line in text.strip().splitlines()
    ]


def table(text: str) -> tuple[tuple[str, ...], ...]:
    """Rows nominative to dative; columns masculine, feminine, neuter, plural; a dash is empty."""
    return tuple(tuple("" if cell == "-" else cell for cell in row) for row in rows(text))


# The endings of adjectives.
WEAK = table("""
e  e  e  en
en e  e  en
en en en en
""")
MIXED = table("""
er e  es en
en e  es en
en en en en
""")
STRONG_PLURAL = table("""
- - - e
- - - e
- - - en
""")


def _like_ein(stem: str) -> tuple[tuple[str, ...], ...]:
    return (
        (stem, stem + "e", stem, stem + "e"),
        (stem + "en", stem + "e", stem, stem + "e"),
        (stem + "em", stem + "er", stem + "em", stem + "en"),
    )


def _like_dieser(stem: str) -> tuple[tuple[str, ...], ...]:
    return (
        (stem + "er", stem + "e", stem + "es", stem + "e"),
        (stem + "en", stem + "e", stem + "es", stem + "e"),
        (stem + "em", stem + "er", stem + "em", stem + "en"),
    )


DEFINITE_ARTICLE = table("""
der die das die
den die das die
dem der dem den
""")
RELATIVE_PRONOUN = (*DEFINITE_ARTICLE[:2], ("dem", "der", "dem", "denen"))

THE = Determiner("the", "the", DEFINITE_ARTICLE, WEAK)
A = Determiner("a", "", _like_ein("ein"), MIXED)
MY = Determiner("my", "my", _like_ein("mein"), MIXED)
OUR = Determiner("our", "our", _like_ein("unser"), MIXED)
THIS = Determiner("this", "these", _like_dieser("dies"), WEAK)
EVERY = Determiner("every", "", _like_dieser("jed"), WEAK)
SOME = Determiner("", "some", _like_dieser("einig"), STRONG_PLURAL)
# The article comes twice: it is the commonest determiner of both languages.
SINGULAR_DETERMINERS = (THE, THE, A, A, MY, OUR, THIS, EVERY)
PLURAL_DETERMINERS = (THE, THE, MY, OUR, THIS, SOME)
