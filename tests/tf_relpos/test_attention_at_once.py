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
    attention_at_once,
    edge_attention,
    fused_passes,
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
def compiled(monkeypatch):
    """The names of the passes that XLA compiles in graphs."""
    names, function = [], fused_passes._function

    def made(passes, is_compiled):
        names.extend([passes.__name__] if is_compiled else [])
        return function(passes, is_compiled)

    monkeypatch.setattr(fused_passes, "_function", made)
    return names


@pytest.fixture
def from_any_length(monkeypatch):
    """XLA takes few pairs as well, in its own graphs, and in others where passes are "fused"."""
    monkeypatch.setattr(attention_at_once, "FEWEST_IN_XLA", 1)


def graph_of(mode, monkeypatch):
    """The mode of `compile_function`, in which passes over few pairs are fused, too, or are not."""
    monkeypatch.setattr(attention_at_once, "FEWEST_FUSED", 1 if mode == "fused" else 1 << 40)
    return "graph" if mode == "fused" else mode


IN_GRAPHS = pytest.mark.parametrize("mode", ["graph", "fused", "xla"])
PASSES = {"_added", "_labelled_softmax_gradient", "_sum"}


@pytest.mark.parametrize(
    ("mode", "longest"),
    [("graph", None), ("graph", T), ("fused", None), ("fused", T), ("xla", None)],
    ids=["known", "told the longest", "fused", "fused, told the longest", "xla"],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
def test_values_and_gradients_equal_the_oracle(
    rng, monkeypatch, shared, mode, longest, taken, compiled, from_any_length
):
    arrays = random_inputs(rng, B, T, S, D)
    mask = arrays["attention_mask"] = random_mask(rng, B, T, S)
    layer = build(rng, heads_share_relative_embedding=shared)
    expected = oracle(layer, arrays, position_labels(T, S, K), mask)
    shapes = None if longest else known(arrays)
    runner = compile_runner(layer, graph_of(mode, monkeypatch), arrays, shapes, training=True)
    with contextlib.ExitStack() as stack:
        if longest:
            stack.enter_context(lengths_up_to(longest))
            stack.enter_context(fused_passes.fused_passes(mode == "fused"))
        check_against_oracle(layer, arrays, expected, runner)
    assert taken
    assert set(compiled) == (PASSES if mode == "fused" else set())


@IN_GRAPHS
@pytest.mark.parametrize("term", ["relative_keys", "relative_values"])
def test_one_term_alone(rng, monkeypatch, term, mode, taken, from_any_length):
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, **{term: False})
    expected = oracle(layer, arrays, position_labels(T, S, K))
    mode = graph_of(mode, monkeypatch)
    runner = compile_runner(layer, mode, arrays, known(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)
    assert taken


@pytest.mark.parametrize("mode", ["graph", "fused", "xla"])
def test_without_labels(rng, monkeypatch, mode, taken, from_any_length):
    """Where passes are fused."""
    arrays = random_inputs(rng, B, T, S, D)
    layer = build(rng, relative_keys=False, relative_values=False)
    expected = oracle(layer, arrays)
    graph = graph_of(mode, monkeypatch)
    runner = compile_runner(layer, graph, arrays, known(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)
    assert len(taken) == (mode == "fused")


@pytest.mark.parametrize(
    "form", [(T, S), (B, T, S), (B, T, S, 3)], ids=["pair", "batch", "several"]
)
@pytest.mark.parametrize("mode", ["graph", "fused"])
def test_any_labels(rng, monkeypatch, form, mode, taken):
    """Some pairs have no label, and some have several."""
    mode = graph_of(mode, monkeypatch)
    arrays = random_inputs(rng, B, T, S, D)
    arrays["relations"] = rng.integers(-1, 5, form, dtype="int32")
    layer = build(rng, RelationAwareAttention, 5)
    expected = oracle(layer, arrays, arrays["relations"])
    runner = compile_runner(layer, mode, arrays, known(arrays), training=True)
    check_against_oracle(layer, arrays, expected, runner)
    assert taken


@IN_GRAPHS
def test_every_form_of_mask(rng, monkeypatch, mode, taken, from_any_length):
    """And one by which a query sees nothing."""
    mode = graph_of(mode, monkeypatch)
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
def test_second_derivatives(rng, monkeypatch, mode, taken, from_any_length):
    mode = graph_of(mode, monkeypatch)
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


@pytest.mark.parametrize("told", [False, True], ids=["known", "told the longest"])
@pytest.mark.parametrize("is_labelled", [False, True], ids=["positions", "labels"])
def test_half_precision(rng, monkeypatch, is_labelled, told, taken, from_any_length):
    """As precise as what is composed of operations, each with its gradient."""
    arrays = random_inputs(rng, B, T, S, D)
    arrays["attention_mask"] = random_mask(rng, B, T, S)
    if is_labelled:
        arrays["relations"] = rng.integers(-1, 5, (T, S), dtype="int32")
    cls = RelationAwareAttention if is_labelled else RelativeMultiHeadAttention
    layer, exact = (
        build(rng, cls, 5 if is_labelled else K, dtype=dtype)
        for dtype in ("mixed_bfloat16", "float32")
    )
    exact.set_weights(layer.get_weights())
    _, expected = compile_runner(exact, "eager", arrays, training=True)(arrays)
    shapes = None if told else known(arrays)
    errors = {}
    of_xla = () if is_labelled or told else ("xla",)
    for mode in ("graph", "fused", *of_xla):
        taken.clear()
        graph = graph_of(mode, monkeypatch)
        runner = compile_runner(layer, graph, arrays, shapes, training=True)
        with lengths_up_to(T), fused_passes.fused_passes(told and mode == "fused"):
            _, gradients = runner(arrays)
        assert len(taken) == (mode != "graph")
        errors[mode] = max(
            np.linalg.norm(gradients[name].astype("float32") - gradient) / np.linalg.norm(gradient)
            for name, gradient in expected.items()
            if np.linalg.norm(gradient) > 1e-3  # of which the key's bias has none
        )
    for mode in ("fused", *of_xla):
        assert errors[mode] < max(1.25 * errors["graph"], 0.02)


def test_where_it_is_taken_in_graphs(rng, taken, compiled, monkeypatch):
    """Where queries would go in blocks, with passes that are fused, of known sizes in bounds."""
    layer = build(rng)
    whole, pairs = (B, T, D), N * B * T * T

    def calls(sizes=whole):
        taken.clear()
        compiled.clear()
        arrays = {"x": rng.normal(size=(B, T, D)).astype("float32")}
        call = lambda a: layer(a["x"], a["x"], training=True)  # noqa: E731
        compile_function(call, "graph", arrays, {"x": sizes})(arrays)
        return len(taken), len(compiled) > 0

    assert calls() == (1, False)
    monkeypatch.setattr(attention_at_once, "FEWEST_FUSED", pairs)
    assert calls() == (1, True)
    assert calls((None, T, D)) == (1, False)  # XLA would compile for each size
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    assert calls() == (1, True)
    assert calls((None, T, D)) == (0, False)
    for name, most in (("MOST_KEPT", pairs - 1), ("MOST_AT_ONCE", T * T - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(attention_at_once, name, most)
            assert calls() == (0, False)
            patched.setattr(attention_at_once, name, most + 1)
            assert calls() == (1, True)
    monkeypatch.setattr(attention_at_once, "FEWEST_FUSED", pairs + 1)
    assert calls() == (0, False)


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
        monkeypatch.setattr(attention_at_once, "FEWEST_IN_XLA", fewest)
        monkeypatch.setattr(attention_at_once, "MOST_AT_ONCE", most)
        assert calls(layer, whole) == expected
    monkeypatch.setattr(attention_at_once, "MOST_AT_ONCE", 999)
    assert calls(build(rng, dtype="mixed_bfloat16"), whole) == 1
    monkeypatch.setattr(query_blocks, "WIDEST", 1)
    assert calls(layer, whole) == 1
    with monkeypatch.context() as patched:
        patched.setattr(attention_at_once, "MOST_KEPT", N * B * T * T - 1)
        assert calls(layer, whole) == 0
    assert calls(layer, whole) == 1
    assert calls(layer, (B, None, D)) == 0
    assert calls(graph_layer, whole, relations=labels) == 0
