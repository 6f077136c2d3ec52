"""Section 3.1: both attention layers against the loops of the oracle, values and all gradients."""

import itertools
import json

import keras
import numpy as np
import pytest

from tests.support.attention_checks import (
    check_against_oracle,
    oracle,
    permuted,
    random_inputs,
    random_mask,
    randomize,
)
from tests.support.layer_checks import (
    BACKEND,
    COMPILED_MODES,
    assert_close,
    compile_runner,
    to_numpy,
)
from tests.support.reference import position_labels
from tf_relpos import (
    EncoderBlock,
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    SinusoidalPositionEncoding,
    Transformer,
    TransformerConfig,
    beam_search,
    path_relations,
    smoothed_cross_entropy,
)
from tf_relpos.edge_attention import EdgeAttention

B, N, H, D = 2, 3, 11, 13
IMPLEMENTATIONS = ("transpose_reshape", "bucketed")
LENGTHS = [(7, 7), (5, 7), (7, 5), (1, 7), (7, 1)]
MASKINGS = ["no_mask", "random_mask", "causal"]
CASES = list(itertools.product(LENGTHS, [0, 3, 16], [True, False], MASKINGS))
if BACKEND != "tensorflow":  # every two values together, not every four: JAX is slow eagerly
    CASES = [
        (pair, k, (i + j) % 2 == 0, MASKINGS[(i + 2 * j) % 3])
        for i, pair in enumerate(LENGTHS)
        for j, k in enumerate([0, 3, 16])
    ]


def build(cls, rng, arrays, *arguments, relations=None, **options):
    layer = cls(N, H, *arguments, **options)
    extra = {} if relations is None else {"relations": relations}
    layer(arrays["query"], arrays["value"], arrays.get("key"), **extra)
    randomize(layer, rng)
    return layer


def in_both_implementations(layer):
    """The layer and a copy that differs in its implementation alone."""
    for implementation in IMPLEMENTATIONS:
        copy = type(layer).from_config({**layer.get_config(), "implementation": implementation})
        shapes = [(None, None, D)] * 2
        copy.build(*shapes)
        copy.set_weights(layer.get_weights())
        yield copy


@pytest.mark.tensorflow_only  # Keras computes in single precision on the others
def test_double_precision_is_exact_to_its_own_rounding(rng):
    """Of H = 11 the square root is not exact in single precision."""
    arrays = {k: v.astype("float64") for k, v in random_inputs(rng, B, 5, 7, D).items()}
    layer = build(RelativeMultiHeadAttention, rng, arrays, 2, dtype="float64")
    expected = oracle(layer, arrays, position_labels(5, 7, 2))
    check_against_oracle(layer, arrays, expected, tolerance=1e-12)


@pytest.mark.parametrize(("lengths", "k", "shared", "masking"), CASES)
def test_eager(rng, lengths, k, shared, masking):
    queries, keys = lengths
    arrays = random_inputs(rng, B, queries, keys, D)
    layer = build(RelativeMultiHeadAttention, rng, arrays, k, heads_share_relative_embedding=shared)
    mask, arguments = None, {}
    if masking == "random_mask":
        mask = arrays["attention_mask"] = random_mask(rng, B, queries, keys)
    if masking == "causal":
        mask = np.broadcast_to(np.tri(queries, keys, dtype=bool), (B, queries, keys))
        arguments = {"use_causal_mask": True}
    expected = oracle(layer, arrays, position_labels(queries, keys, k), mask)
    for copy in in_both_implementations(layer):
        check_against_oracle(copy, arrays, expected, **arguments)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("k", [0, 3, 16])
@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_compiled_once_for_all_lengths(rng, mode, k, shared, implementation):
    lengths = [(5, 7)] if mode == "xla" else LENGTHS
    examples = [random_inputs(rng, B, *pair, D) for pair in lengths]
    layer = build(
        RelativeMultiHeadAttention,
        rng,
        examples[0],
        k,
        heads_share_relative_embedding=shared,
        implementation=implementation,
    )
    for pair, arrays in zip(lengths, examples, strict=True):
        arrays["attention_mask"] = random_mask(rng, B, *pair)
    run = compile_runner(layer, mode, examples[0])
    for pair, arrays in zip(lengths, examples, strict=True):
        expected = oracle(layer, arrays, position_labels(*pair, k), arrays["attention_mask"])
        check_against_oracle(layer, arrays, expected, run)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("keys,values", [(True, False), (False, True), (False, False)])
