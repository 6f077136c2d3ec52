"""Checks of arguments that may be tensors, whose values a graph need not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.checks import check_number, check_shape, check_whole
from tf_relpos.execution import known_value
from tf_relpos.tensor_ops import Tensor, float32

LARGEST = 2**31 - 1  # of int32
FURTHEST = 2**30  # lengths and distances: int32 holds the sums of two


def check_is_array(name: str, x: Any) -> None:
    """Refuses what has no shape.

    Raises:
        ValueError: it has none, as a list or None.
    """
    if not hasattr(x, "shape"):
        raise ValueError(f"`{name}` must be an array or a tensor. Received: {x!r}")


def check_is_padded(name: str, x: Tensor) -> None:
    """Refuses TensorFlow's ragged tensors, and sparse ones.

    Raises:
        ValueError: it is one.
    """
    if type(x).__name__ in ("SparseTensor", "IndexedSlices"):
        raise ValueError(
            f"`{name}` must be dense; of labels what is not there is -1, "
            "`tf.sparse.to_dense(..., default_value=-1)`. Received: a "
            f"{type(x).__name__} of shape {tuple(x.shape)}"
        )
    if getattr(x, "ragged_rank", None) is not None:
        raise ValueError(
            f"`{name}` must be padded to one length (`to_tensor()`), and masked. Received: a "
            f"{type(x).__name__} of shape {tuple(x.shape)}"
        )


def check_ids(name: str, ids: Any, vocabulary_size: int | None) -> Any:
    """Returns ids of tokens, lists as an array.

    Raises:
        ValueError: they are no integers, not of one length, or, where the values are known, one is
            not from 0 to `vocabulary_size` - 1, which is None where it is not known.
    """
    try:
        array = ids if hasattr(ids, "dtype") else np.asarray(ids)
        dtype = keras.backend.standardize_dtype(array.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be ids [B, S], padded to one length. Received: {ids!r}"
        ) from error
    check_is_padded(name, array)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must hold integer ids. Received: dtype={dtype}")
    values = known_value(array)
    if values is None:
        return array
    above = LARGEST if vocabulary_size is None else vocabulary_size
    wrong = values[(values < 0) | (values >= above)]
    if wrong.size:
        raise ValueError(f"`{name}` must hold ids from 0 to {above - 1}. Received: {wrong.flat[0]}")
    return array


def check_index(name: str, value: Any, least: int = 0) -> int | Tensor:
    """A position, a length or a distance: an int where its value is known, else a scalar int32
    tensor.

    Raises:
        ValueError: it is no whole number, or not one from `least` to 2^30.
    """
    known = known_value(value)
    dtype = keras.backend.standardize_dtype(value.dtype) if known is None else known.dtype.name
    if "int" not in dtype or len((value if known is None else known).shape):
        raise ValueError(
            f"`{name}` must be a whole number, or a scalar tensor of one. Received: "
            f"{name}={value!r}"
        )
    if known is None:
        return ops.cast(value, "int32")
    if not least <= known <= FURTHEST:
        raise ValueError(
            f"`{name}` must be a whole number from {least} to {FURTHEST}. Received: {name}={known}"
        )
    return int(known)


def check_size(name: str, value: Any) -> int | Tensor:
    """A size >= 1: an int where it is known, or a scalar int32 tensor of a graph.

    Raises:
        ValueError: it is neither, or below 1.
    """
    if not is_symbolic(value):
        return check_whole(name, value)
    check_shape(name, value.shape, ())
    dtype = keras.backend.standardize_dtype(value.dtype)
    if "int" not in dtype or keras.backend.backend() == "jax":
        raise ValueError(
            f"`{name}` must be a whole number >= 1, known when compiled, or a scalar int tensor of "
            f"a TensorFlow graph. Received: {name}={value!r}"
        )
    value = ops.cast(value, "int32")
    known = ops.zeros((value,)).shape[0]  # a constant of the graph
    return value if known is None else check_whole(name, known)


def check_scalar(name: str, value: Any, rule: str, holds: Callable[[Any], bool]) -> Tensor:
    """A number, or a scalar tensor of one that is not known, as float32.

    Args and errors: those of `tf_relpos.checks.check_number`.
    """
    if not is_symbolic(value):
        value = float(value) if ops.is_tensor(value) and len(value.shape) == 0 else value
        return float32(check_number(name, value, rule, holds))
    check_shape(name, value.shape, ())
    return ops.cast(value, "float32")


def is_symbolic(value: Any) -> bool:
    """Whether it is a tensor whose value is not known while a function is traced."""
    return ops.is_tensor(value) and known_value(value) is None
