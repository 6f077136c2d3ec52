"""Which label joins query i to key j in a graph (Shaw et al. 2018, section 3.1).

The functions here label the pairs of one graph or of a padded batch with the operations of the
backend, so that with TensorFlow's they work inside `tf.data` and in a model as well as on NumPy's
arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.checks import check_boolean, check_whole
from tf_relpos.execution import known_value
from tf_relpos.label_checks import as_labels, check_alike, check_below
from tf_relpos.tensor_checks import LARGEST, check_index
from tf_relpos.tensor_ops import Tensor, int32_labels, shape_of


def edge_relations(
    edges: Any,
    length: int | Tensor,
    num_labels: int,
    inverse: bool = False,
    self_loops: bool = False,
    labels_per_edge: int | None = None,
) -> Tensor:
    """The labels of a graph that is given as a list of its edges.

    An edge `(i, j, r)` labels query i and key j with r, one of E = `num_labels`. With `inverse` it
    labels query j and key i as well, with E + r, unless i is j. With `self_loops` the nodes without
    an edge to themselves get one, whose label is the last: E, or 2E beside inverse ones. What has
    no edge is labelled -1. So `num_relations` is E, or 2E, and one more with `self_loops`.

    Args:
        edges: integers `[M, 3]`, or `[B, M, 3]`. A row with a negative number is no edge: lists of
            different lengths are padded with them.
        length: T, the number of nodes, padding included.
        num_labels: E.
        inverse, self_loops: see above.
        labels_per_edge: None for one label a pair, or L for up to so many.

    Returns:
        int32 `[T, T]`, or `[B, T, T]`; with L as the last axis, the largest labels first, if
        `labels_per_edge` is given. An edge that is given twice counts once. What takes labels takes
        three axes for `[B, T, S]`: give it the `[T, T, L]` of one graph as a batch, `[None]`.

    Raises:
        ValueError: `edges` of another shape or type. Where values are known: a node of T or above,
            a label of E or above, or more labels on a pair than there is room for. Where they are
            not (in a graph, `tf.data` included), the former two are no edges, and of too many
            labels the largest stay.
    """
    num_labels = check_whole("num_labels", num_labels)
    length = check_index("length", length)
    inverse, self_loops = (
        check_boolean(name, value)
        for name, value in (("inverse", inverse), ("self_loops", self_loops))
    )
    room = 1 if labels_per_edge is None else check_whole("labels_per_edge", labels_per_edge)
    edges = _checked_edges(edges, length, num_labels)
    T, is_batch = length, len(edges.shape) == 3
    if ops.is_tensor(T):
        T = ops.cast(T, "int32")
    columns = edges if is_batch else ops.expand_dims(edges, 0)
    queries, keys, labels = (columns[..., column] for column in range(3))
    is_edge = (ops.minimum(ops.minimum(queries, keys), labels) >= 0) & (labels < num_labels)
    is_edge &= ops.maximum(queries, keys) < T
    if inverse:
        is_edge = ops.concatenate([is_edge, is_edge & (queries != keys)], 1)
        labels = ops.concatenate([labels, labels + num_labels], 1)
        queries, keys = ops.concatenate([queries, keys], 1), ops.concatenate([keys, queries], 1)
    B = shape_of(edges)[0] if is_batch else 1
    graphs = ops.expand_dims(ops.arange(B, dtype="int32"), 1)
    pairs = ops.where(is_edge, (graphs * T + queries) * T + keys, B * T * T)
    pairs, labels = ops.reshape(pairs, (-1,)), ops.reshape(ops.where(is_edge, labels, -1), (-1,))
    found = []
    for _ in range(room):
        largest = ops.segment_max(labels, pairs, num_segments=B * T * T + 1)
        largest = ops.maximum(largest, -1)  # where there is nothing it is the least integer
        labels = ops.where(labels == ops.take(largest, pairs), -1, labels)
        found.append(ops.reshape(largest[:-1], (B, T, T)))
    left = known_value(labels)
    if left is not None and np.any(left >= 0):
        raise ValueError(
            f"`edges` must give a pair of nodes at most {room} different labels, or as many as "
            f"`labels_per_edge`. Received: more, of which one is {left.max()}"
        )
    if self_loops:
        is_node = ops.expand_dims(ops.eye(T, dtype="bool"), 0) & (found[0] < 0)
        found[0] = ops.where(is_node, num_labels * (2 if inverse else 1), found[0])
    relations = found[0] if labels_per_edge is None else ops.stack(found, -1)
    return relations if is_batch else relations[0]


def _checked_edges(edges: Any, length: int | Tensor, num_labels: int) -> Tensor:
    """Edges as int32. They are refused where their values are known and wrong."""
    rule = "`edges` must hold integers, [M, 3] or [B, M, 3]: query, key and label"
    if not hasattr(edges, "dtype"):
        try:
            edges = np.asarray(edges)
        except ValueError:
            raise ValueError(
                f"{rule}, shorter lists padded with negative numbers. Received: lists of different "
                "lengths"
            ) from None
        if not edges.size and edges.ndim < 3:  # lists without an edge
            edges = np.zeros((*edges.shape, 3), "int32")
    _check_has_shape("edges", edges)
    if isinstance(edges, np.ndarray) and edges.dtype.kind in "OSU":  # text, None, ...
        raise ValueError(f"{rule}. Received: {edges!r}")
    dtype = keras.backend.standardize_dtype(edges.dtype)
    if "int" not in dtype or len(edges.shape) not in (2, 3) or edges.shape[-1] not in (3, None):
        raise ValueError(f"{rule}. Received: shape={tuple(edges.shape)}, dtype={dtype}")
    values, T = known_value(edges), known_value(length)
    if values is not None and T is not None:
        beyond = np.all(values >= 0, -1) & np.any(values >= [T, T, num_labels], -1)
        if beyond.any():
            raise ValueError(
                f"`edges` must join nodes below length={T} by labels below num_labels="
                f"{num_labels}. Received: an edge {tuple(values[beyond][0].tolist())}"
            )
    return int32_labels(edges, LARGEST)


def _check_has_shape(name: str, x: Tensor) -> None:
    """Refuses the inputs of a functional model, which have no shape to compute with."""
    if isinstance(x, keras.KerasTensor):
        raise ValueError(
            f"`{name}` must be an array or a tensor: label those of a functional model in the "
            f"`call` of a layer. Received: {x}"
        )


def path_relations(relations: Tensor, max_distance: int) -> Tensor:
    """Labels every pair with the length of the shortest path from query to key, clipped.

    Args:
        relations: labels `[T, T]`, `[B, T, T]` or `[B, T, T, L]`: a path goes from query to key
            wherever a label is not negative. Inverse labels make it go both ways.
        max_distance: k, an int >= 1.

    Returns:
        int32 `[T, T]` or `[B, T, T]`: 0 for a node itself, up to k for "k edges or more", and -1
        where no path leads. So `num_relations` is k + 1.

    Raises:
        ValueError: labels of another shape or type.
    """
    k = check_whole("max_distance", max_distance)
    _check_has_shape("relations", relations)
    shapes = "[T, T], [B, T, T] or [B, T, T, L]"
    labels = as_labels("relations", relations, shapes, (2, 3, 4))
    is_edge = ops.convert_to_tensor(labels) >= 0
    if len(is_edge.shape) == 4:
        is_edge = ops.any(is_edge, -1)
    if None not in is_edge.shape[-2:] and is_edge.shape[-1] != is_edge.shape[-2]:
        raise ValueError(
            f"`relations` must have the shape {shapes}. Received: shape={tuple(labels.shape)}"
        )
    T = shape_of(is_edge)[-1]
    step = ops.cast(is_edge | ops.eye(T, dtype="bool"), "float32")
    reached = ops.zeros_like(step) + ops.eye(T, dtype="float32")
    most = ops.minimum(min(k, LARGEST), T)  # no shortest path has more edges
    _, distances, reached = ops.while_loop(
        lambda edges, *_: edges < most,
        lambda edges, distances, reached: (
            edges + 1,
            distances + 1 - reached,
            ops.minimum(ops.matmul(reached, step), 1),
        ),
        (0, ops.zeros_like(step), reached),
    )
    _, reached = ops.while_loop(  # further than k: each turn doubles the edges of a path
        lambda edges, _: edges < T,
        lambda edges, reached: (2 * edges, ops.minimum(ops.matmul(reached, reached), 1)),
        (most, reached),
    )
    return ops.cast(ops.where(reached > 0, distances, -1), "int32")


def stack_relations(relations: Sequence[Tensor], num_relations: Sequence[int]) -> Tensor:
    """Labels of several kinds on each edge, such as those of a graph and of positions.

    Their vectors add: a label of the first kind keeps its number, those of the second begin where
    the first kind ends, and so on. The sum of `num_relations` is the layer's.

    Args:
        relations: labels of each kind, `[T, S]`, `[B, T, S]` or `[B, T, S, L]`.
        num_relations: how many labels each kind has.

    Returns:
        int32 `[B or 1, T, S, L]` with the labels of all kinds; 1 if none has a batch.

    Raises:
        ValueError: labels of another shape or type, of different B, T or S, or not a number for
            each kind; where values are known, a label that is not below its number.
    """
    shapes = "[T, S], [B, T, S] or [B, T, S, L] for each kind"
    if not isinstance(relations, Iterable):
        raise ValueError(f"`relations` must be labels of each kind. Received: {relations!r}")
    relations = [as_labels("relations", labels, shapes, (2, 3, 4)) for labels in relations]
    try:
        sizes = [check_whole("num_relations", size) for size in num_relations]
    except TypeError:
        sizes = []
    if not relations or len(relations) != len(sizes):
        raise ValueError(
            "`num_relations` must have a number for each kind of `relations`. Received: "
            f"num_relations={num_relations!r} for {len(relations)}"
        )
    check_alike("`relations`", relations)
    first, found = 0, []
    for labels, size in zip(relations, sizes, strict=True):
        check_below("relations", labels, "num_relations", size)
        labels = int32_labels(labels, size)
        labels = ops.where((labels >= 0) & (labels < size), labels + first, -1)
        labels = labels if len(labels.shape) == 4 else ops.expand_dims(labels, -1)
        found.append(labels if len(labels.shape) == 4 else ops.expand_dims(labels, 0))
        first += size
    # For all graphs and pairs: inputs of a functional model have no shape to broadcast to.
    zeros = ops.zeros_like(functools.reduce(ops.add, [labels[..., :1] for labels in found]))
    return ops.concatenate([ops.add(labels, zeros) for labels in found], -1)


def joint_relations(first: Tensor, second: Tensor, num_second: int) -> Tensor:
    """One label for each combination of two, with a vector of its own.

    Args:
        first, second: labels `[T, S]` or `[B, T, S]` of two kinds; negative ones are no edge, which
            combines as well: only where both are, there is no label.
        num_second: how many labels the second kind has, R2; with R1 of the first,
            `num_relations` is (R1 + 1) (R2 + 1) - 1.

    Returns:
        int32 `[T, S]` or `[B, T, S]`.

    Raises:
        ValueError: labels of another shape or type, or of different B, T or S; where values are
            known, a label of the first kind whose combinations are beyond int32, or one of the
            second that is not below its number.
    """
    num_second = check_whole("num_second", num_second)
    size = num_second + 1
    first, second = (
        as_labels(name, labels, "[T, S] or [B, T, S]", (2, 3))
        for name, labels in (("first", first), ("second", second))
    )
    check_alike("`first` and `second`", [first, second])
    most = max((LARGEST + 1) // size - 1, 0)
    check_below("first", first, "2^31 / (num_second + 1) - 1", most)
    check_below("second", second, "num_second", num_second)
    first, second = int32_labels(first, LARGEST), int32_labels(second, num_second)
    first, second = (ops.maximum(labels, -1) for labels in (first, second))
    return (first + 1) * size + ops.where(second < num_second, second, -1)
