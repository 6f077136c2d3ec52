"""One gradient for all of attention, which a graph for training takes, is that of Eq. 3 and 4."""

import contextlib

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
    assert_close,
    compile_function,
    compile_runner,
    second_derivatives,
)
from tests.support.reference import position_labels
from tf_relpos import (
    RelationAwareAttention,
    RelativeMultiHeadAttention,
    attention,
    edge_attention,
    query_blocks,
)
from tf_relpos.query_blocks import lengths_up_to

pytestmark = pytest.mark.tensorflow_only

B, T, S, N, H, D, K = 2, 9, 7, 3, 11, 13, 2


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """The calls of `attend_at_once`, which are in the test's own graphs alone."""
    calls, known = [], edge_attention.attend_at_once
    monkeypatch.setattr(
        edge_attention, "attend_at_once", lambda own: calls.append(own) or known(own)
    )
    return calls


def build(rng, cls=RelativeMultiHeadAttention, labels=K, **options):
    options = {"implementation": "bucketed", **options}
    layer = cls(N, H, labels, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


def known(arrays):
    return {name: array.shape for name, array in arrays.items()}


@pytest.fixture
def from_any_length(monkeypatch):
    """XLA's graphs take it for few pairs as well."""
    monkeypatch.setattr(attention, "FEWEST_IN_XLA", 1)


IN_GRAPHS = pytest.mark.parametrize("mode", ["graph", "xla"])


@pytest.mark.parametrize(
    ("mode", "longest"),
    [("graph", None), ("graph", T), ("xla", None)],
    ids=["known", "told the longest", "xla"],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
def test_values_and_gradients_equal_the_oracle(rng, shared, mode, longest, taken, from_any_length):
    arrays = random_inputs(rng, B, T, S, D)
    mask = arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = build(rng, heads_share_relative_embedding=shared)
    expected = oracle(layer, arrays, position_labels(T, S, K), mask)
    shapes = None if longest else known(arrays)
    runner = compile_runner(layer, mode, arrays, shapes, training=True)
    with lengths_up_to(longest) if longest else contextlib.nullcontext():
        check_against_oracle(layer, arrays, expected, runner)
    assert taken


@IN_GRAPHS
@pytest.mark.parametrize("term", ["relative_keys", "relative_values"])
def test_one_term_alone(rng, term, mode, taken, from_any_length):
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, **{term: False})
    expected = oracle(layer, arrays, position_labels(T, S, K))
    runner = compile_runner(layer, mode, arrays, known(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)
    assert taken


@pytest.mark.parametrize(
    "form", [(T, S), (B, T, S), (B, T, S, 3)], ids=["pair", "batch", "several"]
)
def test_any_labels(rng, form, taken):
    """Some pairs have no label, and some have several."""
    arrays = random_inputs(rng, B, T, S, D)
    arrays["relations"] = rng.integers(-1, 5, form, dtype="int32")
    layer = build(rng, RelationAwareAttention, 5)
    expected = oracle(layer, arrays, arrays["relations"])
    runner = compile_runner(layer, "graph", arrays, known(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)
    assert taken


@IN_GRAPHS
def test_every_form_of_mask(rng, mode, taken, from_any_length):
    """And one by which a query sees nothing."""
    arrays = random_inputs(rng, B, T, S, D)
    masks = every_form_of_mask(rng, B, N, T, S)
    masks["nothing"] = {"attention_mask": np.arange(T)[:, None] * np.ones(S) > 2}
    for arguments in masks.values():
        layer = build(rng)
        found, expected = (
            compile_runner(layer, mode, arrays, known(arrays), training=True, **arguments)(arrays)
            for mode in (mode, "eager")
        )
        assert_close(found[0], expected[0])
        largest = max(np.max(np.abs(gradient)) for gradient in expected[1].values())
        for name, gradient in expected[1].items():  # of which the key's bias has none
            np.testing.assert_allclose(found[1][name], gradient, rtol=1e-5, atol=1e-5 * largest)
    assert len(taken) == len(masks)


@IN_GRAPHS
def test_second_derivatives(rng, mode, taken, from_any_length):
    layer = build(rng)
    arrays = random_inputs(rng, B, T, S, D)

    def call(tensors):
        return layer(tensors["query"], tensors["value"], training=True) ** 2

    second = second_derivatives(call, ["query", "value"])
    found = compile_function(second, mode, arrays, known(arrays))(arrays)
    assert taken
    expected = compile_function(second, "eager", arrays)(arrays)
    for name, gradient in expected.items():
        assert_close(found[name], gradient, tolerance=1e-4)


@pytest.mark.parametrize(
    ("mode", "options", "arguments"),
    [
        ("graph", {}, {"training": False}),
        ("graph", {}, {"training": True, "return_attention_scores": True}),
        ("graph", {"dropout": 0.1}, {"training": True}),
        ("graph", {"compatibility": "additive"}, {"training": True}),
        ("graph", {"implementation": "transpose_reshape"}, {"training": True}),
        ("graph", {"dtype": "mixed_bfloat16"}, {"training": True}),
        ("eager", {}, {"training": True}),
        ("xla", {}, {"training": True}),
    ],
)
def test_where_it_is_not_taken(rng, mode, options, arguments, taken):
    arrays = {"x": rng.normal(size=(B, T, D)).astype("float32")}
    layer = build(rng, **options)
    compile_function(lambda a: layer(a["x"], a["x"], **arguments), mode, arrays, known(arrays))(
        arrays
    )
    assert not taken


def test_where_it_is_taken_in_xla(rng, taken, monkeypatch):
    """With positions, of known sizes within bounds, also where queries would go in blocks."""
    layer = build(rng)
    graph_layer = build(rng, RelationAwareAttention, 5)
    labels = rng.integers(0, 5, (T, T), dtype="int32")

    def calls(layer, sizes, **arguments):
        taken.clear()
        arrays = {"x": rng.normal(size=(B, T, D)).astype("float32")}
        call = lambda a: layer(a["x"], a["x"], training=True, **arguments)  # noqa: E731
        compile_function(call, "xla", arrays, {"x": sizes})(arrays)
        return len(taken)

    whole = (B, T, D)
    for fewest, most, expected in ((T * T, T * T, 1), (T * T + 1, 999, 0), (1, T * T - 1, 0)):
        monkeypatch.setattr(attention, "FEWEST_IN_XLA", fewest)
        monkeypatch.setattr(attention, "MOST_IN_XLA", most)
        assert calls(layer, whole) == expected
    monkeypatch.setattr(attention, "MOST_IN_XLA", 999)
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    assert calls(layer, whole) == 1
    with monkeypatch.context() as patched:
        patched.setattr(attention, "MOST_KEPT", N * B * T * T - 1)
        assert calls(layer, whole) == 0
    assert calls(layer, whole) == 1
    assert calls(layer, (B, None, D)) == 0
    assert calls(graph_layer, whole, relations=labels) == 0
