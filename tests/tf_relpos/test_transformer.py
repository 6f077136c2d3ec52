"""The Transformer: published sizes, one model in training and decoding, order and padding."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import (
    BACKEND,
    COMPILED_MODES,
    assert_close,
    compile_function,
    run_python,
)
from tests.support.layer_checks import to_numpy as numpy
from tf_relpos import Transformer, TransformerConfig, beam_search, greedy_search
from tf_relpos.config import POSITIONS

B, K, S, T, V = 2, 3, 7, 11, 23
SMALL = {
    "vocabulary_size": V,
    "model_dim": 18,
    "inner_dim": 29,
    "num_heads": 3,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_relative_position": 2,
}
ORDERLESS = {"position none": {"position": "none"}, "k 0": {"max_relative_position": 0}}


def make_model(rng, dtype=None, **fields):
    """A model whose every weight counts: norms and biases start at 1 and 0 otherwise."""
    model = Transformer(TransformerConfig(**{**SMALL, **fields}), dtype=dtype)
    model.build()
    for variable in model.trainable_variables:
        variable.assign_add(0.2 * rng.normal(size=variable.shape))
    return model


def make_ids(rng, *shape):
    return rng.integers(4, V, shape, dtype="int32")


def logits(model, source_ids, target_ids, **arguments):
    return numpy(model({"source_ids": source_ids, "target_ids": target_ids}, **arguments))


@pytest.mark.parametrize("shared, shape", [(True, (5, 6)), (False, (3, 5, 6))])
def test_each_layer_has_tables_of_its_own(rng, shared, shape):
    model = make_model(rng, heads_share_relative_embedding=shared, encoder_layers=1)
    tables = [v for v in model.trainable_variables if "self_attention/rel" in v.path]
    assert [v.shape for v in tables] == [shape] * 2 * (1 + 2)
    assert sum(v.shape == (V, 18) for v in model.trainable_variables) == 1  # one embedding


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("position", POSITIONS)
def test_step_by_step_equals_all_at_once(rng, position, norm):
    """K hypotheses of each sentence, beyond the clipping distance."""
    model = make_model(rng, position=position, norm=norm)
    source_ids = make_ids(rng, B, S)
    source_ids[1, 4:] = 0
    target_ids = make_ids(rng, B, K, T)
    expected = logits(model, np.repeat(source_ids, K, axis=0), target_ids.reshape(B * K, T))
    memory = model.encode(source_ids)
    cache = model.initial_cache(memory, K, T)
    for index in range(T):
        step_logits, cache = model.step(target_ids[:, :, index], cache, index, memory)
        assert_close(step_logits, expected.reshape(B, K, T, V)[:, :, index])


@pytest.mark.tensorflow_only
def test_caches_grow_where_a_graph_does_not_know_the_length(rng):
    import tensorflow as tf

    model = make_model(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, K, T)
    flat = target_ids.reshape(B * K, T)
    expected = logits(model, np.repeat(source_ids, K, axis=0), flat).reshape(B, K, T, V)

    @tf.function(input_signature=[tf.TensorSpec([None, None], "int32")], autograph=False)
    def decode(source_ids):
        memory = model.encode(source_ids)
        cache = model.initial_cache(memory, K, tf.shape(source_ids)[1] + 50)
        sizes, found = [], []
        for index in range(T):
            step_logits, cache = model.step(target_ids[:, :, index], cache, index, memory)
            sizes.append(tf.shape(cache[0])[3])
            found.append(step_logits)
        return sizes, tf.stack(found, axis=2)

    sizes, found = decode(source_ids)
    assert [int(size) for size in sizes] == list(range(1, T + 1))
    assert_close(found, expected)
    # Known lengths are kept: of an int, and of a tensor that has a value.
    for length in (T, tf.constant(T)):
        cache = model.initial_cache(model.encode(source_ids), K, length)
        _, cache = model.step(target_ids[:, :, 0], cache, 0, model.encode(source_ids))
        assert cache[0].shape[3] == T


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("search", [beam_search, greedy_search])
def test_search_compiles_with_a_length_that_is_given(rng, search):
    import tensorflow as tf

    model = make_model(rng)
    source_ids = make_ids(rng, B, S)
    compiled = tf.function(
        lambda ids: search(model, ids, max_length=T),
        jit_compile=True,
        input_signature=[tf.TensorSpec([None, None], "int32")],
        autograph=False,
    )
    expected = search(model, source_ids, max_length=T)
    for found, result in zip(compiled(source_ids), expected, strict=True):
        assert_close(found, result)


@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_compiles_for_unknown_lengths(rng, mode):
    model = make_model(rng, encoder_layers=1, decoder_layers=1)
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    run = compile_function(model, mode, arrays)
    for cut in (0, 3):
        shorter = {name: ids[:, cut:] for name, ids in arrays.items()}
        assert_close(run(shorter), model(shorter))


@pytest.mark.parametrize("position", POSITIONS)
def test_beam_of_one_is_greedy(rng, position):
    model = make_model(rng, position=position)
    source_ids = make_ids(rng, 5, S)
    source_ids[2:, 5:] = 0
    greedy_ids, log_probs = greedy_search(model, source_ids, max_length=13)
    ids, scores = beam_search(model, source_ids, beam_size=1, alpha=0.0, max_length=13)
    np.testing.assert_array_equal(numpy(ids)[:, 0], numpy(greedy_ids))
    assert_close(numpy(scores)[:, 0], log_probs)


def test_scores_are_those_of_the_models_own_logits(rng):
    model = make_model(rng)
    source_ids = make_ids(rng, B, S)
    ids, scores = (numpy(x) for x in beam_search(model, source_ids, K, 0.6, max_length=5))
    for b, k in np.ndindex(B, K):
        length = int(np.sum(ids[b, k] != 0))
        shifted = np.array([[2, *ids[b, k, : length - 1]]], "int32")
        row = logits(model, source_ids[b : b + 1], shifted)[0].astype("float64")
        log_probs = row - np.log(np.sum(np.exp(row), axis=-1, keepdims=True))
        total = sum(log_probs[t, ids[b, k, t]] for t in range(length))
        assert_close(scores[b, k], total / ((5 + length) / 6) ** 0.6, tolerance=1e-4)


@pytest.mark.parametrize("fields", ORDERLESS.values(), ids=ORDERLESS)
def test_without_positions_the_order_of_the_source_is_not_seen(rng, fields):
    model = make_model(rng, **fields)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    order = np.roll(np.arange(S), 2)
    mask = np.ones((B, S), bool)
    encoded, permuted = (
        numpy(model._encode(ids, mask)) for ids in (source_ids, source_ids[:, order])
    )
    assert_close(permuted, encoded[:, order])
    assert_close(
        logits(model, source_ids[:, order], target_ids), logits(model, source_ids, target_ids)
    )


@pytest.mark.parametrize("position", ["relative", "sinusoidal", "both"])
def test_with_positions_the_order_of_the_source_matters(rng, position):
    model = make_model(rng, position=position)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    order = np.roll(np.arange(S), 2)
    before, after = (logits(model, ids, target_ids) for ids in (source_ids, source_ids[:, order]))
    assert np.max(np.abs(before - after)) > 0.05 * np.max(np.abs(before))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("position", POSITIONS)
def test_neighbours_and_padding_change_nothing(rng, position, norm):
    model = make_model(rng, position=position, norm=norm)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    source_ids[0, 4:], target_ids[0, 5:] = 0, 0
    alone = logits(model, source_ids[:1, :4], target_ids[:1, :5])
    assert_close(logits(model, source_ids, target_ids)[:1, :5], alone, tolerance=1e-4)


def test_the_future_of_the_target_is_not_seen(rng):
    model = make_model(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    before = logits(model, source_ids, target_ids)
    target_ids[:, 6] = (target_ids[:, 6] - 4 + 1) % (V - 4) + 4
    after = logits(model, source_ids, target_ids)
    assert_close(after[:, :6], before[:, :6], tolerance=1e-6)
    assert np.min(np.max(np.abs(after - before)[:, 6:], axis=-1)) > 1e-4


def test_saved_model_loads_in_a_fresh_process(rng, tmp_path):
    model = make_model(rng, norm="pre", position="both", dropout=0.3)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "ids.npz", source_ids=source_ids, target_ids=target_ids)
    run_python(
        f"""
