"""What `bucketed` never makes: a tensor of all pairs by H, or by R, forward or backward."""

import numpy as np
import pytest

from tf_relpos import RelationAwareAttention

pytestmark = pytest.mark.tensorflow_only

B, T, S, N, H, R = 2, 11, 13, 3, 17, 29
FORMS = {"pair": (T, S), "sentence": (B, T, S), "several": (B, T, S, 2)}


def sizes_of_results(graph):
    """Elements of what each operation of a graph makes, functions that it calls included."""
    for operation in graph.get_operations():
        # Which axes to sum over, a few numbers, is all that is not known beforehand.
        for tensor in operation.outputs if operation.type != "BroadcastGradientArgs" else ():
            yield tensor.shape.num_elements() if tensor.shape.is_fully_defined() else np.inf
    for name in graph._functions:
        yield from sizes_of_results(graph._get_function(name).graph)


def largest(implementation, form, shared):
    import tensorflow as tf

    layer = RelationAwareAttention(
        N, H, R, heads_share_relations=shared, implementation=implementation
    )
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
    assert largest("bucketed", form, shared) < pairs * min(H, R)
    assert largest("transpose_reshape", form, shared) >= pairs * H
