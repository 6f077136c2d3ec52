"""Long sequences: blocks of queries, which give what all queries at once give, in less memory."""

from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.attention_checks import (
    check_against_oracle,
    every_form_of_mask,
    oracle,
    random_inputs,
    random_mask,
    randomize,
)
from tests.support.layer_checks import (
    MODES,
    assert_close,
    compile_function,
    compile_runner,
    run_python,
    second_derivatives,
    to_numpy,
)
from tests.support.reference import position_labels
from tf_relpos import (
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    fused_passes,
    query_blocks,
)

B, T, S, N, H, D = 2, 7, 5, 3, 11, 13
FORMS = {"pair": (T, S), "batch": (B, T, S), "several": (B, T, S, 3)}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """Blocks of two queries and a rest of one, where the layers would take all seven at once."""
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    monkeypatch.setattr(query_blocks, "BLOCK", 2 * N * S)


@pytest.fixture(params=["known", pytest.param("unknown", marks=pytest.mark.tensorflow_only)])
def shapes(request):
    """The shapes of a graph that knows all lengths but B, or no length."""
    if request.param == "unknown" and request.node.callspec.params["mode"] == "eager":
        pytest.skip("all lengths are known")

    def shapes(arrays):
        known = {n: (None, *x.shape[1:]) if x.ndim > 2 else x.shape for n, x in arrays.items()}
        return known if request.param == "known" else None

    return shapes


def build(rng, cls, *arguments, **options):
    layer = cls(N, H, *arguments, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients_equal_the_oracle(rng, mode, shared, implementation, shapes):
    arrays = random_inputs(rng, B, T, S, D)
    arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = build(
        rng,
        RelativeMultiHeadAttention,
        2,
        heads_share_relative_embedding=shared,
        implementation=implementation,
    )
    expected = oracle(layer, arrays, position_labels(T, S, 2), arrays["attention_mask"])
    check_against_oracle(
        layer, arrays, expected, compile_runner(layer, mode, arrays, shapes(arrays))
    )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("mode", "dtype", "widest"),
    [
        ("graph", "float32", 1),
        ("graph", "mixed_bfloat16", T * S),
        ("xla", "mixed_bfloat16", 1),
        ("xla", "float32", T * S),
        ("fused", "float32", 1),
        ("fused", "mixed_bfloat16", 1),
        ("fused", "mixed_bfloat16", T * S),
    ],
    ids=lambda value: {1: "blocks", T * S: "whole"}.get(value, value),
)
def test_whether_blocks_are_needed_may_turn_out_when_a_graph_runs(
    rng, mode, dtype, widest, monkeypatch
):
    monkeypatch.setattr(query_blocks, "WIDEST", widest)
    arrays = random_inputs(rng, B, T, S, D)
    arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = build(rng, RelativeMultiHeadAttention, 2, dtype=dtype)
    expected = oracle(layer, arrays, position_labels(T, S, 2), arrays["attention_mask"])
    is_fused = mode == "fused"
    runner = compile_runner(layer, "graph" if is_fused else mode, arrays, training=True)
    tolerance = 1e-5 if dtype == "float32" else 0.03
    with fused_passes.fused_passes(is_fused):
        check_against_oracle(layer, arrays, expected, runner, tolerance)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("longest, both_ways", [(T, False), (T + 1, True), (None, True)])
