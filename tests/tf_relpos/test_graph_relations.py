"""Labels of graphs: against loops, and against networkx where there are paths."""

import keras
import networkx
import numpy as np
import pytest
from keras import ops

from tests.support.layer_checks import (
    BACKEND,
    COMPILED_MODES,
    MODES,
    assert_close,
    compile_function,
    to_numpy,
)
from tf_relpos import (
    RelationAwareAttention,
    edge_relations,
    joint_relations,
    path_relations,
    stack_relations,
)

B, T, M, E = 2, 7, 11, 5
PADDING = (-1, -1, -1)


def random_edges(rng):
    """Of each graph a list of another length, padded; no pair twice."""
    edges = np.full((B, M, 3), -1, "int32")
    for graph, size in zip(edges, (M, 5), strict=True):
        pairs = rng.choice(T * T, size, replace=False)
        graph[:size] = np.stack([pairs // T, pairs % T, rng.integers(0, E, size)], 1)
    return edges


def labels_of(edges, inverse=False, self_loops=False):
    """A set of labels for each pair, [T, T]."""
    found = [[set() for _ in range(T)] for _ in range(T)]
    for i, j, label in edges:
        if min(i, j, label) >= 0:
            found[i][j].add(int(label))
            if inverse and i != j:
                found[j][i].add(int(label) + E)
    for i in range(T if self_loops else 0):
        found[i][i] = found[i][i] or {2 * E if inverse else E}
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_edges_become_labels(rng, self_loops, inverse, mode):
    edges = random_edges(rng)
    options = {"inverse": inverse, "self_loops": self_loops, "labels_per_edge": 3}

    def call(tensors):
        return edge_relations(tensors["edges"], T, E, **options)

    run = compile_function(call, mode, {"edges": edges}, {"edges": (None, None, 3)})
    found = run({"edges": edges})
    assert found.shape == (B, T, T, 3) and found.dtype == "int32"
    for graph, own in zip(found, edges, strict=True):
        for row, expected in zip(graph, labels_of(own, inverse, self_loops), strict=True):
            assert [set(pair[pair >= 0].tolist()) for pair in row] == expected
    np.testing.assert_array_equal(to_numpy(edge_relations(edges[1], T, E, **options)), found[1])


def test_one_label_a_pair_needs_no_axis_of_its_own():
    """Node 0 is the parent of 1 and 2."""
    parent = [(0, 1, 0), (0, 2, 0), PADDING]
    expected = [[2, 0, 0, -1], [1, 2, -1, -1], [1, -1, 2, -1], [-1, -1, -1, 2]]
    found = edge_relations(parent, 4, 1, inverse=True, self_loops=True)
    np.testing.assert_array_equal(to_numpy(found), expected)


def test_several_labels_of_a_pair_are_the_largest_first():
    edges = [(0, 1, 2), (0, 1, 4), (0, 1, 2), (1, 0, 3)]
    found = to_numpy(edge_relations(edges, 2, E, labels_per_edge=2))
    np.testing.assert_array_equal(found, [[[-1, -1], [4, 2]], [[3, -1], [-1, -1]]])


@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_what_cannot_be_known_is_left_out(mode):
    """Beyond the nodes, beyond the labels, beyond the room."""
    edges = np.array([[(0, 1, 0), (0, 1, 1), (2, 0, 0), (0, 2, 0), (1, 0, 2)]], "int32")

    def call(tensors):
        return edge_relations(tensors["edges"], 2, 2, inverse=True)

    found = compile_function(call, mode, {"edges": edges})({"edges": edges})
    np.testing.assert_array_equal(found, [[[-1, 1], [3, -1]]])


BAD = {
    "node": ([(0, 7, 0)], {}, r"length=7.*\(0, 7, 0\)"),
    "label": ([(0, 1, 5)], {}, r"num_labels=5.*\(0, 1, 5\)"),
    "two_on_a_pair": ([(0, 1, 1), (0, 1, 2)], {}, "at most 1 different labels"),
    "floats": ([(0.0, 1.0, 1.0)], {}, "integers.*float"),
    "pairs": ([(0, 1)], {}, r"\[M, 3\].*\(1, 2\)"),
    "ragged": ([[(0, 1, 0)], [(0, 1, 0), (1, 2, 0)]], {}, "padded with negative.*different leng"),
    "text": ([("a", "b", "c")], {}, "`edges` must hold integers"),
    "nothing": (None, {}, "`edges` must hold integers"),
    "length": ([(0, 1, 0)], {"length": 2.5}, "`length` must be a whole number.*2.5"),
    "below": ([(0, 1, 0)], {"length": -1}, "`length` must be a whole number.*-1"),
    "inverse": ([(0, 1, 0)], {"inverse": "no"}, "`inverse` must be .*'no'"),
    "loops": ([(0, 1, 0)], {"self_loops": "no"}, "`self_loops` must be .*'no'"),
    "no_labels": ([(0, 1, 0)], {"num_labels": 0}, "num_labels"),
    "no_room": ([(0, 1, 0)], {"labels_per_edge": 0}, "labels_per_edge"),
}


@pytest.mark.parametrize("edges, options, message", BAD.values(), ids=BAD.keys())
def test_bad_edges_are_refused(edges, options, message):
    with pytest.raises(ValueError, match=message):
        edge_relations(edges, **{"length": T, "num_labels": E, **options})


def test_lists_without_an_edge():
    assert np.all(to_numpy(edge_relations([], T, E)) == -1)
    found = to_numpy(edge_relations([[], []], T, E, self_loops=True))
    np.testing.assert_array_equal(found, np.stack([np.where(np.eye(T), E, -1)] * 2))


@pytest.mark.tensorflow_only
def test_padded_batches_of_tf_data(rng):
    import tensorflow as tf

    sizes = (4, 7, 3)
    graphs = [[(i, i + 1, i % 2) for i in range(size - 1)] for size in sizes]
    data = tf.data.Dataset.from_generator(
        lambda: iter(graphs), output_signature=tf.TensorSpec([None, 3], "int32")
    )
    padded = data.padded_batch(3, padding_values=-1)

    def labelled(edges):
        relations = edge_relations(edges, tf.shape(edges)[1] + 1, 2, inverse=True)
        return relations, path_relations(relations, 2)

    ((relations, paths),) = padded.map(labelled)
    assert relations.shape == (3, 7, 7)
    for size, edges, found, path in zip(sizes, graphs, relations, paths, strict=True):
        expected = to_numpy(edge_relations(edges, size, 2, inverse=True))
        np.testing.assert_array_equal(found[:size, :size], expected)
        np.testing.assert_array_equal(path[:size, :size], to_numpy(path_relations(expected, 2)))
        assert not np.any(found[size:] >= 0)


class Labels(keras.layers.Layer):
    def call(self, edges):
        return edge_relations(edges, T, E, inverse=True, labels_per_edge=2)

    def compute_output_spec(self, edges):
        return keras.KerasTensor((edges.shape[0], T, T, 2), "int32")


@pytest.mark.tensorflow_only
def test_a_model_of_edges_is_exported_to_litert(rng, tmp_path):
    """Several labels on an edge, a mask, and tables of each head."""
    from ai_edge_litert.interpreter import Interpreter

    x, edges = keras.Input((T, 3)), keras.Input((M, 3), dtype="int32")
    relations = Labels()(edges)
    seen = ops.any(relations >= 0, -1)
    layer = RelationAwareAttention(3, 2, 2 * E, heads_share_relations=False)
    model = keras.Model([x, edges], layer(x, x, relations=relations, attention_mask=seen))
    arrays = rng.normal(size=(1, T, 3)).astype("float32"), random_edges(rng)[:1]
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    runner = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    by_type = {array.dtype: array for array in arrays}
    inputs = {name: by_type[np.dtype(d["dtype"])] for name, d in runner.get_input_details().items()}
    (output,) = runner(**inputs).values()
    assert_close(output, model([*arrays]))
    with pytest.raises(ValueError, match="`call` of a layer"):
        edge_relations(edges, T, E)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 3, 9])
