"""Inputs of any rank with one attention axis: all others are batch. And masks of any rank."""

import keras
import numpy as np
import pytest

from tests.support.attention_checks import random_mask, randomize
from tests.support.layer_checks import MODES, assert_close, compile_function, to_numpy
from tf_relpos import (
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    bands,
    edge_attention,
    query_blocks,
)

B, F, T, S, N, H, D = 2, 3, 5, 7, 3, 11, 13
IMPLEMENTATIONS = ("transpose_reshape", "bucketed")


def pair(rng, cls, *arguments, axis, rank, **options):
    """A layer for inputs of `rank` and the plain one with the same weights."""
    free = cls(N, H, *arguments, attention_axes=axis, **options)
    free.build(*[(None,) * (rank - 1) + (D,)] * 2)
    randomize(free, rng)
    plain = cls(N, H, *arguments, **options)
    plain.build((None, None, D), (None, None, D))
    plain.set_weights(free.get_weights())
    return free, plain


@pytest.mark.parametrize("arguments", [{}, {"use_causal_mask": True}], ids=["open", "causal"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_the_loop_over_a_free_axis(rng, mode, shared, implementation, arguments):
    options = {"heads_share_relative_embedding": shared, "implementation": implementation}
    layer, plain = pair(rng, RelativeMultiHeadAttention, 2, axis=-2, rank=4, **options)
    arrays = {
        "query": rng.normal(size=(B, F, T, D)).astype("float32"),
        "value": rng.normal(size=(B, F, S, D)).astype("float32"),
    }

    def call(tensors):
        return layer(**tensors, return_attention_scores=True, **arguments)

    output, scores = compile_function(call, mode, arrays)(arrays)
    assert scores.shape == (B, F, N, T, S)
    for f in range(F):
        part = {name: x[:, f] for name, x in arrays.items()}
        expected = plain(**part, return_attention_scores=True, **arguments)
        assert_close(output[:, f], expected[0])
        assert_close(scores[:, f], expected[1])


@pytest.mark.parametrize("training", [True, False], ids=["bands", "blocks"])
def test_long_sequences_with_a_free_axis_go_in_blocks(rng, monkeypatch, training):
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    monkeypatch.setattr(query_blocks, "BLOCK", 1)
    monkeypatch.setattr(bands, "FEWEST", 3)
    layer, plain = pair(rng, RelativeMultiHeadAttention, 2, axis=-2, rank=4)
    query, value = (rng.normal(size=(B, F, n, D)).astype("float32") for n in (19, 23))
    mask = random_mask(rng, B, F, 19, 23)
    taken = []
    for name in ("attend_in_bands", "attend_in_blocks"):
        attend = getattr(edge_attention, name)
        monkeypatch.setattr(
            edge_attention, name, lambda *a, f=attend, n=name, **kw: taken.append(n) or f(*a, **kw)
        )
    output = to_numpy(layer(query, value, attention_mask=mask[:, :, None], training=training))
    assert taken == ["attend_in_bands" if training else "attend_in_blocks"]
    for f in range(F):
        assert_close(output[:, f], plain(query[:, f], value[:, f], attention_mask=mask[:, f]))


def test_what_every_distance_scores_with_a_free_axis(rng):
    layer, plain = pair(rng, RelativeMultiHeadAttention, 2, axis=1, rank=4)
    x = rng.normal(size=(B, T, F, D)).astype("float32")
    scores, terms = layer.distance_scores(x), layer.score_terms(x, x)
    for f in range(F):
        assert_close(scores[:, f], plain.distance_scores(x[:, :, f]))
        for found, expected in zip(terms, plain.score_terms(x[:, :, f], x[:, :, f]), strict=True):
            assert_close(found[:, f], expected)


@pytest.mark.parametrize("window", [None, 3])
def test_positions_in_front_of_the_free_axes(rng, window):
    layer, plain = pair(rng, RelativeMultiHeadAttention, 2, axis=1, rank=5, sliding_window=window)
    x = rng.normal(size=(B, T, F, 2, D)).astype("float32")
    seen = random_mask(rng, B, F, 2, T)
    output = to_numpy(layer(x, x, value_mask=np.moveaxis(seen, -1, 1)))
    for f, g in np.ndindex(F, 2):
        part = x[:, :, f, g]
        assert_close(output[:, :, f, g], plain(part, part, value_mask=seen[:, f, g]))


@pytest.mark.parametrize("form", [(T, S), (B, T, S), (B, T, S, 3)], ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_labels_of_a_sentence_serve_its_free_axes(rng, implementation, form):
    layer, plain = pair(
        rng,
        RelationAwareAttention,
        5,
        axis=-2,
        rank=4,
        heads_share_relations=False,
        implementation=implementation,
    )
    query, value = (rng.normal(size=(B, F, n, D)).astype("float32") for n in (T, S))
    relations = rng.integers(-1, 5, form, dtype="int32")
    mask = random_mask(rng, B, T, S)
    output = to_numpy(layer(query, value, relations=relations, attention_mask=mask))
    for f in range(F):
        expected = plain(query[:, f], value[:, f], relations=relations, attention_mask=mask)
        assert_close(output[:, f], expected)


def test_symbolic_scores_with_a_free_axis():
    query, value = keras.Input((F, T, D)), keras.Input((F, S, D))
    layer = RelativeMultiHeadAttention(N, H, attention_axes=-2)
    output, scores = layer(query, value, return_attention_scores=True)
    assert output.shape == (None, F, T, D)
    assert scores.shape == (None, F, N, T, S)


@pytest.mark.parametrize("shape", [(T, T + 1), (B, N, T + 1, S), (S,)], ids=str)
def test_a_mask_that_does_not_end_with_all_pairs_is_refused(rng, shape):
    layer = RelativeMultiHeadAttention(N, H, attention_axes=-2)
    query, value = np.zeros((B, F, T, D), "float32"), np.zeros((B, F, S, D), "float32")
    with pytest.raises(ValueError, match=r"`attention_mask` must end with \[T, S\] = \(5, 7\)"):
        layer(query, value, attention_mask=np.ones(shape, bool))


def test_a_mask_of_heads_joins_a_mask_of_padding(rng):
    layer = RelativeMultiHeadAttention(N, H, 2)
    x, y = (rng.normal(size=(B, n, D)).astype("float32") for n in (T, S))
    of_heads, padding = random_mask(rng, B, N, T, S), random_mask(rng, B, S)
    of_heads[..., 0] = padding[:, 0] = True
    expected = layer(x, y, attention_mask=of_heads & padding[:, None, None])
    assert_close(layer(x, y, attention_mask=of_heads, value_mask=padding), expected)


def test_subclasses_may_override_what_keras_documents(rng):
    """With the arguments of Keras's `_compute_attention`, and none of our own."""

    class Scaled(RelativeMultiHeadAttention):
        def _compute_attention(
            self,
            query,
            key,
            value,
            attention_mask=None,
            training=None,
            return_attention_scores=False,
        ):
            return super()._compute_attention(
                query, key, 2 * value, attention_mask, training, return_attention_scores
            )

    x = rng.normal(size=(B, T, D)).astype("float32")
    options = {"relative_values": False, "use_bias": False}
    plain, scaled = (c(N, H, 2, **options) for c in (RelativeMultiHeadAttention, Scaled))
    expected = plain(x, x, use_causal_mask=True)
    scaled.build(x.shape, x.shape)
    scaled.set_weights(plain.get_weights())
    assert_close(scaled(x, x, use_causal_mask=True), 2 * expected)
