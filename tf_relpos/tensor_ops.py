"""What `keras.ops` has no operation for, or none that is fast enough on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.execution import is_for_xla_on_cpu

Tensor = Any  # of the backend, of NumPy, or symbolic: Keras has no name for all three
Shape = tuple[int | None, ...]


def float32(value: Any) -> Tensor:
    return ops.convert_to_tensor(value, dtype="float32")


def shape_of(x: Tensor) -> tuple[Any, ...]:
    """The sizes of its axes, as `ops.shape` has them: those that a graph does not know are scalars.

    TensorFlow makes them by two operations, not by one and four more for each such size: of
    attention that does not know lengths, sizes would be half of the graph.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(x, tf.Tensor) and x.shape.rank is not None and None in list(x.shape):
            sizes = tf.unstack(tf.shape(x))
            return tuple(size if n is None else n for n, size in zip(x.shape, sizes, strict=True))
    found: tuple[Any, ...] = ops.shape(x)
    return found


def int32_labels(relations: Tensor, num_labels: int) -> Tensor:
    """Labels of any integer type as int32, those of R and above as R, "none of them"."""
    labels = ops.cast(relations, "int32")
    dtype = keras.backend.standardize_dtype(relations.dtype)
    if dtype not in ("int64", "uint32", "uint64"):
        return labels
    # Compared as they are: on PyTorch `ops.minimum` of int64 is int32.
    if dtype == "int64":
        labels = ops.where(relations < 0, -1, labels)
    return ops.where(relations >= num_labels, num_labels, labels)


def exact_dtype(x: Tensor) -> str:
    """Its dtype, or single precision instead of half."""
    return keras.backend.result_type(x.dtype, "float32")


def row_sums(*arrays: Tensor) -> Tensor:
    """Of n arrays `[..., S]` the sums, `[..., n]`: one product with ones in what TensorFlow has XLA
    compile for CPUs, which takes less time there."""
    if is_for_xla_on_cpu():
        rows = ops.stack(arrays, axis=-2)
        return ops.matmul(rows, ops.ones((shape_of(rows)[-1], 1), rows.dtype))[..., 0]
    return ops.concatenate([ops.sum(x, axis=-1, keepdims=True) for x in arrays], axis=-1)


def bits_of(x: Tensor) -> Tensor:
    """Numbers of half precision as integers, for what only moves them: XLA for CPUs would move them
    in single precision. As they are where TensorFlow does not have it compile."""
    if not is_for_xla_on_cpu() or x.dtype.size != 2:
        return x
    import tensorflow as tf

    return tf.bitcast(x, tf.uint16)


def from_bits(bits: Tensor, dtype: Any) -> Tensor:
    """What `bits_of` was given, of such a dtype."""
    if bits.dtype == dtype:
        return bits
    import tensorflow as tf

    return tf.bitcast(bits, dtype)


def heads_first(x: Tensor) -> Tensor:
    """`[B, T, N, H]` as `[N, B, T, H]`: products of queries with keys, and with vectors that all
    heads share or that each has of its own, read them as they lie. Einsums would transpose more."""
    return ops.transpose(x, (2, 0, 1, 3))


def heads_last(x: Tensor) -> Tensor:
    """`[N, B, T, H]` as `[B, T, N, H]`."""
    return ops.transpose(x, (1, 2, 0, 3))


def times_transposed(x: Tensor, y: Tensor) -> Tensor:
    """`x y^T` of the last two axes; those before them are broadcast.

    On TensorFlow by one operation, which reads `y` as it lies: what makes one of Keras's two does
    not look into the loops of an exported graph.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.matmul(x, ops.swapaxes(y, -1, -2))
    import tensorflow as tf

    return tf.matmul(x, y, transpose_b=True)


def transposed_times(x: Tensor, y: Tensor) -> Tensor:
    """`x^T y` of the last two axes, of an `x` that is larger than `y`.

    On TensorFlow XLA for CPUs reads the first of two matrices by columns then, whose numbers lie
    far apart, or even writes it anew: there it is `(y^T x)^T`.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.matmul(ops.swapaxes(x, -1, -2), y)
    import tensorflow as tf

    if not is_for_xla_on_cpu():
        return tf.matmul(x, y, transpose_a=True)
    # With one axis of batch, or XLA would see that a transposition follows, and undo it.
    *batch, M, P = shape_of(x)
    H = shape_of(y)[-1]
    z = tf.matmul(tf.reshape(y, (-1, M, H)), tf.reshape(x, (-1, M, P)), transpose_a=True)
    return ops.swapaxes(tf.reshape(z, (*batch, H, P)), -1, -2)


def rows_at(table: Tensor, indices: Tensor) -> Tensor:
    """Rows of the last axis but one: `[..., R, H]` at int32 `[S]`, `[..., S, H]`.

    On TensorFlow by one operation, and likewise `own_rows_at`. Keras's `take` first looks for
    indices below 0, by five operations, and its `take_along_axis` builds the indices of all axes,
    by some thirty: more than all else that a step of a search does beside the model.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, indices, axis=-2)
    import tensorflow as tf

    return tf.gather(table, indices, axis=-2)


def own_rows_at(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of each sentence: `[B, n, ...]` at int32 `[B, m]`, `[B, m, ...]`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, batch_dims=1)
    shape = shape_of(x)
    first_rows = ops.expand_dims(ops.arange(shape[0], dtype="int32") * shape[1], 1)
    rows = ops.reshape(first_rows + ops.cast(indices, "int32"), (-1,))
    selected = ops.take(ops.reshape(x, (shape[0] * shape[1], *shape[2:])), rows, axis=0)
    return ops.reshape(selected, (shape[0], shape_of(indices)[1], *shape[2:]))
