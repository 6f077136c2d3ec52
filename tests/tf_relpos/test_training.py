"""Label smoothing and the learning-rate schedule of Vaswani et al. 2017."""

import json

import keras
import numpy as np
import pytest

from tests.support.layer_checks import (
    COMPILED_MODES,
    MODES,
    assert_close,
    compile_function,
    gradient_function,
    to_numpy,
)
from tf_relpos import WarmupInverseSqrt, smoothed_cross_entropy

B, T, V = 2, 5, 11
NO_NUMBERS = (float("nan"), float("inf"), "100", None, True)


def loss_and_gradient(target_ids, logits, smoothing, upstream):
    """Cross-entropy with the smoothed distribution, one id at a time, in float64."""
    loss, gradient = np.zeros(target_ids.shape), np.zeros(logits.shape)
    for b, t in np.ndindex(target_ids.shape):
        target = target_ids[b, t]
        if target == 0:
            continue
        log_p = logits[b, t] - np.log(np.sum(np.exp(logits[b, t])))
        for v in range(logits.shape[-1]):
            q = 1 - smoothing if v == target else smoothing / (logits.shape[-1] - 1)
            loss[b, t] -= q * log_p[v]
            gradient[b, t, v] = upstream[b, t] * (np.exp(log_p[v]) - q)
    return loss, gradient


def examples(rng):
    target_ids = rng.integers(1, V, (B, T), dtype="int32")
    target_ids[0, 3:] = 0
    return {
        "target_ids": target_ids,
        "logits": (3 * rng.normal(size=(B, T, V))).astype("float32"),
        "upstream": rng.normal(size=(B, T)).astype("float32"),
    }


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient(rng, mode, smoothing):
    arrays = examples(rng)

    def call(tensors):
        return smoothed_cross_entropy(tensors["target_ids"], tensors["logits"], smoothing)

    run = compile_function(
        gradient_function(call, ["logits"]), mode, arrays, {"upstream": (None, None)}
    )
    loss, gradients = run(arrays)
    in_64 = [arrays[name].astype("float64") for name in ("logits", "upstream")]
    expected = loss_and_gradient(arrays["target_ids"], in_64[0], smoothing, in_64[1])
    assert_close(loss, expected[0])
    assert_close(gradients["logits"], expected[1])
    assert not np.any(loss[arrays["target_ids"] == 0])


def test_uniform_prediction_costs_the_log_of_the_vocabulary():
    loss = smoothed_cross_entropy(np.array([[3]], "int32"), np.zeros((1, 1, V), "float32"))
    assert_close(loss, [[np.log(V)]], tolerance=1e-6)


