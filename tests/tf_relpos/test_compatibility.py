"""Additive compatibility (Bahdanau et al. 2014, with edges) against the loops of the oracle."""

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
    check_layer,
    compile_function,
    compile_runner,
    to_numpy,
)
from tests.support.reference import position_labels
from tf_relpos import (
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    Transformer,
    TransformerConfig,
    query_blocks,
    windows,
)

B, T, S, N, H, D, R = 2, 7, 5, 3, 11, 13, 6
FORMS = {"pair": (T, S), "sentence": (B, T, S), "several": (B, T, S, 3)}


def build(rng, cls, *arguments, axes=0, **options):
    layer = cls(N, H, *arguments, compatibility="additive", **options)
    layer.build(*[(None,) * (2 + axes) + (D,)] * 2)
    randomize(layer, rng)
    return layer


@pytest.fixture(params=["at once", "in blocks"])
def blocks(request, monkeypatch):
    """All queries at once, or two by two."""
    if request.param == "in blocks":
        monkeypatch.setattr(query_blocks, "WIDEST", 1)
        monkeypatch.setattr(query_blocks, "BLOCK", 2 * N * S)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients_equal_the_oracle(rng, mode, shared, blocks):
    """A graph knows no length, and both passes turn out to need blocks, or not, when it runs."""
    arrays = random_inputs(rng, B, T, S, D)
    arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = build(
        rng, RelativeMultiHeadAttention, 2, heads_share_relative_embedding=shared, value_dim=4
    )
    expected = oracle(layer, arrays, position_labels(T, S, 2), arrays["attention_mask"])
    run = compile_runner(layer, mode, arrays, training=True)
    check_against_oracle(layer, arrays, expected, run)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("mode", MODES)
def test_any_labels(rng, mode, form):
    arrays = random_inputs(rng, B, T, S, D, own_key=True)
    arrays["relations"] = rng.integers(-1, R, form, dtype="int32")
    shared = len(form) == 3
    layer = build(rng, RelationAwareAttention, R, heads_share_relations=shared)
    run = compile_runner(layer, mode, arrays)
    check_against_oracle(layer, arrays, oracle(layer, arrays, arrays["relations"]), run)


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("values", [True, False])
def test_edges_in_either_equation_or_none(rng, keys, values, blocks):
    arrays = random_inputs(rng, B, T, S, D)
    arrays["relations"] = rng.integers(-1, R, (B, T, S), dtype="int32")
    layer = build(rng, RelationAwareAttention, R, relation_keys=keys, relation_values=values)
    check_against_oracle(layer, arrays, oracle(layer, arrays, arrays["relations"]))


@pytest.mark.parametrize("queries, keys, causal", [(1, 5, False), (5, 1, False), (37, 37, True)])
def test_lengths(rng, queries, keys, causal):
    """Far beyond the clipping distance, and causal."""
    arrays = random_inputs(rng, B, queries, keys, D)
    layer = build(rng, RelativeMultiHeadAttention, 2)
    mask = np.broadcast_to(np.tri(queries, keys, dtype=bool), (B, queries, keys))
    expected = oracle(layer, arrays, position_labels(queries, keys, 2), mask if causal else None)
    check_against_oracle(layer, arrays, expected, use_causal_mask=causal)


def test_is_a_layer(tmp_path, rng):
    """Configuration, symbolic shapes, saving, half precision, and a compiled fit."""
    x = rng.normal(size=(B, T, D)).astype("float32")
    inputs = {"query": x, "value": x, "relations": rng.integers(-1, R, (B, T, T), dtype="int32")}

    def layer(dtype):
        return RelationAwareAttention(N, H, R, compatibility="additive", dtype=dtype)

    # A key's bias is a query's, too, and moves; v has no bias that the softmax would not see.
    check_layer(layer, inputs, tmp_path, still=())


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_gradients_of_half_precision(rng, dtype):
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, RelativeMultiHeadAttention, 2, dtype=dtype)
    expected = oracle(layer, arrays, position_labels(T, S, 2))
    check_against_oracle(layer, arrays, expected, tolerance=0.04)


def test_one_query_beside_a_growing_cache(rng):
    layer = build(rng, RelativeMultiHeadAttention, 2)
    x = rng.normal(size=(B, T, D)).astype("float32")
    expected = to_numpy(layer(x, x, use_causal_mask=True))
    cache = np.zeros((B, 2, T, N, H), "float32")
    for i in range(T):
        one = x[:, i : i + 1]
        step, cache = layer(one, one, cache=cache, cache_update_index=i, use_causal_mask=True)
        assert_close(step[:, 0], expected[:, i])


def test_one_query_of_a_graph_beside_a_growing_cache(rng):
    layer = build(rng, RelationAwareAttention, R)
    x = rng.normal(size=(B, T, D)).astype("float32")
    relations = rng.integers(-1, R, (B, T, T), dtype="int32")
    expected = to_numpy(layer(x, x, relations=relations, use_causal_mask=True))
    cache = np.zeros((B, 2, T, N, H), "float32")
    for i in range(T):
        one = x[:, i : i + 1]
        cached = {"cache": cache, "cache_update_index": i, "use_causal_mask": True}
        step, cache = layer(one, one, relations=relations[:, i : i + 1], **cached)
        assert_close(step[:, 0], expected[:, i])


