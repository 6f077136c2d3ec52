"""Encoder and decoder block: what any layer must do, and the order of their sub-layers."""

import copy
import dataclasses
import inspect
import json
import re

import keras
import numpy as np
import pytest
from keras import ops

from tests.support.layer_checks import (
    MODES,
    assert_close,
    check_layer,
    compile_runner,
    to_numpy,
)
from tf_relpos import DecoderBlock, EncoderBlock, Transformer, TransformerConfig

B, T, S, N, H, INNER, V = 2, 5, 7, 3, 2, 11, 13
D = N * H
BLOCKS = {EncoderBlock: ("x", "source_mask"), DecoderBlock: ("x", "encoded", "source_mask")}


def inputs(rng, block):
    length = S if block is EncoderBlock else T
    mask = np.arange(S) < np.array([[S], [4]])
    arrays = {
        "x": rng.normal(size=(B, length, D)).astype("float32"),
        "encoded": rng.normal(size=(B, S, D)).astype("float32"),
        "source_mask": mask,
    }
    return {name: arrays[name] for name in BLOCKS[block]}


@pytest.mark.parametrize("block, norm", [(EncoderBlock, "post"), (DecoderBlock, "pre")])
def test_block_is_a_well_behaved_layer(rng, tmp_path, block, norm):
    check_layer(
        lambda dtype: block(D, INNER, N, max_relative_position=2, norm=norm, dtype=dtype),
        inputs(rng, block),
        tmp_path,
    )


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_integers_are_taken_as_numbers(rng, block, norm):
    """As Keras's layers take them; sums with them must not be whole numbers again."""
    arrays = inputs(rng, block)
    whole = {name: x if x.dtype == bool else np.rint(2 * x) for name, x in arrays.items()}
    layer = block(D, INNER, N, max_relative_position=2, norm=norm)
    expected = layer(**whole)
    ints = {name: x if x.dtype == bool else x.astype("int32") for name, x in whole.items()}
    found = layer(**ints)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert_close(found, expected, tolerance=1e-6)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_a_block_that_was_built_by_hand_returns_from_disk(rng, tmp_path, block):
    arrays = inputs(rng, block)
    layer = block(D, INNER, N, max_relative_position=2)
    layer.build(*[(None, None, D)] * (len(arrays) - 1))
    symbolic = {
        name: keras.Input(x.shape[1:], dtype=x.dtype.name, name=name) for name, x in arrays.items()
    }
    model = keras.Model(symbolic, layer(**symbolic))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(arrays), model(arrays), tolerance=1e-6)
    assert_close(copy.deepcopy(layer)(**arrays), model(arrays), tolerance=1e-6)


@pytest.mark.parametrize(
    "block, changed, told",
    [
        (EncoderBlock, {"x": (5, D + 1)}, f"`x` must have the shape [any, any, {D}]"),
        (EncoderBlock, {"source_mask": (S + 1,)}, f"`source_mask` must have the shape [any, {S}]"),
        (DecoderBlock, {"encoded": (S, D + 1)}, f"`encoded` must have the shape [any, any, {D}]"),
        (DecoderBlock, {"source_mask": (S + 1,)}, f"`source_mask` must have the shape [any, {S}]"),
    ],
)
def test_what_does_not_fit_is_refused_while_a_model_is_made(rng, block, changed, told):
    shapes = {name: x.shape[1:] for name, x in inputs(rng, block).items()} | changed
    symbolic = {
        name: keras.Input(shape, dtype="bool" if "mask" in name else "float32")
        for name, shape in shapes.items()
    }
    with pytest.raises(ValueError, match=re.escape(told)):
        block(D, INNER, N)(**symbolic)


def test_what_a_model_cannot_know_of_a_blocks_input_it_knows_of_the_output():
    assert EncoderBlock(D, INNER, N)(keras.Input([None, None])).shape == (None, None, D)


@pytest.mark.parametrize("cache", [[1.0], np.zeros(()), np.zeros((B, 2))])
def test_what_is_no_cache_is_refused(rng, cache):
    x = inputs(rng, EncoderBlock)["x"]
    with pytest.raises(ValueError, match="`cache` must "):
        EncoderBlock(D, INNER, N)(x, cache=cache, cache_update_index=0)


