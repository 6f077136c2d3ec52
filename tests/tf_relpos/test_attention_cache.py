"""The key/value cache gives the uncached layer's output at every step, past the clipping too."""

import keras
import numpy as np
import pytest

from tests.support.attention_checks import random_inputs, random_mask, randomize
from tests.support.layer_checks import MODES, assert_close, compile_function, to_numpy
from tf_relpos import RelativeMultiHeadAttention

B, S, N, H, D = 2, 13, 3, 11, 7


def build(rng, **options):
    layer = RelativeMultiHeadAttention(N, H, **{"max_relative_position": 2, **options})
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


def sequence(rng, length=S):
    return rng.normal(size=(B, length, D)).astype("float32")


def empty_cache(rng, length=S):
    """Filled with large numbers: what has not been written must not be seen."""
    return 1e3 * rng.normal(size=(B, 2, length, N, H)).astype("float32")


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("k", [0, 2, 16])
@pytest.mark.parametrize("step", [1, 3], ids=["one_by_one", "three_at_once"])
def test_equals_the_uncached_layer(rng, step, k, shared, implementation):
    layer = build(
        rng,
        max_relative_position=k,
        heads_share_relative_embedding=shared,
        implementation=implementation,
    )
    x = sequence(rng)
    whole = to_numpy(layer(x, x, use_causal_mask=True))
    cache = empty_cache(rng, length=17)
    for start in range(0, S - step + 1, step):
        part = x[:, start : start + step]
        output, cache = layer(
            part, part, cache=cache, cache_update_index=start, use_causal_mask=True
        )
        assert_close(output, whole[:, start : start + step])


@pytest.mark.parametrize("mode", MODES)
def test_step_that_is_a_tensor(rng, mode):
    """One trace serves all steps; a cached step needs no causal mask when T = 1."""
    layer = build(rng)
    x = sequence(rng)
    whole = to_numpy(layer(x, x, use_causal_mask=True))

    def step(tensors):
        token = tensors["token"]
        return layer(token, token, cache=tensors["cache"], cache_update_index=tensors["at"])

    arrays = {"token": x[:, :1], "cache": empty_cache(rng), "at": np.int32(0)}
    run = compile_function(step, mode, arrays, {"cache": (None, 2, None, N, H)})
    for at in range(S):
        arrays.update(token=x[:, at : at + 1], at=np.int32(at))
        output, arrays["cache"] = run(arrays)
        assert_close(output, whole[:, at : at + 1])


def test_prefix_without_causal_mask_sees_all_that_is_written(rng):
    layer = build(rng)
    x = sequence(rng)
    output, _ = layer(x[:, :7], x[:, :7], cache=empty_cache(rng), cache_update_index=0)
    assert_close(output, layer(x[:, :7], x[:, :7]))


def test_only_the_given_positions_are_written(rng):
    layer = build(rng)
    x = sequence(rng, 3)
    before = empty_cache(rng)
    _, after = layer(x, x, cache=before, cache_update_index=5)
    after = to_numpy(after)
    np.testing.assert_array_equal(after[:, :, :5], before[:, :, :5])
    np.testing.assert_array_equal(after[:, :, 8:], before[:, :, 8:])
    assert_close(after[:, :, 5:8], layer.compute_cache(x))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_a_prefix_and_a_part_as_well(rng, mode):
    """As an empty prompt, and the last part of one that was cut evenly."""
    layer = build(rng)
    x = sequence(rng)
    whole = to_numpy(layer(x, x, use_causal_mask=True))

    def step(tensors):
        part, cache, at = tensors["part"], tensors["cache"], tensors["at"]
        return layer(part, part, cache=cache, cache_update_index=at, use_causal_mask=True)

    cache, at = empty_cache(rng), 0
    for size in (0, 3, 0):
        arrays = {"part": x[:, at : at + size], "cache": cache, "at": np.int32(at)}
        run = compile_function(step, mode, arrays, {"part": (None, None, D)})
        output, written = run(arrays)
        assert output.shape == (B, size, D)
        assert_close(output, whole[:, at : at + size])
        np.testing.assert_array_equal(
            to_numpy(written)[:, :, at + size :], cache[:, :, at + size :]
        )
        cache, at = to_numpy(written), at + size


