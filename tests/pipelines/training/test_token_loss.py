"""The loss of tokens: its numbers, its gradient, and how many logits there are at a time."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.training import token_loss as module
from pipelines.training.token_loss import TokenLoss
from tests.support.layer_checks import assert_close
from tf_relpos import smoothed_cross_entropy

pytestmark = pytest.mark.tensorflow_only

V = 17


def token_loss(smoothing=0.1, r_drop=0.0, is_compiled=False):
    return TokenLoss(smoothing, r_drop, 0, scale=lambda loss: loss, is_compiled=is_compiled)


@pytest.fixture
def few_at_a_time(monkeypatch):
    """Blocks of three to six tokens."""
    monkeypatch.setattr(module, "MOST", 6)
    monkeypatch.setattr(module, "MULTIPLE", 3)


def inputs(rng, passes=1, pairs=5, length=7, tokens=None, dtype="float32"):
    """Labels, of which so many are tokens, in any place; hidden states and columns."""
    labels = rng.integers(4, V, pairs * length)
    if tokens is not None:
        labels[rng.permutation(labels.size)[tokens:]] = 0
    hidden = rng.normal(size=(passes * pairs, length, 11))
    columns = rng.normal(size=(11, V))
    return (
        tf.constant(labels.reshape(pairs, length), tf.int32),
        tf.constant(hidden, dtype),
        tf.constant(columns, dtype),
    )


def gradients(loss, labels, hidden, columns, **options):
    """In a graph that does not know the lengths, as in training."""
    signature = [
        tf.TensorSpec([None, None], labels.dtype),
        tf.TensorSpec([None, None, hidden.shape[-1]], hidden.dtype),
        tf.TensorSpec(columns.shape, columns.dtype),
    ]
    call = tf.function(
        lambda *xs: loss.gradients(*xs, tf.constant(13.0), **options), input_signature=signature
    )
    return call(labels, hidden, columns)


@pytest.mark.parametrize("tokens", [0, 1, 3, 6, 7, 12, 20, 34, 35])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_blocks_give_what_all_positions_together_give(rng, few_at_a_time, tokens, is_compiled):
    labels, hidden, columns = inputs(rng, tokens=tokens)
    with tf.GradientTape() as tape:
        tape.watch([hidden, columns])
        logits = tf.einsum("btd,dv->btv", hidden, columns)
        total = tf.reduce_sum(smoothed_cross_entropy(labels, logits))
        nll = tf.reduce_sum(smoothed_cross_entropy(labels, logits, 0.0))
        scaled = total / 13
    expected = tape.gradient(scaled, [hidden, columns])
    is_right = (tf.argmax(logits, -1, tf.int32) == labels) & (labels != 0)
    loss = token_loss(is_compiled=is_compiled)
    for options in ({}, {"at_once": True}):
        by_hidden, by_columns, sums = gradients(loss, labels, hidden, columns, **options)
        assert_close(by_hidden, expected[0].numpy())
        assert_close(by_columns, expected[1].numpy())
        assert float(sums["loss"]) == pytest.approx(float(total), rel=1e-5)
        assert float(sums["nll"]) == pytest.approx(float(nll), rel=1e-5)
        assert float(sums["correct"]) == np.count_nonzero(is_right)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tokens", [8, 35])
def test_two_passes_in_blocks_give_what_they_give_together(rng, few_at_a_time, tokens, dtype):
    loss = token_loss(r_drop=3.0)
    given = inputs(rng, passes=2, tokens=tokens, dtype=dtype)
    *found, sums = gradients(loss, *given)
    *expected, expected_sums = gradients(loss, *given, at_once=True)
    tolerance = 1e-5 if dtype == "float32" else 0.02
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == dtype and a.shape == b.shape
        assert_close(tf.cast(a, tf.float32), tf.cast(b, tf.float32).numpy(), tolerance=tolerance)
    for name, value in expected_sums.items():
        assert float(sums[name]) == pytest.approx(float(value), rel=tolerance)


def test_no_more_logits_than_those_of_a_block_are_there(rng):
    """Of 5,000 tokens in 7,000 positions, five blocks of 1,000, rounded up to a multiple of 64."""
    loss, largest = token_loss(), []

    def of_tokens(labels, logits, total_tokens):
        tf.py_function(lambda x: largest.append(tuple(x.shape)), [logits], [])
        return TokenLoss.of_tokens(loss, labels, logits, total_tokens)

    watched = type("Watched", (TokenLoss,), {"of_tokens": staticmethod(of_tokens)})
    given = inputs(rng, pairs=100, length=70, tokens=5000)
    gradients(watched(0.1, 0.0, 0, lambda loss: loss), *given)
    assert largest == [(1, 1024, V)] * 5


@pytest.mark.parametrize("xla", ["nothing", "loss"])
def test_the_loss_of_bfloat16_logits_is_computed_in_float32(rng, xla):
    """Sums and gradient, that of two terms as well, are those of the same numbers in float32, and
    the gradient is rounded at the end."""
    labels = np.append(rng.integers(4, V, 11, dtype="int32"), np.zeros(2, "int32"))
    logits = tf.cast(rng.normal(size=(2, 13, V)) * 5, tf.bfloat16)
    loss = tf.function(token_loss(r_drop=3.0).of_tokens, jit_compile=xla == "loss")
    tokens = tf.constant(float(np.count_nonzero(labels)))
    gradient, logs = loss(tf.constant(labels), logits, tokens)
    expected, expected_logs = loss(tf.constant(labels), tf.cast(logits, tf.float32), tokens)
    assert gradient.dtype == tf.bfloat16 and expected.dtype == tf.float32
    rounded = tf.cast(expected, tf.bfloat16)
    assert_close(*(tf.cast(x, tf.float32).numpy() for x in (gradient, rounded)))
    for name, value in expected_logs.items():
        assert_close(logs[name].numpy(), value.numpy())


def test_r_drop_is_the_mean_of_two_passes_and_their_divergence(rng):
    """Against NumPy, with padding, in float64; the gradient by differences."""
    alpha, smoothing = 5.0, 0.1
    labels = rng.integers(4, V, (3, 7))
    labels[0, 2:] = 0
    logits = rng.normal(size=(6, 7, V)) * 2
    tokens = np.sum(labels != 0)

    def expected(logits):
        log_p = logits - np.log(np.sum(np.exp(logits), -1, keepdims=True))
        p, q = np.exp(log_p[:3]), np.exp(log_p[3:])
        ratio = log_p[:3] - log_p[3:]
        divergence = (np.sum(p * ratio, -1) - np.sum(q * ratio, -1)) / 2
        targets = np.full((6, 7, V), smoothing / (V - 1))
        twice = np.concatenate([labels, labels])
        np.put_along_axis(targets, twice[..., None], 1 - smoothing, -1)
        entropies = -np.sum(targets * log_p, -1).reshape(2, 3, 7)
        return np.sum((entropies.mean(0) + alpha / 2 * divergence) * (labels != 0))

    gradient, logs = token_loss(smoothing, alpha).of_tokens(
        tf.constant(labels.reshape(-1), tf.int32),
        tf.constant(logits.reshape(2, -1, V), tf.float32),
        tf.constant(tokens, tf.float32),
    )
    gradient = gradient.numpy().reshape(logits.shape)
    assert float(logs["loss"]) == pytest.approx(expected(logits), rel=1e-5)
    for index in [(0, 0, 3), (1, 4, 8), (5, 6, 16), (3, 0, 0), (3, 5, 1)]:
        step = np.zeros_like(logits)
        step[index] = 1e-5
        slope = (expected(logits + step) - expected(logits - step)) / 2e-5 / tokens
        assert gradient[index] == pytest.approx(slope, rel=1e-3, abs=1e-7)
