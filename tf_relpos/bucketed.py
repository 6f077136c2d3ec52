"""The terms of relations by bucketing: as the pairs of a label share its vector, products are with
the R vectors of the table, not with those of all T S pairs, each of which takes the number of its
label.

Takes O(B N T (R + S)) memory.

Axes: B batch, T query positions, S key positions, N heads, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

import math

from keras import ops

from tf_relpos.label_sums import label_axes, pick_by_label, sum_by_label
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, is_named, transposed


def scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_scores`."""
    relations, table = _within_reach(relations, table)
    return pick_by_label(_label_scores(query, relations, table), relations)


def values(weights: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_values`."""
    relations, table = _within_reach(relations, table)
    per_label = sum_by_label(weights, relations, ops.shape(table)[-2])
    return _label_values(per_label, relations, table)


def score_gradients(
    by_scores: Tensor, query: Tensor, relations: Relations, table: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `scores` by the query and by the table.

    Args:
        by_scores: the gradient by the scores, `[B, N, T, S]`.
        query, relations, table: those of `scores`.
    """
    sums = sum_by_label(by_scores, relations, table.shape[-2])
    return _label_values(sums, relations, table), _by_table(sums, query, relations, table)


def value_gradient(
    weights: Tensor, by_values: Tensor, relations: Relations, table: Tensor
) -> Tensor:
    """The gradient of `values` by the table; that by the weights is `scores` of `by_values`.

    Args:
        weights, relations, table: those of `values`.
        by_values: the gradient by the values, `[B, T, N, H]`.
    """
    sums = sum_by_label(weights, relations, table.shape[-2])
    return _by_table(sums, by_values, relations, table)


def _label_scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """Each query by each vector of the table, laid out by `label_axes`."""
    order, sizes = _row_axes(table), dict(zip("btnh", ops.shape(query), strict=True))
    scores = ops.matmul(_rows(query, "btnh", table), ops.swapaxes(table, -1, -2))
    scores = ops.reshape(scores, [*(sizes[axis] for axis in order), ops.shape(table)[-2]])
    return transposed(scores, order + "r", label_axes(relations))


def _label_values(per_label: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The vectors of the table, by weights laid out by `label_axes`: `[B, T, N, H]`."""
    axes = label_axes(relations)
    order, sizes = _row_axes(table), dict(zip(axes, ops.shape(per_label), strict=True))
    values = ops.matmul(_rows(per_label, axes, table), table)
    values = ops.reshape(values, [*(sizes[axis] for axis in order), table.shape[-1]])
    return transposed(values, order + "h", "btnh")


def _by_table(per_label: Tensor, vectors: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The gradient of both by the table, `vectors` being what it is multiplied with."""
    per_label = _rows(per_label, label_axes(relations), table)
    return ops.matmul(ops.swapaxes(per_label, -1, -2), _rows(vectors, "btnh", table))


def _row_axes(table: Tensor) -> str:
    """The axes, all but the last, of what is multiplied by a table in one product, or in one for
    each head. An einsum makes one for each sentence or position, which takes longer."""
    return "btn" if len(table.shape) == 2 else "nbt"


def _rows(x: Tensor, axes: str, table: Tensor) -> Tensor:
    """`x` as a matrix of `B*T*N` rows, or as N of `B*T`, if the table has heads."""
    order = _row_axes(table)
    (last,) = set(axes) - set(order)
    x = transposed(x, axes, order + last)
    *sizes, columns = ops.shape(x)
    if len(table.shape) == 2:
        return ops.reshape(x, (math.prod(sizes), columns))
    return ops.reshape(x, (sizes[0], sizes[1] * sizes[2], columns))


def _within_reach(relations: Relations, table: Tensor) -> tuple[Relations, Tensor]:
    """Positions and table without the labels of distances that no pair has."""
    if not isinstance(relations, RelativePositions):
        return relations, table
    T, S, k, offset = relations
    if k == 0 or not isinstance(offset, int) or is_named(T) or is_named(S):
        return relations, table
    ahead = S - min(offset, 0)
    if isinstance(T, int) and isinstance(S, int):
        nearest = min(k, max(T + offset, ahead))
    else:
        nearest = ops.minimum(k, ops.maximum(ops.maximum(T + offset, ahead), 1))
    table = table[..., k - nearest : k + nearest + 1, :]
    return relations._replace(max_relative_position=nearest), table