def test_cross_attention_attends_a_cache_as_it_is(rng):
    layer = build(rng)
    query, value, key = sequence(rng, 5), sequence(rng), sequence(rng)
    cache = layer.compute_cache(value, key=key)
    assert tuple(cache.shape) == (B, 2, S, N, H)
    output, same = layer(query, value[:, :1], cache=cache)
    assert_close(output, layer(query, value, key))
    np.testing.assert_array_equal(to_numpy(same), to_numpy(cache))


def test_masks_and_scores_with_a_cache(rng):
    layer = build(rng)
    x = sequence(rng, 5)
    mask = random_mask(rng, B, 5, S)
    mask[..., 0] = True
    output, scores, _ = layer(
        x,
        x,
        cache=empty_cache(rng),
        cache_update_index=0,
        attention_mask=mask,
        return_attention_scores=True,
        use_causal_mask=True,
    )
    seen = mask[:, :, :5] & np.tri(5, dtype=bool)
    expected, expected_scores = layer(x, x, attention_mask=seen, return_attention_scores=True)
    assert_close(output, expected)
    assert_close(to_numpy(scores)[..., :5], expected_scores)
    assert not to_numpy(scores)[..., 5:].any()


def test_sliding_window_with_a_cache(rng):
    layer = build(rng, sliding_window=3)
    x = sequence(rng)
    whole = to_numpy(layer(x, x, use_causal_mask=True))
    cache = empty_cache(rng)
    for at in range(S):
        token = x[:, at : at + 1]
        output, cache = layer(token, token, cache=cache, cache_update_index=at)
        assert_close(output, whole[:, at : at + 1])


def test_half_precision_cache(rng):
    layer = build(rng)
    half = RelativeMultiHeadAttention(N, H, 2, dtype="mixed_bfloat16")
    half.build((None, None, D), (None, None, D))
    half.set_weights(layer.get_weights())
    x = sequence(rng)
    whole = to_numpy(layer(x, x, use_causal_mask=True))
    cache = keras.ops.zeros((B, 2, S, N, H), "bfloat16")
    for at in range(S):
        token = x[:, at : at + 1]
        output, cache = half(token, token, cache=cache, cache_update_index=at)
        assert keras.backend.standardize_dtype(cache.dtype) == "bfloat16"
        assert_close(keras.ops.cast(output, "float32"), whole[:, at : at + 1], tolerance=0.05)


def test_cache_refuses_what_cannot_work(rng):
    x = sequence(rng, 1)
    unequal = RelativeMultiHeadAttention(N, H, 2, value_dim=5)
    unequal.build((None, None, D), (None, None, D))
    with pytest.raises(ValueError, match="value_dim=5.*key_dim=11"):
        unequal.compute_cache(x)
    layer = build(rng)
    with pytest.raises(ValueError, match="cache_update_index.*13"):
        layer(x, x, cache=empty_cache(rng), cache_update_index=S)
    with pytest.raises(ValueError, match="cache_update_index"):
        layer(x, x, cache_update_index=0)


@pytest.mark.parametrize("options", [{"sliding_window": 3}, {}], ids=["window", "causal"])
def test_cache_as_it_is_minds_masks_of_positions(rng, options):
    layer = build(rng, **options)
    query, value = sequence(rng, 5), sequence(rng)
    arguments = {} if options else {"use_causal_mask": True}
    output, _ = layer(query, value, cache=layer.compute_cache(value), **arguments)
    assert_close(output, layer(query, value, **arguments))


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, keras.ops.convert_to_tensor])
def test_index_of_any_whole_type(rng, kind):
    layer = build(rng)
    x, cache = sequence(rng, 2), empty_cache(rng)
    outputs = layer(x, x, cache=cache, cache_update_index=kind(4))
    for actual, expected in zip(
        outputs, layer(x, x, cache=cache, cache_update_index=4), strict=True
    ):
        np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))
    for outside in (12, 200):
        with pytest.raises(ValueError, match=f"cache_update_index={outside}"):
            layer(x, x, cache=cache, cache_update_index=kind(outside))


BAD_INDICES = {
    "negative": -1,
    "negative_of_numpy": np.int64(-1),
    "half": 1.5,
    "truth": True,
    "word": "1",
    "list": [1],
    "many": np.zeros(2, "int32"),
}


