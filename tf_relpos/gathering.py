"""Rows by their indices, which are known to be there: one operation where a backend has it.

Keras's `take` first looks for indices below 0, by five operations of TensorFlow, and its
`take_along_axis` builds the indices of all axes, by some thirty: more than all else that a step of
a search does beside the model.
"""

from __future__ import annotations

import keras
from keras import ops

from tf_relpos.relations import Tensor


def rows_at(table: Tensor, indices: Tensor) -> Tensor:
    """Rows of the last axis but one: `[..., R, H]` at int32 `[S]`, `[..., S, H]`."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, indices, axis=-2)
    import tensorflow as tf

    return tf.gather(table, indices, axis=-2)


def own_rows_at(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of each sentence: `[B, n, ...]` at int32 `[B, m]`, `[B, m, ...]`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, batch_dims=1)
    shape = ops.shape(x)
    first_rows = ops.expand_dims(ops.arange(shape[0], dtype="int32") * shape[1], 1)
    rows = ops.reshape(first_rows + ops.cast(indices, "int32"), (-1,))
    selected = ops.take(ops.reshape(x, (shape[0] * shape[1], *shape[2:])), rows, axis=0)
    return ops.reshape(selected, (shape[0], ops.shape(indices)[1], *shape[2:]))
