"""Sinusoids of Vaswani et al. 2017, section 3.5."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import (
    BACKEND,
    MODES,
    assert_close,
    check_layer,
    compile_function,
    to_numpy,
)
from tf_relpos import SinusoidalPositionEncoding

B, T, D = 2, 11, 7


def sinusoids(length, size, start=0):
    """Sine and cosine of each pair of columns, one number at a time."""
    table = np.zeros((length, size))
    for position in range(length):
        for column in range(size):
            pair = column // 2
            angle = (position + start) / 10_000 ** (2 * pair / size)
            table[position, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("start", [0, 5])
def test_adds_the_sinusoids(rng, size, start):
    x = rng.normal(size=(B, T, size)).astype("float32")
    encoded = SinusoidalPositionEncoding()(x, start_index=start)
    assert_close(encoded, x + sinusoids(T, size, start), tolerance=1e-6)


def test_first_rows_by_hand():
    encoded = to_numpy(SinusoidalPositionEncoding()(np.zeros((1, 2, 4), "float32")))
    expected = [[0, 1, 0, 1], [np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01)]]
    assert_close(encoded[0], expected, tolerance=1e-6)


def test_stays_exact_far_along():
    x = np.zeros((1, 3, 16), "float32")
    encoded = to_numpy(SinusoidalPositionEncoding()(x, start_index=5000))
    assert np.max(np.abs(encoded[0] - sinusoids(3, 16, 5000))) < 2e-3


@pytest.mark.parametrize("mode", MODES)
def test_step_that_is_a_tensor(rng, mode):
    layer = SinusoidalPositionEncoding()
    x = rng.normal(size=(B, T, D)).astype("float32")
    whole = to_numpy(layer(x))
    arrays = {"x": x[:, :1], "at": np.int32(0)}
    run = compile_function(lambda t: layer(t["x"], start_index=t["at"]), mode, arrays)
    for at in range(T):
        row = run({"x": x[:, at : at + 1], "at": np.int32(at)})
        assert_close(row, whole[:, at : at + 1], tolerance=1e-6)


def test_good_keras_layer(rng, tmp_path):
    def make(dtype):
        return SinusoidalPositionEncoding(dtype=dtype)

    check_layer(make, {"inputs": rng.normal(size=(B, T, D)).astype("float32")}, tmp_path)


def test_half_precision_rounds_the_encoding_once():
    """Angles are float32: position 257 has no bfloat16 of its own, and its sine must be right."""
    layer = SinusoidalPositionEncoding(dtype="mixed_bfloat16")
    encoded = layer(np.zeros((1, 300, 8), "float32"))
    assert keras.backend.standardize_dtype(encoded.dtype) == "bfloat16"
    encoded = to_numpy(keras.ops.cast(encoded, "float32"))[0]
    assert np.max(np.abs(encoded - sinusoids(300, 8))) < 0.005


def test_a_mask_goes_on():
    tokens = np.array([[3, 4, 0]], "int32")
    embedded = keras.layers.Embedding(5, D, mask_zero=True)(tokens)
    encoded = SinusoidalPositionEncoding()(embedded)
    mask = to_numpy(keras.src.backend.get_keras_mask(encoded))
    np.testing.assert_array_equal(mask, tokens != 0)


def test_free_axes_are_batch(rng):
    x = rng.normal(size=(B, 3, T, D)).astype("float32")
    assert_close(SinusoidalPositionEncoding()(x), x + sinusoids(T, D), tolerance=1e-6)


@pytest.mark.skipif(BACKEND == "jax", reason="knows no float64 unless a process is told to")
def test_float64_is_exact_to_its_own_rounding():
    layer = SinusoidalPositionEncoding(dtype="float64")
    encoded = to_numpy(layer(np.zeros((1, 3, 16)), start_index=np.int64(50_000)))
    assert encoded.dtype == np.float64
    assert_close(encoded[0], sinusoids(3, 16, 50_000), tolerance=1e-10)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda layer, x: layer(x.astype("int32")), "`inputs` must be floats .*int32"),
        (lambda layer, x: layer(x[0, 0]), r"`inputs` must be floats of the shape .*\(7,\)"),
        (lambda layer, x: layer(x, start_index=2.5), "`start_index` must be .*start_index=2.5"),
        (lambda layer, x: layer(x, start_index=[1, 2]), "`start_index` must be a whole number"),
        (
            lambda layer, x: layer(x, start_index=2**31 - 1),
            "must be a whole number from -1073741824 to",
        ),
    ],
)
def test_what_cannot_work_is_refused(rng, call, message):
    with pytest.raises(ValueError, match=message):
        call(SinusoidalPositionEncoding(), rng.normal(size=(B, T, D)).astype("float32"))


@pytest.mark.parametrize("value", [1, 0, float("nan"), float("inf"), "10000", None])
def test_wavelengths_that_cannot_work_are_refused(value):
    with pytest.raises(ValueError, match=f"`max_wavelength` must be a number > 1.*{value}"):
        SinusoidalPositionEncoding(value)