def test_paths_are_those_of_networkx(rng, k, mode):
    relations = np.where(rng.random((B, T, T)) < 0.15, rng.integers(0, E, (B, T, T)), -1)
    relations = relations.astype("int32")
    relations[0, :6, :] = -1
    relations[0, range(5), range(1, 6)] = 0  # a chain of five edges

    def call(tensors):
        return path_relations(tensors["relations"], k)

    shapes = {"relations": (None, None, None) if mode != "xla" else relations.shape}
    run = compile_function(call, mode, {"relations": relations}, shapes)
    found = run({"relations": relations})
    expected = np.full((B, T, T), -1)
    for labels, own in zip(relations, expected, strict=True):
        graph = networkx.from_numpy_array(labels >= 0, create_using=networkx.DiGraph)
        for i, lengths in networkx.all_pairs_shortest_path_length(graph):
            for j, length in lengths.items():
                own[i, j] = min(length, k)
    np.testing.assert_array_equal(found, expected)
    several = np.stack([relations, np.full_like(relations, -1)], -1)
    np.testing.assert_array_equal(to_numpy(path_relations(several, k)), found)


@pytest.mark.parametrize("mode", MODES)
def test_a_path_has_no_more_edges_than_there_are_nodes(mode):
    """However far a path may be: clipping at more takes no longer."""
    chain = np.array([[-1, 0, -1], [-1, -1, 0], [-1, -1, -1]])
    run = compile_function(
        lambda t: path_relations(t["relations"], 2**40), mode, {"relations": chain}
    )
    expected = [[0, 1, 2], [-1, 0, 1], [-1, -1, 0]]
    np.testing.assert_array_equal(to_numpy(run({"relations": chain})), expected)


