"""The search of a translator as a graph that TFLite can hold: ids to ids, constants for weights."""

import keras
import numpy as np
import tensorflow as tf

from pipelines.translators.keras_model import Translator
from tf_relpos import Transformer, beam_search
from tf_relpos.search import EXTRA_LENGTH


def search_graph(
    translator: Translator,
    source_length: int,
    target_length: int,
    *,
    hypotheses: int,
    in_integers: bool,
) -> tf.types.experimental.ConcreteFunction:
    """The signature of `write_model` as a graph with constants for variables.

    TFLite cannot initialize variables that a loop reads.

    Args:
        translator: the model, and the settings of its search.
        source_length: S.
        target_length: L.
        hypotheses: how many of them are given back, at most those of the beam.
        in_integers: whether the weights become integers of 8 bits.
    """
    model = translator.model
    weights = [(weight, weight.numpy()) for weight in model.weights]
    if in_integers:
        model = _copy(model)
        weights = [(w, value) for w, (_, value) in zip(model.weights, weights, strict=True)]
        model.embedding = _EmbeddingInIntegers(model.embedding)

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([1, source_length], tf.int32, name="source_ids")],
    )
    def search(source_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        # Padding is cut off, so that a short sentence has short matrices and caches. With lengths
        # that are known, the converter would store the relations of S^2 pairs as constants, too.
        length = tf.reduce_sum(tf.cast(source_ids != model.config.pad_id, tf.int32))
        length = tf.maximum(length, 1)  # a source without a token gets an answer, too
        limit = tf.minimum(length + EXTRA_LENGTH, target_length)
        constants = [(weight, tf.constant(value)) for weight, value in weights]
        with keras.StatelessScope(state_mapping=constants):
            ids, scores = beam_search(
                model,
                source_ids[:, :length],
                translator.beam_size,
                translator.alpha,
                max_length=limit,
            )
        behind = [[0, 0], [0, target_length - limit]]
        best = tf.pad(ids[0, :hypotheses], behind, constant_values=model.config.pad_id)
        return {
            "target_ids": tf.reshape(best, [hypotheses, target_length]),
            "score": scores[0, :hypotheses],
        }

    return search.get_concrete_function()


def _copy(model: Transformer) -> Transformer:
    copy = Transformer(model.config)
    copy.build()
    copy.set_weights(model.get_weights())
    return copy


class _EmbeddingInIntegers:
    """In the place of an embedding: looks up rows of 8 bits, with a scale for each.

    They are those that the converter makes of the same table as weights of the softmax. It would
    round the table once more, with one scale for all rows, and store that as well.
    """

    def __init__(self, layer: keras.layers.Embedding):
        self.embeddings = layer.embeddings  # for the softmax
        table = layer.embeddings.numpy().astype(np.float64)  # as the converter rounds
        largest = np.abs(table).max(axis=1, keepdims=True)
        scales = np.where(largest > 0, largest / 127, 1.0)
        scaled = table / scales
        self._rows = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int8)
        self._scales = scales.astype(np.float32)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(tf.gather(self._rows, ids), tf.float32)
        return rows * tf.gather(self._scales, ids)
