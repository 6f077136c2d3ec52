"""Graphs of networkx, families, what look-up tables reach, and padded batches."""

import networkx
import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.graphs.baselines import baselines
from pipelines.graphs.batches import MAX_DISTANCE, batches, num_relations, plan
from pipelines.graphs.conllu import read_task
from pipelines.graphs.family import COLOURS, LABELS, family_task
from pipelines.graphs.graph import edges_of_networkx
from tests.support.layer_checks import to_numpy
from tests.support.sentences import write_conllu
from tf_relpos import edge_relations

pytestmark = pytest.mark.tensorflow_only

KINDS = {"likes": 0, "knows": 1}


@pytest.mark.parametrize("is_directed", [True, False])
@pytest.mark.parametrize("is_multi", [True, False])
def test_graphs_of_networkx(is_multi, is_directed):
    graph = (networkx.MultiDiGraph if is_multi else networkx.DiGraph)()
    if not is_directed:
        graph = graph.to_undirected()
    graph.add_nodes_from("cab")
    graph.add_edge("c", "b", label="likes")
    if is_multi:
        graph.add_edge("c", "b", label="knows")
    graph.add_edge("a", "a", label="knows")
    edges = {tuple(edge) for edge in edges_of_networkx(graph, KINDS).tolist()}
    expected = {(0, 2, 0), (1, 1, 1)} | ({(0, 2, 1)} if is_multi else set())
    if not is_directed:
        expected |= {(j, i, label) for i, j, label in expected}
    assert edges == expected


def test_a_label_of_networkx_without_a_number_is_refused():
    graph = networkx.path_graph(2)
    with pytest.raises(InputError, match="label of an edge must be one of likes, knows, got None"):
        edges_of_networkx(graph, KINDS)
    assert edges_of_networkx(networkx.empty_graph(2), KINDS).shape == (0, 3)


def test_the_answer_is_three_hops_away():
    task = family_task(5, 2, seed=3)
    assert len(task.train) == 5 and len(task.test) == 2
    for graph in (*task.train, *task.test):
        hops = {(child, label): parent for child, parent, label in graph.edges.tolist()}
        mother, father = map(LABELS.index, ("mother", "father"))
        asked = np.flatnonzero(graph.targets >= 0)
        assert len(asked) >= 4
        for person in asked:
            who = hops[hops[hops[person, mother], father], mother]
            assert graph.names[who] == COLOURS[graph.targets[person]]
    again = family_task(5, 2, seed=3)
    np.testing.assert_array_equal(again.test[1].edges, task.test[1].edges)


def test_look_up_tables(tmp_path):
    """Articles tell common nouns from proper ones: the children's labels tell them apart."""
    path = str(write_conllu(tmp_path / "text.conllu", 300))
    task = read_task(path, None, 0.5)
    frequent, own, around = baselines(task.train, task.test).values()
    targets = np.concatenate([graph.targets for graph in task.train])
    most = np.bincount(targets).argmax()
    asked = np.concatenate([graph.targets for graph in task.test])
    assert frequent == np.mean(asked == most)
    assert frequent < own < around <= 1


def test_a_plan_has_each_graph_once():
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 20]
    plans = [plan(sizes, 12, seed) for seed in (None, (1, 0), (1, 1), (1, 0))]
    for found in plans:
        assert sorted(np.concatenate(found)) == [*range(len(sizes))]
        assert len(found) == len(plans[0])
        for batch in found:
            assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= 12
    same = [np.concatenate(found).tolist() for found in plans]
    assert same[1] == same[3] != same[2]


@pytest.mark.parametrize("relations", ["graph", "order", "both", "none"])
def test_batches_are_padded_graphs(relations):
    task = family_task(5, 0, seed=1)
    E = len(task.labels)
    R = num_relations(E, relations)
    seen = 0
    for inputs, targets, weights in batches(task.train, E, relations, 60):
        for i, nodes in enumerate(inputs["nodes"].numpy()):
            T = np.count_nonzero(nodes)
            (graph,) = (g for g in task.train if np.array_equal(g.nodes, nodes[:T]))
            seen += 1
            found = inputs["relations"][i, :T, :T].numpy()
            assert found.max() == (R - 1 if relations != "none" else -1)
            of_graph = edge_relations(graph.edges, T, E, inverse=True, self_loops=True)
            distance = np.subtract.outer(-np.arange(T), -np.arange(T))
            order = np.clip(distance, -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
            expected = {
                "graph": to_numpy(of_graph),
                "order": order,
                "both": np.stack([to_numpy(of_graph), order + 2 * E + 1], -1),
                "none": np.full((T, T), -1),
            }
            np.testing.assert_array_equal(found, expected[relations])
            np.testing.assert_array_equal(weights[i, :T], graph.targets >= 0)
            assert not np.any(weights[i, T:])
            known = graph.targets >= 0
            np.testing.assert_array_equal(targets[i, :T][known], graph.targets[known])
    assert seen == 5
