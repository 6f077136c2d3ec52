"""From a number for each label to one for each pair, and back: `[N, B, T, R]` and `[N, B, T, S]`.

Single numbers are slow to copy. Where all sentences have the same labels, numbers of a query are
transposed so that those of several sentences and heads, which share its labels, are side by side,
and a label picks, or adds to, a row of them: `[T, R, X]` by label and `[T, S, X]` by pair, and G of
these that make N B. Where each sentence has labels of its own, a row has its N heads. What picks in
place (`tf_relpos.execution.picks_in_place`) leaves numbers by position where they are.

Axes: N heads, B batch, T query positions, S key positions, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import picks_in_place
from tf_relpos.fused_passes import are_fused, fused, made_once
from tf_relpos.relations import Relations, is_shared, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    bits_of,
    exact_dtype,
    from_bits,
    int32_labels,
    row_sums,
    rows_at,
    shape_of,
)

CACHE_LINE = 64  # bytes


def pick_by_label(per_label: Tensor, relations: Relations) -> Tensor:
    """From `[N, B, T, R]` to `[N, B, T, S]`: for every pair the number of its label."""
    num_labels = shape_of(per_label)[-1]
    tensors, from_tensors = tensors_of(relations)

    def pick(per_label: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        relations = from_tensors(*tensors)
        return _one_pass(relations)(_pick)(per_label, relations), None

    def gradient(inputs: Any, saved: None, by_pair: Tensor) -> tuple[Tensor]:
        _, *tensors = inputs
        return (sum_by_label(by_pair, from_tensors(*tensors), num_labels),)

    return with_gradient(pick, gradient, per_label, *tensors)


def sum_by_label(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """The transpose of `pick_by_label`: for every label the sum of its pairs' numbers."""
    tensors, from_tensors = tensors_of(relations)

    def add(per_pair: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        relations = from_tensors(*tensors)
        return _one_pass(relations)(_sum)(per_pair, relations, num_labels), None

    def gradient(inputs: Any, saved: None, by_label: Tensor) -> tuple[Tensor]:
        _, *tensors = inputs
        return (pick_by_label(by_label, from_tensors(*tensors)),)

    return with_gradient(add, gradient, per_pair, *tensors)


def add_by_label(per_pair: Tensor, per_label: Tensor, positions: RelativePositions) -> Tensor:
    """`per_pair` plus, for every pair, the number of its label. Within `fused_passes` it is one
    pass, in single precision at least."""
    if not are_fused():
        return per_pair + pick_by_label(per_label, positions)
    num_labels, dtype = shape_of(per_label)[-1], per_pair.dtype
    tensors, from_tensors = tensors_of(positions)

    def add(per_pair: Tensor, per_label: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return fused(_added)(per_pair, per_label, without_lengths(from_tensors(*tensors))), None

    def gradient(inputs: Any, saved: None, by_sums: Tensor) -> tuple[Tensor, Tensor]:
        by_pair = ops.cast(by_sums, dtype)
        return by_pair, sum_by_label(by_pair, from_tensors(*inputs[2:]), num_labels)

    return with_gradient(add, gradient, per_pair, per_label, *tensors)


def _one_pass(relations: Relations) -> Callable[..., Any]:
    """How a function of such labels is made in a graph for training."""
    return fused if isinstance(relations, RelativePositions) else made_once


def without_lengths(positions: RelativePositions) -> RelativePositions:
    """For what sees the pairs themselves: XLA would compile anew for each value of T and S."""
    return positions._replace(query_length=0, key_length=0)


def with_lengths_of(per_pair: Tensor, positions: RelativePositions) -> RelativePositions:
    """`[N, B, T, S]` and positions `without_lengths`: with these."""
    T, S = shape_of(per_pair)[2:]
    return positions._replace(query_length=T, key_length=S)


def _added(per_pair: Tensor, per_label: Tensor, positions: RelativePositions) -> Tensor:
    exact = exact_dtype(per_pair)
    picked = _pick(per_label, with_lengths_of(per_pair, positions))
    return ops.cast(per_pair, exact) + ops.cast(picked, exact)


def _pick(per_label: Tensor, relations: Relations) -> Tensor:
    N, B, T, R = shape_of(per_label)
    is_positions = isinstance(relations, RelativePositions)
    if is_positions and picks_in_place():
        return _pick_in_place(per_label, relations)
    if not is_shared(relations):
        rows = ops.reshape(ops.transpose(per_label, (1, 2, 3, 0)), (1, B * T, R, N))
        S = shape_of(relations)[2]
        pairs = ops.reshape(_pick_rows(rows, relations), (B, T, S, N))
        return ops.transpose(pairs, (3, 0, 1, 2))
    pairs = _pick_rows(_in_rows(per_label, _row_sizes(per_label)), relations)
    S = relations.key_length if is_positions else shape_of(relations)[1]
    return ops.reshape(ops.transpose(pairs, (0, 2, 1)), (N, B, T, S))


def _sum(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    N, B, T, S = shape_of(per_pair)
    if isinstance(S, int) and S == 0:  # no row to take
        return ops.zeros((N, B, T, num_labels), per_pair.dtype)
    if not isinstance(relations, RelativePositions):
        return _sum_labels(per_pair, relations, num_labels)
    if picks_in_place():
        return _sum_in_place(per_pair, relations)
    sums = sum_positions(_in_rows(per_pair, _row_sizes(per_pair)), relations)
    G, _, R, X = shape_of(sums)
    sums = ops.transpose(ops.reshape(sums, (G, T * R, X)), (0, 2, 1))
    return ops.reshape(sums, (N, B, T, R))


def _sum_labels(per_pair: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    N, B, T, S = shape_of(per_pair)
    if is_shared(labels):
        pairs = ops.reshape(_in_rows(per_pair, (1, N * B)), (T, S, N * B))
        sums = ops.reshape(_sum_rows(pairs, labels, num_labels), (T * num_labels, N * B))
        return ops.reshape(ops.transpose(sums), (N, B, T, num_labels))
    pairs = ops.reshape(ops.transpose(per_pair, (1, 2, 3, 0)), (B * T, S, N))
    sums = ops.reshape(_sum_rows(pairs, labels, num_labels), (B, T, num_labels, N))
    return ops.transpose(sums, (3, 0, 1, 2))


def _pick_in_place(per_label: Tensor, positions: RelativePositions) -> Tensor:
    N, B, T, R = shape_of(per_label)
    places = positions.ids + R * ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    per_sentence = ops.reshape(per_label, (N * B, T * R))
    pairs = ops.take(per_sentence, ops.reshape(places, (-1,)), axis=1)
    return ops.reshape(pairs, (N, B, T, positions.key_length))


def _sum_in_place(per_pair: Tensor, positions: RelativePositions) -> Tensor:
    """See `sum_positions`."""
    k = positions.max_relative_position
    N, B, T, S = shape_of(per_pair)
    exact = ops.cast(per_pair, exact_dtype(per_pair))  # of which half precision would lose some
    if isinstance(k, int) and k == 0:
        return ops.cast(row_sums(exact), per_pair.dtype)
    beyond, keys, is_there = _distances(positions, T, S)
    sides = row_sums(*(ops.where(side, exact, 0) for side in beyond))
    places = ops.clip(keys, 0, S - 1) + S * ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    per_sentence = ops.reshape(bits_of(per_pair), (N * B, T * S))
    near = ops.take(per_sentence, ops.reshape(places, (-1,)), axis=1)
    near = ops.where(is_there, ops.reshape(near, (N, B, *shape_of(places))), 0)
    left, *right = ops.split(bits_of(ops.cast(sides, per_pair.dtype)), len(beyond), axis=-1)
    return from_bits(ops.concatenate([left, near, *right], axis=-1), per_pair.dtype)


def _distances(positions: RelativePositions, T: Any, S: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """Which pairs are beyond the clipping distance, to the left and, unless these are not seen, to
    the right, `[T, S]` each; and for each other label the keys, which need not be there, and
    whether they are, `[T, R - 2]`, or `[T, k]`."""
    k = positions.max_relative_position
    queries = ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    queries += ops.cast(positions.query_offset, "int32")
    keys = queries + ops.arange(1 - k, 1 if positions.is_causal else k, dtype="int32")
    distances = ops.expand_dims(ops.arange(S, dtype="int32"), 0) - queries
    beyond = [distances <= -k, distances >= k][: 2 - positions.is_causal]
    return beyond, keys, (keys >= 0) & (keys < S)


def _row_sizes(x: Tensor) -> tuple[Any, Any]:
    """G and X of `x` `[N, B, T, ...]`: rows as long as a cache line, or half of one, if N B can be
    parted so, and else a single one. TensorFlow transposes to and from such rows in half the time
    and less; PyTorch takes twice the time."""
    numbers = math.prod(shape_of(x)[:2])
    if keras.backend.backend() != "tensorflow":
        return 1, numbers
    line = CACHE_LINE // x.dtype.size
    length = numbers
    for most in (line // 2, line):
        if not isinstance(numbers, int):
            length = ops.where(numbers % most == 0, most, length)
        elif numbers % most == 0:
            length = most
    return numbers // length, length


def _in_rows(x: Tensor, sizes: tuple[Any, Any]) -> Tensor:
    """`[N, B, T, ...]` in rows, `[G, T, ..., X]`."""
    T, columns = shape_of(x)[2:]
    G, X = sizes
    x = ops.transpose(ops.reshape(x, (G, X, T * columns)), (0, 2, 1))
    return ops.reshape(x, (G, T, columns, X))


def _pick_rows(per_label: Tensor, relations: Relations) -> Tensor:
    """From M queries by label, in rows, `[G, M, R, X]`, to their pairs, `[G, M * S, X]`."""
    G, M, R, X = shape_of(per_label)
    if isinstance(relations, RelativePositions):
        rows = relations.ids + R * ops.expand_dims(ops.arange(M, dtype="int32"), 1)
        return rows_at(ops.reshape(per_label, (G, M * R, X)), ops.reshape(rows, (-1,)))
    per_label = ops.pad(per_label, ((0, 0), (0, 0), (0, 1), (0, 0)))  # what no label picks
    rows = _rows_of_labels(relations, R)
    return ops.sum(ops.take(ops.reshape(per_label, (G, M * (R + 1), X)), rows, axis=1), axis=2)


def _sum_rows(pairs: Tensor, relations: Tensor, num_labels: int) -> Tensor:
    """From the pairs of M queries, `[M, S, X]`, to their sums by label, `[M, R, X]`."""
    M, S, X = shape_of(pairs)
    if 0 in tuple(pairs.shape):  # nothing to add up, which Keras refuses on PyTorch
        return ops.zeros((M, num_labels, X), pairs.dtype)
    rows = _rows_of_labels(relations, num_labels)
    num_edges = shape_of(rows)[1]
    dtype = keras.backend.standardize_dtype(pairs.dtype)
    pairs = ops.cast(pairs, exact_dtype(pairs))  # half precision loses what is small beside a sum
    pairs = ops.reshape(pairs, (M * S, X))
    if len(relations.shape) == 4:
        pairs = ops.repeat(pairs, num_edges, axis=0)
    sums = ops.segment_sum(pairs, ops.reshape(rows, (-1,)), num_segments=M * (num_labels + 1))
    return ops.cast(ops.reshape(sums, (M, num_labels + 1, X))[:, :num_labels], dtype)


def sum_positions(pairs: Tensor, positions: RelativePositions) -> Tensor:
    """From pairs `[G, T, S, X]` to their sums by label, `[G, T, R, X]`.

    Beyond the clipping distance a label has many pairs, whose sum is a product with zeros and ones;
    within it a label has one pair at most, on a diagonal.
    """
    k = positions.max_relative_position
    G, T, S, X = shape_of(pairs)
    if isinstance(k, int) and k == 0:
        exact = ops.cast(pairs, exact_dtype(pairs))  # of which half precision would lose some
        return ops.cast(ops.sum(exact, axis=2, keepdims=True), pairs.dtype)
    beyond, keys, is_there = _distances(positions, T, S)
    far = ops.stack(beyond, axis=1)  # [T, 2, S]
    left, *right = ops.split(ops.matmul(ops.cast(far, pairs.dtype), pairs), len(beyond), axis=2)
    places = ops.clip(keys, 0, S - 1) + S * ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    near = rows_at(ops.reshape(pairs, (G, T * S, X)), ops.reshape(places, (-1,)))
    near = ops.reshape(near, (G, *shape_of(places), X))
    near = near * ops.cast(ops.expand_dims(is_there, -1), pairs.dtype)
    return ops.concatenate([left, near, *right], axis=2)


def _rows_of_labels(relations: Tensor, num_labels: int) -> Tensor:
    """int32 `[M * S, L]`: where the label of query m stands among M times R + 1 rows, of which the
    last of a query's is no label."""
    labels = int32_labels(relations, num_labels)
    is_edge = (labels >= 0) & (labels < num_labels)
    labels = ops.where(is_edge, labels, num_labels)
    *queries, S, L = shape_of(labels) if len(labels.shape) == 4 else (*shape_of(labels), 1)
    M = math.prod(queries)
    first = ops.arange(M, dtype="int32") * (num_labels + 1)
    rows = ops.reshape(labels, (M, S, L)) + ops.reshape(first, (M, 1, 1))
    return ops.reshape(rows, (M * S, L))