def attended(layer, arrays):
    """Both kinds of attention by the block's own layers."""
    source_mask = ops.convert_to_tensor(arrays["source_mask"])[:, None, :]
    if isinstance(layer, EncoderBlock):
        return [(lambda y: layer.self_attention(y, y, attention_mask=source_mask), "self")]
    return [
        (lambda y: layer.self_attention(y, y, use_causal_mask=True), "self"),
        (
            lambda y: layer.cross_attention(y, arrays["encoded"], attention_mask=source_mask),
            "cross",
        ),
    ]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_sublayers_come_in_the_papers_order(rng, block, norm):
    layer = block(D, INNER, N, max_relative_position=2, dropout=0.5, norm=norm)
    arrays = inputs(rng, block)
    output = layer(**arrays, training=False)
    for variable in layer.trainable_variables:  # norms and biases start at 1 and 0
        variable.assign_add(0.3 * rng.normal(size=variable.shape))
    assert np.max(np.abs(to_numpy(layer(**arrays)) - to_numpy(output))) > 0.01

    x = ops.convert_to_tensor(arrays["x"])
    sublayers = [
        (attend, getattr(layer, f"{name}_attention_norm"))
        for attend, name in attended(layer, arrays)
    ]
    sublayers.append((lambda y: layer.outer(ops.relu(layer.inner(y))), layer.feed_forward_norm))
    for sublayer, normalize in sublayers:
        x = normalize(x + sublayer(x)) if norm == "post" else x + sublayer(normalize(x))
    assert_close(layer(**arrays), x, tolerance=1e-6)


def test_both_blocks_say_the_same_of_their_arguments():
    """Their signatures are one, and `help` shows each by itself."""
    assert inspect.signature(EncoderBlock) == inspect.signature(DecoderBlock)
    told = [
        inspect.getdoc(block).partition("\nArgs:\n")[2].partition("\n\n")[0] for block in BLOCKS
    ]
    assert told[0] == told[1] and told[0].count(":") >= 10


@pytest.mark.parametrize("window", [None, 2])
def test_a_causal_block_step_by_step_is_the_whole(rng, window):
    layer = EncoderBlock(D, INNER, N, max_relative_position=2, attention_window=window)
    arrays = inputs(rng, EncoderBlock)
    whole = to_numpy(layer(**arrays, use_causal_mask=True))
    earlier = {name: x[:, :4] for name, x in arrays.items()}
    assert_close(layer(**earlier, use_causal_mask=True), whole[:, :4])
    assert np.max(np.abs(to_numpy(layer(**arrays)) - whole)) > 0.01

    cache = np.zeros((B, 2, S + 1, N, H), "float32")
    mask = np.pad(arrays["source_mask"], ((0, 0), (0, 1)))
    found = []
    for index in range(S):
        x = arrays["x"][:, index : index + 1]
        options = {"use_causal_mask": True, "cache": cache, "cache_update_index": index}
        y, cache = layer(x, mask, **options)
        found.append(to_numpy(y))
    assert_close(np.concatenate(found, axis=1), whole)

    attention, query, value, seen = layer.attention_inputs(**arrays, use_causal_mask=True)
    weights = attention(query, value, attention_mask=seen, return_attention_scores=True)[1]
    assert np.max(np.abs(np.triu(to_numpy(weights), 1))) < 1e-9


def test_a_causal_block_in_a_functional_model(rng):
    x, cache = keras.Input((None, D)), keras.Input((2, S, N, H))
    layer = EncoderBlock(D, INNER, N, max_relative_position=2)
    options = {"use_causal_mask": True, "cache_update_index": 3}
    model = keras.Model([x, cache], layer(x, cache=cache, **options))
    arrays = [rng.normal(size=(B, *shape)).astype("float32") for shape in ((2, D), (2, S, N, H))]
    expected = layer(arrays[0], cache=arrays[1], **options)
    for found, wanted in zip(model(arrays), expected, strict=True):
        assert_close(found, wanted)
    with pytest.raises(ValueError, match="`cache` must have the shape"):
        layer(x, cache=keras.Input((2, S, N, H + 1)), cache_update_index=0)


