"""Pairs of sentences in batches, for a model that is told the target."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from pipelines.translators.keras_model import LoadedRun, Translator

# Of a batch, padding included: what bounds the memory that its logits take.
_TOKENS = 2048


class PairBatch(NamedTuple):
    """Pairs of similar length.

    Attributes:
        places: of each in the sequence of all pairs.
        source_ids: int32 `[B, S]`, padded.
        target_ids: int32 `[B, T]`, each with its end id, padded.
        inputs: what the model is called with: the source, and the target shifted right.
    """

    places: list[int]
    source_ids: tf.Tensor
    target_ids: tf.Tensor
    inputs: dict[str, tf.Tensor]


def pair_batches(
    loaded: LoadedRun | Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    max_target_length: int | None = None,
) -> Iterator[PairBatch]:
    """The pairs by length.

    Sources are cut where the model stops reading, targets after `max_target_length` subwords, if
    that is given.
    """
    config = loaded.model.config
    source, target = (loaded.tokenizer.encode(tf.constant(texts)) for texts in (sources, targets))
    source, target = source[:, : loaded.max_source_length], target[:, :max_target_length]
    lengths = tf.maximum(source.row_lengths(), target.row_lengths()).numpy()
    by_length = sorted(range(len(sources)), key=lambda place: lengths[place])
    while by_length:
        count = 1
        while count < len(by_length) and (count + 1) * lengths[by_length[count]] <= _TOKENS:
            count += 1
        places, by_length = by_length[:count], by_length[count:]
        source_ids, target_ids = (
            tf.gather(ids, places).to_tensor(config.pad_id) for ids in (source, target)
        )
        shifted = tf.pad(target_ids[:, :-1], [[0, 0], [1, 0]], constant_values=config.start_id)
        inputs = {"source_ids": source_ids, "target_ids": shifted}
        yield PairBatch(places, source_ids, target_ids, inputs)
