"""A model with kernels that lie better says what it says without."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.translators.stepping import SteppingModel
from tf_relpos import Transformer, TransformerConfig

WIDE = {"model_dim": 512, "inner_dim": 512, "num_heads": 4, "vocabulary_size": 768}


@pytest.fixture(scope="module")
def model():
    """Three layers of the decoder that share their weights."""
    keras.utils.set_random_seed(1)
    config = TransformerConfig(
        **WIDE, encoder_layers=1, decoder_layers=3, share_layers=True, dropout=0.0
    )
    model = Transformer(config)
    model.build()
    return model


def test_kernels_are_spread_and_shared_ones_once(model):
    weights = SteppingModel(model).step_weights()
    assert weights["columns"].shape == (512, 784)
    first, *others = weights["blocks"]
    assert {name: own["kernel"].shape[1] for name, own in first.items()} == {
        "self_attention": 3 * 512 + 16,
        "self_attention_output": 528,
        "cross_attention": 528,
        "cross_attention_output": 528,
        "inner": 528,
        "outer": 528,
    }
    assert first["inner"]["bias"].shape == (512,)
    assert len(others) == 2
    for block in others:
        assert all(block[name]["kernel"] is own["kernel"] for name, own in first.items())


def test_a_step_is_that_of_the_model(model):
    source_ids = tf.constant([[5, 6, 7], [8, 9, 0]])
    tokens = tf.constant([[1, 4], [5, 700]])
    found, expected = (
        searched.step(tokens, searched.initial_cache(memory, 2, 4), 0, memory)[0]
        for searched in (SteppingModel(model), model)
        for memory in [searched.encode(source_ids)]
    )
    assert found.shape == (2, 2, 768)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
