"""The Transformer: published sizes, one model in training and decoding, order and padding."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.support import reference
from tests.support.attention_checks import Tripled, replace_projection
from tests.support.layer_checks import (
    BACKEND,
    COMPILED_MODES,
    assert_close,
    compile_function,
    run_python,
)
from tests.support.layer_checks import to_numpy as numpy
from tf_relpos import (
    Transformer,
    TransformerConfig,
    beam_search,
    greedy_search,
    smoothed_cross_entropy,
)
from tf_relpos.config import POSITIONS

B, K, S, T, V = 2, 5, 7, 11, 23
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
@pytest.mark.parametrize(
    "position, shared", [*((position, False) for position in POSITIONS), ("relative", True)]
)
def test_step_by_step_equals_all_at_once(rng, position, shared, norm):
    """K hypotheses of each sentence, beyond the clipping distance."""
    window = 2 if norm == "pre" else None
    fields = {"norm": norm, "attention_window": window, "heads_share_relative_embedding": shared}
    model = make_model(rng, position=position, **fields)
    source_ids = make_ids(rng, B, S)
    source_ids[1, 4:] = 0
    target_ids = make_ids(rng, B, K, T)
    expected = logits(model, np.repeat(source_ids, K, axis=0), target_ids.reshape(B * K, T))
    memory = model.encode(source_ids)
    cache = model.initial_cache(memory, K, T)
    for index in range(T):
        step_logits, cache = model.step(target_ids[:, :, index], cache, index, memory)
        assert_close(step_logits, expected.reshape(B, K, T, V)[:, :, index])


@pytest.mark.parametrize("part", ["inner", "outer", "self_attention/attention_output"])
def test_a_step_heeds_the_precision_of_each_part(rng, part):
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    policies[f"mixed/decoder_0/{part}"] = "float32"
    exact = make_model(rng)
    model = Transformer(exact.config, dtype=policies, name="mixed")
    model.build()
    model.set_weights(exact.get_weights())
    without = [name for name, own in model.decoder_blocks[0].step_weights().items() if not own]
    assert without == [part.replace("/attention", "")]
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, 1)
    memory = model.encode(source_ids)
    found, _ = model.step(target_ids, model.initial_cache(memory, 1, 1), 0, memory)
    expected = model({"source_ids": source_ids, "target_ids": target_ids})
    assert_close(found, expected, tolerance=0.05)


def test_steps_call_a_projection_that_was_replaced(rng):
    model = make_model(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    before = logits(model, source_ids, target_ids)
    (block, *_) = model.decoder_blocks
    for attention in (block.self_attention, block.cross_attention):
        for name in ("query", "output"):
            replace_projection(attention, name, Tripled)
    expected = logits(model, source_ids, target_ids)
    assert np.max(np.abs(expected - before)) > 0.1
    memory = model.encode(source_ids)
    cache = model.initial_cache(memory, 1, T)
    for index in range(T):
        found, cache = model.step(target_ids[:, None, index], cache, index, memory)
        assert_close(numpy(found)[:, 0], expected[:, index])


def test_weights_of_steps_may_be_made_before(rng):
    model = make_model(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, 1)
    weights = model.step_weights()
    expected = logits(model, source_ids, target_ids)
    for variable in model.decoder_blocks[0].self_attention._value_dense.weights:
        variable.assign(np.zeros(variable.shape))
    for given, is_same in ((weights, True), (None, False)):
        memory = model.encode(source_ids, given)
        found, _ = model.step(target_ids, model.initial_cache(memory, 1, 1), 0, memory)
        assert np.allclose(numpy(found)[:, 0], expected[:, 0], atol=1e-5) == is_same


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("shared", [True, False])
def test_caches_grow_where_a_graph_does_not_know_the_length(rng, shared):
    import tensorflow as tf

    model = make_model(rng, heads_share_relative_embedding=shared)
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
            sizes.append(tf.shape(cache["shared"]["growing"][0][0])[2])
            found.append(step_logits)
        return sizes, tf.stack(found, axis=2)

    sizes, found = decode(source_ids)
    assert [int(size) for size in sizes] == [K * length for length in range(1, T + 1)]
    assert_close(found, expected)


@pytest.mark.parametrize("length", ["known", "unknown"])
def test_hypotheses_that_go_back_to_others_take_their_past_along(rng, length):
    """As in a search: hypothesis k of a step extends hypothesis `parents[k]` of the one before."""
    if length == "unknown" and BACKEND != "tensorflow":
        pytest.skip("only TensorFlow has graphs that do not know a length")
    model = make_model(rng)
    source_ids, tokens = make_ids(rng, B, S), make_ids(rng, B, K, T)
    parents = rng.integers(K, size=(T, B, K))
    memory = model.encode(source_ids)
    longest = T if length == "known" else ops.convert_to_tensor(T)
    cache = model.initial_cache(memory, K, longest)
    written = np.zeros((B, K, 0), "int32")
    for index in range(T):
        if index:
            rows = parents[index][:, :, None]
            written = np.take_along_axis(written, rows, axis=1)
            ancestors = np.take_along_axis(numpy(cache["ancestors"]), rows, axis=1)
            cache = {**cache, "ancestors": ancestors}
        written = np.concatenate([written, tokens[:, :, index : index + 1]], axis=2)
        found, cache = model.step(tokens[:, :, index], cache, index, memory)
    expected = logits(model, np.repeat(source_ids, K, axis=0), written.reshape(B * K, T))
    assert_close(found, expected[:, -1].reshape(B, K, V))


def test_a_batch_of_none_takes_a_step(rng):
    model = make_model(rng)
    memory = model.encode(make_ids(rng, 0, S))
    found, _ = model.step(make_ids(rng, 0, K), model.initial_cache(memory, K, T), 0, memory)
    assert found.shape == (0, K, V)


def test_a_source_of_padding_alone_says_nothing(rng):
    """Keras's attention to nothing is 0, and so must be that of a step."""
    model = make_model(rng)
    source_ids, target_ids = np.zeros((B, S), "int32"), make_ids(rng, B, 1)
    memory = model.encode(source_ids)
    found, _ = model.step(target_ids, model.initial_cache(memory, 1, 1), 0, memory)
    assert_close(found[:, 0], logits(model, source_ids, target_ids)[:, 0])