@pytest.mark.parametrize(
    "place", ["dropout", "attention_dropout", "inner_dropout"], ids=lambda name: name
)
def test_dropout_acts_in_training_alone(rng, place):
    layer = EncoderBlock(D, INNER, N, **{place: 0.5})
    arrays = inputs(rng, EncoderBlock)
    calm = to_numpy(layer(**arrays, training=False))
    assert np.any(to_numpy(layer(**arrays, training=True)) != calm)
    np.testing.assert_array_equal(to_numpy(layer(**arrays)), calm)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_heads": 5}, "num_heads=5, model_dim=6"),
        ({"num_heads": 0}, "`num_heads` must be a whole number >= 1.*num_heads=0"),
        ({"model_dim": 6.0}, "model_dim=6.0"),
        ({"inner_dim": "11"}, "inner_dim='11'"),
        ({"norm": "both"}, "norm='both'"),
        ({"dropout": "0.1"}, "`dropout` must be a number .*dropout='0.1'"),
        ({"attention_dropout": float("nan")}, "attention_dropout=nan"),
        ({"inner_dropout": 1}, "inner_dropout=1"),
        ({"relative_keys": "no"}, "`relative_keys` must be True or False.*'no'"),
        ({"implementation": "fast"}, "implementation='fast'"),
        ({"max_relative_position": -1}, "max_relative_position=-1"),
    ],
)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_bad_arguments_are_refused(block, arguments, message):
    with pytest.raises(ValueError, match=message):
        block(**{"model_dim": D, "inner_dim": INNER, "num_heads": N, **arguments})


@pytest.mark.tensorflow_only
def test_what_no_policy_tells_is_not_saved(tmp_path):
    """It would be loaded as something else."""
    model = keras.Sequential([keras.Input((S, D)), EncoderBlock(D, 2 * D, 2, 2)])
    weights_only = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize("int8", config=weights_only)
    with pytest.raises(ValueError, match="`activation_quantizer` must be that of .* None for"):
        model.save(tmp_path / "model.keras")


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "mode, config, options",
    [
        ("gptq", keras.quantizers.GPTQConfig, {"weight_bits": 8}),
        ("awq", keras.quantizers.AWQConfig, {"num_grid_points": 3}),
    ],
)
def test_quantized_by_examples(rng, mode, config, options):
    """By configs that Keras cannot make without examples; their policies tell the rest."""

    class Words:
        def tokenize(self, text):
            return [int(word) for word in text.split()]

    ids = keras.Input((None,), dtype="int32")
    embedding, block = keras.layers.Embedding(V, 32), EncoderBlock(32, INNER, 2, 2)
    model = keras.Model(ids, keras.layers.Dense(V)(block(embedding(ids))))
    x = rng.integers(0, V, (B, S))
    before = to_numpy(model(x))
    model.quantize(
        mode,
        config=config(
            dataset=[" ".join(map(str, rng.integers(0, V, 100)))],
            tokenizer=Words(),
            num_samples=2,
            sequence_length=S,
            group_size=8,
            quantization_layer_structure={
                "pre_block_layers": [embedding],
                "sequential_blocks": [block],
            },
            **options,
        ),
    )
    found = to_numpy(model(x))
    assert np.any(found != before)
    assert_close(found, before, tolerance=0.3)

    def quantized_parts(layer):
        parts = layer._flatten_layers(include_self=False)
        return {p.name: p.dtype_policy.name for p in parts if p.quantization_mode == mode}

    again = EncoderBlock.from_config(block.get_config())
    again.build((None, None, 32))
    assert quantized_parts(again) == quantized_parts(block)
    assert len(quantized_parts(again)) == 6


