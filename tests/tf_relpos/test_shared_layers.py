"""Blocks of one side that have the same weights."""

import keras
import numpy as np
import pytest

from tests.support.layer_checks import assert_close
from tests.support.layer_checks import to_numpy as numpy
from tests.tf_relpos.test_transformer import B, K, S, T, V, logits, make_ids, make_model
from tf_relpos import Transformer, beam_search


def make_pair(rng, **fields):
    """A model that shares, and one whose blocks have copies of its weights."""
    sizes = {"encoder_layers": 3, "decoder_layers": 2, **fields}
    shared = make_model(rng, share_layers=True, **sizes)
    apart = make_model(rng, **sizes)
    for side in ("encoder", "decoder"):
        first, *_ = getattr(shared, f"{side}_blocks")
        for block in getattr(apart, f"{side}_blocks"):
            block.set_weights(first.get_weights())
    for name in ("embedding", "encoder_norm", "decoder_norm"):
        if getattr(shared, name) is not None:
            getattr(apart, name).set_weights(getattr(shared, name).get_weights())
    return shared, apart


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_it_is_the_same_block_again(rng, norm):
    shared, apart = make_pair(rng, norm=norm)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    source_ids[1, 5:] = 0
    expected = logits(apart, source_ids, target_ids)
    assert_close(logits(shared, source_ids, target_ids), expected)
    ids, scores = beam_search(shared, source_ids, K, max_length=5)
    expected_ids, expected_scores = beam_search(apart, source_ids, K, max_length=5)
    assert np.array_equal(numpy(ids), numpy(expected_ids))
    assert_close(scores, expected_scores)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    found = shared.attention_inputs(inputs)
    for name, other in apart.attention_inputs(inputs).items():
        assert_close(found[name].weights(), other.weights())
    assert len(found) == 3 + 2 * 2


def test_it_has_the_weights_of_one_block_a_side(rng):
    shared, apart = make_pair(rng)
    one = make_model(rng, encoder_layers=1, decoder_layers=1)
    assert [w.shape for w in shared.weights] == [w.shape for w in one.weights]
    assert len(shared.trainable_variables) == len({w.path for w in shared.trainable_variables})
    assert shared.count_params() == one.count_params() < apart.count_params()


def test_a_change_of_the_weights_is_one_of_all_layers(rng):
    shared, apart = make_pair(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    before = logits(apart, source_ids, target_ids)
    kernel = shared.encoder_blocks[0].inner.kernel
    change = 1e-2 * rng.normal(size=kernel.shape)
    for block in dict.fromkeys((*shared.encoder_blocks, *apart.encoder_blocks)):
        block.inner.kernel.assign_add(change)
    after = logits(apart, source_ids, target_ids)
    assert np.max(np.abs(after - before)) > 1e-3
    assert_close(logits(shared, source_ids, target_ids), after)


def test_it_learns_and_is_saved(rng, tmp_path):
    shared, _ = make_pair(rng)
    ids = make_ids(rng, 12, S)
    inputs = {"source_ids": ids, "target_ids": np.roll(ids, 1, axis=1)}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    shared.compile("adam", loss, jit_compile=False)
    first, *_, last = shared.fit(inputs, ids, epochs=40, verbose=0).history["loss"]
    assert last < 0.9 * first
    shared.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Transformer) and loaded.config == shared.config
    assert loaded.encoder_blocks[0] is loaded.encoder_blocks[2]
    assert_close(numpy(loaded(inputs)), numpy(shared(inputs)))
    assert loaded(inputs).shape == (12, S, V)


@pytest.mark.slow  # so are layers that share nothing
@pytest.mark.tensorflow_only
def test_it_is_quantized(rng):
    shared, _ = make_pair(rng)
    source_ids, target_ids = make_ids(rng, B, S), make_ids(rng, B, T)
    exact = logits(shared, source_ids, target_ids)
    shared.quantize("int8")
    assert_close(logits(shared, source_ids, target_ids), exact, tolerance=0.06)
