"""Corpora whose training text has short sentences alone, to see what becomes of longer ones.

Length is counted in words: what stands between white space.
"""

import abc
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

from pipelines.corpora.corpus import Corpus
from pipelines.errors import InputError


def words(sentence: str) -> int:
    """The length of a sentence."""
    return len(sentence.split())


def shortest_share(lengths: Iterable[int], share: float) -> int:
    """The length up to which at least this share of the sentences goes, as low as can be.

    Args:
        lengths: of all sentences, at least one.
        share: above 0, at most 1.
    """
    counts = Counter(lengths)
    needed = math.ceil(Fraction(str(share)) * counts.total())  # 0.55 of 100 is 55
    seen = 0
    for length in sorted(counts):
        seen += counts[length]
        if seen >= needed:
            break
    return length


def even_ranges(lengths: Iterable[int], count: int) -> list[tuple[int, int]]:
    """Ranges of lengths, first and last, with about as many of the sentences in each.

    Args:
        lengths: of all sentences.
        count: the most ranges; one length is never in two of them.
    """
    counts = Counter(lengths)
    rest, inside = counts.total(), 0
    ranges: list[tuple[int, int]] = []
    begin = None
    for length in sorted(counts):
        begin = length if begin is None else begin
        inside += counts[length]
        if inside * (count - len(ranges)) >= rest:  # its share of what the others have left
            ranges.append((begin, length))
            rest, inside, begin = rest - inside, 0, None
    return ranges


class ShortCorpus(abc.ABC):
    """A corpus with the pairs of another one, of which none is long that is trained on.

    Args:
        corpus: the other one.
        longest: the most words that are trained on.

    Attributes:
        longest: the same.
    """

    def __init__(self, corpus: Corpus, longest: int):
        self._corpus = corpus
        self.longest = longest
        self.name = f"{corpus.name} up to {longest} words"
        self.source_language = corpus.source_language
        self.target_language = corpus.target_language
        self.splits = corpus.splits
        self.files = corpus.files

    @property
    def text_bytes(self) -> int | None:
        return self._corpus.text_bytes

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of a split.

        Raises:
            InputError: there is no such split, or nothing of the right length in it; and what the
                other corpus raises.
        """
        if split not in self.splits:
            raise InputError(f"split must be one of {', '.join(self.splits)}, got {split!r}")
        pair = None
        for pair in self._pairs(split):
            yield pair
        if pair is None:
            raise InputError(f"the {split} text of {self.name} must have pairs, but there is none")

    @abc.abstractmethod
    def _pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Those of a split that there is."""


class ShortSources(ShortCorpus):
    """Trained and validated on short sources, and tested on the same text as the other corpus."""

    def _pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for pair in self._corpus.pairs(split):
            if split == "test" or words(pair[0]) <= self.longest:
                yield pair


class ShortTargets(ShortCorpus):
    """Trained on the pairs with short targets, and tested on all the others.

    What the other corpus has beside its training text is left out.
    """

    def __init__(self, corpus: Corpus, longest: int):
        super().__init__(corpus, longest)
        self.splits = ("train", "test")

    def _pairs(self, split: str) -> Iterator[tuple[str, str]]:
        for pair in self._corpus.pairs("train"):
            is_short = words(pair[1]) <= self.longest
            if is_short == (split == "train"):
                yield pair
