"""Layer normalization and dropout against NumPy, in values, gradients and statistics."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import (
    MODES,
    assert_close,
    check_layer,
    compile_function,
    gradient_function,
    second_derivatives,
    to_numpy,
)
from tf_relpos import EncoderBlock, RelativeMultiHeadAttention
from tf_relpos.fused_passes import fused_passes
from tf_relpos.lean_layers import Dropout, LayerNormalization, dropout, layer_normalization

EPSILON = 1e-3
# Whether XLA compiles them as one pass: of a graph alone, as it compiles all in the other mode.
WAYS = [(mode, False) for mode in MODES] + [("graph", True)]


def normalize(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * gamma + beta


def gradients(x, gamma, beta, upstream):
    """By central differences of `sum(upstream * normalize(...))`, in float64."""
    inputs, step = {"x": x, "gamma": gamma, "beta": beta}, 1e-6
    found = {}
    for name, array in inputs.items():
        found[name] = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            sums = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                sums.append(np.sum(upstream * normalize(**{**inputs, name: moved})))
            found[name][index] = (sums[0] - sums[1]) / (2 * step)
    return found


def examples(shape):
    rng = np.random.default_rng(1)
    draws = {"x": shape, "gamma": shape[-1:], "beta": shape[-1:], "upstream": shape}
    arrays = {name: rng.normal(1.0, 2.0, size) for name, size in draws.items()}
    return arrays, {name: array.astype("float32") for name, array in arrays.items()}


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode, is_fused", WAYS)
@pytest.mark.parametrize("shape", [(2, 3, 5), (7, 4), (2, 1, 3, 6), (2, 3, 1)])
def test_values_and_gradients(mode, is_fused, shape):
    arrays, inputs = examples(shape)
    names = ("x", "gamma", "beta")

    def function(tensors):
        with fused_passes(is_fused):
            return layer_normalization(*(tensors[name] for name in names), EPSILON)

    compiled = compile_function(gradient_function(function, names), mode, inputs)
    output, found = to_numpy(compiled(inputs))
    assert_close(output, normalize(*(arrays[name] for name in names)))
    for name, expected in gradients(**arrays).items():
        assert_close(found[name], expected, tolerance=1e-4)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives_are_those_of_keras(mode):
    _, inputs = examples((2, 3, 5))

    def second(normalization):
        def function(tensors):
            arguments = (tensors[name] for name in ("x", "gamma", "beta"))
            return normalization(*arguments, epsilon=EPSILON)

        derivatives = second_derivatives(function, ["x", "gamma"])
        return compile_function(derivatives, mode, inputs)(inputs)

    found, expected = second(layer_normalization), second(keras.ops.layer_normalization)
    for name in ("x", "gamma"):
        assert_close(found[name], expected[name], tolerance=1e-4)


def test_the_layer_is_kerass_in_all_else(tmp_path):
    x = np.random.default_rng(2).normal(size=(3, 4, 6)).astype("float32")

    def make(dtype):
        return LayerNormalization(epsilon=EPSILON, dtype=dtype)

    check_layer(make, {"inputs": x}, tmp_path)
    tolerances = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.02, "float16": 0.01}
    tolerances |= {"mixed_bfloat16": 0.01, "mixed_float16": 0.01}
    for dtype, tolerance in tolerances.items():
        if dtype == "float64" and keras.backend.backend() == "jax":
            continue  # which computes in float32 unless its configuration says otherwise
        layer, by_keras = make(dtype), keras.layers.LayerNormalization(epsilon=EPSILON, dtype=dtype)
        for made in (layer, by_keras):
            made.build(x.shape)
            made.set_weights([np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6)])
        assert layer(x, training=True).dtype == by_keras(x).dtype
        expected = by_keras(x.astype("float64"))
        for training in (True, False):
            assert_close(layer(x.astype("float64"), training=training), expected, tolerance)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode, is_fused", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16"])
def test_a_layer_has_the_gradients_of_kerass(mode, is_fused, dtype):
    import tensorflow as tf

    x = np.random.default_rng(3).normal(size=(3, 4, 6)).astype("float32")
    found = []
    for make in (LayerNormalization, keras.layers.LayerNormalization):
        layer = make(epsilon=EPSILON, dtype=dtype)
        layer.build(x.shape)
        layer.set_weights([np.linspace(0.5, 2, 6), np.linspace(-1, 1, 6)])

        def function(tensors, layer=layer):
            x = tf.cast(tensors["x"], layer.compute_dtype)
            with tf.GradientTape() as tape, fused_passes(is_fused):
                tape.watch(x)
                loss = tf.reduce_sum(tf.sin(tf.cast(layer(x, training=True), "float64")))
            sources = [x, *(weight.value for weight in layer.trainable_weights)]
            return [tf.cast(y, "float64") for y in tape.gradient(loss, sources)]

        found.append(compile_function(function, mode, {"x": x})({"x": x}))
    for gradient, by_keras in zip(*found, strict=True):
        assert_close(gradient, by_keras, tolerance=0.02 if "bfloat16" in dtype else 1e-5)


@pytest.mark.tensorflow_only
def test_blocks_have_it_in_training_alone(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return layer_normalization(*arguments)

    monkeypatch.setattr("tf_relpos.lean_layers.layer_normalization", counted)
    x = np.zeros((2, 3, 8), "float32")
    block = EncoderBlock(8, 16, 2)
    for training, count in ((True, 2), (False, 0), (None, 0)):
        calls.clear()
        block(x, training=training)
        assert len(calls) == count


@pytest.mark.parametrize("shape", [(0, 4, 6), (3, 0, 6)])
@pytest.mark.parametrize("is_fused", [False, True])
def test_of_nothing_there_is_nothing(shape, is_fused):
    with fused_passes(is_fused):
        for layer in (LayerNormalization(), Dropout(0.1)):
            assert layer(np.zeros(shape, "float32"), training=True).shape == shape


@pytest.mark.tensorflow_only
def test_all_layers_share_the_passes_that_xla_compiles():
    """Three functions, of the normalization, its gradients and dropout, whatever calls them."""
    import tensorflow as tf

    layers = [LayerNormalization(), Dropout(0.1), LayerNormalization(), Dropout(0.1)]
    for layer in layers:
        layer.build((None, 4))

    def compiled(are_wanted):
        def gradient(x):
            with tf.GradientTape() as tape, fused_passes(are_wanted):
                tape.watch(x)
                y = x
                for layer in layers:
                    y = layer(y, training=True)
            return tape.gradient(y, x)

        graph = tf.function(gradient).get_concrete_function(tf.TensorSpec([None, 4])).graph
        library = graph.as_graph_def(add_shapes=True).library.function
        return [function for function in library if function.attr["_XlaMustCompile"].b]

    assert len(compiled(True)) == 3
    assert not compiled(False)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode, is_fused", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_a_share_is_dropped_and_the_others_are_scaled(mode, is_fused, dtype, rate):
    import tensorflow as tf

    def function(tensors):
        x = tf.cast(tensors["x"], dtype)
        with tf.GradientTape() as tape, fused_passes(is_fused):
            tape.watch(x)
            y = dropout(x, rate, tensors["seed"])
        gradient = tape.gradient(y, x)
        return {"y": tf.cast(y, "float32"), "gradient": tf.cast(gradient, "float32")}

    x = np.ones((101, 99, 21), "float32")  # an odd number of them
    inputs = {"x": x, "seed": np.array([3, 4], "uint32")}
    found = to_numpy(compile_function(function, mode, inputs)(inputs))
    y = found["y"]
    assert np.array_equal(y, found["gradient"])
    assert set(np.unique(y == 0)) == {False, True}
    scale = np.unique(y[y != 0])
    assert scale == pytest.approx(1 / (1 - rate), rel=1e-2 if dtype == "bfloat16" else 1e-3)
    # Five deviations of a binomial share; so are neighbours, of which two have one word.
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    dropped = y.ravel() == 0
    assert dropped.mean() == pytest.approx(rate, abs=5 * deviation)
    for distance in (1, 2, 3, 21, 64, 1024, 65536):
        both = (dropped[distance:] & dropped[:-distance]).mean()
        assert both == pytest.approx(rate**2, abs=5 * np.sqrt(rate**2 / y.size))
    again = compile_function(function, mode, inputs)
    assert np.array_equal(to_numpy(again(inputs))["y"], y)
    for seed in ([3, 5], [4, 4]):
        other = to_numpy(again({**inputs, "seed": np.array(seed, "uint32")}))["y"]
        both = ((other == 0) & (y == 0)).mean()
        assert both == pytest.approx(rate**2, abs=5 * np.sqrt(rate**2 / y.size))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("rate", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("is_fused", [False, True])
def test_the_most_and_the_least_that_can_be_dropped(rate, is_fused):
    with fused_passes(is_fused):
        y = np.asarray(dropout(np.ones(1000, "float32"), rate, np.array([1, 2])))
    assert np.isfinite(y).all()
    assert (y == 1).all() if rate < 0.5 else (y == 0).mean() > 0.9


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode, is_fused", WAYS)
def test_weights_of_attention_are_dropped_by_it(mode, is_fused):
    layer = RelativeMultiHeadAttention(3, 4, 2, dropout=0.3, seed=5)
    layer.build((None, None, 8), (None, None, 8))

    def function(tensors):
        with fused_passes(is_fused):
            seed = layer._dropout_layer.seed_generator.state.value
            expected = dropout(tensors["weights"], 0.3, seed)
            return layer._dropped(tensors["weights"], True), expected

    inputs = {"weights": np.ones((3, 2, 30, 40), "float32")}
    found, expected = map(to_numpy, compile_function(function, mode, inputs)(inputs))
    assert 0.2 < np.mean(found == 0) < 0.4
    assert np.array_equal(found, expected)


def test_all_may_be_dropped():
    """A rate of 1, which Keras's layers take."""
    x = np.ones((1024, 1024), "float32")  # of which 16 bits would keep some
    assert np.array_equal(to_numpy(Dropout(1.0)(x, training=True)), np.zeros_like(x))
    layer = RelativeMultiHeadAttention(2, 4, 1, dropout=1.0, output_shape=3)
    x = np.ones((2, 5, 8), "float32")
    assert np.array_equal(to_numpy(layer(x, x, training=True)), np.zeros((2, 5, 3)))


def test_dropout_draws_anew_at_each_call_and_is_off_without_training():
    layer = Dropout(0.5, seed=1)
    x = np.ones((8, 64), "float32")
    first, second = (to_numpy(layer(x, training=True)) for _ in range(2))
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == set(np.unique(second)) == {0.0, 2.0}
    assert np.array_equal(to_numpy(layer(x)), x)
    assert np.array_equal(to_numpy(Dropout(0.0)(x, training=True)), x)
    assert layer(np.zeros((0, 4), "float32"), training=True).shape == (0, 4)
    rows = to_numpy(Dropout(0.5, noise_shape=(8, 1))(x, training=True))
    assert np.array_equal(rows, np.repeat(rows[:, :1], 64, axis=1))
    assert Dropout.from_config(layer.get_config()).rate == 0.5