def test_caches_of_a_given_length_stay_so(rng):
    model = make_model(rng)
    memory = model.encode(make_ids(rng, B, S))
    cache = model.initial_cache(memory, K, T)
    _, cache = model.step(make_ids(rng, B, K), cache, 0, memory)
    assert [keys.shape[2] for keys, _ in cache["shared"]["fixed"]] == [K * T, K * T]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("is_known", [True, False])
def test_the_search_says_whether_the_length_is_known(rng, is_known):
    """An int, of whatever kind it came in, where it is; a tensor where a graph must find out."""
    import tensorflow as tf

    model = make_model(rng)
    kinds = []

    class Listening:
        config, encode, step = model.config, model.encode, model.step

        def initial_cache(self, memory, beam_size, max_length):
            kinds.append(type(max_length))
            return model.initial_cache(memory, beam_size, max_length)

    source_ids = make_ids(rng, B, S)
    width = S if is_known else None
    search = tf.function(
        lambda ids, limit: beam_search(Listening(), ids, max_length=limit)[0],
        input_signature=[tf.TensorSpec([None, width], "int32"), tf.TensorSpec([], "int32")],
        autograph=False,
    )
    expected = beam_search(Listening(), source_ids, max_length=np.int64(T))[0]
    np.testing.assert_array_equal(search(source_ids, T), numpy(expected))
    beam_search(Listening(), source_ids, max_length=tf.constant(T))
    tf.function(lambda ids: beam_search(Listening(), ids, max_length=tf.constant(T)))(source_ids)
    assert kinds[0] is int and kinds[2:] == [int, int]
    assert issubclass(kinds[1], tf.Tensor)
    if is_known:
        tf.function(lambda ids: beam_search(Listening(), ids))(source_ids)
        assert kinds[-1] is int


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


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_weights_of_cross_attention_are_those_of_a_call(rng, monkeypatch, norm, block):
    model, given = make_model(rng, norm=norm), {}
    inputs = {"source_ids": make_ids(rng, 2, 7), "target_ids": make_ids(rng, 2, 5)}
    inputs["source_ids"][1, 4:] = 0
    layer = model.decoder_blocks[block].cross_attention
    call = layer.call

    def watched(query, value, **arguments):
        given.update(query=query, value=value, **arguments)
        return call(query, value, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "call", watched)
        model(inputs)
    _, expected = layer(**given, return_attention_scores=True)
    found = numpy(model.attention_inputs(inputs)[f"decoder_{block}/cross_attention"].weights())
    assert found.shape == (2, 3, 5, 7)
    assert_close(found, expected)
    assert_close(found.sum(axis=-1), np.ones((2, 3, 5)))
    assert np.all(found[1, :, :, 4:] == 0) and np.all(found[0] > 0)


