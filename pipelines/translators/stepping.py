"""Models as TensorFlow's graphs on CPUs search with them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from tf_relpos import Transformer
from tf_relpos.kernels import spread


class SteppingModel:
    """A model to search with, see `tf_relpos.search`, whose kernels are `spread` for steps, in
    which they meet few rows.

    Args:
        model: a `Transformer`, whose weights stay as they are.
    """

    def __init__(self, model: Transformer):
        self.config = model.config
        self.initial_cache = model.initial_cache
        self.step = model.step
        self.weights = model.weights
        self._model = model

    def encode(self, source_ids: tf.Tensor) -> dict[str, Any]:
        """See `Transformer.encode`."""
        return self._model.encode(source_ids, self.step_weights())

    def step_weights(self) -> dict[str, Any]:
        """Those of the model, laid out for it."""
        return each_once(
            lambda x: spread(x) if len(x.shape) == 2 else x, self._model.step_weights()
        )


def each_once(function: Callable[[tf.Tensor], Any], structure: Any) -> Any:
    """What a function makes of the tensors of a structure: of one that is in several places, as
    that of layers that share their weights, the same in all of them."""
    made = {id(x): function(x) for x in tree.flatten(structure)}
    return tree.map_structure(lambda x: made[id(x)], structure)
