"""What `keras.ops` has no fast operation for."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import MODES, compile_function, to_numpy
from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import picks_in_place
from tf_relpos.tensor_ops import own_rows_at, rows_at, shape_of, transposed_times


def test_rows_by_their_indices(rng):
    table, per_head = rng.normal(size=(5, 3)), rng.normal(size=(2, 5, 3))
    indices = np.array([4, 0, 0, 2], "int32")
    for rows in (table, per_head):
        found = rows_at(keras.ops.convert_to_tensor(rows), indices)
        np.testing.assert_allclose(to_numpy(found), rows[..., indices, :], rtol=1e-6)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_the_transpose_of_a_matrix_times_another(rng, mode, known):
    arrays = {"x": rng.normal(size=(2, 3, 7, 5)), "y": rng.normal(size=(2, 3, 7, 4))}
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    shapes = {name: array.shape for name, array in arrays.items()} if known else None
    run = compile_function(lambda a: transposed_times(a["x"], a["y"]), mode, arrays, shapes)
    expected = np.swapaxes(arrays["x"], -1, -2) @ arrays["y"]
    np.testing.assert_allclose(to_numpy(run(arrays)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 1)])
def test_rows_of_each_sentence(rng, shape):
    x = rng.integers(0, 100, shape).astype("int32")
    indices = np.array([[4, 0, 0], [1, 2, 4]], "int32")
    expected = np.stack([own[rows] for own, rows in zip(x, indices, strict=True)])
    found = own_rows_at(*map(keras.ops.convert_to_tensor, (x, indices)))
    np.testing.assert_array_equal(to_numpy(found), expected)


def test_sizes_that_are_known_are_numbers():
    assert shape_of(np.zeros((3, 0))) == (3, 0)
    assert shape_of(keras.ops.ones((2,))) == (2,)
    assert shape_of(keras.KerasTensor((None, 4))) == (None, 4)


@pytest.mark.tensorflow_only
def test_sizes_that_are_not_known_are_tensors_of_two_operations():
    import tensorflow as tf

    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3, None])])
    def sizes(x):
        shape = shape_of(x)
        found.append((shape[1], [operation.type for operation in x.graph.get_operations()]))
        return [shape[0], shape[2]]

    np.testing.assert_array_equal(sizes(tf.zeros((5, 3, 0))), [5, 0])
    ((known, operations),) = found
    assert known == 3
    assert operations == ["Placeholder", "Shape", "Unpack"]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_what_is_made_for_xla_picks_in_place(xla):
    """In both passes, in loops, and in functions that are called by what is compiled."""
    import tensorflow as tf

    asked = []

    def ask(x, *_):
        asked.append(picks_in_place())
        return x

    @tf.function
    def called(x):
        return with_gradient(lambda x: (ask(x), None), lambda _, saved, dy: (ask(dy),), x)

    @tf.function(jit_compile=xla)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, ask(y)), (0, called(x)))
        return tape.gradient(y[1], x)

    assert not picks_in_place()
    np.testing.assert_array_equal(step(tf.ones(2)), [1, 1])
    assert len(asked) >= 3 and set(asked) == {xla}
