"""How what is made now will run: eagerly or in a graph, for XLA or not, on which devices."""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras
import numpy as np
from keras import ops


def known_value(tensor: Any) -> np.ndarray | None:
    """The value of a tensor, or None of one that has no value yet (in a graph, under XLA, in an
    export)."""
    if not hasattr(tensor, "dtype"):
        return np.asarray(tensor)
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except (TypeError, ValueError, RuntimeError):
        return None


def runs_eagerly(x: Any) -> bool:
    """Whether this runs eagerly, or on PyTorch, whose exports follow Python's own loops."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return not tf.is_symbolic_tensor(x)
    return backend == "torch" or known_value(x[(slice(0, 1),) * len(x.shape)]) is not None


def is_named(size: Any) -> bool:
    """Whether a size has a name alone, as in exports of JAX's and PyTorch's for any size."""
    return not (size is None or isinstance(size, int) or ops.is_tensor(size))


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


def is_for_xla_on_cpu() -> bool:
    """Whether what is made now is for `tf.function(jit_compile=True)`, and not for a GPU."""
    return _is_for_xla() and not has_gpu()


def _is_for_xla() -> bool:
    """Whether what is made now is for `tf.function(jit_compile=True)`."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.__internal__.get_enclosing_xla_context() is not None