@pytest.mark.parametrize("least", [-(2**32), np.iinfo("int64").min])
def test_negative_labels_are_no_edge_however_wide(least):
    if BACKEND == "jax":
        pytest.skip("it has no int64 unless a whole process is told to")
    none = np.full((2, 2), least)
    assert np.all(to_numpy(edge_relations(np.array([[least, 1, 0]]), 2, 1)) == -1)
    assert np.all(to_numpy(stack_relations([none], [3])) == -1)
    assert np.all(to_numpy(joint_relations(none, np.full((2, 2), -1), 3)) == -1)
    assert np.all(to_numpy(joint_relations(np.full((2, 2), -1), none, 3)) == -1)


def test_labels_of_several_kinds_stand_side_by_side(rng):
    graph = rng.integers(-1, E, (B, T, T), dtype="int32")
    several = rng.integers(-1, 3, (B, T, T, 2), dtype="int32")
    positions = rng.integers(-1, 4, (T, T), dtype="int32")
    found = to_numpy(stack_relations([graph, positions, several], [E, 4, 3]))
    assert found.shape == (B, T, T, 4)
    np.testing.assert_array_equal(found[..., 0], graph)
    for b in range(B):
        np.testing.assert_array_equal(found[b, ..., 1], np.where(positions < 0, -1, E + positions))
    np.testing.assert_array_equal(found[..., 2:], np.where(several < 0, -1, E + 4 + several))
    assert stack_relations([positions, positions], [4, 4]).shape == (1, T, T, 2)
    with pytest.raises(ValueError, match="num_relations"):
        stack_relations([graph, positions], [E, 0])


def test_labels_of_several_kinds_in_a_functional_model(rng):
    graph = keras.Input((None, None), dtype="int32")
    positions = rng.integers(0, 4, (T, T), dtype="int32")
    model = keras.Model(graph, stack_relations([graph, positions], [E, 4]))
    labels = rng.integers(-1, E, (B, T, T), dtype="int32")
    expected = to_numpy(stack_relations([labels, positions], [E, 4]))
    np.testing.assert_array_equal(to_numpy(model(labels)), expected)


