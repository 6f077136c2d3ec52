"""The terms of relations in the paper's form (Shaw et al. 2018, section 3.3).

The vectors a_ij of all pairs are gathered as `[T, S, H]`. Queries are transposed to `[T, N*B, H]`,
so that T parallel products with `[H, S]` make the scores, which are reshaped and transposed back.
Takes O(T S H) memory beyond plain attention.

Axes: N heads, B batch, T query positions, S key positions, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

from typing import Any

from keras import ops

from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import has_gpu
from tf_relpos.label_sums import sum_positions
from tf_relpos.relations import Relations, is_shared, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, exact_dtype, int32_labels, shape_of


def scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_scores`."""
    a = _vectors_of_pairs(relations, table, query.dtype)
    if not is_shared(relations):
        return ops.einsum(f"nbth,{_vector_axes(table, a)}->nbts", query, a)
    return _times_each_position(query, ops.swapaxes(a, -1, -2), table)


def values(weights: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """See `tf_relpos.relation_ops.relation_values`."""
    a = _vectors_of_pairs(relations, table, weights.dtype)
    if not is_shared(relations):
        return ops.einsum(f"nbts,{_vector_axes(table, a)}->nbth", weights, a)
    return _times_each_position(weights, a, table)


def _times_each_position(x: Tensor, a: Tensor, table: Tensor) -> Tensor:
    """`x` `[N, B, T, ...]` by what each position has in `a`, `[T, ...]`, in T products of N B rows;
    or in N T of B, if the table has heads."""
    if len(table.shape) == 3:
        return ops.swapaxes(ops.matmul(ops.swapaxes(x, 1, 2), a), 1, 2)
    N, B, T, columns = shape_of(x)
    x = ops.swapaxes(ops.reshape(x, (N * B, T, columns)), 0, 1)
    return ops.reshape(ops.swapaxes(ops.matmul(x, a), 0, 1), (N, B, T, shape_of(a)[-1]))


def _vector_axes(table: Tensor, a: Tensor) -> str:
    heads = "" if len(table.shape) == 2 else "n"
    batch = "b" if len(a.shape) - len(heads) == 4 else ""
    return f"{heads}{batch}tsh"


def _vectors_of_pairs(relations: Relations, table: Tensor, dtype: str) -> Tensor:
    """`a_ij`: `[T, S, H]` or `[B, T, S, H]`, with a leading N if the table has one."""
    if isinstance(relations, RelativePositions):
        return _vectors_of_positions(relations, table)
    relations = int32_labels(relations, table.shape[-2])
    last = table.shape[-2] - 1
    a = _vectors_of_labels(table, ops.clip(relations, 0, last))
    is_edge = (relations >= 0) & (relations <= last)
    a = a * ops.expand_dims(ops.cast(is_edge, dtype), -1)
    return ops.sum(a, axis=-2) if len(relations.shape) == 4 else a


def _vectors_of_positions(positions: RelativePositions, table: Tensor) -> Tensor:
    """The same of positions. The gradient of `take` adds up all vectors of a label in one place,
    which a GPU does one after the other."""
    if not has_gpu():
        return _vectors_of_labels(table, positions.ids)
    tensors, from_tensors = tensors_of(positions)

    def take(table: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return ops.take(table, from_tensors(*tensors).ids, axis=-2), None

    def gradient(inputs: Any, saved: None, by_vectors: Tensor) -> tuple[Tensor]:
        table, *tensors = inputs
        shape = shape_of(by_vectors)
        pairs = ops.reshape(by_vectors, (-1, *shape[-3:]))  # [N, T, S, H], or of one head
        sums = sum_positions(pairs, from_tensors(*tensors))
        sums = ops.cast(ops.sum(ops.cast(sums, exact_dtype(sums)), axis=1), table.dtype)
        return (ops.reshape(sums, (*shape[:-3], *shape_of(sums)[1:])),)

    return with_gradient(take, gradient, table, *tensors)


def _vectors_of_labels(table: Tensor, labels: Tensor) -> Tensor:
    """Rows of the table. In single precision at least, as the gradient adds up those of all
    pairs with a label, of which half precision would lose most."""
    rows = ops.take(ops.cast(table, exact_dtype(table)), labels, axis=-2)
    return ops.cast(rows, table.dtype)
