"""A graph that grows, node by node: the cache gives what the whole graph does, labels included."""

import keras
import numpy as np
import pytest

from tests.support.attention_checks import randomize
from tests.support.layer_checks import COMPILED_MODES, assert_close, compile_function, to_numpy
from tf_relpos import RelationAwareAttention

B, S, N, H, D, R = 2, 9, 3, 5, 7, 4


def build(rng, **options):
    layer = RelationAwareAttention(N, H, R, **options)
    layer.build((None, None, D), (None, None, D))
    randomize(layer, rng)
    return layer


def grown(rng, labels_per_edge=None):
    """Nodes, and labels from each to all there is room for; -1 is no label."""
    axes = () if labels_per_edge is None else (labels_per_edge,)
    x = rng.normal(size=(B, S, D)).astype("float32")
    return x, rng.integers(-1, R, (B, S, S, *axes)).astype("int32")


def empty_cache(rng):
    """Filled with large numbers: what has not been written must not be seen."""
    return 1e3 * rng.normal(size=(B, 2, S, N, H)).astype("float32")


@pytest.mark.parametrize("implementation", ["transpose_reshape", "bucketed"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("labels", [None, 2], ids=["one_label", "two_labels"])
@pytest.mark.parametrize("step", [1, 4], ids=["one_by_one", "four_at_once"])
def test_equals_the_whole_graph(rng, step, labels, shared, implementation):
    layer = build(rng, heads_share_relations=shared, implementation=implementation)
    x, relations = grown(rng, labels)
    whole = to_numpy(layer(x, x, relations=relations, use_causal_mask=True))
    cache = empty_cache(rng)
    for start in range(0, S - step + 1, step):
        now = slice(start, start + step)
        output, weights, cache = layer(
            x[:, now],
            x[:, now],
            relations=relations[:, now],
            cache=cache,
            cache_update_index=start,
            use_causal_mask=True,
            return_attention_scores=True,
        )
        assert_close(output, whole[:, now])
        assert not to_numpy(weights)[..., start + step :].any()


@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_one_trace_serves_all_steps(rng, mode):
    layer = build(rng)
    x, relations = grown(rng)
    whole = to_numpy(layer(x, x, relations=relations, use_causal_mask=True))

    def step(tensors):
        cached = {"cache": tensors["cache"], "cache_update_index": tensors["at"]}
        return layer(tensors["x"], tensors["x"], relations=tensors["relations"], **cached)

    arrays = {"x": x[:, :1], "relations": relations[:, :1], "cache": empty_cache(rng)}
    arrays["at"] = np.int32(0)
    shapes = {"cache": (None, 2, None, N, H), "relations": (None, None, None)}
    run = compile_function(step, mode, arrays, shapes)
    for i in range(S):
        arrays |= {"x": x[:, i : i + 1], "relations": relations[:, i : i + 1], "at": np.int32(i)}
        output, arrays["cache"] = run(arrays)
        assert_close(output, whole[:, i : i + 1])


def test_a_graph_that_is_asked_again_is_projected_once(rng):
    """Cross-attention: other queries, other labels, the same nodes, through masks."""
    layer = build(rng)
    x, relations = grown(rng)
    mask = rng.random((B, 2, S)) < 0.7
    mask[..., 0] = True
    cache = layer.compute_cache(x)
    query = rng.normal(size=(B, 2, D)).astype("float32")
    arguments = {"relations": relations[:, 3:5], "attention_mask": mask}
    output, same = layer(query, x[:, :1], cache=cache, **arguments)
    assert_close(output, layer(query, x, **arguments))
    np.testing.assert_array_equal(to_numpy(same), to_numpy(cache))


def test_a_functional_model_takes_a_cache(rng):
    layer = build(rng)
    x, relations = grown(rng)
    inputs = {
        "x": keras.Input((1, D), B, name="x"),
        "relations": keras.Input((1, S), B, "int32", name="relations"),
        "cache": keras.Input((2, S, N, H), B, name="cache"),
    }
    cached = {"cache": inputs["cache"], "cache_update_index": 4}
    outputs = layer(inputs["x"], inputs["x"], relations=inputs["relations"], **cached)
    assert [output.shape for output in outputs] == [(B, 1, D), (B, 2, S, N, H)]
    arrays = {
        "x": x[:, 4:5],
        "relations": relations[:, 4:5],
        "cache": to_numpy(layer.compute_cache(x)),
    }
    output, _ = keras.Model(inputs, outputs)(arrays)
    whole = layer(x, x, relations=relations, use_causal_mask=True)
    assert_close(output, to_numpy(whole)[:, 4:5])


def test_what_does_not_fit_is_refused(rng):
    layer = build(rng)
    x, relations = grown(rng)
    cached = {"cache": empty_cache(rng), "cache_update_index": 0}
    with pytest.raises(ValueError, match=r"`relations` must have the shape .* \(2, 1, 9\)"):
        layer(x[:, :1], x[:, :1], relations=relations[:, :1, :1], **cached)
    with pytest.raises(ValueError, match="`relations` must be given"):
        layer(x[:, :1], x[:, :1], **cached)
    with pytest.raises(ValueError, match="`cache` must have the shape"):
        layer(x, x, relations=relations, cache=x)
    with pytest.raises(ValueError, match="`cache_update_index` needs a `cache`"):
        layer(x, x, relations=relations, cache_update_index=0)
