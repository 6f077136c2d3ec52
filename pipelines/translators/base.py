"""What every translator gives. Without TensorFlow: forms that start fast use it."""

import abc
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pipelines.errors import InputError
from pipelines.progress import Work, progress
from tf_relpos.config import MAX_ALPHA

MAX_BEAM_SIZE = 100  # one request must not take all the memory of a server

MIN_LENGTH = 1  # subwords that a search finds before the end: no translation is empty
MAX_SOURCE_LENGTH = 256  # subwords of a source that are read, its end mark included
BATCH_SIZE = 32
HOTTEST = 1_000_000  # a temperature that makes all tokens alike, and that float32 can hold
SENTENCES_AT_A_TIME = 1024  # sorted by length before they are put into batches

_LOG = logging.getLogger(__name__)


def check_search(*, beam_size: int | None = None, alpha: float | None = None) -> None:
    """Checks the settings of a search, those that are given.

    Raises:
        InputError: one is out of its range.
    """
    if beam_size is not None and not 1 <= beam_size <= MAX_BEAM_SIZE:
        raise InputError(f"beam_size must be from 1 to {MAX_BEAM_SIZE}, got {beam_size}")
    if alpha is not None and not 0 <= alpha <= MAX_ALPHA:  # NaN is not, either
        raise InputError(f"alpha must be from 0 to {MAX_ALPHA:g}, got {alpha}")


def check_nbest(nbest: int, beam_size: int) -> None:
    """Checks how many hypotheses of a beam are wanted.

    Raises:
        InputError: more than there are, or none.
    """
    if not 1 <= nbest <= beam_size:
        raise InputError(f"nbest must be from 1 to beam_size {beam_size}, got {nbest}")


@dataclass(frozen=True)
class Sampling:
    """Settings of translations that are drawn from the model instead of searched for.

    Args:
        temperature: below 1 the likely subwords become likelier.
        top_k: draw from this many of the most probable subwords only; None for all.
        top_p: draw from the fewest most probable subwords that have this probability together, of
            the `top_k` and at the `temperature`; None for all.
        seed: the same seed draws the same translation of the n-th sentence.

    Raises:
        InputError: one is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= HOTTEST:
            raise InputError(
                f"temperature must be above 0 and at most {HOTTEST:,}, got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed}")

    def __str__(self) -> str:
        kept = f"top_k {self.top_k}, top_p {self.top_p}"
        return f"temperature {self.temperature:g}, {kept}, seed {self.seed}"


class Translation(NamedTuple):
    text: str
    score: float  # log-probability over the length penalty, in nats


_NOTHING = Translation("", 0.0)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Cut(NamedTuple):
    """A source that a model does not read to its end.

    Attributes:
        place: among the sentences that were asked about.
        subwords: of it, the end mark included.
        read: how many of them the model reads.
    """

    place: int
    subwords: int
    read: int


class TextTranslator(abc.ABC):
    """What a model becomes, whatever its form.

    Attributes:
        align: `align(sources, translations)`, the links between their words, where they were asked
            for: see `pipelines.translators.alignment`.
    """

    align: Callable[[Sequence[str], Sequence[str]], list[str]] | None = None

    _work: Work | None = None

    def translate(self, sentences: Iterable[str]) -> list[str]:
        """The best translation of each sentence, in their order.

        Raises:
            InputError: one of them is no string, or they are a single one.
        """
        if not isinstance(sentences, Sequence):
            sentences = list(sentences)
        texts: list[str] = []
        with progress("translating", "sentences", len(sentences)) as work:
            self._work = work
            try:
                for hypotheses in self.stream(sentences):
                    texts.append(hypotheses[0].text)
                    work.done = max(work.done, len(texts))
            finally:
                self._work = None
        return texts

    def _advance(self, sentences: int) -> None:
        """Tells of the sentences of a chunk that are translated, before all of them are."""
        work = self._work
        if work:
            work.advance(sentences)

    def stream(
        self, sentences: Iterable[str], sentences_at_a_time: int = SENTENCES_AT_A_TIME
    ) -> Iterator[list[Translation]]:
        """The translations of each sentence, best first, in their order, as they are ready.

        A sentence of nothing but white space has one, which is empty, with a score of 0: no model
        has learnt what to say to it. Each is one line of text, whatever the model says: control
        characters become spaces, as they would end the line, or have a terminal do what a server
        wants. Half of a surrogate pair, which is no character, is read as U+FFFD.

        Raises:
            InputError: one of them is no string, or they are a single one.
        """
        sentences = _checked(sentences)
        while chunk := list(islice(sentences, sentences_at_a_time)):
            texts = [sentence for sentence in chunk if not _is_blank(sentence)]
            translations = iter(self._translate_chunk(texts) if texts else ())
            for sentence in chunk:
                hypotheses = [_NOTHING] if _is_blank(sentence) else next(translations)
                yield [Translation(_CONTROL.sub(" ", text), score) for text, score in hypotheses]

    def cut(self, sentences: Sequence[str]) -> list[Cut]:
        """Those sentences whose end the model does not read."""
        lengths, limit = self._source_lengths(list(_checked(sentences)))
        return [Cut(place, length, limit) for place, length in enumerate(lengths) if length > limit]

    @abc.abstractmethod
    def _translate_chunk(self, sentences: Sequence[str]) -> Iterable[list[Translation]]:
        """The translations of a few sentences at once, at least one, none of them blank."""

    @abc.abstractmethod
    def _source_lengths(self, sentences: Sequence[str]) -> tuple[Sequence[int], int]:
        """The subwords of each sentence with its end mark, and how many of them are read."""


def _checked(sentences: Iterable[str]) -> Iterator[str]:
    """Each sentence, in characters alone.

    Raises:
        InputError: one is no string, or they are a single one.
    """
    if isinstance(sentences, str | bytes):
        raise InputError(f"sentences must be a list of them, got one: {sentences[:60]!r}")
    for place, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise InputError(
                f"sentences must be strings, got {type(sentence).__name__} in place {place}"
            )
        if _SURROGATE.search(sentence):
            sentence = sentence.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield sentence


def _is_blank(sentence: str) -> bool:
    return not sentence.strip()


class CutSources:
    """Tells in the log which lines of a text a model does not read to their end.

    Args:
        translator: what reads it.
    """

    def __init__(self, translator: TextTranslator):
        self._translator = translator
        self._lines = self._cut = 0

    def tell(self, sentences: Sequence[str]) -> None:
        """Those of the next lines of the text."""
        for place, subwords, read in self._translator.cut(sentences):
            _LOG.warning(
                "line %d is cut: the model reads %d of its %d subwords, the end mark among them",
                *(self._lines + place + 1, read, subwords),
            )
            self._cut += 1
        self._lines += len(sentences)

    def tell_number(self) -> None:
        """How many there were, if any."""
        if self._cut:
            _LOG.warning("%d of %d lines were cut", self._cut, self._lines)
