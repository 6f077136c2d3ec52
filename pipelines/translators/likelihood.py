"""How probable a model finds translations that are given to it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.translators.graphs import graph_of
from pipelines.translators.keras_model import LoadedRun, Translator
from pipelines.translators.pairs import pair_batches


class Likelihoods(NamedTuple):
    """Of several pairs, in their order.

    Attributes:
        log_probs: float `[B]`, log P(target | source) in nats, the end mark included.
        subwords: int `[B]`, of the target, with the end mark.
        right: int `[B]`, those of them that the model holds most probable.
    """

    log_probs: np.ndarray
    subwords: np.ndarray
    right: np.ndarray


class LikelihoodModel:
    """Tells the probability of pairs, each alike alone and in any batch.

    Args:
        loaded: a run's model.
        max_target_length: subwords after which targets are cut; None for never.
    """

    def __init__(self, loaded: LoadedRun | Translator, max_target_length: int | None = None):
        self._loaded = loaded
        self._max_target_length = max_target_length
        ids = tf.TensorSpec([None, None], tf.int32)
        inputs = {"source_ids": ids, "target_ids": ids}

        def likelihoods(inputs: dict[str, tf.Tensor], target_ids: tf.Tensor) -> Likelihoods:
            logits = tf.cast(loaded.model(inputs, training=False), tf.float32)
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(target_ids, logits)
            is_token = target_ids != loaded.model.config.pad_id
            is_right = is_token & (tf.argmax(logits, axis=-1, output_type=tf.int32) == target_ids)
            log_probs = -tf.reduce_sum(tf.where(is_token, nll, 0.0), axis=1)
            return Likelihoods(
                log_probs, *(tf.math.count_nonzero(x, axis=1) for x in (is_token, is_right))
            )

        self._likelihoods = graph_of(likelihoods, [inputs, ids])

    def __call__(self, sources: Sequence[str], targets: Sequence[str]) -> Likelihoods:
        """Those of pairs: as many targets as sources."""
        count = len(sources)
        results = Likelihoods(np.zeros(count), np.zeros(count, int), np.zeros(count, int))
        for batch in pair_batches(self._loaded, sources, targets, self._max_target_length):
            found = self._likelihoods(batch.inputs, batch.target_ids)
            for result, values in zip(results, found, strict=True):
                result[batch.places] = values
        return results