def test_keys_and_values_switch_separately(rng, keys, values, shared):
    arrays = random_inputs(rng, B, 5, 7, D, own_key=True)
    layer = build(
        RelativeMultiHeadAttention,
        rng,
        arrays,
        2,
        relative_keys=keys,
        relative_values=values,
        heads_share_relative_embedding=shared,
    )
    assert (layer.relative_key_embeddings is not None) == keys
    assert (layer.relative_value_embeddings is not None) == values
    expected = oracle(layer, arrays, position_labels(5, 7, 2))
    for copy in in_both_implementations(layer):
        check_against_oracle(copy, arrays, expected)


@pytest.mark.parametrize("offset", [0, 3, 17])
@pytest.mark.parametrize("k", [0, 1, 3, 16])
def test_offsets_and_lengths_past_the_clipping_distance(rng, k, offset):
    """Labels of queries that sit further along, given to the general layer."""
    arrays = random_inputs(rng, 1, 5, 23, D)
    relations = position_labels(5, 23, k, offset)
    layer = build(
        RelationAwareAttention,
        rng,
        arrays,
        2 * k + 1,
        relations=relations,
        heads_share_relations=False,
    )
    arrays["relations"] = relations
    expected = oracle(layer, arrays, relations)
    for copy in in_both_implementations(layer):
        check_against_oracle(copy, arrays, expected)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("form", [(5, 7), (B, 5, 7), (B, 5, 7, 3), (B, 5, 7, 1)], ids=str)
