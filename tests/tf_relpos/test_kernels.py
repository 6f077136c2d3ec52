"""Kernels whose rows lie badly: the same products and gradients, of rows that do not."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import to_numpy
from tf_relpos.fused_passes import fused_passes
from tf_relpos.kernels import spread, times_kernel
from tf_relpos.projections import times_weights


@pytest.mark.parametrize(
    ("columns", "dtype", "expected"),
    [
        (256, "float32", 256),  # few
        (512, "float32", 528),
        (544, "float32", 544),
        (768, "float32", 784),
        (2048, "float32", 2064),
        (8000, "float32", 8000),
        (2048, "bfloat16", 2048),  # whose products copy all
    ],
)
def test_rows_that_lie_badly_are_a_cache_line_longer(columns, dtype, expected):
    x = keras.ops.ones((3, columns), dtype)
    found = to_numpy(keras.ops.cast(spread(x), "float32"))
    assert found.shape == (3, expected)
    assert np.all(found[:, :columns] == 1)
    assert np.all(found[:, columns:] == 0)


def test_a_spread_kernel_has_the_outputs_of_the_kernel(rng):
    x = rng.normal(size=(3, 8)).astype("float32")
    kernel, bias = rng.normal(size=(8, 512)), rng.normal(size=512)
    kernel, bias = (keras.ops.convert_to_tensor(a.astype("float32")) for a in (kernel, bias))
    weights = {"kernel": spread(kernel), "bias": bias}
    assert weights["kernel"].shape == (8, 528)
    found = to_numpy(times_weights(keras.ops.convert_to_tensor(x), weights, 512))
    np.testing.assert_allclose(found, x @ to_numpy(kernel) + to_numpy(bias), rtol=1e-4, atol=1e-4)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("features", "outputs", "widths"),
    [
        (512, 512, (544, 512)),
        (1024, 256, (1056, 256)),
        (256, 1024, (256, 1056)),
        (512, 1024, None),  # large enough to be copied
        (256, 256, None),
    ],
)
def test_the_gradient_by_a_small_kernel_is_of_rows_that_lie_well(rng, features, outputs, widths):
    import tensorflow as tf

    arrays = [rng.normal(size=size) for size in ((7, features), (features, outputs), (7, outputs))]
    x, kernel, by_y = (tf.constant(array, "float32") for array in arrays)

    @tf.function(autograph=False)
    def gradients(x, kernel, by_y):
        with fused_passes(), tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = times_kernel(x, kernel)
        return y, *tape.gradient(y, [x, kernel], output_gradients=by_y)

    x_, kernel_, by_y_ = (array.astype("float32").astype("float64") for array in arrays)
    expected = (x_ @ kernel_, by_y_ @ kernel_.T, x_.T @ by_y_)
    for found, exact in zip(gradients(x, kernel, by_y), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-3)
    graph = gradients.get_concrete_function(x, kernel, by_y).graph
    spread_to = [op.outputs[0].shape[-1] for op in graph.get_operations() if op.type == "Pad"]
    assert spread_to == ([] if widths is None else [max(widths)])


@pytest.mark.tensorflow_only
def test_a_kernel_is_multiplied_as_it_is_outside_of_training():
    import tensorflow as tf

    @tf.function(autograph=False)
    def gradient(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            y = times_kernel(x, kernel)
        return tape.gradient(y, kernel)

    graph = gradient.get_concrete_function(tf.ones((7, 512)), tf.ones((512, 512))).graph
    assert "Pad" not in {op.type for op in graph.get_operations()}