@pytest.mark.parametrize("position", ["relative", "sinusoidal"])
@pytest.mark.parametrize("longest", ["known", "unknown"])
def test_a_transformer_step_by_step(rng, position, longest):
    if longest == "unknown" and BACKEND != "tensorflow":
        pytest.skip("only TensorFlow has graphs that do not know a length")
    K, V = 2, 23
    config = TransformerConfig(
        vocabulary_size=V,
        model_dim=12,
        inner_dim=17,
        num_heads=N,
        encoder_layers=1,
        decoder_layers=2,
        max_relative_position=2,
        position=position,
        compatibility="additive",
    )
    model = Transformer(config)
    model.build()
    for variable in model.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))
    assert sum("compatibility_vectors" in v.path for v in model.trainable_variables) == 1 + 2 * 2
    source_ids, target_ids = (rng.integers(4, V, shape, "int32") for shape in ((B, S), (B, K, T)))
    source_ids[1, 3:] = 0
    flat = {
        "source_ids": np.repeat(source_ids, K, axis=0),
        "target_ids": target_ids.reshape(B * K, T),
    }
    expected = to_numpy(model(flat)).reshape(B, K, T, V)
    memory = model.encode(source_ids)
    cache = model.initial_cache(memory, K, T if longest == "known" else keras.ops.cast(T, "int32"))
    for index in range(T):
        logits, cache = model.step(target_ids[:, :, index], cache, index, memory)
        assert_close(logits, expected[:, :, index])


def test_a_window(rng, monkeypatch):
    monkeypatch.setattr(windows, "SMALLEST_BLOCK", 3)
    layer = build(rng, RelativeMultiHeadAttention, 2, attention_window=2)
    x = rng.normal(size=(B, 11, D)).astype("float32")
    expected, _ = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    assert_close(layer(x, x, use_causal_mask=True), expected)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES[-1:])
def test_free_axes_are_batch(rng, mode, shared):
    options = {"heads_share_relative_embedding": shared}
    layer = build(rng, RelativeMultiHeadAttention, 2, axes=1, attention_axes=-2, **options)
    plain = build(rng, RelativeMultiHeadAttention, 2, **options)
    plain.set_weights(layer.get_weights())
    sizes = {"query": T, "value": S}
    arrays = {n: rng.normal(size=(B, 3, s, D)).astype("float32") for n, s in sizes.items()}
    output = compile_function(lambda tensors: layer(**tensors), mode, arrays)(arrays)
    for f in range(3):
        assert_close(output[:, f], plain(arrays["query"][:, f], arrays["value"][:, f]))


def test_dropout_leaves_out_weights(rng):
    off = {"relative_keys": False, "relative_values": False}
    layer = build(rng, RelativeMultiHeadAttention, 2, dropout=0.5, **off)
    x = np.ones((B, 50, D), "float32")
    dropped, whole = (to_numpy(layer(x, x, training=t)) for t in (True, False))
    assert np.all(np.std(whole, axis=1) < 1e-5)
    assert np.all(np.std(dropped, axis=1) > 0.01)


@pytest.mark.parametrize(
    "cls, argument", [(RelationAwareAttention, R), (RelativeMultiHeadAttention, 2)]
)
def test_what_cannot_be_is_refused(cls, argument):
    with pytest.raises(ValueError, match="`compatibility` must be one of product, additive.*'dot'"):
        cls(N, H, argument, compatibility="dot")
    off = ("relation_keys", "relation_values")
    if cls is RelativeMultiHeadAttention:
        off = ("relative_keys", "relative_values")
    options = {"compatibility": "additive", **dict.fromkeys(off, False)}
    with pytest.raises(ValueError, match="`flash_attention` must be None or False.*additive"):
        cls(N, H, argument, flash_attention=True, **options)
    with pytest.raises(ValueError, match="`attention_axes` must be None or one axis.*additive"):
        cls(N, H, argument, attention_axes=(1, 2), **options)


def test_scores_that_are_no_sum_have_no_terms(rng):
    layer = build(rng, RelativeMultiHeadAttention, 2)
    x = rng.normal(size=(B, T, D)).astype("float32")
    for method, arguments in (("score_terms", (x, x)), ("distance_scores", (x,))):
        with pytest.raises(ValueError, match=f"`{method}`.*compatibility='additive'"):
            getattr(layer, method)(*arguments)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "xla"])
def test_no_sentences_have_no_gradient(mode):
    layer = RelativeMultiHeadAttention(2, 4, 2, compatibility="additive")
    layer.build((None, 3, 8), (None, 3, 8))
    names = ("query", "value", "upstream")
    arrays = {name: np.zeros((0, 3, 8), "float32") for name in names}
    output, gradients = compile_runner(layer, mode, arrays)(arrays)
    assert output.shape == (0, 3, 8)
    assert not any(np.any(gradient) for gradient in gradients.values())