def test_a_graph_that_is_told_the_longest_length_has_one_way(rng, longest, both_ways, monkeypatch):
    """In training; what follows the context does not know of it."""
    monkeypatch.setattr(query_blocks, "WIDEST", T * T)
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, RelativeMultiHeadAttention, 2)
    expected = oracle(layer, arrays, position_labels(T, S, 2))

    branches = []
    cond = keras.ops.cond
    monkeypatch.setattr(keras.ops, "cond", lambda *a: branches.append(a) or cond(*a))

    def check():
        runner = compile_runner(layer, "graph", arrays, training=True)
        check_against_oracle(layer, arrays, expected, runner)

    with query_blocks.lengths_up_to(longest):
        check()
    assert bool(branches) == both_ways
    branches.clear()
    check()
    assert branches


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "mode, widest",
    [
        pytest.param("eager", 1, id="eager-blocks"),
        pytest.param("eager", T * S, id="eager-whole"),
        pytest.param("graph", 1, id="graph-blocks"),
        pytest.param("graph", T * S, id="graph-whole", marks=pytest.mark.slow),
    ],
)
def test_second_derivatives(rng, mode, widest, monkeypatch):
    """Where weights are saved, they must be known to depend on the query."""
    layer = build(rng, RelativeMultiHeadAttention, 2)
    arrays = random_inputs(rng, B, T, S, D)

    def call(tensors):
        return layer(tensors["query"], tensors["value"], training=True) ** 2

    second = second_derivatives(call, ["query", "value"])
    monkeypatch.setattr(query_blocks, "WIDEST", 10**6)
    expected = compile_function(second, "eager", arrays)(arrays)
    monkeypatch.setattr(query_blocks, "WIDEST", widest)
    actual = compile_function(second, mode, arrays)(arrays)
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, tolerance=1e-4)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("mode", MODES)
def test_any_labels(rng, mode, form, shapes):
    arrays = random_inputs(rng, B, T, S, D)
    arrays["relations"] = rng.integers(-1, 5, form, dtype="int32")
    layer = build(rng, RelationAwareAttention, 5, relation_values=len(form) > 2, value_dim=4)
    expected = oracle(layer, arrays, arrays["relations"])
    check_against_oracle(
        layer, arrays, expected, compile_runner(layer, mode, arrays, shapes(arrays))
    )


@pytest.mark.parametrize("mode", MODES)
def test_scores_and_every_form_of_mask(rng, mode, monkeypatch, shapes):
    x, y = (rng.normal(size=(B, n, D)).astype("float32") for n in (T, S))
    layer = build(rng, RelativeMultiHeadAttention, 2, sliding_window=4)
    masks = every_form_of_mask(rng, B, N, T, S)

    def call(tensors):
        return {
            name: layer(tensors["x"], tensors["y"], return_attention_scores=True, **arguments)
            for name, arguments in masks.items()
        }

    arrays = {"x": x, "y": y}
    blocks = compile_function(call, mode, arrays, shapes(arrays))(arrays)
    monkeypatch.undo()
    whole = compile_function(call, "eager", arrays)(arrays)
    for name in masks:
        for actual, expected in zip(blocks[name], whole[name], strict=True):
            assert_close(actual, expected)


def test_dropout_is_the_same_in_both_passes(rng):
    """With weights of the forward pass dropped elsewhere, the gradient would not be the slope."""
    layer = build(rng, RelativeMultiHeadAttention, 2, dropout=0.5, seed=3)
    arrays = random_inputs(rng, B, T, S, D)
    many = [np.tile(arrays[name], (100, 1, 1)) for name in ("query", "value")]
    outputs = np.stack([to_numpy(layer(*many, training=True)) for _ in range(2)])
    assert np.any(outputs[0] != outputs[1])
    outputs = outputs.reshape(200, B, T, D)
    assert np.any(outputs[0] != outputs[1])
    still = to_numpy(layer(arrays["query"], arrays["value"]))
    assert_close(np.mean(outputs, axis=0), still, tolerance=0.25)
    # The output is linear in the value's bias: its gradient says what was kept.
    upstream = {"upstream": np.ones((B, T, D), "float32")}
    seeds = [v for v in layer.variables if "seed" in v.path]
    run = compile_runner(layer, "eager", {**arrays, **upstream}, training=True)
    state = [to_numpy(v.value).copy() for v in seeds]
    output, gradients = run({**arrays, **upstream})
    bias = layer.value_dense.bias
    index = next(i for i, v in enumerate(layer.trainable_variables) if v is bias)
    bias.assign_add(np.ones(bias.shape))
    for variable, value in zip(seeds, state, strict=True):
        variable.assign(value)
    moved, _ = run({**arrays, **upstream})
    assert_close(np.sum(moved - output), np.sum(gradients[f"variable_{index}"]), tolerance=1e-3)