def test_joint_labels_tell_all_combinations_apart():
    F, S = 3, 4
    first, second = np.meshgrid(range(-1, F), range(-1, S), indexing="ij")
    found = to_numpy(joint_relations(first, second, S))
    assert sorted(found.ravel().tolist()) == list(range(-1, (F + 1) * (S + 1) - 1))
    assert found[0, 0] == -1
    batched = joint_relations(np.stack([first, first]), second, S)
    np.testing.assert_array_equal(to_numpy(batched), np.stack([found, found]))
    for first, second, size in ((46338, 46339, 46340), (2**30 - 2, 0, 1)):
        expected = (first + 1) * (size + 1) + second
        assert 2**31 - 46341 < expected < 2**31
        assert int(joint_relations([[first]], [[second]], size)[0, 0]) == expected


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: stack_relations([np.full((3, 3), 0.7)], [2]), "`relations` must hold integer"),
        (
            lambda: stack_relations([np.zeros(3, int)], [2]),
            r"`relations` must have the shape.*\(3,",
        ),
        (lambda: stack_relations([[[0]], [[1]]], [3]), r"`num_relations` must have .*\[3\] for 2"),
        (lambda: joint_relations([[0.5]], [[1]], 2), "`first` must hold integer labels"),
        (lambda: joint_relations(None, [[1]], 2), "`first` must hold integer labels"),
        (lambda: path_relations([["a"]], 2), "must hold integer labels. Received: dtype=<U1"),
        (lambda: joint_relations([[0]], [[[[1]]]], 2), "`second` must have the shape"),
        (lambda: path_relations([0, 1], 2), r"`relations` must have the shape.*\(2,\)"),
        (
            lambda: path_relations(keras.Input((T, T), dtype="int32"), 2),
            "`relations` must be an array .*in the `call` of a layer",
        ),
        (lambda: path_relations([[0, 1, 1]], 2), r"`relations` must have the shape.*\(1, 3\)"),
        (lambda: path_relations(np.zeros((2, 1, 3, 1), int), 2), r"`relations` .*\(2, 1, 3, 1\)"),
        (lambda: stack_relations([[[0]]], 3), "`num_relations` must have a number for each.*3 for"),
        (lambda: stack_relations([], []), "`num_relations` must have a number .* for 0"),
        (lambda: stack_relations([[[0]], [[0]]], [1.5, 1]), "`num_relations` must be .*1.5"),
        (
            lambda: stack_relations([[[0]], [[0, 0]]], [1, 1]),
            "`relations` must have the same T",
        ),
        (
            lambda: stack_relations([np.zeros((2, 1, 1), int), np.zeros((4, 1, 1), int)], [1, 1]),
            r"`relations` must have the same B, or 1. Received: shapes .*\(4, 1, 1\)",
        ),
        (
            lambda: joint_relations(np.zeros((2, 1, 1), int), np.zeros((3, 1, 1), int), 1),
            "`first` and `second` must have the same B, or 1",
        ),
        (lambda: stack_relations(None, [1]), "`relations` must be labels of each kind.*None"),
        (
            lambda: joint_relations([[46339]], [[0]], 46340),
            r"`first` must be below 2\^31 / \(num_second \+ 1\) - 1=46339.*a label 46339",
        ),
        (
            lambda: stack_relations([[[7]], [[0]]], [1, 1]),
            "`relations` must be below num_relations=1.*label 7",
        ),
        (lambda: joint_relations([[0]], [[0], [0]], 1), "`first` and `second` must have the same"),
        (
            lambda: joint_relations([[0]], [[5]], 2),
            "`second` must be below num_second=2.*a label 5",
        ),
    ],
)
def test_labels_that_are_none_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.tensorflow_only
def test_sparse_labels_are_refused():
    import tensorflow as tf

    sparse = tf.sparse.from_dense(np.ones((2, 2), int))
    x = np.zeros((1, 2, 4), "float32")
    for call in (
        lambda: stack_relations([sparse], [2]),
        lambda: path_relations(sparse, 2),
        lambda: RelationAwareAttention(1, 4, 2)(x, x, relations=sparse),
    ):
        with pytest.raises(ValueError, match=r"must be dense; .*default_value=-1.*SparseTensor"):
            call()


def test_numbers_of_labels_may_be_numpy_s():
    labels = np.zeros((1, 1), "int64")
    joint = joint_relations(labels, labels, np.int64(2))
    assert to_numpy(joint).tolist() == [[3]]
    stacked = stack_relations([labels, labels], [np.int64(2), np.int32(3)])
    assert to_numpy(stacked).tolist() == [[[[0, 2]]]]


@pytest.mark.parametrize("floatx", ["float16", "bfloat16", "float64"])
def test_paths_whatever_floats_are_by_default(floatx):
    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        found = to_numpy(path_relations([[-1, 0], [-1, -1]], 1))
    finally:
        keras.config.set_floatx(before)
    np.testing.assert_array_equal(found, [[0, 1], [-1, 0]])


def test_labels_may_be_lists():
    labels = [[0, 1], [1, -1]]
    expected = to_numpy(stack_relations([np.array(labels), np.array(labels)], [2, 2]))
    np.testing.assert_array_equal(to_numpy(stack_relations([labels, labels], [2, 2])), expected)
    expected = to_numpy(path_relations(np.array(labels), 2))
    np.testing.assert_array_equal(to_numpy(path_relations(labels, 2)), expected)


@pytest.mark.tensorflow_only
def test_the_length_of_a_graph_may_be_of_any_integers(rng):
    import tensorflow as tf

    edges = random_edges(rng)
    expected = to_numpy(edge_relations(edges, T, E))
    for edge_type, length_type in (("int64", "int32"), ("int32", "int64")):
        found = edge_relations(edges.astype(edge_type), tf.constant(T, length_type), E)
        np.testing.assert_array_equal(found, expected)