import keras, numpy as np, tf_relpos
model = keras.saving.load_model(r"{tmp_path / "model.keras"}")
assert model.config.dropout == 0.3 and model.config.norm == "pre"
logits = model(dict(np.load(r"{tmp_path / "ids.npz"}")))
np.save(r"{tmp_path / "logits.npy"}", keras.ops.convert_to_numpy(logits))
""",
        KERAS_BACKEND=BACKEND,
    )
    expected = logits(model, source_ids, target_ids)
    assert_close(np.load(tmp_path / "logits.npy"), expected, tolerance=1e-6)


def test_half_precision(rng):
    whole = make_model(rng)
    half = Transformer(whole.config, dtype="mixed_bfloat16")
    half.build()
    half.set_weights(whole.get_weights())
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    result = half(arrays)
    assert keras.backend.standardize_dtype(result.dtype) == "bfloat16"
    assert_close(keras.ops.cast(result, "float32"), whole(arrays), tolerance=0.1)
    ids, scores = beam_search(half, arrays["source_ids"], K, max_length=5)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    assert np.all(np.isfinite(numpy(scores))) and ids.shape == (B, K, 5)


def test_keras_fit_trains_it(rng):
    model = make_model(rng, encoder_layers=1, decoder_layers=1, dropout=0.0)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # the compiled layers have tests of their own
    )
    source_ids = make_ids(rng, 13, S)
    labels = source_ids[:, ::-1]
    shifted = np.concatenate([np.full((13, 1), 2, "int32"), labels[:, :-1]], axis=1)
    inputs = {"source_ids": source_ids, "target_ids": shifted}
    losses = model.fit(inputs, labels, epochs=25, batch_size=13, verbose=0).history["loss"]
    assert losses[-1] < 0.75 * losses[0], losses


def test_symbolic_shape(rng):
    model = make_model(rng)
    names = ("source_ids", "target_ids")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    assert keras.Model(inputs, model(inputs)).output_shape == (None, None, V)
    shape = model.compute_output_shape({"source_ids": (B, S), "target_ids": (B, T)})
    assert shape == (B, T, V)


def test_ids_that_are_no_integers_are_refused(rng):
    model = make_model(rng)
    ids = make_ids(rng, B, S)
    with pytest.raises(ValueError, match="`target_ids` must hold integer ids.*float32"):
        model({"source_ids": ids, "target_ids": ids.astype("float32")})
    with pytest.raises(ValueError, match="`source_ids` must hold integer ids.*float32"):
        model.encode(keras.ops.convert_to_tensor(ids, "float32"))
