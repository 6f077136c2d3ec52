"""The two terms that relations add to attention, as pure functions (Shaw et al. 2018, section 3.3).

    relation_scores   x_i W^Q (a^K_ij)^T        the second term of Eq. 5
    relation_values   sum_j alpha_ij a^V_ij     the second term of Eq. 3

Axes: B batch, T query positions, S key positions, N heads, H head size, R labels, L labels an edge.

`relations` are `RelativePositions`, or integer labels: `[T, S]` for every sentence alike,
`[B, T, S]`, or `[B, T, S, L]` with up to L labels on an edge, whose vectors add. A label below 0 is
no edge and adds nothing. A `table` of label vectors is `[R, H]`, shared by the heads, or
`[N, R, H]`.

Both implementations are exact:

    transpose_reshape   the paper's: gather a_ij as [T, S, H], then T parallel products of
                        [B*N, H] with [H, S]. Takes O(T S H) memory beyond plain attention.
    bucketed            multiplies by the R vectors of the table, not by the T S vectors of the
                        pairs, and picks (or sums) by label. Takes O(B N T (R + S)) memory.

Like the paper's products, bucketing goes through the queries first, with what shares a query's
labels side by side: `[T, R, B*N]` by label and `[T, S, B*N]` by pair, so that a label picks (or
adds to) a whole row of B*N numbers. Where each sentence has labels of its own, the queries are B*T
and the rows N long. What picks in place (`tf_relpos.tensor_ops.picks_in_place`) leaves numbers by
position as products make them, `[B, N, T, R]` and `[B, N, T, S]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.checks import check_choice
from tf_relpos.config import IMPLEMENTATIONS
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    exact_dtype,
    has_gpu,
    int32_labels,
    is_named,
    picks_in_place,
    with_gradient,
)

Relations = Tensor | RelativePositions

LONGEST_ON_GPU = 128  # S up to which "auto" is the paper's form there: chosen, not measured


def relation_scores(
    query: Tensor, relations: Relations, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`x_i W^Q (a^K_ij)^T`, the second term of Eq. 5, unscaled.

    Args:
        query: `[B, T, N, H]`.
        relations: see the module.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, N, T, S]`.
    """
    if choose_implementation(implementation, relations, table) == "bucketed":
        relations, table = _within_reach(relations, table)
        return pick_by_label(label_scores(query, relations, table), relations)
    a = _vectors_of_pairs(relations, table, query.dtype)
    if not is_shared(relations):
        return ops.einsum(f"btnh,{_vector_axes(table, a)}->bnts", query, a)
    B, T, N, _ = ops.shape(query)
    S = ops.shape(a)[-2]
    scores = ops.matmul(_by_position(query, "btnh", table), ops.swapaxes(a, -1, -2))
    if len(table.shape) == 2:
        return _transposed(ops.reshape(scores, (T, B, N, S)), "tbns", "bnts")
    return _transposed(scores, "ntbs", "bnts")


