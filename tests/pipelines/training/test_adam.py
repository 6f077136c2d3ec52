"""Adam by one operation of TensorFlow is Keras's Adam."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.training.adam import Adam
from tf_relpos import WarmupInverseSqrt

pytestmark = pytest.mark.tensorflow_only

SHAPES = [(3, 5), (7,), ()]
ARGUMENTS = {"beta_1": 0.8, "beta_2": 0.98, "epsilon": 1e-9}


def gradients(rng):
    """Of three updates; rows of the first variable may be sparse."""
    for _ in range(3):
        dense = [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]
        rows = tf.IndexedSlices(dense[0][:2], tf.constant([2, 0]), tf.constant([3, 5]))
        yield [rows, *dense[1:]]


def trained(kind, rate, rng, mode):
    variables = [keras.Variable(rng.normal(size=shape).astype("float32")) for shape in SHAPES]
    optimizer = kind(rate, **ARGUMENTS)
    optimizer.build(variables)

    def apply(grads):
        optimizer.apply(grads, variables)

    if mode != "eager":
        apply = tf.function(apply, jit_compile=mode == "xla", autograph=False)
    for grads in gradients(rng):
        apply(grads)
    assert int(optimizer.iterations) == 3
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("rate", [0.1, WarmupInverseSqrt(1, 2)], ids=["constant", "schedule"])
def test_weights_and_moments_are_those_of_keras(rate, mode):
    expected = trained(keras.optimizers.Adam, rate, np.random.default_rng(1), "eager")
    actual = trained(Adam, rate, np.random.default_rng(1), mode)
    assert len(actual) >= 3 + 1 + 2 * 3  # variables, the updates and moments
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def operations(kind, count):
    """In the graph of an update of so many variables."""
    variables = [keras.Variable(np.zeros(3, "float32")) for _ in range(count)]
    optimizer = kind(0.1)
    optimizer.build(variables)
    update = tf.function(lambda grads: optimizer.apply(grads, variables), autograph=False)
    graph = update.get_concrete_function([tf.ones(3)] * count).graph
    return len(graph.get_operations())


def test_a_variable_has_a_sixth_of_the_operations():
    more = [operations(kind, 21) - operations(kind, 1) for kind in (keras.optimizers.Adam, Adam)]
    assert more[0] > 6 * more[1] > 0, more


def test_a_model_compiled_with_it_can_be_saved(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(Adam(0.01, **ARGUMENTS), "mse")
    x, y = np.ones((4, 3)), np.zeros((4, 2))
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=3, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is Adam and again.optimizer.beta_1 == 0.8


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("options", [{"amsgrad": True}, {"gradient_accumulation_steps": 2}, {}])
def test_what_keras_s_takes(rng, options, dtype):
    """Other precisions, and what its own operation does not know."""
    start = rng.normal(size=(4,))
    steps = [tf.constant(rng.normal(size=(4,)), tf.float32) for _ in range(6)]
    found = []
    for kind in (keras.optimizers.Adam, Adam):
        variable = keras.Variable(start, dtype=dtype)
        optimizer = kind(0.1, **ARGUMENTS, **options)
        optimizer.build([variable])
        for step in steps:
            optimizer.apply([tf.cast(step, dtype)], [variable])
        found.append(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_in_which_beta_2_is_1(rng, dtype):
    found = []
    steps = rng.normal(size=(20, 4))
    for kind in (keras.optimizers.Adam, Adam):
        variable = keras.Variable(np.ones(4), dtype=dtype)
        optimizer = kind(0.01, beta_2=0.9999)
        optimizer.build([variable])
        for step in steps:
            optimizer.apply([tf.cast(step, dtype)], [variable])
        found.append(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")))
    np.testing.assert_array_equal(found[1], found[0])
    assert np.all(np.abs(found[1] - 1) < 0.5)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_double_precision_is_that_of_the_formula(rng, mode):
    """Kingma and Ba 2015, algorithm 1, but for the rate, which is in single precision."""
    start, grads = rng.normal(size=4), rng.normal(size=(50, 4))
    variable = keras.Variable(start, dtype="float64")
    optimizer = Adam(0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-7)
    optimizer.build([variable])

    def apply(grad):
        optimizer.apply([grad], [variable])

    beta_1, beta_2, m, v = 0.9, 0.999, 0.0, 0.0

    def rate(step):  # of which processors round the powers otherwise, and graphs than eager mode
        return 0.1 * (tf.sqrt(1.0 - beta_2**step) / (1.0 - beta_1**step))

    if mode == "graph":
        apply, rate = (tf.function(function, autograph=False) for function in (apply, rate))
    for step, grad in enumerate(grads, start=1):
        apply(tf.constant(grad))
        rounded = rate(tf.constant(step, tf.float32)).numpy()
        exact = 0.1 * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        np.testing.assert_allclose(rounded, exact, rtol=5e-5)
        m, v = beta_1 * m + (1 - beta_1) * grad, beta_2 * v + (1 - beta_2) * grad**2
        start -= rounded * m / (np.sqrt(v) + 1e-7)
    np.testing.assert_allclose(variable.numpy(), start, rtol=0, atol=2e-7)
