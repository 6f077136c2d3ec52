"""Section 3.3: both exact implementations against the loops of the oracle, values and gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.support import reference
from tests.support.layer_checks import (
    MODES,
    assert_close,
    compile_function,
    gradient_function,
    to_numpy,
)
from tf_relpos import fused_passes, label_sums, relation_ops, transpose_reshape
from tf_relpos.relation_ops import choose_implementation
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import heads_first, heads_last

IMPLEMENTATIONS = ["transpose_reshape", "bucketed", "auto"]
LAYOUTS = {"shared": (), "per_head": (3,)}
B, T, S, N, H, R = 2, 5, 7, 3, 11, 13
FORMS = {
    "pair": (T, S),
    "batch": (B, T, S),
    "several": (B, T, S, 4),
    "one_of_several": (B, T, S, 1),
}


def relation_scores(query, *arguments):
    """As the oracle takes and gives it, with sentences first."""
    return ops.swapaxes(relation_ops.relation_scores(heads_first(query), *arguments), 0, 1)


def relation_values(weights, *arguments):
    """Likewise."""
    weights = ops.swapaxes(weights, 0, 1)
    return heads_last(relation_ops.relation_values(weights, *arguments))


OPERATIONS = {
    "scores": (relation_scores, reference.relation_scores, (B, T, N, H), (B, N, T, S)),
    "values": (relation_values, reference.relation_values, (B, N, T, S), (B, T, N, H)),
}

# One row for all sentences and heads, rows of N, or numbers where they are. Functions that a graph
# has once have the first, too.
PICKING = pytest.mark.parametrize("picking", ["row", "rows", "in_place"])
# Which labels are picked from is not asked where vectors of all pairs are made.
WAYS = pytest.mark.parametrize(
    ("implementation", "picking"),
    [
        ("transpose_reshape", "row"),
        ("bucketed", "row"),
        ("bucketed", "rows"),
        ("bucketed", "in_place"),
        pytest.param("bucketed", "once", marks=pytest.mark.tensorflow_only),
    ],
)


def pick_by(picking, monkeypatch):
    monkeypatch.setattr(label_sums, "picks_in_place", lambda: picking == "in_place")
    if picking == "rows":
        monkeypatch.setattr(label_sums, "CACHE_LINE", 4 * N)
    if picking == "once":
        monkeypatch.setattr(fused_passes, "are_fused", lambda: True)


def operands(rng, operation, layout, form, lowest=-1):
    shape, result = OPERATIONS[operation][2:]
    return {
        "x": rng.normal(size=shape).astype("float32"),
        "relations": rng.integers(lowest, R, FORMS[form], dtype="int32"),
        "table": rng.normal(size=(*LAYOUTS[layout], R, H)).astype("float32"),
        "upstream": rng.normal(size=result).astype("float32"),
    }


def complex_step(function, x, upstream, count, rng):
    """Derivatives of `sum(upstream * function(x))` by `count` random elements of x: exact."""
    for _ in range(count):
        index = tuple(rng.integers(0, size) for size in x.shape)
        moved = x.astype("complex128")
        moved[index] += 1e-30j
        yield index, np.sum(upstream * function(moved)).imag / 1e-30


def expected_gradients(operation, arrays):
    """Both operations are linear in x and in the table, so each gradient is the other operation."""
    x, relations, table, upstream = (
        arrays[name].astype("float64") if name != "relations" else arrays[name]
        for name in ("x", "relations", "table", "upstream")
    )
    twin = reference.relation_values if operation == "scores" else reference.relation_scores
    by_table = np.zeros(table.shape)
    weights, vectors = (upstream, x) if operation == "scores" else (x, upstream)
    for b, n, i, j in np.ndindex(weights.shape):
        for label in reference._labels(relations, b, i, j):
            reference._row(by_table, n, label)[:] += weights[b, n, i, j] * vectors[b, i, n]
    return {"x": twin(upstream, relations, table), "table": by_table}


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_values_and_gradients_equal_the_oracle(rng, operation, form, layout, implementation):
    function, oracle = OPERATIONS[operation][:2]
    arrays = operands(rng, operation, layout, form)

    def call(tensors):
        return function(tensors["x"], tensors["relations"], tensors["table"], implementation)

    run = compile_function(gradient_function(call, ["x", "table"]), "eager", arrays)
    output, gradients = run(arrays)
    assert_close(output, oracle(arrays["x"], arrays["relations"], arrays["table"]))
    expected = expected_gradients(operation, arrays)
    for name in ("x", "table"):
        assert_close(gradients[name], expected[name])


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("layout,form", [("shared", "pair"), ("per_head", "several")])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_compiled_with_unknown_lengths(rng, operation, layout, form, implementation, mode):
    function, oracle = OPERATIONS[operation][:2]
    arrays = operands(rng, operation, layout, form)
    vectors, weights = (None, None, N, H), (None, N, None, None)
    shapes = {"table": arrays["table"].shape, "x": vectors, "upstream": weights}
    if operation == "values":
        shapes.update(x=weights, upstream=vectors)

    def call(tensors):
        return function(tensors["x"], tensors["relations"], tensors["table"], implementation)

    run = compile_function(gradient_function(call, ["x", "table"]), mode, arrays, shapes)
    output, gradients = run(arrays)
    assert_close(output, oracle(arrays["x"], arrays["relations"], arrays["table"]))
    expected = expected_gradients(operation, arrays)
    for name in ("x", "table"):
        assert_close(gradients[name], expected[name])


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["pair", "batch", "several"])
def test_no_label_adds_nothing(rng, form, layout, implementation):
    for operation, (function, *_) in OPERATIONS.items():
        arrays = operands(rng, operation, layout, form)
        arrays["relations"][:] = -1
        result = function(arrays["x"], arrays["relations"], arrays["table"], implementation)
        assert not np.any(to_numpy(result))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("mode", MODES)
def test_labels_of_any_integer_type_and_above_the_table(rng, mode, implementation, dtype):
    """Labels of R and above add nothing, as far as the type reaches."""
    lowest = 0 if dtype.startswith("u") else -1
    for operation, (function, oracle, *_) in OPERATIONS.items():
        arrays = operands(rng, operation, "per_head", "batch", lowest=lowest)
        labels = arrays["relations"]
        labels[0, 0, :2] = R, 127

        def call(tensors, function=function):
            return function(tensors["x"], tensors["relations"], tensors["table"], implementation)

        known = {name: x.shape for name, x in arrays.items()}
        arrays["relations"] = labels.astype(dtype)
        actual = compile_function(call, mode, arrays, known)(arrays)
        labels[labels >= R] = -1
        assert_close(actual, oracle(arrays["x"], labels, arrays["table"]))


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
def test_a_label_given_twice_counts_twice(rng, implementation):
    arrays = operands(rng, "scores", "per_head", "batch", lowest=0)
    x, labels, table = arrays["x"], arrays["relations"], arrays["table"]
    once = to_numpy(relation_scores(x, labels, table, implementation))
    twice = relation_scores(x, np.stack([labels, labels], -1), table, implementation)
    assert_close(twice, 2 * once)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "are_wanted", [False, pytest.param(True, marks=pytest.mark.tensorflow_only)]
)
def test_what_is_added_to_pairs(rng, are_wanted, dtype):
    """Within `fused_passes` sums are not rounded to half precision."""
    positions = RelativePositions(T, S, 2, 0)
    per_pair, per_label, upstream = (
        to_numpy(ops.cast(ops.cast(rng.normal(size=(N, B, T, columns)), dtype), "float32"))
        for columns in (S, 5, S)
    )

    def call(tensors):
        pair, label = (ops.cast(tensors[name], dtype) for name in ("pair", "label"))
        with fused_passes.fused_passes(are_wanted):
            return ops.cast(label_sums.add_by_label(pair, label, positions), "float32")

    arrays = {"pair": per_pair, "label": per_label, "upstream": upstream}
    gradients = gradient_function(call, ["pair", "label"])
    found, by = compile_function(gradients, "graph", arrays)(arrays)
    ids = np.broadcast_to(reference.position_labels(T, S, 2), (N, B, T, S))
    tolerance = 1e-6 if dtype == "float32" else 0.02
    expected = per_pair + np.take_along_axis(per_label, ids, -1)
    assert_close(found, expected, 1e-6 if are_wanted else tolerance)
    by_label = np.stack([np.sum(upstream * (ids == label), axis=-1) for label in range(5)], -1)
    assert_close(by["pair"], upstream, tolerance)
    assert_close(by["label"], by_label, tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "queries,keys,k,offset",
    [(1, 1, 0, 0), (1, 7, 3, 4), (7, 1, 40, 0), (19, 23, 2, 3), (5, 3, 11, 0), (3, 3, 9, -6)],
)
@pytest.mark.parametrize("mode", MODES)
@WAYS
def test_positions(
    rng, monkeypatch, picking, mode, queries, keys, k, offset, layout, implementation
):
    """Lengths on either side of the clipping distance, k up to beyond the longest distance."""
    pick_by(picking, monkeypatch)
    vectors, weights = (B, queries, N, H), (B, N, queries, keys)
    table = rng.normal(size=(*LAYOUTS[layout], 2 * k + 1, H)).astype("float32")
    labels = reference.position_labels(queries, keys, k, offset)
    for operation, (function, oracle, *_) in OPERATIONS.items():
        shape, result = (vectors, weights) if operation == "scores" else (weights, vectors)
        arrays = {
            "x": rng.normal(size=shape).astype("float32"),
            "table": table,
            "upstream": rng.normal(size=result).astype("float32"),
        }

        def call(tensors, operation=operation, function=function):
            whole = "upstream" if operation == "scores" else "x"
            T, S = keras.ops.shape(tensors[whole])[2:]
            positions = RelativePositions(T, S, k, offset)
            return function(tensors["x"], positions, tensors["table"], implementation)

        unknown = {vectors: (None, None, N, H), weights: (None, N, None, None)}
        shapes = {"x": unknown[shape], "upstream": unknown[result], "table": table.shape}
        run = compile_function(gradient_function(call, ["x", "table"]), mode, arrays, shapes)
        output, gradients = run(arrays)
        assert_close(output, oracle(arrays["x"], labels, table))
        expected = expected_gradients(operation, {**arrays, "relations": labels})
        for name in ("x", "table"):
            assert_close(gradients[name], expected[name])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "queries,keys,k,offset", [(1, 1, 0, 0), (7, 9, 2, 1), (5, 5, 11, 0), (9, 9, 3, 0), (3, 8, 2, 5)]
)
@pytest.mark.parametrize("mode", MODES)
@WAYS
def test_positions_that_are_causal(
    rng, monkeypatch, picking, mode, queries, keys, k, offset, layout, implementation
):
    """Of the pairs that are seen all is the same, without the labels of the others."""
    pick_by(picking, monkeypatch)
    vectors, weights = (B, queries, N, H), (B, N, queries, keys)
    is_seen = np.arange(keys) <= np.arange(queries)[:, None] + offset
    labels = reference.position_labels(queries, keys, k, offset)
    table = rng.normal(size=(*LAYOUTS[layout], 2 * k + 1, H)).astype("float32")
    in_use = table[..., : k + 1, :]
    positions = RelativePositions(queries, keys, k, offset, is_causal=True)
    for operation, (function, oracle, *_) in OPERATIONS.items():
        shape, result = (vectors, weights) if operation == "scores" else (weights, vectors)
        arrays = {"x": rng.normal(size=shape), "upstream": rng.normal(size=result), "table": in_use}
        arrays["upstream" if operation == "scores" else "x"] *= is_seen
        arrays = {name: array.astype("float32") for name, array in arrays.items()}
        seen = {**arrays, "table": table, "relations": labels}
        expected = expected_gradients(operation, seen)
        expected["table"] = expected["table"][..., : k + 1, :]
        expected["output"] = oracle(arrays["x"], labels, table)

        def call(tensors, function=function):
            return function(tensors["x"], positions, tensors["table"], implementation)

        for on_gpu in {False, implementation == "transpose_reshape"}:
            monkeypatch.setattr(transpose_reshape, "has_gpu", lambda on_gpu=on_gpu: on_gpu)
            run = compile_function(gradient_function(call, ["x", "table"]), mode, arrays)
            output, gradients = run(arrays)
            for name, array in {"output": output, **gradients}.items():
                of_pairs = is_seen if array.shape == weights else True
                assert_close(to_numpy(array) * of_pairs, expected[name] * of_pairs)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("dtype,line", [("float32", 16), ("bfloat16", 32)])
@pytest.mark.parametrize("lengths", ["known", "unknown"])
def test_rows_are_a_cache_line_long_or_half_of_one(rng, lengths, dtype, line):
    """Or hold all, where neither divides these; and what is picked, or added, is the same."""
    import tensorflow as tf

    positions = RelativePositions(T, S, 2)
    for heads, batch, length in [
        (4, line // 2, line),
        (3, line // 2, line // 2),
        (3, line, line),
        (3, 2, 6),
        (1, 0, line),
    ]:
        per_label = tf.cast(rng.normal(size=(heads, batch, T, 5)), dtype)

        def found(x):
            pairs = label_sums.pick_by_label(x, positions)
            return label_sums._row_sizes(x), pairs, label_sums.sum_by_label(pairs, positions, 5)

        shape = per_label.shape if lengths == "known" else (None, None, None, None)
        run = tf.function(found, input_signature=[tf.TensorSpec(shape, dtype)])
        sizes, pairs, sums = run(per_label)
        assert [int(size) for size in sizes] == [heads * batch // length, length]
        labels = np.asarray(positions.ids)
        expected = np.asarray(tf.cast(per_label, "float32"))
        expected = expected[:, :, np.arange(T)[:, None], labels]
        np.testing.assert_array_equal(tf.cast(pairs, "float32"), expected)
        one_hot = np.eye(5)[labels]
        assert_close(
            tf.cast(sums, "float32"),
            np.einsum("nbts,tsr->nbtr", expected, one_hot),
            tolerance=1e-5 if dtype == "float32" else 0.03,
        )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("are_wanted", [False, True])
def test_all_layers_call_what_picks_and_what_adds_up(rng, are_wanted):
    """Two functions, whatever the number of layers, forward and backward."""
    import tensorflow as tf

    table = tf.constant(rng.normal(size=(R, H)).astype("float32"))

    def gradient(x):
        with tf.GradientTape() as tape, fused_passes.fused_passes(are_wanted):
            tape.watch(x)
            y = x
            for _ in range(3):
                positions = RelativePositions(T, T, R // 2)
                scores = relation_ops.relation_scores(y, positions, table, "bucketed")
                y = relation_ops.relation_values(scores, positions, table, "bucketed")
            total = tf.reduce_sum(y)
        with fused_passes.fused_passes(are_wanted):
            return tape.gradient(total, x)

    unknown = tf.TensorSpec([N, None, T, H])
    graph = tf.function(gradient).get_concrete_function(unknown).graph.as_graph_def()
    called = [call.attr["f"].func.name for call in graph.node if call.op == "PartitionedCall"]
    assert len(called) == (12 if are_wanted else 0)
    assert len(set(called)) == (2 if are_wanted else 0)
    assert (len(graph.node) < 300) == are_wanted, len(graph.node)


@WAYS
def test_no_keys_add_nothing(rng, monkeypatch, picking, implementation):
    pick_by(picking, monkeypatch)
    positions = RelativePositions(3, 0, 2, 0)
    table = keras.ops.convert_to_tensor(rng.normal(size=(5, H)).astype("float32"))
    weights = keras.ops.zeros((B, N, 3, 0))
    result = relation_values(weights, positions, table, implementation)
    assert_close(result, np.zeros((B, 3, N, H)))
    query = keras.ops.convert_to_tensor(rng.normal(size=(B, 3, N, H)).astype("float32"))
    assert relation_scores(query, positions, table, implementation).shape == (B, N, 3, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("form", ["positions", "pair", "batch"])
@PICKING
def test_sums_in_half_precision_lose_nothing_small(monkeypatch, picking, form, k, dtype):
    """4096 weights of 1/4096 sum to 1, where bfloat16 alone would stop at 2^-4 or so, and float16
    at a half."""
    pick_by(picking, monkeypatch)
    length = 4096
    labels = np.zeros((1, length) if form == "pair" else (B, 1, length), "int32")
    relations = RelativePositions(1, length, k, length) if form == "positions" else labels
    weights = keras.ops.full((B, N, 1, length), 1 / length, dtype)
    table = keras.ops.ones((2 * k + 1, 1), dtype)
    result = relation_values(weights, relations, table, "bucketed")
    assert_close(keras.ops.cast(result, "float32"), np.ones((B, 1, N, 1)), tolerance=1e-2)


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["positions", "pair", "batch"])
def test_gradients_of_tables_in_half_precision_lose_nothing_small(layout, form, implementation):
    """Each label is that of thousands of pairs, of which bfloat16 would add up some hundred."""
    length, num_labels = 96, 3
    labels = reference.position_labels(length, length, 1)
    relations = {
        "positions": RelativePositions(length, length, 1),
        "pair": labels.astype("int32"),
        "batch": labels[None].astype("int32"),
    }[form]
    arrays = {
        "x": np.ones((1, length, N, 1), "float32"),
        "table": np.ones((*LAYOUTS[layout], num_labels, 1), "float32"),
        "upstream": np.ones((1, N, length, length), "float32"),
    }

    def call(tensors):
        x, table = (ops.cast(tensors[name], "bfloat16") for name in ("x", "table"))
        return ops.cast(relation_scores(x, relations, table, implementation), "float32")

    run = compile_function(gradient_function(call, ["table"]), MODES[0], arrays)
    _, gradients = run(arrays)
    count = np.bincount(labels.ravel(), minlength=num_labels)[:, None]
    expected = np.broadcast_to(count * (N if layout == "shared" else 1), arrays["table"].shape)
    assert_close(gradients["table"] / expected, np.ones(expected.shape), tolerance=0.02)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_half_precision_keeps_its_dtype(rng, implementation):
    for operation, (function, *_) in OPERATIONS.items():
        arrays = operands(rng, operation, "shared", "pair")
        x, table = (keras.ops.cast(arrays[name], "bfloat16") for name in ("x", "table"))
        result = function(x, arrays["relations"], table, implementation)
        assert keras.backend.standardize_dtype(result.dtype) == "bfloat16"


def test_unknown_implementation_is_refused(rng):
    for operation, (function, *_) in OPERATIONS.items():
        arrays = operands(rng, operation, "shared", "pair")
        with pytest.raises(ValueError, match="implementation.*'fastest'"):
            function(arrays["x"], arrays["relations"], arrays["table"], "fastest")


@pytest.mark.parametrize("is_additive", [False, True], ids=["product", "additive"])
@pytest.mark.parametrize("relations", ["pair", "several"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_oracle_s_own_backward_pass(rng, layout, relations, is_additive):
    """Checks reference.py itself, by complex-step derivatives of its forward pass."""
    arrays = {
        "query": rng.normal(size=(B, T, N, H)),
        "key": rng.normal(size=(B, S, N, H)),
        "value": rng.normal(size=(B, S, N, 2)),
        "key_table": rng.normal(size=(*LAYOUTS[layout], R, H)),
        "value_table": rng.normal(size=(*LAYOUTS[layout], R, 2)),
    }
    if is_additive:
        arrays["vector"] = rng.normal(size=(N, H))
    fixed = {
        "relations": rng.integers(-1, R, FORMS[relations]),
        "mask": rng.random((B, T, S)) < 0.6,
    }
    fixed["mask"][..., 0] = True
    upstream = rng.normal(size=(B, T, N, 2))
    gradients = reference.attention_gradients(upstream, **arrays, **fixed)
    for name, x in arrays.items():

        def forward(moved, name=name):
            return reference.attention(**{**arrays, name: moved}, **fixed)[0]

        for index, derivative in complex_step(forward, x, upstream, 7, rng):
            assert abs(gradients[name][index] - derivative) < 1e-9


@pytest.mark.parametrize(
    ("shape", "table", "expected"),
    [
        ((5, 33), (33, 64), "transpose_reshape"),
        ((5, 34), (33, 64), "bucketed"),
        ((5, 129), (129, 64), "transpose_reshape"),
        ((5, 130), (129, 64), "bucketed"),
        ((5, 16), (8, 33, 64), "transpose_reshape"),
        ((5, 17), (8, 33, 64), "bucketed"),
        ((5, 64), (8, 129, 64), "transpose_reshape"),
        ((5, 65), (8, 129, 64), "bucketed"),
        ((1, 10**6), (33, 64), "transpose_reshape"),
        # Lengths that are not known, and labels of each sentence.
        ((None, None), (129, 64), "bucketed"),
        ((None, None), (8, 129, 64), "bucketed"),
        ((2, 5, 7), (128, 64), "bucketed"),
        ((2, 5, 7, 3), (129, 64), "bucketed"),
    ],
)
def test_auto_chooses_by_shape(shape, table, expected):
    relations = keras.KerasTensor(shape, dtype="int32")
    table = keras.KerasTensor(table)
    assert choose_implementation("auto", relations, table) == expected
    if len(shape) == 2:
        positions = RelativePositions(*shape, 16)
        assert choose_implementation("auto", positions, table) == expected
    for name in ("transpose_reshape", "bucketed"):
        assert choose_implementation(name, relations, table) == name