def relation_values(
    weights: Tensor, relations: Relations, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`sum_j alpha_ij a^V_ij`, the second term of Eq. 3.

    Args:
        weights: attention weights alpha, `[B, N, T, S]`.
        relations: see the module.
        table: the value vectors `w^V` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, T, N, H]`.
    """
    if choose_implementation(implementation, relations, table) == "bucketed":
        relations, table = _within_reach(relations, table)
        per_label = sum_by_label(weights, relations, ops.shape(table)[-2])
        return label_values(per_label, relations, table)
    a = _vectors_of_pairs(relations, table, weights.dtype)
    if not is_shared(relations):
        return ops.einsum(f"bnts,{_vector_axes(table, a)}->btnh", weights, a)
    B, N, T, _ = ops.shape(weights)
    values = ops.matmul(_by_position(weights, "bnts", table), a)
    if len(table.shape) == 2:
        return _transposed(ops.reshape(values, (T, B, N, a.shape[-1])), "tbnh", "btnh")
    return _transposed(values, "ntbh", "btnh")


def choose_implementation(implementation: str, relations: Relations, table: Tensor) -> str:
    """Resolves "auto": bucketing, save for one query, which the paper's form needs one product for,
    and where a graph knows that sentences are short.

    `pipelines.benchmark.attention` measured it on CPU cores (results beside it), with R = 17, 33
    and 129: where all sentences have the labels `[T, S]`, bucketing is the faster one from about
    S = 3 R / 2 on, or if the table has heads from S = R on, or 112. On a GPU
    (`pipelines.benchmark.gpu_attention`) the paper's form is at 64 positions, and bucketing at
    1,024; what lies between was not measured.

    Raises:
        ValueError: `implementation` is none of `IMPLEMENTATIONS`.
    """
    if check_choice("implementation", implementation, IMPLEMENTATIONS) != "auto":
        return implementation
    *heads, num_labels, _ = table.shape
    T, S = None, None
    if isinstance(relations, RelativePositions):
        T, S = relations.query_length, relations.key_length
    elif len(relations.shape) == 2:
        T, S = relations.shape
    is_one = isinstance(T, int) and T == 1
    longest = longest_per_head(num_labels) if heads else 3 * num_labels // 2
    if has_gpu():
        longest = LONGEST_ON_GPU if isinstance(relations, RelativePositions) else 0
    is_short = isinstance(S, int) and longest >= S
    return "transpose_reshape" if is_one or is_short else "bucketed"


def longest_per_head(num_labels: int) -> int:
    """S up to which the paper's form is taken on CPUs, if tables have heads: with R = 129 it is the
    faster one at 64 and not at 128."""
    return min(num_labels, 112)


def label_scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """Each query by each vector of the table, with the axes of `_axes`."""
    order, sizes = _row_axes(table), dict(zip("btnh", ops.shape(query), strict=True))
    scores = ops.matmul(_rows(query, "btnh", table), ops.swapaxes(table, -1, -2))
    scores = ops.reshape(scores, [*(sizes[axis] for axis in order), ops.shape(table)[-2]])
    return _transposed(scores, order + "r", _axes(relations))


def label_values(per_label: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The vectors of the table, weighted as `label_scores` lays them out: `[B, T, N, H]`."""
    axes = _axes(relations)
    order, sizes = _row_axes(table), dict(zip(axes, ops.shape(per_label), strict=True))
    values = ops.matmul(_rows(per_label, axes, table), table)
    values = ops.reshape(values, [*(sizes[axis] for axis in order), table.shape[-1]])
    return _transposed(values, order + "h", "btnh")


def label_gradient(
    per_label: Tensor, vectors: Tensor, relations: Relations, table: Tensor
) -> Tensor:
    """The gradient of both by the table, `vectors` being what it is multiplied with."""
    per_label = _rows(per_label, _axes(relations), table)
    return ops.matmul(ops.swapaxes(per_label, -1, -2), _rows(vectors, "btnh", table))


def _row_axes(table: Tensor) -> str:
    """The axes, all but the last, of what is multiplied by a table in one product, or in one for
    each head. An einsum makes one for each sentence or position, which takes longer."""
    return "btn" if len(table.shape) == 2 else "nbt"


def _rows(x: Tensor, axes: str, table: Tensor) -> Tensor:
    """`x` as a matrix of `B*T*N` rows, or as N of `B*T`, if the table has heads."""
    order = _row_axes(table)
    (last,) = set(axes) - set(order)
    x = _transposed(x, axes, order + last)
    *sizes, columns = ops.shape(x)
    if len(table.shape) == 2:
        return ops.reshape(x, (math.prod(sizes), columns))
    return ops.reshape(x, (sizes[0], sizes[1] * sizes[2], columns))


def _by_position(x: Tensor, axes: str, table: Tensor) -> Tensor:
    """`x`, of `[B, T, N]` and a last axis, as `[T, B*N, last]`, or as `[N, T, B, last]`, if the
    table has heads."""
    if len(table.shape) == 3:
        return _transposed(x, axes, "ntb" + axes[-1])
    x = _transposed(x, axes, "tbn" + axes[-1])
    T, B, N, last = ops.shape(x)
    return ops.reshape(x, (T, B * N, last))


def _transposed(x: Tensor, axes: str, order: str) -> Tensor:
    """`x`, whose axes are these letters, with the axes in another order."""
    return x if axes == order else ops.transpose(x, [axes.index(axis) for axis in order])


def pick_by_label(per_label: Tensor, relations: Relations) -> Tensor:
    """`[B, N, T, S]`: for every pair the number of its label, as `label_scores` lays them out."""
    num_labels = ops.shape(per_label)[_axes(relations).index("r")]
    tensors, from_tensors = tensors_of(relations)

    def pick(per_label: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return _pick(per_label, from_tensors(*tensors)), None

    def gradient(inputs: Any, saved: None, by_pair: Tensor) -> tuple[Tensor]:
        _, *tensors = inputs
        return (sum_by_label(by_pair, from_tensors(*tensors), num_labels),)

    return with_gradient(pick, gradient, per_label, *tensors)


def sum_by_label(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """The transpose of `pick_by_label`: for every label the sum of its pairs' numbers."""
    tensors, from_tensors = tensors_of(relations)

    def add(per_pair: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return _sum(per_pair, from_tensors(*tensors), num_labels), None

    def gradient(inputs: Any, saved: None, by_label: Tensor) -> tuple[Tensor]:
        _, *tensors = inputs
        return (pick_by_label(by_label, from_tensors(*tensors)),)

    return with_gradient(add, gradient, per_pair, *tensors)


def tensors_of(relations: Relations) -> tuple[tuple[Tensor, ...], Callable[..., Relations]]:
    """The tensors in `relations`, and how to make these of others: what has a gradient of its own
    must be given all tensors that it uses."""
    if relations is None:
        return (), lambda: None
    if not isinstance(relations, RelativePositions):
        return (ops.convert_to_tensor(relations),), lambda labels: labels
    if not ops.is_tensor(relations.query_offset):
        return (), lambda: relations
    return (relations.query_offset,), lambda offset: relations._replace(query_offset=offset)


def _pick(per_label: Tensor, relations: Relations) -> Tensor:
    if not is_shared(relations):
        B, T, R, N = ops.shape(per_label)
        pairs = _pick_rows(ops.reshape(per_label, (B * T, R, N)), relations)
        S = ops.shape(relations)[2]
        return ops.transpose(ops.reshape(pairs, (B, T, S, N)), (0, 3, 1, 2))
    if _axes(relations) == "bntr":
        return _pick_in_place(per_label, relations)
    T, R, B, N = ops.shape(per_label)
    pairs = _pick_rows(ops.reshape(per_label, (T, R, B * N)), relations)
    is_positions = isinstance(relations, RelativePositions)
    S = relations.key_length if is_positions else ops.shape(relations)[1]
    return ops.reshape(ops.transpose(pairs), (B, N, T, S))


def _sum(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    B, N, T, S = ops.shape(per_pair)
    if isinstance(S, int) and S == 0:  # no row to take
        sizes = {"b": B, "n": N, "t": T, "r": num_labels}
        return ops.zeros([sizes[axis] for axis in _axes(relations)], per_pair.dtype)
    if not is_shared(relations):
        pairs = ops.reshape(ops.transpose(per_pair, (0, 2, 3, 1)), (B * T, S, N))
        return ops.reshape(_sum_rows(pairs, relations, num_labels), (B, T, num_labels, N))
    if _axes(relations) == "bntr":
        return _sum_in_place(per_pair, relations)
    pairs = ops.transpose(ops.reshape(per_pair, (B * N, T * S)))
    pairs = ops.reshape(pairs, (T, S, B * N))
    return ops.reshape(_sum_rows(pairs, relations, num_labels), (T, num_labels, B, N))


def _pick_in_place(per_label: Tensor, positions: RelativePositions) -> Tensor:
    """From `[B, N, T, R]` to `[B, N, T, S]`."""
    B, N, T, R = ops.shape(per_label)
    places = positions.ids + R * ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    per_sentence = ops.reshape(per_label, (B * N, T * R))
    pairs = ops.take(per_sentence, ops.reshape(places, (-1,)), axis=1)
    return ops.reshape(pairs, (B, N, T, positions.key_length))


def _sum_in_place(per_pair: Tensor, positions: RelativePositions) -> Tensor:
    """From `[B, N, T, S]` to `[B, N, T, R]`; see `_sum_positions`."""
    k = positions.max_relative_position
    B, N, T, S = ops.shape(per_pair)

    def total(pairs: Tensor) -> Tensor:
        sums = ops.sum(ops.cast(pairs, exact_dtype(pairs)), axis=-1, keepdims=True)
        return ops.cast(sums, per_pair.dtype)

    if isinstance(k, int) and k == 0:
        return total(per_pair)
    distances, keys, is_there = _distances(positions, T, S)
    left = total(ops.where(distances <= -k, per_pair, 0))
    right = total(ops.where(distances >= k, per_pair, 0))
    places = ops.clip(keys, 0, S - 1)
    near = ops.take_along_axis(per_pair, ops.expand_dims(places, (0, 1)), axis=-1)
    near = ops.where(is_there, near, 0)
    return ops.concatenate([left, near, right], axis=-1)


def _distances(positions: RelativePositions, T: Any, S: Any) -> tuple[Tensor, Tensor, Tensor]:
    """How far keys are from queries, `[T, S]`; and for the distances within k the keys, which need
    not be there, and whether they are, `[T, R - 2]`."""
    k = positions.max_relative_position
    queries = ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    queries += ops.cast(positions.query_offset, "int32")
    keys = queries + ops.arange(1 - k, k, dtype="int32")
    distances = ops.expand_dims(ops.arange(S, dtype="int32"), 0) - queries
    return distances, keys, (keys >= 0) & (keys < S)


def _pick_rows(per_label: Tensor, relations: Relations) -> Tensor:
    """From M queries by label, `[M, R, X]`, to their pairs, `[M * S, X]`."""
    M, R, X = ops.shape(per_label)
    if isinstance(relations, RelativePositions):
        rows = relations.ids + R * ops.expand_dims(ops.arange(M, dtype="int32"), 1)
        return ops.take(ops.reshape(per_label, (M * R, X)), ops.reshape(rows, (-1,)), axis=0)
    per_label = ops.pad(per_label, ((0, 0), (0, 1), (0, 0)))  # what no label picks
    rows = _rows_of_labels(relations, R)
    pairs = ops.take(ops.reshape(per_label, (M * (R + 1), X)), rows, axis=0)
    return ops.sum(pairs, axis=1)


def _sum_rows(pairs: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """From the pairs of M queries, `[M, S, X]`, to their sums by label, `[M, R, X]`."""
    if isinstance(relations, RelativePositions):
        return _sum_positions(pairs, relations)
    M, S, X = ops.shape(pairs)
    if 0 in tuple(pairs.shape):  # nothing to add up, which Keras refuses on PyTorch
        return ops.zeros((M, num_labels, X), pairs.dtype)
    rows = _rows_of_labels(relations, num_labels)
    num_edges = ops.shape(rows)[1]
    dtype = keras.backend.standardize_dtype(pairs.dtype)
    pairs = ops.cast(pairs, exact_dtype(pairs))  # half precision loses what is small beside a sum
    pairs = ops.reshape(pairs, (M * S, X))
    if len(relations.shape) == 4:
        pairs = ops.repeat(pairs, num_edges, axis=0)
    sums = ops.segment_sum(pairs, ops.reshape(rows, (-1,)), num_segments=M * (num_labels + 1))
    return ops.cast(ops.reshape(sums, (M, num_labels + 1, X))[:, :num_labels], dtype)


def _sum_positions(pairs: Tensor, positions: RelativePositions) -> Tensor:
    """Beyond the clipping distance a label has many pairs, whose sum is a product with zeros and
    ones; within it a label has one pair at most, on a diagonal."""
    k = positions.max_relative_position
    T, S, X = ops.shape(pairs)
    if isinstance(k, int) and k == 0:
        return ops.sum(pairs, axis=1, keepdims=True)
    distances, keys, is_there = _distances(positions, T, S)
    far = ops.stack([distances <= -k, distances >= k], axis=1)  # [T, 2, S]
    sides = ops.matmul(ops.cast(far, pairs.dtype), pairs)
    rows = ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    near = ops.take(
        ops.reshape(pairs, (T * S, X)), ops.clip(keys, 0, S - 1) + S * rows, axis=0
    ) * ops.cast(ops.expand_dims(is_there, -1), pairs.dtype)
    return ops.concatenate([sides[:, :1], near, sides[:, 1:]], axis=1)


def _rows_of_labels(relations: Tensor, num_labels: int) -> Tensor:
    """int32 `[M * S, L]`: where the label of query m stands among M times R + 1 rows, of which the
    last of a query's is no label."""
    labels = int32_labels(relations, num_labels)
    is_edge = (labels >= 0) & (labels < num_labels)
    labels = ops.where(is_edge, labels, num_labels)
    *queries, S, L = ops.shape(labels) if len(labels.shape) == 4 else (*ops.shape(labels), 1)
    M = math.prod(queries)
    first = ops.arange(M, dtype="int32") * (num_labels + 1)
    rows = ops.reshape(labels, (M, S, L)) + ops.reshape(first, (M, 1, 1))
    return ops.reshape(rows, (M * S, L))


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


def is_shared(relations: Relations) -> bool:
    return isinstance(relations, RelativePositions) or len(relations.shape) == 2


def _axes(relations: Relations) -> str:
    """Those of numbers by label: where rows are copied, each has all sentences and heads."""
    if isinstance(relations, RelativePositions) and picks_in_place():
        return "bntr"
    return "trbn" if is_shared(relations) else "btrn"


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
        *heads, T, S, H = ops.shape(by_vectors)
        if heads:
            by_vectors = ops.transpose(by_vectors, (1, 2, 0, 3))
        pairs = ops.reshape(by_vectors, (T, S, math.prod(heads) * H))
        sums = _sum_positions(pairs, from_tensors(*tensors))
        sums = ops.cast(ops.sum(ops.cast(sums, exact_dtype(sums)), axis=0), table.dtype)
        return (ops.swapaxes(ops.reshape(sums, (-1, *heads, H)), 0, -2),)

    return with_gradient(take, gradient, table, *tensors)


def _vectors_of_labels(table: Tensor, labels: Tensor) -> Tensor:
    """Rows of the table. In single precision at least, as the gradient adds up those of all
    pairs with a label, of which half precision would lose most."""
    rows = ops.take(ops.cast(table, exact_dtype(table)), labels, axis=-2)
    return ops.cast(rows, table.dtype)
