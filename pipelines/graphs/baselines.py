"""What a look-up table reaches: the most frequent class of nodes with the same surroundings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

from pipelines.graphs.graph import Graph

BASELINES = ("most frequent class", "own label", "own, children's and head's label")


def baselines(train: Sequence[Graph], test: Sequence[Graph]) -> dict[str, float]:
    """The accuracy of each of `BASELINES`.

    A node's own label is that of the edge that leads to it. What training has not seen is looked
    up by less: the own label, and then nothing.
    """
    tables: list[dict[Hashable, Counter[int]]] = [defaultdict(Counter) for _ in BASELINES]
    for graph in train:
        for target, keys in _nodes(graph):
            for table, key in zip(tables, keys, strict=True):
                table[key][target] += 1
    right, asked = [0] * len(BASELINES), 0
    for graph in test:
        for target, keys in _nodes(graph):
            asked += 1
            answer = None
            for level, (table, key) in enumerate(zip(tables, keys, strict=True)):
                if key in table:
                    answer = table[key].most_common(1)[0][0]
                right[level] += answer == target
    return {name: count / max(asked, 1) for name, count in zip(BASELINES, right, strict=True)}


def _nodes(graph: Graph) -> Iterator[tuple[int, tuple[Hashable, ...]]]:
    """Of each node that is asked for its class, and what each table looks it up by."""
    own, head = {}, {}
    children: dict[int, list[int]] = defaultdict(list)
    for source, node, label in graph.edges.tolist():
        own[node], head[node] = label, source
        if source != node:
            children[source].append(label)
    for node, target in enumerate(graph.targets.tolist()):
        if target >= 0:
            around = (own.get(node), tuple(sorted(children[node])), own.get(head.get(node)))
            yield target, ((), own.get(node), around)
