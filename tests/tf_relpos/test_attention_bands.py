"""Long sequences of known lengths: beyond the clipping distance a label is part of the key."""

import numpy as np
import pytest

from tests.support.attention_checks import (
    check_against_oracle,
    every_form_of_mask,
    oracle,
    random_inputs,
    random_mask,
    randomize,
)
from tests.support.layer_checks import (
    MODES,
    assert_close,
    compile_function,
    compile_runner,
    second_derivatives,
    to_numpy,
)
from tests.support.reference import position_labels
from tf_relpos import RelativeMultiHeadAttention, bands, edge_attention, query_blocks, relation_ops
from tf_relpos.relative_positions import RelativePositions

B, T, S, N, H, D, K = 2, 19, 23, 3, 11, 13, 2


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """Blocks of seven queries; what has been attended so, of which a test needs some."""
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    monkeypatch.setattr(bands, "FEWEST", 7)
    calls = []

    def attend(*arguments):
        calls.append(arguments)
        return bands.attend_in_bands(*arguments)

    monkeypatch.setattr(edge_attention, "attend_in_bands", attend)
    yield calls
    assert calls


def build(rng, **options):
    layer = RelativeMultiHeadAttention(N, H, K, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


def shapes(arrays):
    """All lengths but B."""
    return {n: (None, *x.shape[1:]) if x.ndim > 2 else x.shape for n, x in arrays.items()}


@pytest.mark.parametrize("lengths", [(T, S), (S, T), (40, 12)], ids=["T<S", "S<T", "beyond keys"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("mode", MODES)
def test_values_and_gradients_equal_the_oracle(rng, mode, shared, lengths):
    arrays = random_inputs(rng, B, *lengths, D)
    mask = arrays["attention_mask"] = random_mask(rng, B, *lengths)
    layer = build(rng, heads_share_relative_embedding=shared)
    expected = oracle(layer, arrays, position_labels(*lengths, K), mask)
    runner = compile_runner(layer, mode, arrays, shapes(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)


@pytest.mark.parametrize("term", ["relative_keys", "relative_values"])
@pytest.mark.parametrize("mode", MODES)
def test_one_term_alone(rng, mode, term):
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, **{term: False})
    expected = oracle(layer, arrays, position_labels(T, S, K))
    runner = compile_runner(layer, mode, arrays, shapes(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)


@pytest.mark.parametrize("implementation", ["auto", "bucketed"])
def test_labels_are_picked_in_the_form_that_is_asked_for(rng, monkeypatch, implementation):
    forms = []

    def scores(query, positions, table, implementation):
        forms.append(implementation)
        return relation_ops.relation_scores(query, positions, table, implementation)

    monkeypatch.setattr(bands, "relation_scores", scores)
    x = random_inputs(rng, B, T, S, D)["query"]
    build(rng, implementation=implementation)(x, x, training=True)
    assert set(forms) == {implementation}


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_half_precision(rng, mode):
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, dtype="mixed_bfloat16")
    expected = oracle(layer, arrays, position_labels(T, S, K))
    runner = compile_runner(layer, mode, arrays, shapes(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner, 0.03)


@pytest.mark.parametrize("mode", MODES)
def test_every_form_of_mask(rng, mode, monkeypatch):
    arrays = {n: rng.normal(size=(B, s, D)).astype("float32") for n, s in (("x", T), ("y", S))}
    layer = build(rng)
    masks = every_form_of_mask(rng, B, N, T, S)

    def call(tensors):
        return {
            name: layer(tensors["x"], tensors["y"], training=True, **arguments)
            for name, arguments in masks.items()
        }

    in_bands = compile_function(call, mode, arrays, shapes(arrays))(arrays)
    monkeypatch.setattr(edge_attention, "bands_of", lambda *_: [])
    monkeypatch.setattr(query_blocks, "WIDEST", 10**6)
    whole = compile_function(call, "eager", arrays)(arrays)
    for name in masks:
        assert_close(in_bands[name], whole[name])


def test_what_is_dropped_is_dropped_in_both_passes(rng, monkeypatch):
    """The same seed drops the same weights, in bands and where all queries are taken at once."""
    arrays = random_inputs(rng, B, T, S, D)
    arrays["upstream"] = rng.normal(size=(B, T, D)).astype("float32")
    layer = build(rng, dropout=0.5, seed=3)
    seeds = [v for v in layer.variables if "seed" in v.path]
    state = [to_numpy(v.value).copy() for v in seeds]
    results = []
    for widest in (1, 10**6):
        monkeypatch.setattr(query_blocks, "WIDEST", widest)
        for variable, value in zip(seeds, state, strict=True):
            variable.assign(value)
        results.append(compile_runner(layer, "eager", arrays, training=True)(arrays))
    (output, gradients), (expected, expected_gradients) = results
    assert_close(output, expected)
    assert np.any(np.abs(output - to_numpy(layer(arrays["query"], arrays["value"]))) > 0.1)
    for name, gradient in expected_gradients.items():  # of which the key's bias has none
        np.testing.assert_allclose(gradients[name], gradient, atol=1e-3, rtol=1e-4)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_second_derivatives(rng, mode, monkeypatch):
    layer = build(rng)
    arrays = random_inputs(rng, B, T, S, D)

    def call(tensors):
        return layer(tensors["query"], tensors["value"], training=True) ** 2

    second = second_derivatives(call, ["query", "value"])
    actual = compile_function(second, mode, arrays, shapes(arrays))(arrays)
    monkeypatch.setattr(query_blocks, "WIDEST", 10**6)
    expected = compile_function(second, "eager", arrays)(arrays)
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, tolerance=1e-4)


def test_where_bands_are_taken(monkeypatch, taken):
    import keras

    taken.append(None)  # nothing is attended here
    monkeypatch.undo()

    def bands_of(T, S, k, offset=0, batch=1, training=True):
        query, key = keras.KerasTensor((8, batch, T, 64)), keras.KerasTensor((8, batch, S, 64))
        return bands.bands_of(RelativePositions(T, S, k, offset), query, key, training)

    long = bands_of(2048, 2048, 16)
    assert [band.start for band in long] == list(range(0, 2048, 256))
    assert long[0] == (0, 256, 0, 271) and long[1] == (256, 512, 241, 527)
    assert long[-1] == (1792, 2048, 1777, 2048)
    assert bands_of(128, 4096, 16, offset=1000) == [(0, 128, 985, 1143)]
    assert bands_of(128, 100, 16, offset=1000) == [(0, 128, 99, 100)]
    assert bands_of(2048, 2048, 512) == []  # which is as much as all of it
    assert bands_of(None, 2048, 16) == bands_of(2048, 2048, 0) == []
    assert bands_of(4096, 4096, 16, batch=4) == []  # 2 GB of weights to keep
    assert bands_of(4096, 4096, 16, training=False) == []  # blocks without them are leaner
