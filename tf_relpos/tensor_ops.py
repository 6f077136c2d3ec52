"""What `keras.ops` has no operation for, or none that is fast enough on TensorFlow."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

Tensor = Any  # of the backend, of NumPy, or symbolic: Keras has no name for all three
Shape = tuple[int | None, ...]


def known_value(tensor: Tensor) -> np.ndarray | None:
    """The value of a tensor, or None of one that has no value yet (in a graph, under XLA, in an
    export)."""
    if not hasattr(tensor, "dtype"):
        return np.asarray(tensor)
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except (TypeError, ValueError, RuntimeError):
        return None


def float32(value: Any) -> Tensor:
    return ops.convert_to_tensor(value, dtype="float32")


def has_value(x: Tensor) -> bool:
    """Whether this runs eagerly, or on PyTorch, whose exports follow Python's own loops."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return not tf.is_symbolic_tensor(x)
    return backend == "torch" or known_value(x[(slice(0, 1),) * len(x.shape)]) is not None


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


def is_named(size: Any) -> bool:
    """Whether a size has a name alone, as in exports of JAX's and PyTorch's for any size."""
    return not (size is None or isinstance(size, int) or ops.is_tensor(size))


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


def may_train(training: Any) -> bool:
    """Whether a layer that is called with this argument may be asked for a gradient. A tensor,
    which a layer without dropout takes, may turn out to be True."""
    return ops.is_tensor(training) or bool(training)


@functools.cache
def has_gpu() -> bool:
    """Whether the backend computes on a GPU that it may use."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.get_visible_devices("GPU"))
    if backend == "jax":
        return keras.distribution.list_devices()[0].startswith(("gpu", "cuda"))
    return backend == "torch" and sys.modules["torch"].cuda.is_available()


def picks_in_place() -> bool:
    """Whether numbers of all pairs are picked from where a product left them, which XLA fuses with
    what comes before and after. Graphs on CPUs, and PyTorch there, copy rows, which sentences and
    heads make together, faster than single numbers."""
    return keras.backend.backend() == "jax" or has_gpu() or _is_for_xla()


def _is_for_xla() -> bool:
    """Whether what is made now is for `tf.function(jit_compile=True)`."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.__internal__.get_enclosing_xla_context() is not None


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


def number_at(x: Tensor, indices: Tensor) -> Tensor:
    """One number of each row: of `[..., V]` at int `[...]`, `[...]`; whichever where an index is
    none of the row's.

    On TensorFlow it is gathered, where it would else take a pass over all numbers. Its gradient is
    such a pass, which XLA joins with others: that of a gather adds numbers up one by one.
    """
    V = x.shape[-1]

    def is_chosen(indices: Tensor) -> Tensor:
        return ops.expand_dims(indices, -1) == ops.arange(V, dtype=indices.dtype)

    if keras.backend.backend() != "tensorflow":
        return ops.sum(ops.where(is_chosen(indices), x, ops.zeros((), x.dtype)), axis=-1)
    import tensorflow as tf

    def gather(x: Tensor, indices: Tensor) -> tuple[Tensor, None]:
        within = tf.clip_by_value(indices, 0, V - 1)
        return tf.gather(x, within, batch_dims=len(indices.shape)), None

    def gradient(inputs: Any, saved: None, by_number: Tensor) -> tuple[Tensor]:
        by_number = ops.expand_dims(by_number, -1)
        return (ops.where(is_chosen(inputs[1]), by_number, ops.zeros((), by_number.dtype)),)

    return with_gradient(gather, gradient, x, indices)


def turns(count: int | Tensor, *sizes: int | Tensor) -> int | Tensor:
    """The turns of a loop that writes tensors of these sizes, part by part: none where there is
    nothing to write, which `scatter_update` refuses."""
    if 0 in [size for size in sizes if isinstance(size, int)]:
        return 0
    for size in sizes:
        if not isinstance(size, int):
            count = count * ops.minimum(size, 1)
    return count


def loop(count: int | Tensor, step: Callable[..., Any], *state: Any) -> tuple[Any, ...]:
    """The state after so many turns, `step(index, *state) -> (index + 1, *state)`, in a graph.

    On JAX a loop of a known number of turns has a gradient, for second derivatives.
    """
    if keras.backend.backend() == "jax" and isinstance(count, int):
        return tuple(ops.fori_loop(0, count, lambda i, state: tuple(step(i, *state)[1:]), state))
    _, *state = ops.while_loop(
        lambda index, *_: index < count,
        step,
        (ops.zeros((), "int32"), *state),
        maximum_iterations=count,
    )
    return tuple(state)


def vary_alike(tensors: Any, *inputs: Tensor) -> Any:
    """`tensors`, of the type that results of them and of `inputs` have in `jax.shard_map`.

    What is the same on all devices is of another type there: a loop must begin with the one that
    its turns make, and a function with a gradient of its own must be given the one that this has.
    """
    if keras.backend.backend() != "jax":
        return tensors
    given = (*keras.tree.flatten(tensors), *inputs)
    first, *others = map(_kind_in_shard_map, given)
    if all(kind == first for kind in others):
        return tensors
    nothing = sum(ops.sum(x[:0]) for x in given if x.ndim)  # the sum of no entries of any
    return keras.tree.map_structure(lambda x: x + ops.cast(nothing, x.dtype), tensors)


def _kind_in_shard_map(x: Tensor) -> Any:
    """Along which axes of a mesh devices have values of their own, as this version of JAX says."""
    type_ = sys.modules["jax"].typeof(x)
    return getattr(type_, "manual_axis_type", getattr(type_, "vma", None))


def with_gradient(
    function: Callable[..., tuple[Tensor, Any]], gradient: Callable[..., Any], *inputs: Tensor
) -> Any:
    """A function's result, with a gradient of its own.

    Args:
        function: from `inputs` to the result and what `gradient` needs of it beside.
        gradient: `(inputs, what it needs, gradient of the result) -> gradients` of the first
            inputs; the others have none.
        inputs: all tensors that either uses, or JAX's rematerialization loses them.

    The transforms of `torch.func` differentiate the function itself, as they take no gradients
    that Keras makes.
    """
    inputs = vary_alike(tuple(map(ops.convert_to_tensor, inputs)))
    if _is_in_torch_func():
        result, _ = function(*inputs)
        return result

    @ops.custom_gradient
    def call(*inputs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        # An eager tape would record, and keep, all that the function makes. A graph does not, and
        # a second derivative needs to know what was saved from what.
        stopped = map(ops.stop_gradient, inputs) if has_value(inputs[0]) else inputs
        result, saved = function(*stopped)

        def backward(*upstream: Any, **named: Any) -> Any:
            # By its position; on PyTorch by a name, behind the inputs.
            found = gradient(inputs, saved, *(named.values() or upstream))
            return *found, *(None for _ in inputs[len(found) :])

        return result, backward

    return call(*inputs)


def _is_in_torch_func() -> bool:
    if keras.backend.backend() != "torch":
        return False
    return sys.modules["torch"]._C._are_functorch_transforms_active()
