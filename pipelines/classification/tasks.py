"""Generated tasks, which nothing but order decides.

Axes: B examples, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipelines.corpora.demo import lexicon
from pipelines.corpora.demo.corpus import sentences
from pipelines.corpora.demo.grammar import Clause, NounPhrase

PADDING = 0
CLAUSES, MORE_CLAUSES = (1, 2), (3, 6)  # of a text, from and to
WEEK = 7
WEEKS, MORE_WEEKS = 6, 24  # of a series
NOISE = 0.5  # standard deviation; that of a week's days is 1

_KINDS = {
    form: kind
    for kind, nouns in (("person", lexicon.PEOPLE), ("animal", lexicon.ANIMALS))
    for noun in nouns
    for form in (noun.english, noun.english_plural)
}


class Examples(NamedTuple):
    """What a model is given, and what it is to say.

    Attributes:
        inputs: words, int32 `[B, T]`, or a series, float32 `[B, T, 1]`.
        targets: of words the class, int32 `[B]`; of a series the value to come, `[B, T, 1]`.
        first: of a series, the position from which on forecasts count.
    """

    inputs: np.ndarray
    targets: np.ndarray
    first: int = 0


class Task(NamedTuple):
    """A task.

    Attributes:
        train: to train on.
        test: others, of the same lengths.
        longer: others, of lengths that training has not seen.
        words: how many different ones there are, padding included; 0 of a series.
    """

    train: Examples
    test: Examples
    longer: Examples
    words: int = 0


def text_task(train: int = 2000, test: int = 1000) -> Task:
    """Who does it: a person to an animal, or an animal to a person?

    A text is of several English clauses of the demo grammar. In one of them a person does something
    to an animal, or the other way round; in none of the others do both occur. Each text comes
    twice, with the two in each other's place: the same words, two answers. Without order half of
    the answers are right, whatever is learnt.

    Args:
        train, test: such pairs of texts, of 1 or 2 clauses; `longer` has as many as `test`, of 3
            to 6.
    """
    splits = [
        _texts(count, clauses, seed)
        for seed, (count, clauses) in enumerate(
            ((train, CLAUSES), (test, CLAUSES), (test, MORE_CLAUSES))
        )
    ]
    words = sorted({word for texts, _ in splits for text in texts for word in text})
    ids = {word: number for number, word in enumerate(words, PADDING + 1)}
    examples = [Examples(_padded(texts, ids), np.array(y, "int32")) for texts, y in splits]
    return Task(examples[0], examples[1], examples[2], words=len(words) + 1)


def series_task(train: int = 4000, test: int = 1000) -> Task:
    """What comes tomorrow?

    Each series has a week of its own, seven numbers, which repeats itself from any of its days on
    under noise. Seven days ago, and fourteen, and so on, tell what comes; which day of the week
    it is, no position tells.

    Args:
        train, test: series of 6 weeks, whose forecasts count from the second week on; `longer` has
            as many as `test`, of 24 weeks, of which those count that training has not come to.
    """
    rng = np.random.default_rng(0)
    return Task(
        _series(train, WEEKS, WEEK, rng),
        _series(test, WEEKS, WEEK, rng),
        _series(test, MORE_WEEKS, WEEK * WEEKS, rng),
    )


TASKS = {"text": text_task, "series": series_task}


def explained(examples: Examples, forecasts: np.ndarray) -> float:
    """The share of the variance of what came that forecasts `[B, T, 1]` explain."""
    counted = examples.targets[:, examples.first :]
    error = counted - forecasts[:, examples.first :]
    return float(1 - np.mean(error**2) / np.var(counted))


def _series(count: int, weeks: int, first: int, rng: np.random.Generator) -> Examples:
    days = np.tile(rng.normal(size=(count, WEEK)), (1, weeks + 1))[:, : weeks * WEEK + 1]
    series = (days + NOISE * rng.normal(size=days.shape)).astype("float32")[..., None]
    return Examples(series[:, :-1], series[:, 1:], first)


def _texts(count: int, clauses: tuple[int, int], seed: int) -> tuple[list[list[str]], list[int]]:
    """Words and answers of pairs of texts."""
    rng = np.random.default_rng(seed)
    others, asked = _clauses(f"{seed}")
    texts, answers = [], []
    for _ in range(count):
        told = [next(others) for _ in range(rng.integers(clauses[0] - 1, clauses[1]))]
        place = int(rng.integers(len(told) + 1))
        for clause in next(asked):
            parts = [part.english() for part in (*told[:place], clause, *told[place:])]
            texts.append(" . ".join(parts).split())
            answers.append(int(_kinds(clause)[0] == "person"))
    return texts, answers


def _clauses(seed: str) -> tuple[Iterator[Clause], Iterator[tuple[Clause, Clause]]]:
    """Clauses without end: those in which people and animals do not meet; others and their turn."""

    def clauses(name: str) -> Iterator[Clause]:
        for sentence in sentences(f"{seed} {name}"):
            yield from filter(None, (sentence.first, sentence.second))

    others = (clause for clause in clauses("others") if len(set(_kinds(clause))) < 2)
    asked = ((clause, turned) for clause in clauses("asked") if (turned := _turned(clause)))
    return others, asked


def _turned(clause: Clause) -> Clause | None:
    """With subject and object in each other's place, if they are a person and an animal, and alone
    so; None otherwise."""
    subject, object_ = clause.subject, clause.object
    if not isinstance(subject, NounPhrase) or subject.relative or not object_:
        return None
    pair = sorted(_kinds(subject) + _kinds(object_))
    is_alone = pair == sorted(_kinds(clause)) == ["animal", "person"]
    if not is_alone or subject.plural != object_.plural:
        return None
    return clause._replace(subject=object_, object=subject)


def _kinds(part: Clause | NounPhrase) -> list[str]:
    """ "person" or "animal" for each such noun in a part of a sentence."""
    return [_KINDS[word] for word in part.english().split() if word in _KINDS]


def _padded(texts: list[list[str]], ids: dict[str, int]) -> np.ndarray:
    padded = np.full((len(texts), max(map(len, texts))), PADDING, "int32")
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = [ids[word] for word in text]
    return padded
