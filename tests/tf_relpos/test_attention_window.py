"""Restricted attention: only the pairs within a window are computed, and nothing else changes."""

import keras
import numpy as np
import pytest

from tests.support.attention_checks import (
    check_against_oracle,
    oracle,
    random_inputs,
    random_mask,
    randomize,
)
from tests.support.layer_checks import (
    BACKEND,
    MODES,
    assert_close,
    compile_runner,
    to_numpy,
)
from tests.support.reference import position_labels
from tf_relpos import RelativeMultiHeadAttention, windows

B, T, N, H, D = 2, 11, 3, 5, 7
LENGTHS = ("known", "unknown") if BACKEND == "tensorflow" else ("known",)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of three queries, the last of them not full."""
    monkeypatch.setattr(windows, "SMALLEST_BLOCK", 3)


def build(rng, **options):
    layer = RelativeMultiHeadAttention(N, H, 2, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


def pairs_within(window, causal=False, keys=T):
    """Bool `[T, S]`."""
    distance = np.arange(keys) - np.arange(T)[:, None]
    return (abs(distance) <= window) & ((distance <= 0) | (not causal))


@pytest.mark.parametrize("window, causal", [(0, False), (2, True), (5, False)])
@pytest.mark.parametrize(
    "mode, lengths", [(m, k) for m in MODES for k in LENGTHS if m != "eager" or k == "known"]
)
def test_values_and_gradients_equal_the_oracle(rng, mode, lengths, window, causal):
    arrays = random_inputs(rng, B, T, T, D)
    arrays["attention_mask"] = rng.random((B, T, T)) < 0.6
    arrays["attention_mask"][:, range(T), range(T)] = True  # each query sees something
    known = {name: (None, *array.shape[1:]) for name, array in arrays.items()}
    layer = build(rng, attention_window=window)
    run = compile_runner(
        layer, mode, arrays, known if lengths == "known" else None, use_causal_mask=causal
    )
    seen = arrays["attention_mask"] & pairs_within(window, causal)
    check_against_oracle(layer, arrays, oracle(layer, arrays, position_labels(T, T, 2), seen), run)


@pytest.mark.parametrize("keys", [1, 4, 7, 19])
def test_keys_of_another_sequence(rng, keys):
    """Fewer keys than queries, or more: those that are not there are not seen."""
    window = max(T - keys, 3)
    arrays = random_inputs(rng, B, T, keys, D)
    layer = build(rng, attention_window=window)
    seen = np.broadcast_to(pairs_within(window, keys=keys), (B, T, keys))
    check_against_oracle(layer, arrays, oracle(layer, arrays, position_labels(T, keys, 2), seen))


MASKS = {
    "of_values": lambda rng: {"value_mask": random_mask(rng, B, T)},
    "of_keys": lambda rng: {"key_mask": random_mask(rng, B, T), "value_mask": ones(B, T)},
    "of_queries": lambda rng: {"query_mask": random_mask(rng, B, T)},
    "of_any_query": lambda rng: {"attention_mask": random_mask(rng, B, 1, T)},
    "of_any_sentence": lambda rng: {"attention_mask": random_mask(rng, T, T)},
    "of_heads": lambda rng: {"attention_mask": random_mask(rng, B, N, T, T)},
    "of_heads_alone": lambda rng: {"attention_mask": random_mask(rng, 1, N, 1, T)},
}


def ones(*shape):
    return np.ones(shape, bool)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_every_form_of_mask(rng, mask):
    """With the scores, the layer attends to all pairs and masks those beyond the window."""
    layer = build(rng, attention_window=3)
    x = rng.normal(size=(B, T, D)).astype("float32")
    arguments = mask(rng)
    full, weights = layer(x, x, return_attention_scores=True, **arguments)
    sees = np.any(to_numpy(weights) * pairs_within(3) > 1e-3, axis=(1, 3))
    outside = np.max(to_numpy(weights) * ~pairs_within(3), axis=(1, 3)) > 1e-6
    sees &= ~outside  # the others see nothing, so that the softmax takes every key alike
    assert sees.mean() > 0.3
    assert_close(to_numpy(layer(x, x, **arguments))[sees], to_numpy(full)[sees])


@pytest.mark.parametrize(
    "options",
    [
        {"use_gate": True},
        {"value_dim": 4},
        {"heads_share_relative_embedding": False},
        {"relative_keys": False, "relative_values": False},
        {"implementation": "transpose_reshape"},
        {"implementation": "bucketed"},
    ],
    ids=str,
)
def test_every_kind_of_layer(rng, options):
    layer = build(rng, attention_window=2, **options)
    x = rng.normal(size=(B, T, D)).astype("float32")
    expected, _ = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    assert_close(layer(x, x, use_causal_mask=True), expected)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(rng, dtype):
    layer = build(rng, attention_window=3)
    x = rng.normal(size=(B, T, D)).astype("float32")
    half = RelativeMultiHeadAttention(N, H, 2, attention_window=3, dtype=dtype)
    half.build(x.shape, x.shape)
    half.set_weights(layer.get_weights())
    assert_close(half(x, x), layer(x, x), 0.03)


def test_a_cache_is_seen_through_the_window(rng):
    layer = build(rng, attention_window=3)
    x = rng.normal(size=(B, T, D)).astype("float32")
    expected = layer(x, x, use_causal_mask=True)
    cache = np.zeros((B, 2, T, N, H), "float32")
    for i in range(T):
        one = x[:, i : i + 1]
        step, cache = layer(one, one, cache=cache, cache_update_index=i, use_causal_mask=True)
        assert_close(step[:, 0], to_numpy(expected)[:, i])


def test_is_the_sliding_window_of_keras(rng):
    layer = build(rng, attention_window=3, relative_keys=False, relative_values=False)
    plain = keras.layers.MultiHeadAttention(N, H, sliding_window=4)
    x = rng.normal(size=(B, T, D)).astype("float32")
    plain.build(x.shape, x.shape)
    plain.set_weights(layer.get_weights())
    assert_close(layer(x, x), plain(x, x))
    copy = RelativeMultiHeadAttention.from_config(layer.get_config())
    assert copy.attention_window == layer.attention_window == 3
    assert RelativeMultiHeadAttention(N, H, sliding_window=4).attention_window == 3
    assert RelativeMultiHeadAttention(N, H).attention_window is None


def test_dropout_leaves_out_weights(rng):
    layer = build(rng, attention_window=2, dropout=0.5)
    x = np.ones((B, 200, D), "float32")
    dropped, whole = (to_numpy(layer(x, x, training=t)) for t in (True, False))
    assert np.all(np.std(whole[:, 3:-3], axis=1) < 1e-5)
    assert np.all(np.std(dropped[:, 3:-3], axis=1) > 0.1)


@pytest.fixture
def pairs_computed(monkeypatch):
    """How many numbers the softmax of a layer takes in a call."""

    def count(layer, length, **arguments):
        softmax, taken = layer._softmax.call, []

        def watched(scores, *arguments, **options):
            taken.append(scores.shape)
            return softmax(scores, *arguments, **options)

        monkeypatch.setattr(layer._softmax, "call", watched)
        x = np.ones((1, length, D), "float32")
        layer(x, x, **arguments)
        return sum(np.prod(shape) for shape in taken)

    return count


@pytest.mark.parametrize("training", [False, True])
def test_what_lies_beyond_the_window_is_never_computed(rng, training, pairs_computed):
    """No tensor of T times S numbers."""
    layer = build(rng, attention_window=4)
    assert pairs_computed(layer, 1000, training=training) <= N * 1000 * (3 * 4 + 4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", range(1, 13))
def test_short_sentences_have_no_more_pairs_than_without_a_window(
    rng, length, causal, pairs_computed
):
    """Few blocks, and their windows, reach beyond both ends of a sentence."""
    layer = build(rng, attention_window=4)
    pairs = pairs_computed(layer, length, use_causal_mask=causal)
    assert pairs <= N * length**2


@pytest.mark.parametrize("window", [-1, 2.5, "3", True])
def test_a_window_that_cannot_be(window):
    with pytest.raises(ValueError, match=r"`attention_window` must be a whole number >= 0"):
        RelativeMultiHeadAttention(N, H, attention_window=window)


def test_two_windows_are_refused():
    with pytest.raises(ValueError, match="give one.*attention_window=2, sliding_window=3"):
        RelativeMultiHeadAttention(N, H, attention_window=2, sliding_window=3)


def test_keys_and_values_of_different_lengths_are_refused():
    layer = RelativeMultiHeadAttention(2, 4, 2, attention_window=2)
    x = np.zeros((2, 6, 8), "float32")
    layer(x, x)
    for key in (x[:, :3], np.concatenate([x, x], axis=1)):
        with pytest.raises(ValueError, match="`key` and `value` must have the same positions"):
            layer(x, x, key)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_no_queries_have_a_batch(window):
    layer = RelativeMultiHeadAttention(2, 4, 2, attention_window=window)
    x = np.zeros((4, 6, 8), "float32")
    assert layer(x[:, :0], x).shape == (4, 0, 8)


@pytest.mark.parametrize("shape", [(), (1, T, 0), (1, N, T, 0)])
def test_no_keys_are_seen(shape):
    layer = RelativeMultiHeadAttention(N, 4, 2, attention_window=2)
    x = np.ones((B, T, D), "float32")
    mask = np.ones(shape, bool) if shape else None
    assert layer(x, x[:, :0], attention_mask=mask).shape == (B, T, D)
