"""Parallel text of any size for measurements: made-up words by Zipf's law, streamed to files."""

from itertools import pairwise
from pathlib import Path

import numpy as np

_WORDS = 100_000  # a side
_PAIRS_PER_WRITE = 10_000


def write_parallel_text(directory: Path, pairs: int) -> tuple[Path, Path]:
    """Writes `train.en` and `train.de`, a sentence a line, with constant memory.

    Sentences have 18 words on average, three in four have 10 to 30. The sides agree in length, as
    translations do, and in nothing else.

    Returns:
        The paths of both files.
    """
    rng = np.random.default_rng(0)
    sides = [
        _Vocabulary(rng, letters) for letters in ("etaoinshrdlucmfwypvb", "enisratdhulcgmobwfkz")
    ]
    source_path, target_path = directory / "train.en", directory / "train.de"
    with source_path.open("wb") as source, target_path.open("wb") as target:
        for first in range(0, pairs, _PAIRS_PER_WRITE):
            count = min(_PAIRS_PER_WRITE, pairs - first)
            lengths = rng.lognormal(np.log(16), 0.5, count)
            source.write(sides[0].lines(rng, lengths))
            target.write(sides[1].lines(rng, lengths * rng.normal(1.0, 0.15, count)))
    return source_path, target_path


def random_batch(pairs: int, length: int, vocabulary_size: int) -> dict[str, np.ndarray]:
    """A batch as models are trained on, of random ids that are no special ones: int32
    `[pairs, length]` each."""
    from pipelines.data.dataset import shift_right

    source_ids, labels = (
        np.random.default_rng(side).integers(4, vocabulary_size, (pairs, length), "int32")
        for side in range(2)
    )
    return {"source_ids": source_ids, "target_ids": shift_right(labels), "labels": labels}


class _Vocabulary:
    """Random words: that of rank r has a chance of about 1 / r, and the rarer it is, the longer."""

    def __init__(self, rng: np.random.Generator, letters: str):
        ranks = np.arange(1, _WORDS + 1)
        lengths = 1 + np.log(ranks) / np.log(8) + rng.normal(0.0, 0.7, _WORDS)
        ends = np.cumsum(np.maximum(np.rint(lengths), 1).astype(np.int64)).tolist()
        chances = 1.0 / np.arange(2, len(letters) + 2)
        drawn = "".join(rng.choice(list(letters), ends[-1], p=chances / chances.sum()))
        words = [drawn[begin:end] for begin, end in pairwise([0, *ends])]
        self._inner = np.array([f"{word} ".encode() for word in words], dtype=object)
        self._final = np.array([f"{word}.\n".encode() for word in words], dtype=object)
        self._cumulative = np.cumsum(1.0 / ranks) / np.sum(1.0 / ranks)

    def lines(self, rng: np.random.Generator, lengths: np.ndarray) -> bytes:
        """float `[B]` numbers of words -> B lines."""
        ends = np.cumsum(np.clip(np.rint(lengths), 1, 100).astype(np.int64))
        numbers = np.searchsorted(self._cumulative, rng.random(ends[-1]))
        words = self._inner[numbers]
        words[ends - 1] = self._final[numbers[ends - 1]]
        return b"".join(words)