def test_blocks_are_taken_where_they_save_memory(monkeypatch):
    monkeypatch.undo()

    def inputs(B, T, S):
        return keras.KerasTensor((8, B, T, 64)), keras.KerasTensor((8, B, S, 64))

    def are_in_blocks(B, T, S, training=False, implementation="auto"):
        return query_blocks.are_in_blocks(*inputs(B, T, S), training, implementation)

    assert are_in_blocks(64, 512, 512, training=True) is False
    assert are_in_blocks(64, 256, 256) is False
    assert are_in_blocks(1, 512, 512) is True
    assert are_in_blocks(1, 1, 10**6) is False
    assert are_in_blocks(None, None, None) is True
    assert are_in_blocks(None, None, None, training=True) is True
    with query_blocks.lengths_up_to(512):
        assert are_in_blocks(None, None, None, training=True) is False
    with query_blocks.lengths_up_to(513):
        assert are_in_blocks(None, None, None, training=True) is True
    for T in (None, 4096):
        assert are_in_blocks(None, T, T, True, "transpose_reshape") is False
        assert are_in_blocks(None, T, T, False, "transpose_reshape") is True

    def size(B, T, S):
        return query_blocks._block_size(*inputs(B, T, S))

    assert size(1, 512, 512) == query_blocks.FEWEST
    assert size(2, 4096, 4096) * 2 * 8 * 4096 <= query_blocks.BLOCK
    assert size(10**6, 4096, 4096) == 1
    assert size(None, 4096, 4096) * 8 * 4096 <= query_blocks.BLOCK


MEMORY = """
import keras, numpy as np
from tf_relpos import RelativeMultiHeadAttention
layer = {layer}
x = keras.ops.convert_to_tensor(np.ones((1, 2048, 256), "float32"))
layer(x[:, :9], x[:, :9])
call = lambda x: layer(x, x)
if {trains}:
    import tensorflow as tf
    def call(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, x, training=True))
        return tape.gradient(loss, layer.trainable_variables)
if {is_graph}:
    import tensorflow as tf
    call = tf.function(call, input_signature=[tf.TensorSpec((None, None, 256))])
call(x[:, :9])
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
before = peak()
call(x)
print("KB", peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.tensorflow_only
@pytest.mark.parametrize("trains", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.slow)])
def test_memory_is_below_that_of_keras_s_layer(mode, trains):
    """2048 positions, 4 heads, 67 MB of scores; the graph does not know the length."""
    layers = ("keras.layers.MultiHeadAttention(4, 64)", "RelativeMultiHeadAttention(4, 64)")
    environment = {"KERAS_BACKEND": keras.backend.backend()}
    settings = {"is_graph": mode == "graph", "trains": trains}
    scripts = (MEMORY.format(layer=layer, **settings) for layer in layers)
    theirs, ours = (int(run_python(script, **environment).split("KB")[-1]) for script in scripts)
    assert ours < theirs, f"{ours} KB, Keras's layer {theirs} KB"


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("options", [{}, {"compatibility": "additive"}, {"attention_window": 2}])
def test_nothing_where_a_graph_does_not_know_of_it(options, trains):
    """No batch or no length, as where the last batch of an epoch leaves a replica nothing."""
    import tensorflow as tf

    layer = RelativeMultiHeadAttention(2, 4, 2, **options)
    layer(np.zeros((1, 3, 8), "float32"), np.zeros((1, 3, 8), "float32"))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 8])])
    def step(x):
        with tf.GradientTape() as tape:
            y = layer(x, x, training=trains)
        return y, tape.gradient(y, [w.value for w in layer.trainable_variables])

    for lengths in [(0, T), (B, 0), (0, 0)]:
        y, gradients = step(np.zeros((*lengths, 8), "float32"))
        assert y.shape == (*lengths, 8)
        expected = [w.shape for w in layer.trainable_variables]
        assert [gradient.shape for gradient in gradients] == expected
        assert not any(np.any(to_numpy(gradient)) for gradient in gradients)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("trains", [True, False])
def test_a_mask_may_turn_out_to_be_of_all_queries(rng, trains):
    import tensorflow as tf

    layer = RelativeMultiHeadAttention(2, 4, 2)
    x = rng.normal(size=(B, T, 8)).astype("float32")
    mask = rng.random((B, 1, T)) < 0.7
    mask[..., 0] = True
    expected = layer(x, x, attention_mask=mask)
    specs = [tf.TensorSpec([None, None, 8]), tf.TensorSpec([None, None, None], "bool")]
    function = tf.function(
        lambda x, mask: layer(x, x, attention_mask=mask, training=trains), input_signature=specs
    )
    for form in (mask, np.broadcast_to(mask, (B, T, T))):
        assert_close(function(x, form), expected)