def test_any_labelled_graph(rng, form, shared):
    """Labels by pair, by sentence and several on an edge; negative labels add nothing."""
    arrays = random_inputs(rng, B, 5, 7, D, own_key=True)
    relations = rng.integers(-1, 5, form, dtype="int32")
    layer = build(
        RelationAwareAttention, rng, arrays, 5, relations=relations, heads_share_relations=shared
    )
    arrays["relations"] = relations
    mask = arrays["attention_mask"] = random_mask(rng, B, 5, 7)
    expected = oracle(layer, arrays, relations, mask)
    for copy in in_both_implementations(layer):
        check_against_oracle(copy, arrays, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_any_labelled_graph_compiled(rng, mode, implementation):
    arrays = random_inputs(rng, B, 5, 7, D)
    relations = rng.integers(-1, 5, (B, 5, 7, 3), dtype="int32")
    layer = build(
        RelationAwareAttention,
        rng,
        arrays,
        5,
        relations=relations,
        implementation=implementation,
        value_dim=4,
    )
    arrays["relations"] = relations
    run = compile_runner(layer, mode, arrays)
    check_against_oracle(layer, arrays, oracle(layer, arrays, relations), run)


def test_labels_of_later_positions_are_left_out_of_causal_calls(rng, monkeypatch):
    """A layer that is built upon this one may see them, as its mask is its own."""

    class Own(RelativeMultiHeadAttention):
        def _compute_attention(self, *args, **kwargs):
            return super()._compute_attention(*args, **kwargs)

    class Prefixed(RelativeMultiHeadAttention):
        def _compute_causal_mask(self, query, value=None):
            causal = super()._compute_causal_mask(query, value)
            return keras.ops.logical_or(causal, np.arange(9) < 5)

    found, known = [], EdgeAttention._tables

    def tables(*args):
        own = known(*args)
        found.extend(table.shape[-2] for table in own.values())
        return own

    monkeypatch.setattr(EdgeAttention, "_tables", tables)
    x = rng.normal(size=(2, 9, 8)).astype("float32")
    in_cache = {"cache": np.zeros((2, 2, 9, 2, 3), "float32"), "cache_update_index": 0}
    for cls, options, arguments, expected in [
        (RelativeMultiHeadAttention, {}, {}, 4),
        (RelativeMultiHeadAttention, {"attention_window": 4}, {}, 4),
        (RelativeMultiHeadAttention, {}, in_cache, 4),
        (Own, {}, {}, 7),
        (Prefixed, {}, {}, 7),
    ]:
        layer = cls(2, 3, 3, **options)
        for is_causal in (False, True):
            found.clear()
            layer(x, x, use_causal_mask=is_causal, **arguments)
            assert set(found) == {expected if is_causal else 7}


def test_value_and_output_sizes_of_their_own(rng):
    arrays = random_inputs(rng, B, 5, 7, D, output_size=17)
    options = {"value_dim": 5, "output_shape": 17, "heads_share_relative_embedding": False}
    layer = build(RelativeMultiHeadAttention, rng, arrays, 2, **options)
    assert tuple(layer.relative_key_embeddings.shape) == (N, 5, H)
    assert tuple(layer.relative_value_embeddings.shape) == (N, 5, 5)
    expected = oracle(layer, arrays, position_labels(5, 7, 2))
    for copy in in_both_implementations(layer):
        check_against_oracle(copy, arrays, expected)


def test_scores_are_the_weights_of_the_oracle(rng):
    arrays = random_inputs(rng, B, 5, 7, D)
    layer = build(RelativeMultiHeadAttention, rng, arrays, 2)
    _, alpha, _ = oracle(layer, arrays, position_labels(5, 7, 2))
    _, scores = layer(arrays["query"], arrays["value"], return_attention_scores=True)
    assert_close(scores, alpha)


def test_labels_of_positions_are_one_way_to_label(rng):
    """The layer for sequences is the general layer given `relative_position_ids`."""
    arrays = random_inputs(rng, B, 5, 7, D)
    relative = build(RelativeMultiHeadAttention, rng, arrays, 2)
    general = RelationAwareAttention(N, H, 5)
    relations = position_labels(5, 7, 2)
    general(arrays["query"], arrays["value"], relations=relations)
    general.set_weights(relative.get_weights())
    actual = general(arrays["query"], arrays["value"], relations=relations)
    assert_close(actual, relative(arrays["query"], arrays["value"]), tolerance=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("k", [0, 1, 3])
def test_order_is_invisible_without_labels_alone(rng, k, implementation):
    arrays = random_inputs(rng, B, 7, 7, D)
    x, order = arrays["query"], np.array([3, 0, 6, 2, 5, 1, 4])
    layer = build(RelativeMultiHeadAttention, rng, arrays, k, implementation=implementation)
    moved, straight = to_numpy(layer(permuted(x, order), permuted(x, order))), layer(x, x)
    difference = np.max(np.abs(moved - to_numpy(permuted(straight, order))))
    assert difference < 1e-5 if k == 0 else difference > 1e-2


def test_translation_does_not_matter(rng):
    """Masked padding in front moves every position, and no output."""
    arrays = random_inputs(rng, B, 7, 7, D)
    x = arrays["query"]
    layer = build(RelativeMultiHeadAttention, rng, arrays, 3)
    front = np.concatenate([rng.normal(size=(B, 5, D)).astype("float32"), x], axis=1)
    mask = np.broadcast_to(np.arange(12) >= 5, (B, 12, 12))
    assert_close(layer(front, front, attention_mask=mask)[:, 5:], layer(x, x))


def test_longer_than_any_seen_before(rng):
    """A layer built and run at length 5 takes length 31, and far pairs share the outer rows."""
    arrays = random_inputs(rng, B, 5, 5, D)
    layer = build(RelativeMultiHeadAttention, rng, arrays, 2)
    long = random_inputs(rng, 1, 31, 31, D)
    expected = oracle(layer, long, position_labels(31, 31, 2))
    check_against_oracle(layer, long, expected)


BAD_ARGUMENTS = [
    (RelativeMultiHeadAttention, {"max_relative_position": -1}, "max_relative_position.*-1"),
    (RelativeMultiHeadAttention, {"max_relative_position": 2.5}, "max_relative_position.*2.5"),
    (RelativeMultiHeadAttention, {"implementation": "fastest"}, "implementation.*'fastest'"),
    (RelativeMultiHeadAttention, {"num_heads": 0}, "num_heads.*0"),
    (RelativeMultiHeadAttention, {"flash_attention": True}, "flash_attention"),
    (RelativeMultiHeadAttention, {"attention_axes": (1, 2)}, r"attention_axes.*\(1, 2\)"),
    (RelationAwareAttention, {"num_relations": 0}, "num_relations.*0"),
    (RelationAwareAttention, {"num_relations": 2.0}, "num_relations.*2.0"),
    (RelationAwareAttention, {"num_relations": True}, "num_relations.*True"),
    (RelationAwareAttention, {"relation_keys": "no"}, "relation_keys.*'no'"),
    (RelativeMultiHeadAttention, {"relative_values": "False"}, "relative_values.*'False'"),
    (RelativeMultiHeadAttention, {"heads_share_relative_embedding": None}, "heads_share.*None"),
    (RelativeMultiHeadAttention, {"dropout": "0.1"}, "dropout.*'0.1'"),
    (RelativeMultiHeadAttention, {"dropout": float("nan")}, "dropout.*nan"),
    (RelativeMultiHeadAttention, {"dropout": 1.5}, "dropout.*1.5"),
]


@pytest.mark.parametrize("cls,bad,message", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(cls, bad, message):
    good = {"num_heads": N, "key_dim": H}
    if cls is RelationAwareAttention:
        good["num_relations"] = 5
    with pytest.raises(ValueError, match=message):
        cls(**{**good, **bad})


@pytest.mark.parametrize(
    "shape,axes", [((B, D), None), ((B, 5, 2, D), None), ((B, 5, D), 2), ((B, 5, D), 0)], ids=str
)
def test_axes_that_hold_no_positions_are_refused(rng, shape, axes):
    x = rng.normal(size=shape).astype("float32")
    with pytest.raises(ValueError, match="attention_axes"):
        RelativeMultiHeadAttention(N, H, attention_axes=axes)(x, x)


@pytest.mark.parametrize("cls", [RelativeMultiHeadAttention, RelationAwareAttention])
@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"query": (B, D)}, r"`query` must have the shape \[any, any, 13\].*\(2, 13\)"),
        ({"query": (B, 5, D + 1)}, r"`query` must have the shape \[any, any, 13\].*14\)"),
        ({"value": (B, 5, D + 1)}, r"`value` must have the shape \[any, any, 13\].*14\)"),
        ({"key": (B, 5, D + 1)}, r"`key` must have the shape \[any, any, 13\].*14\)"),
        ({"query_mask": (7, 9)}, r"`query_mask` must have the shape \[2, 5\].*\(7, 9\)"),
        ({"value_mask": (B, 4)}, r"`value_mask` must have the shape \[2, 5\].*\(2, 4\)"),
        ({"key_mask": (B, 4)}, r"`key_mask` must have the shape \[2, 5\].*\(2, 4\)"),
        ({"attention_mask": (5,)}, r"`attention_mask` must have the shape \[T, S\].*\(5,\)"),
        ({"attention_mask": (3, 5, 5)}, r"`attention_mask` .*B, N, T, S = .*\(3, 5, 5\)"),
        ({"attention_mask": (5, 4)}, r"`attention_mask` .*\(5, 4\)"),
        ({"attention_mask": (B, N + 1, 5, 5)}, r"`attention_mask` .*5, 5\)"),
    ],
)
def test_inputs_that_do_not_fit_a_built_layer_are_refused(rng, cls, wrong, message):
    is_graph = cls is RelationAwareAttention
    good = {name: np.ones((B, 5, D), "float32") for name in ("query", "value", "key")}
    for window in (None,) if is_graph else (None, 1):
        layer = cls(N, H, 3) if is_graph else cls(N, H, 3, attention_window=window)
        labels = {"relations": np.zeros((5, 5), "int32")} if is_graph else {}
        layer(**good, **labels)
        ((name, shape),) = wrong.items()
        array = np.ones(shape, "bool" if "mask" in name else "float32")
        with pytest.raises(ValueError, match=message):
            layer(**{**good, name: array}, **labels)
        symbolic = {key: keras.KerasTensor(x.shape) for key, x in good.items()}
        dtype = "bool" if "mask" in name else "float32"
        with pytest.raises(ValueError, match=message):
            layer(**{**symbolic, name: keras.KerasTensor(shape, dtype)}, **labels)


