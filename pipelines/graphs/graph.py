"""Graphs with labelled edges whose nodes are to be told apart, and what joins their nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.errors import InputError


class Graph(NamedTuple):
    """A graph to learn from.

    Attributes:
        nodes: what is known of each node, int `[T]`, from 1: 0 is padding.
        edges: int `[M, 3]`, query, key and label: see `tf_relpos.edge_relations`.
        targets: the class of each node, int `[T]`; -1 for one that is not asked for.
        names: of the nodes, for pictures.
    """

    nodes: np.ndarray
    edges: np.ndarray
    targets: np.ndarray
    names: tuple[str, ...]


class Task(NamedTuple):
    """Graphs to train on and to test on, and the names of what is in them.

    Attributes:
        train, test: the graphs.
        labels: the names of the edges' labels.
        classes: the names of the classes.
        node_kinds: how many values `nodes` may have, padding included.
    """

    train: Sequence[Graph]
    test: Sequence[Graph]
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    node_kinds: int


def as_edges(triples: Iterable[tuple[int, int, int]]) -> np.ndarray:
    """int32 `[M, 3]`, also of none."""
    return np.array([*triples], "int32").reshape(-1, 3)


def edges_of_networkx(
    graph: Any, labels: Mapping[Hashable, int], attribute: str = "label"
) -> np.ndarray:
    """The edges of a graph of networkx, for `tf_relpos.edge_relations`.

    Nodes are numbered in the graph's own order, `list(graph)`. An edge of a graph that is not
    directed goes both ways; one of a multigraph may stand beside others with the same ends.

    Args:
        graph: a `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        labels: the number of each label.
        attribute: the attribute of an edge that holds its label.

    Returns:
        int32 `[M, 3]`.

    Raises:
        InputError: an edge has no label, or one without a number.
    """
    number = {node: i for i, node in enumerate(graph)}
    triples = []
    for source, target, label in graph.edges(data=attribute):
        if label not in labels:
            raise InputError(
                f"{attribute} of an edge must be one of {', '.join(map(str, labels))}, got {label} "
                f"from {source} to {target}"
            )
        i, j = number[source], number[target]
        triples.append((i, j, labels[label]))
        if not graph.is_directed() and i != j:
            triples.append((j, i, labels[label]))
    return as_edges(triples)
