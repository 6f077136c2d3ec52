"""What is never made, forward or backward: in `bucketed` a tensor of all pairs by H, or by R; in
additive compatibility one of all pairs of all heads by H; a kernel's gradient for each sentence."""

import keras
import numpy as np
import pytest

from tf_relpos import RelationAwareAttention, RelativeMultiHeadAttention, attention

pytestmark = pytest.mark.tensorflow_only

B, T, S, N, H, R = 2, 11, 13, 3, 17, 29
FORMS = {"pair": (T, S), "sentence": (B, T, S), "several": (B, T, S, 2)}


def sizes_of_results(graph):
    """Elements of what each operation of a graph makes, functions that it calls included."""
    for operation in graph.get_operations():
        # Which axes to sum over, a few numbers, is all that is not known beforehand, but for the
        # arguments of a loop, which are made elsewhere.
        if operation.type in ("BroadcastGradientArgs", "Placeholder"):
            continue
        for tensor in operation.outputs:
            yield tensor.shape.num_elements() if tensor.shape.is_fully_defined() else np.inf
    for name in graph._functions:
        yield from sizes_of_results(graph._get_function(name).graph)


def largest(form, shared, **options):
    import tensorflow as tf

    layer = RelationAwareAttention(N, H, R, heads_share_relations=shared, **options)
    layer.build((B, T, 5), (B, S, 5))

    def step(query, value, relations):
        with tf.GradientTape() as tape:
            tape.watch([query, value])
            loss = tf.reduce_sum(layer(query, value, relations=relations, training=True) ** 2)
        return tape.gradient(loss, [query, value, *layer.trainable_variables])

    known = [tf.TensorSpec([B, T, 5]), tf.TensorSpec([B, S, 5])]
    labels = tf.TensorSpec(FORMS[form], tf.int32)
    return max(sizes_of_results(tf.function(step).get_concrete_function(*known, labels).graph))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_head"])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_as_large_as_all_pairs_by_h_or_by_r(form, shared):
    pairs = T * S * (1 if form == "pair" else B)
    assert largest(form, shared, implementation="bucketed") < pairs * min(H, R)
    assert largest(form, shared, implementation="transpose_reshape") >= pairs * H


def made_at_once(query, key, vector, relations, table):
    """What `additive_scores` gives, as one would write it."""
    pairs = keras.ops.expand_dims(query, 3) + keras.ops.expand_dims(key, 2)
    pairs = pairs + keras.ops.take(table, relations, axis=-2)
    return keras.ops.einsum("nbtsh,nh->nbts", keras.ops.tanh(pairs), vector)


def test_additive_compatibility_holds_no_vectors_of_pairs(monkeypatch):
    """Eq. 3 of the paper's own form would hold [T, S, H], or [B, T, S, H]."""
    options = {"compatibility": "additive", "implementation": "bucketed"}
    for form in FORMS:
        for shared in (True, False):
            assert largest(form, shared, **options) < 3 * B * N * T * S
    monkeypatch.setattr(attention, "additive_scores", made_at_once)
    assert largest("pair", True, **options) >= B * N * T * S * H


def ranks_of_kernel_gradients(layer, shape, dim):
    import tensorflow as tf

    layer.build(shape, shape)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, x, training=True) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    graph = tf.function(step).get_concrete_function(tf.TensorSpec(shape)).graph
    return [
        len(tensor.shape)
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if "MatMul" in operation.type and tensor.shape[-2:] == (dim, dim)
    ]


def test_gradients_of_kernels_are_not_made_by_sentence():
    """Keras's layer makes B of them, and sums them up."""
    shape = (8, 2, 32)
    for ours in (shape, (None, None, 32)):
        assert ranks_of_kernel_gradients(RelativeMultiHeadAttention(4, 8, 2), ours, 32) == [2] * 4
    assert 3 in ranks_of_kernel_gradients(keras.layers.MultiHeadAttention(4, 8), shape, 32)
