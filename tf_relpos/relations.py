"""Which label joins query i to key j (Shaw et al. 2018, section 3.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_relpos.config import check_max_relative_position

Tensor = Any  # of the backend, of NumPy, or symbolic: Keras has no name for all three
Shape = tuple[int | None, ...]


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
    return RelativePositions(query_length, key_length, k, query_offset).ids


class RelativePositions(NamedTuple):
    """The labels of `relative_position_ids`, by their arguments: what computes with them need not
    write them out."""

    query_length: int | Tensor
    key_length: int | Tensor
    max_relative_position: int | Tensor
    query_offset: int | Tensor = 0

    @property
    def ids(self) -> Tensor:
        """int32 `[T, S]`."""
        T, S, k, offset = self
        query_positions = ops.arange(T, dtype="int32") + ops.cast(offset, "int32")
        key_positions = ops.arange(S, dtype="int32")
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


def both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Where both masks are true; a mask that lacks heads or free axes has them before `[T, S]`."""
    if mask is None or other is None:
        return other if mask is None else ops.cast(mask, "bool")
    mask, other = ops.cast(mask, "bool"), ops.cast(other, "bool")
    while len(mask.shape) < len(other.shape):
        mask = ops.expand_dims(mask, -3)
    while len(other.shape) < len(mask.shape):
        other = ops.expand_dims(other, -3)
    return mask & other


def visible(
    query_length: int | Tensor,
    key_length: int | Tensor,
    query_offset: int | Tensor = 0,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Which keys each query may see: bool `[1, T, S]`.

    Args:
        query_length: T.
        key_length: S.
        query_offset: the position of query 0 among the keys.
        causal: no query sees a key later than itself.
        window: queries see keys nearer than that alone, on either side.
    """
    keys = ops.reshape(ops.arange(key_length, dtype="int32"), (1, 1, -1))
    queries = ops.reshape(ops.arange(query_length, dtype="int32"), (1, -1, 1)) + query_offset
    seen = keys <= queries if causal else ops.ones_like(keys <= queries)
    return seen if window is None else seen & (ops.abs(keys - queries) < window)
