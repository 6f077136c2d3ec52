"""Encoder and decoder block: what any layer must do, and the order of their sub-layers."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.support.layer_checks import assert_close, check_layer, to_numpy
from tf_relpos import DecoderBlock, EncoderBlock

B, T, S, N, H, INNER = 2, 5, 7, 3, 2, 11
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
    [({"num_heads": 5}, "num_heads=5, model_dim=6"), ({"norm": "both"}, "norm='both'")],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        EncoderBlock(**{"model_dim": D, "inner_dim": INNER, "num_heads": N, **arguments})


def test_without_relative_positions_there_are_no_tables():
    for k, tables in ((None, 0), (0, 2), (4, 2)):
        layer = EncoderBlock(D, INNER, N, max_relative_position=k)
        layer.build((None, None, D))
        found = [v for v in layer.weights if "embeddings" in v.name]
        assert len(found) == tables
        assert all(v.shape == (2 * k + 1, H) for v in found)
    assert keras.saving.get_registered_name(EncoderBlock) == "tf_relpos>EncoderBlock"