@pytest.mark.parametrize("index", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_bad_indices_are_refused(rng, index):
    x = sequence(rng, 1)
    with pytest.raises(ValueError, match="cache_update_index"):
        build(rng)(x, x, cache=empty_cache(rng), cache_update_index=index)


BAD_CACHES = {
    "one_sentence": (1, 2, S, N, H),
    "heads": (B, 2, S, N + 1, H),
    "keys_alone": (B, S, N, H),
}


@pytest.mark.parametrize("shape", BAD_CACHES.values(), ids=BAD_CACHES.keys())
@pytest.mark.parametrize("index", [None, 0])
def test_caches_that_do_not_fit_are_refused(rng, index, shape):
    x = sequence(rng, 1)
    with pytest.raises(ValueError, match="`cache` must have the shape"):
        build(rng)(x, x, cache=np.zeros(shape, "float32"), cache_update_index=index)


@pytest.mark.parametrize("kind", ["int32", "bool"])
def test_a_cache_that_would_round_is_refused(rng, kind):
    x, layer = sequence(rng, 1), build(rng)
    for cache in (empty_cache(rng).astype(kind), empty_cache(rng).tolist()):
        with pytest.raises(ValueError, match="`cache` must be an array or tensor of floats"):
            layer(x, x, cache=cache, cache_update_index=0)


@pytest.mark.parametrize("index", [None, 0])
def test_masks_that_keras_hands_on_are_not_looked_at(rng, index):
    embedding = keras.layers.Embedding(9, D, mask_zero=True)
    x, layer = embedding(np.array([[3, 1, 4], [1, 5, 2]])), build(rng)
    cache = empty_cache(rng) if index == 0 else layer.compute_cache(sequence(rng))
    output, _ = layer(x, x, cache=cache, cache_update_index=index, use_causal_mask=True)
    other = keras.ops.convert_to_numpy(x)  # without a mask
    expected, _ = layer(other, other, cache=cache, cache_update_index=index, use_causal_mask=True)
    assert_close(output, expected)


def test_what_does_not_fit_beside_a_call_is_refused(rng):
    x, layer = sequence(rng), build(rng)
    wide, longer = np.zeros((B, S, D + 1), "float32"), np.zeros((B, S + 1, D), "float32")
    for method in (layer.distance_scores, layer.compute_cache, layer.project_heads):
        with pytest.raises(ValueError, match=r"must have the shape \[any, any, 7\]"):
            method(wide)
    with pytest.raises(ValueError, match="`value` must have the shape"):
        layer.score_terms(x, wide)
    with pytest.raises(ValueError, match="must have the same positions"):
        layer.compute_cache(x, longer)


def test_one_value_for_two_sentences_is_refused(rng):
    x = sequence(rng, 1)
    with pytest.raises(ValueError, match="`value`"):
        build(rng)(x, x[:1], cache=empty_cache(rng), cache_update_index=0)
    with pytest.raises(ValueError, match="must agree"):
        build(rng)(x, x[:1])


def test_cache_of_a_layer_without_weights_is_refused(rng):
    with pytest.raises(ValueError, match="built"):
        RelativeMultiHeadAttention(N, H).compute_cache(sequence(rng))


def test_symbolic_index_without_a_cache_is_refused():
    x, index = keras.Input((1, D)), keras.Input((), dtype="int32")
    with pytest.raises(ValueError, match="needs a `cache`"):
        RelativeMultiHeadAttention(N, H)(x, x, cache_update_index=index)


def test_symbolic_shapes_of_a_cached_step(rng):
    layer = build(rng)
    x = keras.Input((1, D), batch_size=B)
    cache = keras.Input((2, S, N, H), batch_size=B)
    output, scores, written = layer(
        x, x, cache=cache, cache_update_index=4, return_attention_scores=True
    )
    assert output.shape == (B, 1, D)
    assert scores.shape == (B, N, 1, S)
    assert written.shape == (B, 2, S, N, H)
    arrays = random_inputs(rng, B, 1, 1, D)
    model = keras.Model([x, cache], [output, written])
    expected = layer(
        arrays["query"], arrays["query"], cache=np.zeros((B, 2, S, N, H)), cache_update_index=4
    )
    actual = model([arrays["query"], np.zeros((B, 2, S, N, H), "float32")])
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)
