"""Dropout that draws few random numbers: values, gradients and statistics."""

import numpy as np
import pytest

from tests.support.layer_checks import MODES, compile_function, to_numpy
from tf_relpos.dropout import Dropout, dropout


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.9])
def test_a_share_is_dropped_and_the_others_are_scaled(mode, dtype, rate):
    import tensorflow as tf

    def function(tensors):
        x = tf.cast(tensors["x"], dtype)
        with tf.GradientTape() as tape:
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
    for distance in (1, 2, 21):
        both = (dropped[distance:] & dropped[:-distance]).mean()
        assert both == pytest.approx(rate**2, abs=5 * np.sqrt(rate**2 / y.size))
    again = compile_function(function, mode, inputs)
    assert np.array_equal(to_numpy(again(inputs))["y"], y)
    other = to_numpy(again({**inputs, "seed": np.array([3, 5], "uint32")}))["y"]
    assert ((other == 0) & (y == 0)).mean() == pytest.approx(rate**2, abs=0.01)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("rate", [1e-9, 1 - 1e-9])
def test_the_most_and_the_least_that_can_be_dropped(rate):
    y = np.asarray(dropout(np.ones(1000, "float32"), rate, np.array([1, 2])))
    assert np.isfinite(y).all()
    assert (y == 1).all() if rate < 0.5 else (y == 0).mean() > 0.9


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
