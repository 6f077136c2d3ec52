"""A model whose weights are constants of the graphs that it is called in, as TFLite wants them."""

from contextlib import AbstractContextManager

import keras
import numpy as np
import tensorflow as tf

from tf_relpos import Transformer


class FrozenModel:
    """A model to call with constants for variables, inside `weights_as_constants()`.

    TFLite cannot initialize variables that a loop reads.

    Args:
        model: whose weights.
        in_integers: whether they become integers of 8 bits.

    Attributes:
        model: the model, or a copy whose embedding looks up integers.
    """

    def __init__(self, model: Transformer, *, in_integers: bool):
        self.model = _copy(model) if in_integers else model
        values = model.get_weights()
        self._weights = list(zip(self.model.weights, values, strict=True))
        if in_integers:
            self.model.embedding = _EmbeddingInIntegers(self.model.embedding)

    def weights_as_constants(self) -> AbstractContextManager:
        """Where the model is called, in a graph."""
        constants = [(weight, tf.constant(value)) for weight, value in self._weights]
        return keras.StatelessScope(state_mapping=constants)


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
