"""What every translator gives. Without TensorFlow: forms that start fast use it."""

import abc
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from pipelines.errors import InputError
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


class Translation(NamedTuple):
    text: str
    score: float  # log-probability over the length penalty, in nats


class TextTranslator(abc.ABC):
    """What a model becomes, whatever its form."""

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence, in their order."""
        return [hypotheses[0].text for hypotheses in self.stream(sentences)]

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
