"""Pairs of lines become ids on disk: the tokenizer applied to a corpus, batch by batch."""

import logging
import time
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from pipelines.data.dataset_writer import TokenizedCorpusWriter
from pipelines.data.tokenizer import KeptErrors, Tokenizer
from pipelines.progress import progress

_LOG = logging.getLogger(__name__)

_PAIRS_PER_CALL = 1024
_BYTES_PER_CALL = 1 << 22


def tokenize(
    pairs: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    writer: TokenizedCorpusWriter,
    total: int | None = None,
) -> None:
    """Writes the ids of all pairs, `total` if that is known; lines are tokenized in parallel."""
    batches = KeptErrors(_in_batches(pairs))

    def ragged(source: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, ...]:
        source, target = tokenizer.encode(source), tokenizer.encode(target)
        return source.values, source.row_lengths(), target.values, target.row_lengths()

    lines = tf.TensorSpec([None], tf.string)
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=(lines, lines))
    dataset = dataset.map(ragged, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    started = time.monotonic()
    with progress("tokenizing", "pairs", total) as work:
        for batch in dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            writer.append(*batch)
            work.advance(len(batch[1]))
    batches.reraise()
    _LOG.info(f"tokenized {work.done:,} pairs in {time.monotonic() - started:,.0f} s")


def _in_batches(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields UTF-8 lines of both sides, two arrays of objects (NumPy's bytes lose final NULs).

    A batch is full at a number of pairs or of bytes, so that long lines cannot exhaust the memory.
    A line of nothing but white space is an empty one, as it is for translators.
    """
    sources, targets, size = [], [], 0
    for source, target in pairs:
        sources.append(b"" if source.isspace() else source.encode())
        targets.append(b"" if target.isspace() else target.encode())
        size += len(sources[-1]) + len(targets[-1])
        if len(sources) == _PAIRS_PER_CALL or size >= _BYTES_PER_CALL:
            yield np.array(sources, dtype=object), np.array(targets, dtype=object)
            sources, targets, size = [], [], 0
    if sources:
        yield np.array(sources, dtype=object), np.array(targets, dtype=object)
