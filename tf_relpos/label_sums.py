"""From a number for each label to one for each pair, and back.

The layouts are such that a label picks, or adds to, a whole row of numbers. Like the paper's
products, what is copied in rows goes through the queries first, with what shares a query's labels
side by side: `[T, R, B*N]` by label and `[T, S, B*N]` by pair, which TensorFlow picks in several
shorter rows. Where each sentence has labels of its own, the queries are B*T and the rows N long.
What picks in place (`tf_relpos.tensor_ops.picks_in_place`) leaves numbers by position as products
make them, `[B, N, T, R]` and `[B, N, T, S]`.

Axes: B batch, T query positions, S key positions, N heads, H head size, R labels, L labels an edge.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from tf_relpos.relations import Relations, is_shared, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    exact_dtype,
    int32_labels,
    picks_in_place,
    rows_at,
    with_gradient,
)

CACHE_LINE = 64  # bytes


def label_axes(relations: Relations) -> str:
    """Those of numbers by label: where rows are copied, each has all sentences and heads."""
    if isinstance(relations, RelativePositions) and picks_in_place():
        return "bntr"
    return "trbn" if is_shared(relations) else "btrn"


def pick_by_label(per_label: Tensor, relations: Relations) -> Tensor:
    """`[B, N, T, S]`: for every pair the number of its label, laid out by `label_axes`."""
    num_labels = ops.shape(per_label)[label_axes(relations).index("r")]
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


def _pick(per_label: Tensor, relations: Relations) -> Tensor:
    if not is_shared(relations):
        B, T, R, N = ops.shape(per_label)
        pairs = _pick_rows(ops.reshape(per_label, (1, B * T, R, N)), relations)
        S = ops.shape(relations)[2]
        return ops.transpose(ops.reshape(pairs, (B, T, S, N)), (0, 3, 1, 2))
    if label_axes(relations) == "bntr":
        return _pick_in_place(per_label, relations)
    T, R, B, N = ops.shape(per_label)
    rows = ops.reshape(per_label, (T, R, *_row_sizes(per_label)))
    pairs = _pick_rows(ops.transpose(rows, (2, 0, 1, 3)), relations)
    is_positions = isinstance(relations, RelativePositions)
    S = relations.key_length if is_positions else ops.shape(relations)[1]
    return ops.reshape(ops.transpose(pairs, (0, 2, 1)), (B, N, T, S))


def _sum(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    B, N, T, S = ops.shape(per_pair)
    if isinstance(S, int) and S == 0:  # no row to take
        sizes = {"b": B, "n": N, "t": T, "r": num_labels}
        return ops.zeros([sizes[axis] for axis in label_axes(relations)], per_pair.dtype)
    if not is_shared(relations):
        pairs = ops.reshape(ops.transpose(per_pair, (0, 2, 3, 1)), (B * T, S, N))
        return ops.reshape(_sum_rows(pairs, relations, num_labels), (B, T, num_labels, N))
    if label_axes(relations) == "bntr":
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
    """From `[B, N, T, S]` to `[B, N, T, R]`; see `sum_positions`."""
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


def _row_sizes(per_label: Tensor) -> tuple[Any, Any]:
    """In how many rows a query's numbers, `[T, R, B, N]`, are picked, and how long these are: as a
    cache line, where they can be parted so, and else there is one. The pairs are transposed
    afterwards, for which TensorFlow takes half the time if rows are no longer than that; PyTorch
    takes twice the time."""
    numbers = math.prod(ops.shape(per_label)[2:])
    if keras.backend.backend() != "tensorflow":
        return 1, numbers
    length = CACHE_LINE // per_label.dtype.size
    if not isinstance(numbers, int):
        length = ops.where(numbers % length == 0, length, numbers)
    elif numbers % length:
        length = numbers
    return numbers // length, length


def _pick_rows(per_label: Tensor, relations: Relations) -> Tensor:
    """From M queries by label, in rows, `[G, M, R, X]`, to their pairs, `[G, M * S, X]`."""
    G, M, R, X = ops.shape(per_label)
    if isinstance(relations, RelativePositions):
        rows = relations.ids + R * ops.expand_dims(ops.arange(M, dtype="int32"), 1)
        return rows_at(ops.reshape(per_label, (G, M * R, X)), ops.reshape(rows, (-1,)))
    per_label = ops.pad(per_label, ((0, 0), (0, 0), (0, 1), (0, 0)))  # what no label picks
    rows = _rows_of_labels(relations, R)
    return ops.sum(ops.take(ops.reshape(per_label, (G, M * (R + 1), X)), rows, axis=1), axis=2)


def _sum_rows(pairs: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """From the pairs of M queries, `[M, S, X]`, to their sums by label, `[M, R, X]`."""
    if isinstance(relations, RelativePositions):
        return sum_positions(pairs, relations)
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


def sum_positions(pairs: Tensor, positions: RelativePositions) -> Tensor:
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
