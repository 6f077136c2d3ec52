"""Relative positions: j - i, clipped, is the label that joins query i to key j (Shaw et al. 2018,
section 3.2).
"""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from tf_relpos.checks import check_whole
from tf_relpos.tensor_checks import FURTHEST, check_index
from tf_relpos.tensor_ops import Tensor


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
        ValueError: `max_relative_position` or a length is not a whole number from 0 to 2^30, or the
            offset is not one from -2^30.

    Reference: Shaw, Uszkoreit and Vaswani 2018, section 3.2.
    """
    k = check_whole("max_relative_position", max_relative_position, least=0)  # always known
    check_index("max_relative_position", k)
    query_length = check_index("query_length", query_length)
    key_length = check_index("key_length", key_length)
    query_offset = check_index("query_offset", query_offset, least=-FURTHEST)
    return RelativePositions(query_length, key_length, k, query_offset).ids


class RelativePositions(NamedTuple):
    """The labels of `relative_position_ids`, by their arguments: what computes with them need not
    write them out.

    Attributes:
        is_causal: no query sees what is later than itself. Tables are then without the labels
            above k, which are not in use.
    """

    query_length: int | Tensor
    key_length: int | Tensor
    max_relative_position: int | Tensor
    query_offset: int | Tensor = 0
    is_causal: bool = False

    @property
    def num_labels(self) -> int | Tensor:
        """Of a table: R, or k + 1."""
        return self.max_relative_position + self._furthest_ahead + 1

    @property
    def _furthest_ahead(self) -> int | Tensor:
        return 0 if self.is_causal else self.max_relative_position

    @property
    def ids(self) -> Tensor:
        """int32 `[T, S]`; of a pair that is not seen any label."""
        T, S, k, offset, _ = self
        query_positions = ops.arange(T, dtype="int32") + ops.cast(offset, "int32")
        key_positions = ops.arange(S, dtype="int32")
        distance = ops.expand_dims(key_positions, 0) - ops.expand_dims(query_positions, 1)
        return ops.clip(distance, -k, self._furthest_ahead) + k
