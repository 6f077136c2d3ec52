"""Which label joins query i to key j (Shaw et al. 2018, section 3.2)."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from tf_relpos.config import check_max_relative_position


def relative_position_ids(query_length, key_length, max_relative_position, query_offset=0):
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


def check_relations(relations, num_relations: int):
    """Returns labels that a layer with R = `num_relations` labels can use.

    Raises:
        ValueError: no labels, labels that are not integers, of a rank other than 2, 3 or 4, or,
            where the values are known, a label of R or above.
    """
    shapes = "[T, S], [B, T, S] or [B, T, S, L]"
    if relations is None:
        raise ValueError(f"`relations` must be given: int labels {shapes}. Received: None")
    if not hasattr(relations, "dtype"):
        relations = np.asarray(relations)
    dtype = keras.backend.standardize_dtype(relations.dtype)
    if "int" not in dtype:
        raise ValueError(f"`relations` must hold integer labels. Received: dtype={dtype}")
    if len(relations.shape) not in (2, 3, 4):
        raise ValueError(
            f"`relations` must have the shape {shapes}. Received: shape={tuple(relations.shape)}"
        )
    try:
        largest = np.max(ops.convert_to_numpy(relations), initial=-1)
    except (TypeError, ValueError, NotImplementedError):  # a tensor that has no value yet
        largest = -1
    if largest >= num_relations:
        raise ValueError(
            f"`relations` must be below num_relations={num_relations}. Received: a label {largest}"
        )
    return relations