@pytest.mark.parametrize("norm, window", [("post", None), ("pre", None), ("pre", 1)])
def test_every_attention_and_both_terms_of_its_scores(rng, norm, window):
    model = make_model(rng, norm=norm, attention_window=window)
    inputs = {"source_ids": make_ids(rng, 2, 7), "target_ids": make_ids(rng, 2, 5)}
    inputs["source_ids"][1, 6:] = 0  # one, so that its window has a token
    found = model.attention_inputs(inputs)
    blocks = [f"encoder_{i}/self" for i in range(2)]
    blocks += [f"decoder_{i}/{kind}" for i in range(2) for kind in ("self", "cross")]
    assert list(found) == [f"{name}_attention" for name in blocks]
    for name, (layer, query, value, mask) in found.items():
        content, position = map(numpy, layer.score_terms(query, value))
        if name.endswith("self_attention"):
            q = layer._query_dense(query) * 6**-0.5
            labels = reference.position_labels(query.shape[1], value.shape[1], 2)
            expected = reference.relation_scores(
                numpy(q), labels, numpy(layer.relative_key_embeddings)
            )
            assert_close(position, expected)
            distances = numpy(layer.distance_scores(query))
            assert distances.shape[-1] == 5
            assert_close(distances[:, :, np.arange(len(labels))[:, None], labels], expected)
        else:
            assert not position.any()
            with pytest.raises(ValueError, match="`distance_scores` needs .*relative_keys=False"):
                layer.distance_scores(query)
        scores = np.where(numpy(mask)[:, None], content + position, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        assert_close(numpy(found[name].weights()), weights)


def test_attentions_of_a_model_that_has_not_been_called(rng):
    model = Transformer(TransformerConfig(**SMALL))
    inputs = {"source_ids": make_ids(rng, 2, 7), "target_ids": make_ids(rng, 2, 5)}
    found = model.attention_inputs(inputs)
    assert found["encoder_0/self_attention"].weights().shape == (2, 3, 7, 7)
    assert model(inputs).shape == (2, 5, V)


@pytest.mark.slow  # test_backends loads weights on every backend
@pytest.mark.parametrize(
    "backend", {"tensorflow": ["jax"], "torch": ["tensorflow"]}.get(BACKEND, [])
)
def test_saved_model_loads_in_a_fresh_process_of_another_backend(rng, tmp_path, backend):
    """And back."""
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
model.save(r"{tmp_path / "back.keras"}")
""",
        KERAS_BACKEND=backend,
    )
    expected = logits(model, source_ids, target_ids)
    assert_close(np.load(tmp_path / "logits.npy"), expected, tolerance=1e-5)
    back = keras.saving.load_model(tmp_path / "back.keras")
    assert_close(logits(back, source_ids, target_ids), expected, tolerance=1e-6)


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


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=[pytest.mark.slow] if BACKEND == "tensorflow" else []),
        {"steps_per_execution": 2},
        {"jit_compile": True},
    ],
    ids=lambda options: str([*options]),
)
def test_keras_fit_trains_it(rng, options):
    if options != {"tensorflow": options, "jax": {"jit_compile": True}, "torch": {}}[BACKEND]:
        pytest.skip("slow there, or refused by Keras")
    model = make_model(rng, encoder_layers=1, decoder_layers=1, dropout=0.0)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"jit_compile": False, **options},
    )
    source_ids = make_ids(rng, 13, S)
    labels = source_ids[:, ::-1]
    shifted = np.concatenate([np.full((13, 1), 2, "int32"), labels[:, :-1]], axis=1)
    inputs = {"source_ids": source_ids, "target_ids": shifted}
    losses = model.fit(inputs, labels, epochs=25, batch_size=7, verbose=0).history["loss"]
    assert losses[-1] < 0.75 * losses[0], losses


@pytest.mark.tensorflow_only
def test_fit_traces_a_step_once(rng):
    traced = []

    class Counting(Transformer):
        def train_step(self, data):
            traced.append(data)
            return super().train_step(data)

    model = Counting(make_model(rng, encoder_layers=1, decoder_layers=1).config)
    ids = make_ids(rng, 4, S)
    model.compile("adam", smoothed_cross_entropy, jit_compile=False)
    for _ in range(2):
        model.fit({"source_ids": ids, "target_ids": ids}, ids, verbose=0)
    assert len(traced) == 1
    assert int(model.optimizer.iterations) == 2


def test_symbolic_shape(rng):
    model = make_model(rng)
    names = ("source_ids", "target_ids")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    assert keras.Model(inputs, model(inputs)).output_shape == (None, None, V)
    shape = model.compute_output_shape({"source_ids": (B, S), "target_ids": (B, T)})
    assert shape == (B, T, V)


def test_floats_that_keras_makes_of_ids_are_taken(rng):
    """Keras makes them in functional models, exports and `fit`; the searches are given ids."""
    model = make_model(rng)
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    floats = {name: ids.astype("float32") for name, ids in arrays.items()}
    assert_close(model(floats), model(arrays), tolerance=1e-7)
    wrapped = keras.Model(
        inputs := {n: keras.Input((None,), name=n) for n in arrays}, model(inputs)
    )
    assert_close(wrapped(arrays), model(arrays), tolerance=1e-7)
    with pytest.raises(ValueError, match="`source_ids` must hold integer ids.*float32"):
        model.encode(keras.ops.convert_to_tensor(floats["source_ids"]))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"target_ids": np.ones((1, T), "int32")}, r"`target_ids` must have the shape \[2, any\]"),
        ({"source_ids": np.ones((1, S), "int32")}, r"`target_ids` must have the shape \[1, any\]"),
        ({"source_ids": np.ones(S, "int32")}, r"`source_ids` must have the shape \[any, any\]"),
        ({"target_ids": np.ones((B, T), "bool")}, "`target_ids` must hold integer ids.*bool"),
        ({"target_ids": np.full((B, T), V)}, f"`target_ids` must hold ids from 0 to {V - 1}.*{V}"),
        ({"source_ids": np.full((B, S), -1)}, "`source_ids` must hold ids from 0 .*-1"),
        ({"target_ids": None}, "`inputs` must be a dict with `source_ids` and `target_ids`"),
    ],
)
def test_inputs_that_cannot_work_are_refused(rng, change, message):
    """Sources of batch 1 would be broadcast."""
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T), **change}
    arrays = {name: ids for name, ids in arrays.items() if ids is not None}
    with pytest.raises(ValueError, match=message):
        make_model(rng)(arrays)


def test_a_model_that_was_never_called_can_be_searched(rng):
    model = make_model(rng)
    fresh = Transformer(model.config)
    ids, _ = beam_search(fresh, make_ids(rng, B, S), 2, max_length=3)
    assert ids.shape == (B, 2, 3)
    fresh.set_weights(model.get_weights())
    source = make_ids(rng, B, S)
    for found, expected in zip(
        beam_search(fresh, source, 2, max_length=3),
        beam_search(model, source, 2, max_length=3),
        strict=True,
    ):
        assert_close(found, expected, tolerance=1e-6)


def test_parts_may_have_a_precision_of_their_own(rng, tmp_path):
    model = make_model(rng)
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    for part in ("encoder_0/self_attention_norm", "decoder_0/cross_attention/key"):
        policies[f"mixed/{part}"] = "float32"
    mixed = Transformer(model.config, dtype=policies, name="mixed")
    inputs = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    mixed(inputs)
    mixed.set_weights(model.get_weights())
    assert_close(mixed(inputs), model(inputs), tolerance=0.1)
    assert beam_search(mixed, inputs["source_ids"], 2, max_length=3)[0].shape == (B, 2, 3)
    mixed.save(tmp_path / "mixed.keras")
    again = keras.models.load_model(tmp_path / "mixed.keras")
    assert np.array_equal(numpy(again(inputs)), numpy(mixed(inputs)))


def test_caches_and_tokens_of_another_batch_are_refused(rng):
    model = make_model(rng)
    memory, one = (model.encode(make_ids(rng, batch, S)) for batch in (B, 1))
    tokens = make_ids(rng, B, K)
    for step in (
        lambda: model.step(tokens, model.initial_cache(one, K, T), 0, memory),
        lambda: model.step(tokens, model.initial_cache(memory, 1, T), 0, memory),
        lambda: model.step(tokens[:1], model.initial_cache(memory, K, T), 0, memory),
        lambda: model.step(tokens, model.initial_cache(memory, K, T), 0, one),
    ):
        with pytest.raises(ValueError, match="`(cache|token_ids)` must have the shape"):
            step()


def test_only_a_config_makes_a_model():
    with pytest.raises(ValueError, match="`config` must be a TransformerConfig.*'tiny'"):
        Transformer("tiny")

    class Config(TransformerConfig):
        """Whose fields a file would not bring back."""

    with pytest.raises(ValueError, match="`config` must be a TransformerConfig.*Config\\("):
        Transformer(Config.preset("tiny", vocabulary_size=9))


@pytest.mark.parametrize(
    "mode, tolerance", [("int8", 0.06), pytest.param("int4", 0.5, marks=pytest.mark.slow)]
)
@pytest.mark.tensorflow_only  # elsewhere `test_uses` quantizes
def test_quantized(rng, tmp_path, mode, tolerance):
    """The softmax uses the table of the embedding, which then holds integers and scales."""
    model = make_model(rng, position="both")
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    exact = numpy(model(arrays))
    model.quantize(mode)
    quantized = numpy(model(arrays))
    assert_close(quantized, exact, tolerance=tolerance)
    assert np.any(quantized != exact)
    ids, scores = beam_search(model, arrays["source_ids"], K, alpha=0.0, max_length=5)
    shifted = np.concatenate([np.full((B, 1), 2), numpy(ids)[:, 0, :-1]], axis=1)
    log_probs = keras.ops.log_softmax(model({**arrays, "target_ids": shifted.astype("int32")}))
    chosen = np.take_along_axis(numpy(log_probs), numpy(ids)[:, 0, :, None], -1)[..., 0]
    # Step by step, Keras quantizes the activations of one position at a time.
    total = np.sum(np.where(numpy(ids)[:, 0] == 0, 0, chosen), axis=1)
    assert_close(numpy(scores)[:, 0], total, tolerance=tolerance)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(arrays), quantized, tolerance=1e-6)


def test_quantized_with_lora_on_the_embedding(rng):
    model = make_model(rng)
    arrays = {"source_ids": make_ids(rng, B, S), "target_ids": make_ids(rng, B, T)}
    model.quantize("int8", filters="embedding$")
    model.embedding.enable_lora(2)
    without = numpy(model(arrays))
    model.embedding.lora_embeddings_b.assign(0.5 * rng.normal(size=(2, 18)))
    table = numpy(model.embedding(np.arange(V)))
    with_lora = numpy(model(arrays))
    assert np.max(np.abs(with_lora - without)) > 0.1
    # The logits are products with the very vectors that the embedding looks up.
    hidden = np.linalg.lstsq(table, with_lora.reshape(-1, V).T, rcond=None)[0]
    assert_close(hidden.T @ table.T, with_lora.reshape(-1, V), tolerance=1e-4)
