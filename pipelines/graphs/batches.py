"""Padded batches of graphs, labelled inside of `tf.data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.graphs.graph import Graph
from tf_relpos import edge_relations, relative_position_ids, stack_relations

MAX_DISTANCE = 8  # k of the labels of order
READ_AHEAD = 4  # batches


def num_relations(num_labels: int, relations: str) -> int:
    """How many labels the pairs of nodes have, which `batches` makes."""
    of_graph, of_order = 2 * num_labels + 1, 2 * MAX_DISTANCE + 1
    return {"graph": of_graph, "order": of_order, "both": of_graph + of_order, "none": 0}[relations]


def plan(sizes: Sequence[int], nodes: int, seed: Sequence[int] | None) -> list[np.ndarray]:
    """Which graphs make a batch: graphs of about the same size, as many as `nodes` have room for.

    Args:
        sizes: T of each graph.
        nodes: of a batch, with padding; a larger graph is alone.
        seed: another order, and other neighbours, for each; None is the order of sizes.

    Returns:
        For each batch the numbers of its graphs. Their number does not depend on the seed.
    """
    order = np.arange(len(sizes))
    rng = None if seed is None else np.random.default_rng(seed)
    if rng:
        rng.shuffle(order)
    order = order[np.argsort(np.asarray(sizes)[order], kind="stable")]
    found: list[list[int]] = [[]]
    for number in order.tolist():
        if found[-1] and sizes[number] * (len(found[-1]) + 1) > nodes:
            found.append([])
        found[-1].append(number)
    if rng:
        rng.shuffle(found)
    return [np.array(batch) for batch in found]


def batches(
    graphs: Sequence[Graph],
    num_labels: int,
    relations: str,
    nodes: int,
    seeds: Sequence[Sequence[int] | None] = (None,),
) -> tf.data.Dataset:
    """The graphs, once for each seed: `({"nodes", "relations"}, targets, weights)`.

    Args:
        graphs: see `Graph`.
        num_labels: E, of their edges.
        relations: "graph" for their labels, inverse ones and loops included, `[B, T, T]`; "order"
            for relative positions, `[B, T, T]`; "both", `[B, T, T, 2]`; or "none", whose labels
            are all negative.
        nodes, seeds: see `plan`.
    """

    def padded(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        some = [graphs[number] for number in numbers]
        return (
            padded_rows([graph.nodes for graph in some], 0),
            padded_rows([graph.edges for graph in some], -1),
            padded_rows([graph.targets for graph in some], -1),
        )

    def labelled(nodes: tf.Tensor, edges: tf.Tensor, targets: tf.Tensor) -> Any:
        found = labels_of_pairs(edges, tf.shape(nodes)[1], num_labels, relations)
        weights = tf.cast(targets >= 0, tf.float32)
        return {"nodes": nodes, "relations": found}, tf.maximum(targets, 0), weights

    return planned([len(graph.nodes) for graph in graphs], nodes, seeds, padded, labelled)


def planned(
    sizes: Sequence[int],
    nodes: int,
    seeds: Sequence[Sequence[int] | None],
    padded: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    labelled: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any],
) -> tf.data.Dataset:
    """The batches of `plan`, once for each seed.

    Args:
        sizes, nodes, seeds: see `plan`.
        padded: the numbers of a batch to int32 nodes `[B, T]`, edges `[B, M, 3]` and targets
            `[B, L]`.
        labelled: these, as tensors, to what `model.fit` takes.
    """

    def arrays() -> Iterator[tuple[np.ndarray, ...]]:
        for seed in seeds:
            yield from map(padded, plan(sizes, nodes, seed))

    shapes = ([None, None], [None, None, 3], [None, None])
    signature = tuple(tf.TensorSpec(shape, tf.int32) for shape in shapes)
    data = tf.data.Dataset.from_generator(arrays, output_signature=signature)
    data = data.map(labelled, num_parallel_calls=2, deterministic=True).prefetch(READ_AHEAD)
    count = len(seeds) * len(plan(sizes, nodes, None))
    return data.apply(tf.data.experimental.assert_cardinality(count))


def labels_of_pairs(edges: tf.Tensor, T: tf.Tensor, num_labels: int, relations: str) -> tf.Tensor:
    """What joins the pairs of nodes, see `batches`, of edges `[B, M, 3]` between T nodes."""
    of_graph = edge_relations(edges, T, num_labels, inverse=True, self_loops=True)
    of_order = relative_position_ids(T, T, MAX_DISTANCE)
    if relations == "both":
        return stack_relations([of_graph, of_order], (2 * num_labels + 1, 2 * MAX_DISTANCE + 1))
    if relations == "order":
        return tf.broadcast_to(of_order, tf.shape(of_graph))
    return of_graph if relations == "graph" else tf.fill(tf.shape(of_graph), -1)


def padded_rows(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
    """int32 `[B, L, ...]` of rows `[l, ...]`."""
    longest = max(map(len, rows))
    padded = np.full((len(rows), longest, *rows[0].shape[1:]), value, "int32")
    for whole, row in zip(padded, rows, strict=True):
        whole[: len(row)] = row
    return padded
