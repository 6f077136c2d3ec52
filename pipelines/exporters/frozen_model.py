"""A model whose weights are constants of the graphs that it is called in, as TFLite wants them."""

from contextlib import AbstractContextManager

import keras
import tensorflow as tf

from pipelines.exporters.quantization import rounded_rows
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
        self._weights = list(zip(self.model.weights, self.model.get_weights(), strict=True))
        if in_integers:
            self.model.embedding = _EmbeddingInIntegers(self.model.embedding)

    def weights_as_constants(self) -> AbstractContextManager:
        """Where the model is called, in a graph."""
        constants = [(weight, tf.constant(value)) for weight, value in self._weights]
        return keras.StatelessScope(state_mapping=constants)


def _copy(model: Transformer) -> Transformer:
    """Another model that computes the same, with the low-rank updates of LoRA in its matrices."""
    copy = Transformer(model.config)
    copy.build()
    own = [weight for weight in model.weights if not weight.name.startswith("lora_")]
    copy.set_weights([weight.numpy() for weight in own])
    for layer, twin in zip(model._flatten_layers(), copy._flatten_layers(), strict=True):
        if getattr(layer, "lora_enabled", False):
            matrix = "embeddings" if isinstance(layer, keras.layers.Embedding) else "kernel"
            getattr(twin, matrix).assign(getattr(layer, matrix))
    return copy


class _EmbeddingInIntegers:
    """In the place of an embedding: looks up rows of 8 bits, with a scale for each.

    They are those that the same table becomes as weights of the softmax, and stored with them.
    """

    def __init__(self, layer: keras.layers.Embedding):
        self.embeddings = layer.embeddings  # for the softmax
        self._rows, self._scales = rounded_rows(layer.embeddings.numpy())

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(tf.gather(self._rows, ids), tf.float32)
        return rows * tf.gather(self._scales, ids)[..., None]
