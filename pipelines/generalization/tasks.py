"""What is trained on, tested on and counted: of commands, and of any parallel text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pipelines.corpora.by_length import (
    ShortCorpus,
    ShortSources,
    ShortTargets,
    even_ranges,
    shortest_share,
    words,
)
from pipelines.corpora.corpus import Corpus
from pipelines.errors import InputError
from pipelines.progress import progress
from pipelines.run.metrics import Score, bleu
from tf_relpos.search import EXTRA_LENGTH

_SPECIAL = 4  # padding, unknown, start and end


class Column(NamedTuple):
    """Sentences of a test set whose translations have a score of their own.

    Attributes:
        label: of the column in a table.
        place: on the axis of a picture.
        shortest, longest: of these sentences, in words.
        members: their places in the test set.
    """

    label: str
    place: float
    shortest: int
    longest: int
    members: Sequence[int]


class Task(Protocol):
    """What is trained on, tested on and counted.

    Attributes:
        name: of the files that are written.
        title: what is shown.
        axis: what the columns are.
        measure: the score, and its unit.
        has_one_text: whether all columns are scores of one training text.
        corpora: the training texts.
    """

    name: str
    title: str
    axis: str
    measure: str
    has_one_text: bool
    corpora: Sequence[ShortCorpus]

    def columns(
        self, corpus: ShortCorpus, sources: Sequence[str], references: Sequence[str]
    ) -> list[Column]:
        """The columns of the runs that are trained on one of the corpora.

        Raises:
            InputError: the test set has nothing to see in it.
        """
        ...

    def score(self, translations: Sequence[str], references: Sequence[str]) -> Score:
        """The score of some sentences."""
        ...


class CommandsTask:
    """Commands that become sequences of actions, and some of these are longer than all learnt.

    For each cutoff, trained on the pairs with up to so many actions and tested on all the others.

    Args:
        corpus: commands and actions, as its training text.
        cutoffs: in actions.

    Reference: SCAN's length split, Lake & Baroni 2018; its cutoffs, Newman et al. 2020.
    """

    name = "commands"
    title = "Action sequences that are longer than all of training"
    axis = "most actions trained on"
    measure = "exact match (%)"
    has_one_text = False

    def __init__(self, corpus: Corpus, cutoffs: Sequence[int]):
        self.corpora: Sequence[ShortCorpus] = [
            ShortTargets(corpus, cutoff) for cutoff in sorted(cutoffs)
        ]

    def columns(
        self, corpus: ShortCorpus, sources: Sequence[str], references: Sequence[str]
    ) -> list[Column]:
        """One, of all sentences.

        Raises:
            InputError: an action sequence is longer than a translation may become.
        """
        for source, reference in zip(sources, references, strict=True):
            if words(reference) > words(source) + EXTRA_LENGTH:
                raise InputError(
                    f"actions must be at most {EXTRA_LENGTH} more than the words of their "
                    f"command, as translations are; got {words(reference)} for {source!r}"
                )
        lengths = [words(reference) for reference in references]
        every = range(len(lengths))
        return [Column(str(corpus.longest), corpus.longest, min(lengths), max(lengths), every)]

    def score(self, translations: Sequence[str], references: Sequence[str]) -> Score:
        return exact_match(translations, references)


def check_cutoffs(corpus: Corpus, cutoffs: Sequence[int]) -> None:
    """Checks that each cutoff leaves something to train on and something to test on.

    Raises:
        InputError: one does not, or the commands and actions cannot be read.
    """
    lengths = [words(actions) for _, actions in corpus.pairs("train")]
    for longest in cutoffs:
        if not min(lengths) <= longest < max(lengths):
            raise InputError(
                f"longest must be at least {min(lengths)}, or there is nothing to train on, and "
                f"below {max(lengths)}, or there is nothing to test on, got {longest}"
            )


def check_words(corpus: Corpus, vocabulary_size: int, longest: int) -> None:
    """Checks that a vocabulary of words has all of the commands and actions.

    Args:
        corpus: commands and actions.
        vocabulary_size: V.
        longest: the least of the cutoffs, whose pairs must have every word.

    Raises:
        InputError: it has not, or they cannot be read.
    """
    known: set[str] = set()
    trained: set[str] = set()
    for pair in corpus.pairs("train"):
        found = {word for text in pair for word in text.split()}
        known |= found
        if words(pair[1]) <= longest:
            trained |= found
    if known - trained:
        raise InputError(
            f"longest must leave every word to train on, but {min(known - trained)!r} stands with "
            f"more than {longest} actions alone"
        )
    needed = len(known) + _SPECIAL
    if vocabulary_size < needed:
        raise InputError(
            f"vocabulary_size must be at least {needed}, for the {len(known)} words of commands "
            f"and actions and {_SPECIAL} special ids, got {vocabulary_size}"
        )


class TextTask:
    """Sentences of any parallel text, of which the longer ones are kept from training.

    Args:
        corpus: with a test set.
        share: of the sentences to train on, the shorter ones, above 0 and below 1.
        bins: into which the test sentences on each side of the longest trained one are put.

    Raises:
        InputError: there is no test set, or the training text cannot be read.
    """

    name = "text"
    title = "Sentences that are longer than all of training"
    axis = "words of the source"
    measure = "BLEU"
    has_one_text = True

    def __init__(self, corpus: Corpus, share: float, bins: int):
        if "test" not in corpus.splits:
            raise InputError(
                "scores by length need text to score on: --test_source and --test_target, or "
                "--test_tsv"
            )
        with progress("counting words", "sentences") as work:
            pairs = work.counted(corpus.pairs("train"))
            longest = shortest_share((words(source) for source, _ in pairs), share)
        self.corpora: Sequence[ShortCorpus] = [ShortSources(corpus, longest)]
        self._bins = bins
        self._language = corpus.target_language

    def columns(
        self, corpus: ShortCorpus, sources: Sequence[str], references: Sequence[str]
    ) -> list[Column]:
        """Bins by the length of the source, none of which has the end of training inside.

        Raises:
            InputError: no test sentence is longer than all of training.
        """
        lengths = [words(source) for source in sources]
        longer = [length for length in lengths if length > corpus.longest]
        if not longer:
            raise InputError(
                f"the test text must have sources of more than {corpus.longest} words, the "
                f"longest that are trained on; its longest has {max(lengths)}"
            )
        shorter = [length for length in lengths if length <= corpus.longest]
        bins = [*even_ranges(shorter, self._bins), *even_ranges(longer, self._bins)]
        return [_bin(lengths, shortest, longest) for shortest, longest in bins]

    def score(self, translations: Sequence[str], references: Sequence[str]) -> Score:
        return bleu(translations, references, self._language)


def exact_match(translations: Sequence[str], references: Sequence[str]) -> Score:
    """The share, in percent, of translations that are the reference word by word."""
    same = [
        translation.split() == reference.split()
        for translation, reference in zip(translations, references, strict=True)
    ]
    return Score("exact match", 100 * sum(same) / len(same), "")


def _bin(lengths: Sequence[int], shortest: int, longest: int) -> Column:
    members = [n for n, length in enumerate(lengths) if shortest <= length <= longest]
    label = str(longest) if shortest == longest else f"{shortest}–{longest}"
    mean = sum(lengths[n] for n in members) / len(members)
    return Column(label, round(mean, 2), shortest, longest, members)
