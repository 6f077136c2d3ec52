"""An attention layer against the oracle: what the modules of attention tests share."""

import keras
import numpy as np

from tests.support import reference
from tests.support.layer_checks import assert_close, compile_runner, to_numpy

PROJECTIONS = ("query", "key", "value", "output")
TABLES = ("relation_key_embeddings", "relation_value_embeddings", "compatibility_vectors")


def named_variables(layer):
    """The layer's variables under the oracle's names."""
    variables = {}
    for name in PROJECTIONS:
        dense = getattr(layer, f"{name}_dense")
        variables[f"{name}_kernel"] = dense.kernel
        variables[f"{name}_bias"] = dense.bias
    for name in TABLES:
        if getattr(layer, name, None) is not None:
            variables[name] = getattr(layer, name)
    return variables


def oracle_weights(layer):
    return {name: to_numpy(v.value).astype("float64") for name, v in named_variables(layer).items()}


def randomize(layer, rng):
    """Give every weight, biases too, a random value, so that none can be left out unnoticed."""
    layer.set_weights([rng.normal(0, 0.4, size=w.shape) for w in layer.get_weights()])


def random_inputs(rng, batch, queries, keys, size, output_size=None, own_key=False):
    """Float32 arguments of an attention layer and the gradient of its output."""
    shapes = {"query": (batch, queries, size), "value": (batch, keys, size)}
    if own_key:
        shapes["key"] = (batch, keys, size)
    shapes["upstream"] = (batch, queries, output_size or size)
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def random_mask(rng, *shape):
    """Booleans of which every row has at least one true."""
    mask = rng.random(shape) < 0.6
    mask[..., rng.integers(shape[-1])] = True
    return mask


def every_form_of_mask(rng, batch, heads, queries, keys):
    """Arguments of a call by name: no mask, and one of each kind that a layer takes."""
    return {
        "none": {},
        "causal": {"use_causal_mask": True},
        "of_keys": {"value_mask": random_mask(rng, batch, keys)},
        "of_pairs": {"attention_mask": random_mask(rng, queries, keys)},
        "of_heads": {"attention_mask": random_mask(rng, batch, heads, queries, keys)},
        "one_row": {"attention_mask": random_mask(rng, batch, 1, keys)},
    }


def oracle(layer, arrays, relations=None, mask=None):
    """What `layer` should return for `arrays`: output, weights alpha and gradients by name."""
    floats = {
        name: np.asarray(arrays[name], "float64")
        for name in ("query", "value", "key", "upstream")
        if name in arrays
    }
    return reference.attention_layer(
        oracle_weights(layer), **floats, relations=relations, mask=mask
    )


def check_against_oracle(layer, arrays, expected, run=None, tolerance=1e-5, **call_arguments):
    """Compare output and every gradient; `run` is a compiled runner, or `None` for eager.

    Some gradients are exactly 0 (that of the key bias, and of everything in Eq. 4 when S = 1): they
    are compared with the largest of the gradients.
    """
    run = run or compile_runner(layer, "eager", arrays, **call_arguments)
    output, gradients = run(arrays)
    expected_output, _, expected_gradients = expected
    assert_close(output, expected_output, tolerance)
    names = {f"variable_{i}": _name(layer, v) for i, v in enumerate(layer.trainable_variables)}
    actual = {names.get(name, name): gradient for name, gradient in gradients.items()}
    assert actual.keys() == expected_gradients.keys()
    largest = max(np.max(np.abs(gradient)) for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        try:
            assert_close(actual[name], gradient, tolerance, zero_scale=largest)
        except AssertionError as error:
            raise AssertionError(f"gradient by {name}: {error}") from None


def _name(layer, variable):
    return next(name for name, other in named_variables(layer).items() if other is variable)


def permuted(array, order):
    return keras.ops.take(array, order, axis=1)


class Tripled(keras.layers.Layer):
    """What is put in the place of a projection, as LoRA is written by hand."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return 3 * self.dense(x)


def replace_projection(layer, name, make):
    """Puts what `make` makes of a projection, "query", "key", "value" or "output", in its place."""
    layer._tracker.unlock()
    setattr(layer, f"_{name}_dense", make(getattr(layer, f"_{name}_dense")))