def test_default_smoothing_is_a_tenth(rng):
    arrays = examples(rng)
    one, other = (
        smoothed_cross_entropy(arrays["target_ids"], arrays["logits"], *smoothing)
        for smoothing in ((), (0.1,))
    )
    np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_half_precision_logits_give_a_float32_loss(rng):
    arrays = examples(rng)
    logits = keras.ops.cast(arrays["logits"], "bfloat16")
    loss = smoothed_cross_entropy(arrays["target_ids"], logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    exact = keras.ops.cast(logits, "float32")
    assert_close(loss, smoothed_cross_entropy(arrays["target_ids"], exact), tolerance=1e-6)


def test_large_logits_stay_finite():
    logits = np.array([[[1e4, -1e4, 0.0, 0.0, 5e3]]], "float32")
    loss = to_numpy(smoothed_cross_entropy(np.array([[4]], "int32"), logits, 0.0))
    assert_close(loss, [[5e3]], tolerance=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"smoothing.*{smoothing}"):
        smoothed_cross_entropy(np.ones((1, 1), "int32"), np.zeros((1, 1, V), "float32"), smoothing)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint32", "float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_targets_of_any_dtype(rng, mode, dtype):
    """More ids than a uint8 can tell apart; floats are what Keras's `fit` makes of targets."""
    logits = rng.normal(size=(B, T, 300)).astype("float32")
    target_ids = rng.integers(0, 100, (B, T))
    expected = smoothed_cross_entropy(target_ids.astype("int32"), logits)
    arrays = {"target_ids": target_ids.astype(dtype), "logits": logits}
    shapes = {"target_ids": (None, None)}
    run = compile_function(lambda t: smoothed_cross_entropy(**t), mode, arrays, shapes)
    assert_close(run(arrays), expected, tolerance=1e-6)


BAD_TARGETS = [(-1, "int32"), (V, "int32"), (200, "uint8"), (2.5, "float32"), (-1.0, "float32")]


@pytest.mark.parametrize("target, dtype", BAD_TARGETS)
def test_targets_that_are_no_ids_are_refused(target, dtype):
    target_ids = np.array([[3, target]], dtype)
    with pytest.raises(ValueError, match=f"`target_ids` must be ids from 0 to 10.*: {target}"):
        smoothed_cross_entropy(target_ids, np.zeros((1, 2, V), "float32"))


@pytest.mark.parametrize("target, dtype", BAD_TARGETS)
@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_the_loss_of_targets_that_are_no_ids_is_nan_when_compiled(mode, target, dtype):
    arrays = {
        "target_ids": np.array([[3, target, 0]], dtype),
        "logits": np.zeros((1, 3, V), "float32"),
    }
    shapes = {"target_ids": (None, None)}
    run = compile_function(lambda t: smoothed_cross_entropy(**t), mode, arrays, shapes)
    loss = run(arrays)[0]
    assert_close(loss[[0, 2]], [np.log(V), 0.0], tolerance=1e-6)
    assert np.isnan(loss[1])


def test_padding_may_have_an_id_out_of_range():
    logits = np.zeros((1, 2, V), "float32")
    loss = smoothed_cross_entropy(np.array([[3, -100]]), logits, pad_id=np.int64(-100))
    assert_close(loss, [[np.log(V), 0.0]], tolerance=1e-6)


@pytest.mark.parametrize(
    "target_ids, message",
    [
        (None, r"`target_ids` must be integers \[B, T\]. Received: None"),
        ([["a", "b"]], r"`target_ids` must be integers \[B, T\]. Received: .*'a'"),
        (np.ones((1, 2), "float16"), "`target_ids` must hold integers.*float16"),
        (np.ones((1, 2), "bool"), "`target_ids` must hold integers.*bool"),
        (np.ones((1, 1), "int32"), r"`target_ids` must have the shape \[1, 2\].*\(1, 1\)"),
        (np.ones(2, "int32"), r"`target_ids` must have the shape \[1, 2\].*\(2,\)"),
    ],
)
def test_other_targets_are_refused(target_ids, message):
    with pytest.raises(ValueError, match=message):
        smoothed_cross_entropy(target_ids, np.zeros((1, 2, V), "float32"))


@pytest.mark.parametrize("logits", [None, [[["a"]]], 3.0])
def test_logits_that_are_no_numbers_are_refused(logits):
    with pytest.raises(ValueError, match=r"`logits` must be numbers \[B, T, V\]. Received: "):
        smoothed_cross_entropy([[1]], logits)


def test_it_is_a_loss_for_keras_s_fit(rng):
    """Keras casts the targets to float and takes the mean over all positions."""
    x, y = rng.normal(size=(8, T, 3)).astype("float32"), rng.integers(0, V, (8, T))
    model = keras.Sequential([keras.layers.Dense(V)])
    model.compile(keras.optimizers.Adam(0.1), smoothed_cross_entropy)
    expected = np.mean(to_numpy(smoothed_cross_entropy(y, model(x))))
    assert_close(model.evaluate(x, y, verbose=0), expected)
    losses = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("step", [0, 1, 98, 99, 100, 12345])
def test_schedule(step):
    """Keras's step counts from 0, the formula's from 1."""
    s = step + 1
    expected = 1.5 * 512**-0.5 * min(s**-0.5, s * 100**-1.5)
    rate = WarmupInverseSqrt(512, warmup_steps=100, scale=1.5)(step)
    assert_close(rate, expected, tolerance=1e-6)


def test_schedule_peaks_at_the_end_of_the_warm_up():
    schedule = WarmupInverseSqrt(64, warmup_steps=7)
    rates = [float(schedule(step)) for step in range(30)]
    assert int(np.argmax(rates)) == 6
    assert rates[0] > 0


def test_optimizer_takes_the_rate_of_its_first_step_first():
    variable = keras.Variable(np.zeros(1, "float32"))
    schedule = WarmupInverseSqrt(16, warmup_steps=5)
    optimizer = keras.optimizers.SGD(schedule)
    expected = 0.0
    for step in range(1, 9):
        optimizer.apply([keras.ops.ones(1)], [variable])
        expected -= 16**-0.5 * min(step**-0.5, step * 5**-1.5)
        assert_close(variable.value, [expected])


def test_schedule_returns_from_its_config():
    schedule = WarmupInverseSqrt(512, warmup_steps=100, scale=2.0)
    config = keras.saving.serialize_keras_object(schedule)
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == schedule.get_config()
    assert_close(copy(3), schedule(3), tolerance=1e-7)


@pytest.mark.parametrize(
    "bad",
    [
        {"model_dim": 0},
        {"warmup_steps": 0},
        {"scale": 0.0},
        *({name: value} for name in ("model_dim", "warmup_steps", "scale") for value in NO_NUMBERS),
    ],
)
def test_schedule_refuses_what_cannot_work(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"`{name}` must be a number .*{value}"):
        WarmupInverseSqrt(**{"model_dim": 512, **bad})


def test_schedule_takes_numpy_numbers():
    schedule = WarmupInverseSqrt(np.int64(512), np.int32(100), np.float32(2))
    assert json.loads(json.dumps(schedule.get_config())) == schedule.get_config()
    assert_close(schedule(np.int64(3)), WarmupInverseSqrt(512, 100, 2.0)(3), tolerance=1e-7)


def test_a_model_compiled_with_the_loss_loads(tmp_path):
    model = keras.Sequential([keras.Input((3, 4)), keras.layers.Dense(5)])
    model.compile("sgd", smoothed_cross_entropy)
    x, ids = np.ones((2, 3, 4), "float32"), np.ones((2, 3), "int32")
    model.fit(x, ids, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(x, ids, verbose=0) == pytest.approx(model.evaluate(x, ids, verbose=0))
