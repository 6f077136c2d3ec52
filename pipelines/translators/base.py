"""What every translator gives. Without TensorFlow: forms that start fast use it."""

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pipelines.errors import InputError
from pipelines.progress import Work, progress
from tf_relpos.config import MAX_ALPHA

MAX_BEAM_SIZE = 100  # one request must not take all the memory of a server

MAX_SOURCE_LENGTH = 256  # subwords of a source that are read, its end mark included
BATCH_SIZE = 32
SENTENCES_AT_A_TIME = 1024  # sorted by length before they are put into batches


def check_search(*, beam_size: int | None = None, alpha: float | None = None) -> None:
    """Checks the settings of a search, those that are given.

    Raises:
        InputError: one is out of its range.
    """
    if beam_size is not None and not 1 <= beam_size <= MAX_BEAM_SIZE:
        raise InputError(f"beam_size must be from 1 to {MAX_BEAM_SIZE}, got {beam_size}")
    if alpha is not None and not 0 <= alpha <= MAX_ALPHA:  # NaN is not, either
        raise InputError(f"alpha must be from 0 to {MAX_ALPHA:g}, got {alpha}")


@dataclass(frozen=True)
class Sampling:
    """Settings of translations that are drawn from the model instead of searched for.

    Args:
        temperature: below 1 the likely subwords become likelier.
        top_k: draw from this many of the most probable subwords only; None for all.
        seed: the same seed draws the same translation of the n-th sentence.

    Raises:
        InputError: one is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be a finite number above 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, got {self.top_k}")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed}")

    def __str__(self) -> str:
        return f"temperature {self.temperature:g}, top_k {self.top_k}, seed {self.seed}"


class Translation(NamedTuple):
    text: str
    score: float  # log-probability over the length penalty, in nats


class TextTranslator(abc.ABC):
    """What a model becomes, whatever its form.

    Attributes:
        align: `align(sources, translations)`, the links between their words, where they were asked
            for: see `pipelines.translators.alignment`.
    """

    align: Callable[[Sequence[str], Sequence[str]], list[str]] | None = None

    _work: Work | None = None

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence, in their order."""
        texts: list[str] = []
        with progress("translating", "sentences", len(sentences)) as work:
            self._work = work
            for hypotheses in self.stream(sentences):
                texts.append(hypotheses[0].text)
                work.done = max(work.done, len(texts))
        self._work = None
        return texts

    def _advance(self, sentences: int) -> None:
        """Tells of the sentences of a chunk that are translated, before all of them are."""
        if self._work:
            self._work.advance(sentences)

    def stream(
        self, sentences: Iterable[str], sentences_at_a_time: int = SENTENCES_AT_A_TIME
    ) -> Iterator[list[Translation]]:
        """The translations of each sentence, best first, in their order, as they are ready."""
        sentences = iter(sentences)
        while chunk := list(islice(sentences, sentences_at_a_time)):
            yield from self._translate_chunk(chunk)

    @abc.abstractmethod
    def _translate_chunk(self, sentences: Sequence[str]) -> Iterable[list[Translation]]:
        """The translations of a few sentences at once."""
