"""The terms of relations by bucketing: as the pairs of a label share its vector, products are with
the R vectors of the table, not with those of all T S pairs, each of which takes the number of its
label.

Takes O(N B T (R + S)) memory.

Axes: N heads, B batch, T query positions, S key positions, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

from keras import ops

from tf_relpos.execution import is_named
from tf_relpos.label_sums import pick_by_label, sum_by_label
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, shape_of, transposed_times

# So many labels are left whole where lengths are not known: to see how far these reach takes
# operations.
FEW = 64


def scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_scores`."""
    return pick_by_label(*scores_by_label(query, relations, table))


def scores_by_label(query: Tensor, relations: Relations, table: Tensor) -> tuple[Tensor, Relations]:
    """What `scores` picks, `[N, B, T, R]`, and by which labels."""
    relations, table = _within_reach(relations, table)
    return _times(query, ops.swapaxes(table, -1, -2)), relations


def values(weights: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_values`."""
    relations, table = _within_reach(relations, table)
    return _times(sum_by_label(weights, relations, shape_of(table)[-2]), table)


def score_gradients(
    by_scores: Tensor, query: Tensor, relations: Relations, table: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `scores` by the query and by the table.

    Args:
        by_scores: the gradient by the scores, `[N, B, T, S]`.
        query, relations, table: those of `scores`.
    """
    sums = sum_by_label(by_scores, relations, table.shape[-2])
    return _times(sums, table), _by_table(sums, query, table)


def value_gradient(
    weights: Tensor, by_values: Tensor, relations: Relations, table: Tensor
) -> Tensor:
    """The gradient of `values` by the table; that by the weights is `scores` of `by_values`.

    Args:
        weights, relations, table: those of `values`.
        by_values: the gradient by the values, `[N, B, T, H]`.
    """
    return _by_table(sum_by_label(weights, relations, table.shape[-2]), by_values, table)


def _times(x: Tensor, table: Tensor) -> Tensor:
    """`x` `[N, B, T, ...]` by the table, or by its transpose."""
    y = ops.matmul(_rows(x, table), table)
    return ops.reshape(y, (*shape_of(x)[:3], shape_of(table)[-1]))


def _by_table(per_label: Tensor, vectors: Tensor, table: Tensor) -> Tensor:
    """The gradient of both by the table: from numbers by label, `[N, B, T, R]`, and what these are
    multiplied with, `[N, B, T, H]`."""
    return transposed_times(_rows(per_label, table), _rows(vectors, table))


def _rows(x: Tensor, table: Tensor) -> Tensor:
    """`x` `[N, B, T, ...]` as a matrix of `N*B*T` rows, or as N of `B*T`, if the table has heads:
    one product for each sentence takes longer."""
    N, B, T, columns = shape_of(x)
    rows = (N * B * T,) if len(table.shape) == 2 else (N, B * T)
    return ops.reshape(x, (*rows, columns))


def _within_reach(relations: Relations, table: Tensor) -> tuple[Relations, Tensor]:
    """Positions and table without the labels of distances that no pair has."""
    if not isinstance(relations, RelativePositions):
        return relations, table
    T, S, k, offset, _ = relations
    if k == 0 or not isinstance(offset, int) or is_named(T) or is_named(S):
        return relations, table
    ahead = S - min(offset, 0)
    if isinstance(T, int) and isinstance(S, int):
        nearest = min(k, max(T + offset, ahead))
    elif table.shape[-2] > FEW:
        nearest = ops.minimum(k, ops.maximum(ops.maximum(T + offset, ahead), 1))
    else:
        return relations, table
    relations = relations._replace(max_relative_position=nearest)
    return relations, table[..., k - nearest : k - nearest + relations.num_labels, :]