@pytest.mark.parametrize("wrong", [None, "text", [[1.0]]], ids=str)
def test_inputs_that_are_no_arrays_are_refused(wrong):
    x = np.ones((B, 5, D), "float32")
    layer = RelativeMultiHeadAttention(N, H, 3)
    layer.build(x.shape, x.shape)
    for name, call in {
        "query": lambda: layer.distance_scores(wrong),
        "value": lambda: layer.compute_cache(wrong),
        "inputs": lambda: SinusoidalPositionEncoding().call(wrong),
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must be an array or a tensor. Received"):
            call()
    with pytest.raises(ValueError, match="`query` must be an array or a tensor. Received: None"):
        layer(None, x)


def test_a_single_key_is_attended_to_without_a_word(recwarn):
    x = np.ones((B, 5, D), "float32")
    layer = RelativeMultiHeadAttention(N, H, 3)
    for value in (x[:, :1], x):
        _, weights = layer(x[:, :1], value, return_attention_scores=True)
        assert_close(np.sum(to_numpy(weights), axis=-1), np.ones((B, N, 1)))
    model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=9))
    beam_search(model, np.full((1, 1), 4), 2, max_length=1)
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


@pytest.mark.parametrize("base", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("part", ["query", "key", "value", "attention_output"])
@pytest.mark.parametrize("other", ["float32", "mixed_bfloat16"])
def test_a_projection_may_have_a_precision_of_its_own(rng, base, part, other):
    x = rng.normal(size=(B, 5, D)).astype("float32")
    policies = keras.dtype_policies.DTypePolicyMap(base)
    policies[f"layer/{part}"] = other
    layer = RelativeMultiHeadAttention(N, H, 3, dtype=policies, name="layer")
    exact = RelativeMultiHeadAttention(N, H, 3)
    exact.build(x.shape, x.shape)
    layer.build(x.shape, x.shape)
    layer.set_weights(exact.get_weights())
    assert_close(layer(x, x), exact(x, x), tolerance=0.03)
    cache = layer.compute_cache(x)
    assert_close(layer(x, x, cache=cache)[0], exact(x, x), tolerance=0.03)
    names = ("query", "key", "value")
    steps = [
        attention.project_rows(keras.ops.cast(x[:, 0], attention.compute_dtype), 1, weights, *names)
        for attention, weights in ((layer, layer.row_weights(*names)), (exact, {}))
    ]
    for found, expected in zip(*steps, strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
        assert_close(found, expected, tolerance=0.03)
    again = RelativeMultiHeadAttention.from_config(layer.get_config())
    again.build(x.shape, x.shape)
    again.set_weights(layer.get_weights())
    assert np.array_equal(to_numpy(again(x, x)), to_numpy(layer(x, x)))


def test_a_step_of_decoding_has_the_precision_of_each_projection(rng):
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16")
    policies["layer/query"] = "float32"
    layer = RelativeMultiHeadAttention(1, 8, 3, use_bias=False, dtype=policies, name="layer")
    x = keras.ops.cast(rng.normal(size=(1, 8)), "bfloat16")
    layer.build((1, 1, 8), (1, 1, 8))
    (query,) = layer.project_rows(x, 1, layer.row_weights("query"), "query")
    exact = keras.ops.cast(
        keras.ops.matmul(keras.ops.cast(x, "float32"), layer._query_dense.kernel[:, 0]), "bfloat16"
    )
    expected = exact * keras.ops.cast(8**-0.5, "bfloat16")
    assert np.array_equal(to_numpy(query)[0, 0], to_numpy(expected))
    assert layer.row_weights("key", "value")["kernel"].shape == (8, 16)


@pytest.mark.tensorflow_only
def test_ragged_tensors_are_refused():
    import tensorflow as tf

    ragged = tf.RaggedTensor.from_tensor(tf.ones((2, 4, 6)), lengths=[4, 2])
    with pytest.raises(ValueError, match="`query` must be padded.*RaggedTensor of shape .2, None"):
        RelativeMultiHeadAttention(2, 6)(ragged, ragged)
    ragged_mask = tf.ragged.constant([[True] * 4, [True] * 2])
    x = np.zeros((2, 4, 6), "float32")
    for name in ("query_mask", "value_mask", "key_mask", "attention_mask"):
        with pytest.raises(ValueError, match=f"`{name}` must be padded"):
            RelativeMultiHeadAttention(2, 6)(x, x, **{name: ragged_mask})
    for call in (
        lambda: EncoderBlock(6, 8, 2)(x, source_mask=ragged_mask),
        lambda: SinusoidalPositionEncoding()(ragged),
        lambda: path_relations(tf.ragged.constant([[[0], [0]], [[0]]]), 2),
        lambda: smoothed_cross_entropy(tf.ragged.constant([[1], [1, 2]]), np.zeros((2, 2, 4))),
    ):
        with pytest.raises(ValueError, match="must be padded to one length"):
            call()


def test_whole_numbers_of_numpy_are_taken(rng):
    x = rng.normal(size=(B, 5, D)).astype("float32")
    two = np.int64(2)
    for layer in (
        RelationAwareAttention(two, two, two, value_dim=two, dropout=np.float32(0.5)),
        RelativeMultiHeadAttention(two, two, two, sliding_window=two),
    ):
        relations = np.zeros((5, 5), "uint8")
        extra = {"relations": relations} if isinstance(layer, RelationAwareAttention) else {}
        assert layer(x, x, **extra).shape == (B, 5, D)
        assert json.loads(json.dumps(layer.get_config()))


BAD_RELATIONS = {
    "missing": None,
    "float": np.zeros((5, 5), "float32"),
    "rank_one": np.zeros(5, "int32"),
    "above_the_table": np.full((5, 5), 7, "int32"),
    "above_the_table_unsigned": np.full((5, 5), 7, "uint8"),
    "other_queries": np.zeros((4, 5), "int32"),
    "other_keys": np.zeros((5, 4), "int32"),
    "other_sentences": np.zeros((B + 1, 5, 5), "int32"),
    "ragged": [[0, 1], [0]],
}


@pytest.mark.parametrize("relations", BAD_RELATIONS.values(), ids=BAD_RELATIONS.keys())
def test_bad_relations_are_refused(rng, relations):
    x = rng.normal(size=(B, 5, D)).astype("float32")
    with pytest.raises(ValueError, match="`relations` must "):
        RelationAwareAttention(N, H, 7)(x, x, relations=relations)


@pytest.mark.parametrize("labels", [(), (2,)], ids=["one_label", "several"])
@pytest.mark.parametrize("compatibility", ["product", "additive"])
def test_an_axis_of_one_is_for_all_sentences(rng, labels, compatibility):
    """Also where the number of sentences is not known when a model is built."""
    layer = RelationAwareAttention(N, H, 3, compatibility=compatibility)
    x = rng.normal(size=(3, 5, 4)).astype("float32")
    relations = rng.integers(-1, 3, (1, 5, 5, *labels), dtype="int32")
    expected = to_numpy(layer(x, x, relations=np.repeat(relations, 3, axis=0)))
    assert_close(layer(x, x, relations=relations), expected)
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, layer(inputs, inputs, relations=relations))
    assert_close(model.predict(x, batch_size=2, verbose=0), expected)


def test_no_relations_are_needed_when_both_terms_are_off(rng):
    x = rng.normal(size=(B, 5, D)).astype("float32")
    layer = RelationAwareAttention(N, H, 7, relation_keys=False, relation_values=False)
    assert layer(x, x).shape == (B, 5, D)


@pytest.mark.tensorflow_only
def test_ragged_relations_are_refused(rng):
    import tensorflow as tf

    x = rng.normal(size=(B, 5, D)).astype("float32")
    with pytest.raises(ValueError, match="`relations` must be padded to one length"):
        RelationAwareAttention(N, H, 7)(x, x, relations=tf.ragged.constant([[[0, 1], [0]]]))


@pytest.mark.parametrize("policy, most", [("mixed_bfloat16", 257), ("mixed_float16", 2049)])
def test_labels_that_half_precision_would_take_for_others_are_refused(policy, most):
    """Keras makes floats of the compute dtype of floats that a model is given."""
    x, floats = keras.Input([5, D]), keras.Input([5, 5])
    layer = RelationAwareAttention(N, H, most, dtype=policy)
    model = keras.Model([x, floats], layer(x, x, relations=floats))
    if BACKEND != "torch":  # where all values are known
        randomize(layer, np.random.default_rng(0))
        arrays = np.ones((B, 5, D), "float32"), np.full((B, 5, 5), most - 1)
        expected = layer(arrays[0], arrays[0], relations=arrays[1])
        assert_close(model.predict(arrays, verbose=0), to_numpy(expected), tolerance=0.02)
    layer = RelationAwareAttention(N, H, most + 1, dtype=policy)
    layer(x, x, relations=keras.Input([5, 5], dtype="int32"))
    with pytest.raises(ValueError, match=f"`relations` must be integers: labels above {most - 1}"):
        layer(x, x, relations=floats)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "options", [{}, {"compatibility": "additive"}], ids=["product", "additive"]
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("form", [(1, 5, 7), (1, 5, 7, 3)], ids=str)
def test_labels_of_all_sentences_in_a_graph_that_knows_no_length(
    rng, form, implementation, options
):
    import tensorflow as tf

    arrays = random_inputs(rng, B, 5, 7, D)
    labels = rng.integers(-1, 5, form, dtype="int32")
    options = {"implementation": implementation, **options}
    layer = build(RelationAwareAttention, rng, arrays, 5, relations=labels, **options)
    spec = tf.TensorSpec([None] * 2 + [D])
    function = tf.function(
        lambda query, value, labels: layer(query, value, relations=labels),
        input_signature=[spec, spec, tf.TensorSpec([None] * len(form), "int32")],
    )
    expected = layer(arrays["query"], arrays["value"], relations=labels)
    assert_close(function(arrays["query"], arrays["value"], labels), expected)
    several = np.broadcast_to(labels, (B, *form[1:]))
    assert_close(function(arrays["query"], arrays["value"], several), expected)
