"""Which label joins query i to key j (Shaw et al. 2018, section 3.2)."""

from __future__ import annotations

import operator
from typing import Any

import keras
import numpy as np
from keras import ops

Tensor = Any  # of the backend, of NumPy, or symbolic: Keras has no name for all three
Shape = tuple[int | None, ...]


def check_whole(name: str, value: Any, least: int) -> int:
    """Returns `value`, of Python or NumPy, as an int.

    Raises:
        ValueError: it is not a whole number of at least `least`.
    """
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least or isinstance(value, bool):
        raise ValueError(f"`{name}` must be a whole number >= {least}. Received: {name}={value!r}")
    return whole


def check_max_relative_position(max_relative_position: Any) -> int:
    """Returns k as an int.

    Raises:
        ValueError: k is not a whole number of at least 0.
    """
    return check_whole("max_relative_position", max_relative_position, least=0)


def known_value(tensor: Tensor) -> np.ndarray | None:
    """The value of a tensor, or None of one that has no value yet (in a graph, under XLA)."""
    if not hasattr(tensor, "dtype"):
        return np.asarray(tensor)
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except (TypeError, ValueError, NotImplementedError):
        return None


def relative_position_ids(
    query_length: int | Tensor,
    key_length: int | Tensor,
    max_relative_position: int,
    query_offset: int | Tensor = 0,
) -> Tensor:
    """Labels every (query, key) pair with its clipped relative position.

    `ids[i, j] = clip(j - (i + query_offset), -k, k) + k`, so that row `r` of a table of `2k + 1`
    vectors belongs to the clipped position `r - k`: 0 is "k or more to the left", k is "the same
    position", 2k is "k or more to the right". With k = 0 there is one label and no order.

    Args:
        query_length: T, an int or a scalar integer tensor.
        key_length: S, likewise.
        max_relative_position: k, an int >= 0.
        query_offset: the position of query 0 among the keys, an int or a scalar integer tensor. A
            decoder that has written n positions into its cache asks for the next with offset n.

    Returns:
        int32 `[T, S]`, values 0..2k.

    Raises:
        ValueError: `max_relative_position` is not a whole number of at least 0.

    Reference: Shaw, Uszkoreit and Vaswani 2018, section 3.2.
    """
    k = check_max_relative_position(max_relative_position)
    query_positions = ops.arange(query_length, dtype="int32") + ops.cast(query_offset, "int32")
    key_positions = ops.arange(key_length, dtype="int32")
    distance = ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
    return ops.clip(distance, -k, k) + k


def check_relations(
    relations: Any, num_relations: int, lengths: Shape = (None, None), batch: int | None = None
) -> Tensor:
    """Returns labels that a layer with R = `num_relations` labels can use.

    Args:
        relations: int labels `[T, S]`, `[B, T, S]` or `[B, T, S, L]`.
        num_relations: R.
        lengths: T and S, None where they are not known.
        batch: B, likewise.

    Raises:
        ValueError: no labels, labels that are not integers, of another shape, or, where the values
            are known, a label of R or above.
    """
    shapes = "[T, S], [B, T, S] or [B, T, S, L]"
    if relations is None:
        raise ValueError(f"`relations` must be given: int labels {shapes}. Received: None")
    if not hasattr(relations, "dtype"):
        try:
            relations = np.asarray(relations)
        except ValueError as error:
            raise ValueError(
                f"`relations` must have the shape {shapes}. Received: {error}"
            ) from None
    dtype = keras.backend.standardize_dtype(relations.dtype)
    if "int" not in dtype:
        raise ValueError(f"`relations` must hold integer labels. Received: dtype={dtype}")
    expected = lengths if len(relations.shape) == 2 else (batch, *lengths)
    if len(relations.shape) not in (2, 3, 4) or any(
        None not in (size, wanted) and size != wanted
        for size, wanted in zip(relations.shape, expected, strict=False)
    ):
        raise ValueError(
            f"`relations` must have the shape {shapes} with B, T, S = "
            f"{(batch, *lengths)}. Received: shape={tuple(relations.shape)}"
        )
    values = known_value(relations)
    largest = -1 if values is None or not values.size else int(np.max(values))
    if largest >= num_relations:
        raise ValueError(
            f"`relations` must be below num_relations={num_relations}. Received: a label {largest}"
        )
    return relations
