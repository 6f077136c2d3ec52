"""Adam in one operation a weight: the steps and the variables of Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.training.adam import FusedAdam

pytestmark = pytest.mark.tensorflow_only

SETTINGS = {"beta_1": 0.8, "beta_2": 0.97, "epsilon": 1e-3}
SHAPES = [(3, 5), (2,)]


def updated(optimizer, gradients, saved=None):
    """The weights and the optimizer's variables after an update with each of the gradients."""
    weights = [keras.Variable(tf.ones(shape)) for shape in SHAPES]
    optimizer.build(weights)
    if saved:
        optimizer.load_own_variables(saved)
    update = tf.function(lambda *grads: optimizer.apply(grads, weights), autograph=False)
    for several in gradients:
        update(*several)
    variables = {}
    optimizer.save_own_variables(variables)
    operations = update.get_concrete_function(*several).graph.get_operations()
    kernels = sum(operation.type == "ResourceApplyAdam" for operation in operations)
    return [weight.numpy() for weight in weights], variables, kernels


def test_it_takes_the_steps_of_keras_in_one_operation_a_weight(rng):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 7)
    gradients = [[rng.normal(size=s).astype("float32") for s in SHAPES] for _ in range(5)]
    expected, their_variables, _ = updated(keras.optimizers.Adam(schedule, **SETTINGS), gradients)
    found, variables, kernels = updated(FusedAdam(schedule, **SETTINGS), gradients)
    assert kernels == len(SHAPES)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert list(variables) == list(their_variables)
    for name, value in variables.items():
        np.testing.assert_allclose(value, their_variables[name], rtol=1e-5, atol=1e-7)


def test_it_goes_on_from_what_keras_has_saved(rng):
    gradients = [[rng.normal(size=s).astype("float32") for s in SHAPES] for _ in range(2)]
    _, saved, _ = updated(keras.optimizers.Adam(0.1), gradients)
    saved = {name: np.array(value) for name, value in saved.items()}
    expected, _, _ = updated(keras.optimizers.Adam(0.1), gradients, saved)
    found, _, _ = updated(FusedAdam(0.1), gradients, saved)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