@pytest.mark.tensorflow_only  # elsewhere `test_uses` quantizes
def test_quantized_in_a_model_whose_paths_change(rng, tmp_path):
    """A layer of `Sequential` has the model's name in its path, but not when it is loaded."""
    x = rng.normal(size=(B, S, D)).astype("float32")
    model = keras.Sequential([keras.Input((S, D)), EncoderBlock(D, 2 * D, 2, 2)])
    model.quantize("int8")
    expected = to_numpy(model(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert any(layer.quantization_mode == "int8" for layer in loaded._flatten_layers())
    assert_close(loaded(x), expected, tolerance=1e-6)

    block = loaded.layers[-1]
    renamed = EncoderBlock.from_config({**block.get_config(), "name": "another"})
    renamed.build((None, None, D))
    renamed.set_weights(block.get_weights())
    assert_close(renamed(x), expected, tolerance=1e-6)


def test_numpy_numbers_become_json():
    layer = EncoderBlock(np.int64(D), np.int32(INNER), np.uint8(N), np.int64(2), np.bool_(False))
    layer.build((None, None, D))
    config = layer.get_config()
    assert json.loads(json.dumps(config)) == config
    assert config["relative_keys"] is False


def test_each_argument_reaches_its_layer():
    """By way of the model's configuration, which names it once."""
    config = TransformerConfig(
        vocabulary_size=23,
        model_dim=D,
        inner_dim=INNER,
        num_heads=N,
        encoder_layers=1,
        decoder_layers=1,
        max_relative_position=5,
        relative_values=False,
        heads_share_relative_embedding=False,
        implementation="bucketed",
        dropout=0.125,
        attention_dropout=0.25,
        inner_dropout=0.375,
        norm="pre",
        attention_window=7,
        compatibility="additive",
    )
    model = Transformer(config)
    for block in (*model.encoder_blocks, *model.decoder_blocks):
        attention = block.self_attention
        assert (attention.num_heads, attention.key_dim, attention.max_relative_position) == (
            N,
            H,
            5,
        )
        assert (attention.relation_keys, attention.relation_values) == (True, False)
        assert attention.get_config()["heads_share_relative_embedding"] is False
        assert attention.implementation == "bucketed"
        assert attention.attention_window == 7
        assert attention.compatibility == "additive"
        assert attention.dropout == 0.25
        assert (block.dropout.rate, block.inner_dropout.rate) == (0.125, 0.375)
        assert (block.inner.units, block.outer.units) == (INNER, D)
        assert block.get_config()["norm"] == "pre"
    assert model.decoder_blocks[0].cross_attention.dropout == 0.25
    assert model.decoder_blocks[0].cross_attention.attention_window is None
    assert model.decoder_blocks[0].cross_attention.compatibility == "additive"
    without = Transformer(dataclasses.replace(config, position="none"))
    assert not without.encoder_blocks[0].self_attention.uses_relations


def stack(block, norm):
    """Three blocks on embedded ids, of which 0 is padding, and the mean of the tokens' outputs."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = encoded = keras.layers.Embedding(23, D, mask_zero=True)(ids)
    for _ in range(3):
        layer = block(D, INNER, N, max_relative_position=2, norm=norm)
        x = layer(x) if block is EncoderBlock else layer(x, encoded)
    return keras.Model(ids, [x, keras.layers.GlobalAveragePooling1D()(x)])


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
@pytest.mark.parametrize("side", ["right", "left"])
def test_implicit_masks_reach_the_last_block_and_what_follows(rng, block, norm, side):
    model = stack(block, norm)
    ids = rng.integers(1, 23, (B, S), dtype="int32")
    tokens = slice(0, 4) if side == "right" else slice(3, 7)
    ids[0] = np.where(np.isin(np.arange(S), np.arange(S)[tokens]), ids[0], 0)
    together, pooled = to_numpy(model(ids))
    alone, pooled_alone = to_numpy(model(ids[:1, tokens]))
    assert_close(together[:1, tokens], alone)
    assert_close(pooled[:1], pooled_alone)


def test_an_explicit_and_an_implicit_mask_both_hold(rng):
    layer = EncoderBlock(D, INNER, N, max_relative_position=2)
    embed = keras.layers.Embedding(23, D, mask_zero=True)
    ids = rng.integers(1, 23, (1, S), dtype="int32")
    ids[0, 5:] = 0
    found = layer(embed(ids), source_mask=np.arange(S)[None] < 6)
    assert_close(to_numpy(found)[:, :5], layer(embed(ids[:, :5])))


@pytest.mark.parametrize(
    "block, wrong, message",
    [
        (EncoderBlock, {"x": (B, S, D + 1)}, r"`x` must have the shape \[any, any, 6\]"),
        (EncoderBlock, {"x": (S, D)}, r"`x` must have the shape .*\(7, 6\)"),
        (EncoderBlock, {"source_mask": (1, S)}, r"`source_mask` must have the shape \[2, 7\]"),
        (EncoderBlock, {"source_mask": (B, 1, S)}, r"`source_mask` .*\(2, 1, 7\)"),
        (DecoderBlock, {"encoded": (1, S, D)}, r"`encoded` must have the shape \[2, any, 6\]"),
        (DecoderBlock, {"x": (1, T, D)}, r"`encoded` must have the shape \[1, any, 6\]"),
        (DecoderBlock, {"source_mask": (B, T)}, r"`source_mask` must have the shape \[2, 7\]"),
        (DecoderBlock, {"x": (B, T, D + 1)}, r"`x` must have the shape \[any, any, 6\]"),
    ],
)
@pytest.mark.parametrize("is_built", [False, True])
def test_shapes_that_do_not_fit_are_refused(rng, block, wrong, message, is_built):
    """A batch of 1 would be broadcast."""
    layer = block(D, INNER, N)
    if is_built:
        layer(**inputs(rng, block))
    arrays = {**inputs(rng, block), **{name: np.ones(shape) for name, shape in wrong.items()}}
    with pytest.raises(ValueError, match=message):
        layer(**arrays)


def test_without_relative_positions_there_are_no_tables():
    for k, tables in ((None, 0), (0, 2), (4, 2)):
        layer = EncoderBlock(D, INNER, N, max_relative_position=k)
        layer.build((None, None, D))
        found = [v for v in layer.weights if "embeddings" in v.name]
        assert len(found) == tables
        assert all(v.shape == (2 * k + 1, H) for v in found)
    assert keras.saving.get_registered_name(EncoderBlock) == "tf_relpos>EncoderBlock"


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_wrapper_hands_the_mask_on(rng, norm):
    """Documents of sentences of words: `TimeDistributed` calls the block, with a mask."""
    embed = keras.layers.Embedding(23, D, mask_zero=True)
    block = EncoderBlock(D, INNER, N, max_relative_position=2, norm=norm)
    documents = rng.integers(1, 23, (B, 3, S), dtype="int32")
    documents[1, 1:, 4:] = 0
    found = to_numpy(keras.layers.TimeDistributed(block)(embed(documents)))
    assert_close(found[1, 1:, :4], block(embed(documents[1, 1:, :4])))
    words = to_numpy(embed(documents[1]))
    masked = block(words, np.ones((3, S), "bool"), mask=documents[1] != 0)
    assert_close(to_numpy(masked)[1:, :4], found[1, 1:, :4])


def test_a_mask_of_a_wrapper_and_an_implicit_one_both_hold(rng):
    layer = EncoderBlock(D, INNER, N, max_relative_position=2)
    embed = keras.layers.Embedding(23, D, mask_zero=True)
    ids = rng.integers(1, 23, (1, S), dtype="int32")
    found = layer(embed(ids), mask=np.arange(S)[None] < 5)
    assert_close(to_numpy(found)[:, :5], layer(embed(ids[:, :5])))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_gradients_of_biases_in_half_precision_lose_nothing_small(rng, block):
    """Thousands of positions have a part in each, of which bfloat16 would add up some hundred."""
    arrays = {name: np.repeat(np.repeat(x, 16, 0), 8, 1) for name, x in inputs(rng, block).items()}
    del arrays["source_mask"]
    policies = "float32", "mixed_bfloat16"
    layers = [block(D, INNER, N, norm="pre", dtype=policy) for policy in policies]
    found = []
    for layer in layers:
        layer.build(*([arrays["x"].shape] * len(arrays)))
        layer.set_weights(layers[0].get_weights())
        _, gradients = compile_runner(layer, MODES[0], arrays)(
            {**arrays, "upstream": np.ones((*arrays["x"].shape[:2], D), "float32")}
        )
        found.append(
            [
                gradients[f"variable_{i}"]
                for i, weight in enumerate(layer.trainable_variables)
                if weight.path.endswith(("inner/bias", "outer/bias"))
            ]
        )
    assert len(found[0]) == 2
    for exact, half in zip(*found, strict=True):
        assert np.linalg.norm(half - exact) < 0.1 * np.linalg.norm(exact)
