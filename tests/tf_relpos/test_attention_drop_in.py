"""What users of `keras.layers.MultiHeadAttention` rely on, of the layers that replace it."""

import json

import keras
import numpy as np
import pytest

from tests.support.attention_checks import (
    Tripled,
    random_inputs,
    randomize,
    replace_projection,
)
from tests.support.layer_checks import BACKEND, assert_close, check_layer, run_python, to_numpy
from tf_relpos import RelationAwareAttention, RelativeMultiHeadAttention

B, T, S, N, H, D = 2, 5, 7, 3, 11, 13
LAYOUTS = {"shared": True, "per_head": False}


def relative(**options):
    return RelativeMultiHeadAttention(N, H, **{"max_relative_position": 2, **options})


def pair_without_relations(**options):
    """Keras's layer, and ours with both relative terms off and the same weights."""
    theirs = keras.layers.MultiHeadAttention(N, H, **options)
    ours = relative(relative_keys=False, relative_values=False, **options)
    for layer in (theirs, ours):
        layer.build((None, None, D), (None, None, D))
    rng = np.random.default_rng(0)
    randomize(theirs, rng)
    ours.set_weights(theirs.get_weights())
    return theirs, ours


def arrays_of(rng, **shapes):
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("shared", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_relative_layer_is_a_good_keras_layer(rng, tmp_path, shared, implementation):
    def make(dtype):
        return relative(
            heads_share_relative_embedding=shared, implementation=implementation, dtype=dtype
        )

    check_layer(make, arrays_of(rng, query=(B, T, D), value=(B, S, D), key=(B, S, D)), tmp_path)


@pytest.mark.parametrize("labels", [(), (3,)], ids=["one_label", "several"])
def test_relation_layer_is_a_good_keras_layer(rng, tmp_path, labels):
    inputs = arrays_of(rng, query=(B, T, D), value=(B, S, D))
    inputs["relations"] = rng.integers(-1, 5, (B, T, S, *labels), dtype="int32")
    inputs["relations"].flat[:5] = np.arange(5)
    check_layer(lambda dtype: RelationAwareAttention(N, H, 5, dtype=dtype), inputs, tmp_path)


@pytest.mark.parametrize(
    "options", [{}, {"use_gate": True}, {"sliding_window": 3}, {"value_dim": 5}], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_keras_when_both_terms_are_off(rng, causal, options):
    theirs, ours = pair_without_relations(**options)
    inputs = arrays_of(rng, query=(B, T, D), value=(B, S, D), key=(B, S, D))
    mask = rng.random((B, T, S)) < 0.7
    mask[..., 0] = True
    arguments = {**inputs, "attention_mask": mask, "use_causal_mask": causal}
    arguments["return_attention_scores"] = True
    for actual, expected in zip(ours(**arguments), theirs(**arguments), strict=True):
        assert_close(actual, expected, tolerance=1e-6)


def test_activity_regularizer_sees_what_the_projections_make(rng):
    theirs, ours = pair_without_relations(activity_regularizer=keras.regularizers.L2(0.1))
    inputs = arrays_of(rng, query=(B, T, D), value=(B, S, D))
    for layer in (theirs, ours):
        layer(**inputs)
    found, expected = (np.stack([to_numpy(x) for x in layer.losses]) for layer in (ours, theirs))
    assert len(expected) >= 4
    assert_close(found, expected)


def test_weights_of_keras_transfer_by_the_same_names(rng):
    """A model trained with Keras's layer lends its projections; tables of 0 add nothing."""
    theirs = keras.layers.MultiHeadAttention(N, H)
    ours = relative()
    x = rng.normal(size=(B, T, D)).astype("float32")
    expected, _ = theirs(x, x), ours(x, x)
    for name in ("query", "key", "value", "output"):
        getattr(ours, f"{name}_dense").set_weights(getattr(theirs, f"{name}_dense").get_weights())
    assert np.any(np.abs(to_numpy(ours(x, x)) - to_numpy(expected)) > 1e-3)
    for table in (ours.relative_key_embeddings, ours.relative_value_embeddings):
        table.assign(keras.ops.zeros_like(table.value))
    assert_close(ours(x, x), expected)


@pytest.mark.filterwarnings("error::UserWarning")
def test_mask_of_an_embedding_reaches_the_layer_and_goes_on(rng):
    ids = np.array([[3, 1, 4, 0, 0], [2, 7, 1, 8, 0]], "int32")
    embed = keras.layers.Embedding(11, D, mask_zero=True)
    layer = relative()
    tokens = keras.Input((None,), dtype="int32")
    embedded = embed(tokens)
    attended = layer(embedded, embedded)
    model = keras.Model(tokens, [attended, keras.layers.GlobalAveragePooling1D()(attended)])
    output, mean = model(ids)
    x, seen = to_numpy(embed(ids)), ids != 0
    expected = layer(x, x, attention_mask=np.broadcast_to(seen[:, None], (2, 5, 5)))
    assert_close(to_numpy(output)[seen], to_numpy(expected)[seen])
    for row, valid, average in zip(to_numpy(output), seen, to_numpy(mean), strict=True):
        assert_close(average, row[valid].mean(0))


@pytest.mark.filterwarnings("error::UserWarning")
def test_mask_of_the_value_is_kept_in_cross_attention(rng):
    ids = np.array([[3, 1, 4, 0, 0, 0, 0], [2, 7, 1, 8, 2, 8, 0]], "int32")
    query = rng.normal(size=(2, T, D)).astype("float32")
    value = keras.layers.Embedding(11, D, mask_zero=True)(ids)
    layer = relative()
    _, scores = layer(query, value, return_attention_scores=True)
    assert not to_numpy(scores).transpose(0, 3, 1, 2)[ids == 0].any()
    assert_close(to_numpy(scores).sum(-1), np.ones((2, N, T)))


def test_masks_given_by_hand(rng):
    x, y = arrays_of(rng, x=(B, T, D), y=(B, S, D)).values()
    layer = relative()
    seen = np.arange(S) < 4
    masks = np.broadcast_to(seen, (B, S))
    expected = layer(x, y, attention_mask=np.broadcast_to(seen, (B, T, S)))
    for name in ("value_mask", "key_mask"):
        assert_close(layer(x, y, **{name: masks}), expected)
    assert_close(layer(x, y, attention_mask=np.broadcast_to(seen, (B, 1, T, S))), expected)


def test_causal_mask_hides_the_future(rng):
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer = relative()
    before = to_numpy(layer(x, x, use_causal_mask=True))
    x[:, 3:] += 1
    after = to_numpy(layer(x, x, use_causal_mask=True))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.all(np.any(before[:, 3:] != after[:, 3:], axis=-1))


def test_a_row_without_any_key_stays_finite(rng):
    x = rng.normal(size=(B, T, D)).astype("float32")
    output = relative()(x, x, attention_mask=np.zeros((B, T, T), bool))
    assert np.all(np.isfinite(to_numpy(output)))


def test_dropout_works_in_training_alone(rng):
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer = relative(dropout=0.5, seed=3)
    still = relative()
    still.build((B, T, D), (B, T, D))
    layer(x, x)
    still.set_weights(layer.get_weights()[: len(still.get_weights())])
    assert_close(layer(x, x), still(x, x), tolerance=1e-6)
    assert_close(layer(x, x, training=False), still(x, x), tolerance=1e-6)
    one, other = (to_numpy(layer(x, x, training=True)) for _ in range(2))
    assert np.any(np.abs(one - other) > 1e-3)
    outputs = [to_numpy(layer(x, x, training=True)) for _ in range(400)]
    assert_close(np.mean(outputs, axis=0), still(x, x), tolerance=0.25)


def test_dropout_strikes_a_value_and_its_relation_together(rng):
    """Every value is -1 and every a^V is +1, so that each pair adds 0 whichever are dropped."""
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer = relative(dropout=0.5, value_dim=5)
    layer(x, x)
    layer.value_dense.kernel.assign(np.zeros((D, N, 5)))
    layer.value_dense.bias.assign(-np.ones((N, 5)))
    layer.relative_value_embeddings.assign(np.ones((5, 5)))
    assert np.max(np.abs(to_numpy(layer(x, x, training=True)))) < 1e-5
    layer.relative_value_embeddings.assign(np.zeros((5, 5)))
    assert np.max(np.abs(to_numpy(layer(x, x, training=True)))) > 1e-2


@pytest.mark.parametrize("lengths", [(T, S), (None, None), (T, None)], ids=str)
def test_symbolic_shapes_of_scores(lengths):
    queries, keys = lengths
    query, value = keras.Input((queries, D)), keras.Input((keys, D))
    output, scores = relative()(query, value, return_attention_scores=True)
    assert output.shape == (None, queries, D)
    assert scores.shape == (None, N, queries, keys)
    arrays = [np.zeros((B, T, D), "float32"), np.zeros((B, S, D), "float32")]
    output, scores = keras.Model([query, value], [output, scores])(arrays)
    assert output.shape == (B, T, D)
    assert scores.shape == (B, N, T, S)


@pytest.mark.parametrize("output_shape", [None, 17])
def test_compute_output_shape(output_shape):
    layer = relative(output_shape=output_shape)
    size = output_shape or D
    assert tuple(layer.compute_output_shape((B, T, D), (B, S, D))) == (B, T, size)
    assert tuple(layer.compute_output_shape((None, None, D), (None, None, D))) == (None, None, size)


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """The swap that the README shows, inside a model of one's own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = relative()
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(self.attention(x, x, use_causal_mask=True))


def test_subclassed_model_fits_and_returns_from_disk(rng, tmp_path):
    model = Subclassed()
    x = rng.normal(size=(17, T, D)).astype("float32")
    model.compile("adam", "mse", jit_compile=BACKEND != "torch")  # whose compiler takes a minute
    losses = model.fit(x, x[..., :1], epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), model(x), tolerance=1e-6)


@keras.saving.register_keras_serializable("tests")
class SubclassedGraph(keras.Model):
    """Keras, which builds and exports it by itself, makes floats of its inputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.nodes = keras.layers.Embedding(9, D)
        self.attention = RelationAwareAttention(N, H, 5)
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        x = self.nodes(inputs["nodes"])
        return self.head(self.attention(x, x, relations=inputs["relations"]))


@pytest.mark.skipif(BACKEND == "torch", reason="Keras builds it there with floats that have values")
def test_a_subclassed_model_of_graphs_returns_from_disk_with_all_weights(rng, tmp_path):
    model = SubclassedGraph()
    graphs = {
        "nodes": rng.integers(0, 9, (B, T)),
        "relations": rng.integers(-1, 5, (B, T, T)),
    }
    expected = model(graphs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights) == 13
    assert_close(loaded(graphs), expected, tolerance=1e-6)
    with pytest.raises(ValueError, match="`relations` must hold integer labels. Received: dtype"):
        model({**graphs, "relations": graphs["relations"].astype("float32")})
    if BACKEND == "tensorflow":
        import tensorflow as tf

        model.export(str(tmp_path / "exported"), verbose=False)
        exported = tf.saved_model.load(str(tmp_path / "exported"))
        floats = {name: tf.cast(x, "float32") for name, x in graphs.items()}
        assert_close(exported.serve(floats), expected, tolerance=1e-5)


def test_loads_in_a_fresh_process_that_only_imports_the_package(rng, tmp_path):
    query, value = keras.Input((None, D)), keras.Input((None, D))
    relations = keras.Input((None, None), dtype="int32")
    x = relative(heads_share_relative_embedding=False, dropout=0.1)(query, value)
    x = RelationAwareAttention(N, H, 5)(x, value, relations=relations)
    model = keras.Model([query, value, relations], x)
    arrays = [*arrays_of(rng, query=(B, T, D), value=(B, S, D)).values()]
    arrays.append(rng.integers(-1, 5, (B, T, S), dtype="int32"))
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "arrays.npz", *arrays)
    run_python(
        f"""
import keras, numpy as np, tf_relpos
arrays = list(np.load(r"{tmp_path}/arrays.npz").values())
model = keras.saving.load_model(r"{tmp_path}/model.keras")
np.save(r"{tmp_path}/output.npy", keras.ops.convert_to_numpy(model(arrays)))
"""
    )
    assert_close(np.load(tmp_path / "output.npy"), model(arrays), tolerance=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_softmax_is_float32_in_half_precision(rng, policy):
    """Over many nearly equal keys a softmax in half precision loses weight; ours sums to 1."""
    half = policy.removeprefix("mixed_")
    seen = []

    class Watched(RelativeMultiHeadAttention):
        def _masked_softmax(self, attention_scores, attention_mask=None):
            weights = super()._masked_softmax(attention_scores, attention_mask)
            seen.append(weights)
            return weights

    layer = Watched(N, H, 2, dtype=policy)
    x = rng.normal(size=(1, 211, D)).astype("float32")
    output, scores = layer(x, x, return_attention_scores=True)
    assert keras.backend.standardize_dtype(seen[0].dtype) == "float32"
    assert_close(to_numpy(seen[0]).sum(-1), np.ones((N, 1, 211)), tolerance=1e-5)  # heads first
    assert keras.backend.standardize_dtype(output.dtype) == half
    assert keras.backend.standardize_dtype(scores.dtype) == half


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_large_scores_stay_finite_in_half_precision(rng, policy):
    layer = relative(dtype=policy)
    x = 30 * rng.normal(size=(B, S, D)).astype("float32")
    mask = np.zeros((B, S, S), bool)
    mask[..., :2] = True
    output, scores = layer(x, x, attention_mask=mask, return_attention_scores=True)
    output, scores = (to_numpy(keras.ops.cast(t, "float32")) for t in (output, scores))
    assert np.all(np.isfinite(output))
    assert not scores[..., 2:].any()
    assert_close(scores.sum(-1), np.ones((B, N, S)), tolerance=0.01)


def test_lora_changes_the_output_and_trains_little(rng):
    layer = relative()
    arrays = random_inputs(rng, B, T, S, D)
    before = to_numpy(layer(arrays["query"], arrays["value"]))
    layer.query_dense.enable_lora(2)
    assert_close(layer(arrays["query"], arrays["value"]), before, tolerance=1e-6)
    assert sum("lora" in v.path for v in layer.trainable_variables) == 2
    layer.query_dense.lora_kernel_b.assign(rng.normal(size=layer.query_dense.lora_kernel_b.shape))
    after = to_numpy(layer(arrays["query"], arrays["value"]))
    assert np.any(np.abs(after - before) > 1e-3)


class _Subclassed(keras.layers.EinsumDense):
    def call(self, x):
        return 3 * super().call(x)


def _subclassed(dense):
    layer = _Subclassed.from_config(dense.get_config())
    layer.build((None, None, *dense.kernel.shape[: 2 if dense.kernel.shape[-1] == D else 1]))
    layer.set_weights(dense.get_weights())
    return layer


@pytest.mark.parametrize("replace", [Tripled, _subclassed])
def test_a_projection_that_was_replaced_is_called(rng, replace):
    theirs, ours = pair_without_relations()
    x = rng.normal(size=(B, T, D)).astype("float32")
    for name in ("query", "key", "value", "output"):
        before = to_numpy(ours(x, x))
        for layer in (theirs, ours):
            replace_projection(layer, name, replace)
        assert_close(ours(x, x), to_numpy(theirs(x, x)))
        assert np.max(np.abs(to_numpy(ours(x, x)) - before)) > 0.1


def test_a_call_that_was_replaced_is_called(rng):
    """As who records activations replaces it, in one projection and not in its class."""
    layer = relative()
    x = rng.normal(size=(B, T, D)).astype("float32")
    before, seen = to_numpy(layer(x, x)), []
    for name in ("query", "key", "value", "output"):
        dense = getattr(layer, f"_{name}_dense")
        dense.call = lambda x, call=dense.call, name=name: (seen.append(name), call(x))[1]
    assert_close(layer(x, x), before)
    assert sorted(seen) == ["key", "output", "query", "value"]


LAYOUTS = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import keras, numpy as np
from keras import distribution
from tf_relpos import EncoderBlock, RelativeMultiHeadAttention

layouts = distribution.LayoutMap(distribution.DeviceMesh((1, 2), ("batch", "model")))
layouts[".*query.*output"] = distribution.TensorLayout([None, None, "model", None])
layouts[".*inner.*output"] = distribution.TensorLayout([None, None, "model"])
both = distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
asked, find = [], both.get_tensor_layout
both.get_tensor_layout = lambda path: asked.append(path) or find(path)
distribution.set_distribution(both)
x = np.ones((2, 6, 16), "float32")
layer = RelativeMultiHeadAttention(2, 8)
block = EncoderBlock(16, 32, 2, dtype="mixed_bfloat16")
for call in (lambda: layer(x, x), lambda: block(x)):
    call()
    asked.clear()
    call()
    # Keras asks once more, after the call of what is laid out.
    print(sorted({path for path in asked if asked.count(path) > 1 and find(path)}))
"""


@pytest.mark.skipif(BACKEND != "jax", reason="Keras lays out tensors on JAX")
def test_what_projections_make_is_laid_out_as_asked():
    attention, block = map(json.loads, run_python(LAYOUTS).replace("'", '"').splitlines()[-2:])
    assert [path.split("/")[-2] for path in attention] == ["query"]
    assert [path.split("/")[-2] for path in block] == ["inner", "query"]


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's hooks")
def test_hooks_see_each_projection(rng):
    layer = relative()
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer(x, x)
    seen = []
    for name in ("query", "key", "value", "output"):
        dense = getattr(layer, f"_{name}_dense")
        dense.register_forward_hook(lambda *_, name=name: seen.append(name))
    layer(x, x)
    assert sorted(seen) == ["key", "output", "query", "value"]


def test_config_names_every_argument_of_its_own():
    layer = relative(
        relative_keys=False, heads_share_relative_embedding=False, implementation="bucketed"
    )
    config = layer.get_config()
    assert config["max_relative_position"] == 2
    assert config["relative_keys"] is False
    assert config["relative_values"] is True
    assert config["heads_share_relative_embedding"] is False
    assert config["implementation"] == "bucketed"


def test_tables_are_glorot_uniform():
    """Variance 2 / (rows + columns) for each head's table, and the seed decides."""
    layer = relative(max_relative_position=50, heads_share_relative_embedding=False, seed=7)
    layer.build((B, T, D), (B, T, D))
    table = to_numpy(layer.relative_key_embeddings.value)
    limit = np.sqrt(6 / (101 + H))
    assert table.shape == (N, 101, H)
    assert np.max(np.abs(table)) <= limit
    assert abs(table.std() - limit / np.sqrt(3)) < 0.03 * limit


def test_masks_pass_through_a_residual(rng):
    """Two layers of a functional model; Keras's own takes the mask off its input, for good."""
    ids = keras.Input([None], dtype="int32")
    x = keras.layers.Embedding(23, D, mask_zero=True)(ids)
    for _ in range(2):
        x = keras.layers.Add()([x, relative()(x, x)])
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    short = rng.integers(1, 23, (B, T))
    assert_close(model(np.pad(short, ((0, 0), (0, 3)))), model(short))
