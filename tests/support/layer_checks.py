"""Checks that hold for every layer, and the runners that make them backend-neutral.

`check_layer` is what a Keras user takes for granted of any layer. `compile_runner` runs a layer
forward and backward eagerly, as a graph with unknown lengths, or under XLA; PyTorch eagerly alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
BACKEND = keras.backend.backend()
# Eagerly JAX compiles every operation for every shape, which takes longer than the whole at once.
MODES = {"tensorflow": ("eager", "graph", "xla"), "jax": ("xla",), "torch": ("eager",)}[BACKEND]
COMPILED_MODES = tuple(mode for mode in MODES if mode != "eager")


def assert_close(actual, expected, tolerance=1e-5, zero_scale=1.0):
    """Largest difference at most `tolerance` times the largest expected magnitude.

    Where all of `expected` is 0 to float64's rounding, float32 leaves its own rounding there, and
    `zero_scale` is the magnitude it is compared with.
    """
    actual = np.asarray(keras.ops.convert_to_numpy(actual), "float64")
    expected = np.asarray(keras.ops.convert_to_numpy(expected), "float64")
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if expected.size:
        scale = np.max(np.abs(expected))
        scale = scale if scale > 1e-12 * zero_scale else zero_scale
        error = np.max(np.abs(actual - expected)) / scale
        assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"


def to_numpy(tree):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, tree)


def _is_float(array):
    return np.issubdtype(np.asarray(array).dtype, np.floating)


def compile_function(function, mode, arrays, shapes=None):
    """Compile a function of a dict of arrays; results come back as NumPy arrays.

    On TensorFlow both compiled modes are traced once, for unknown lengths: with `shapes`, or else
    with every axis of `arrays` unknown save the feature axes (see `_unknown_lengths`).
    """
    compiled = function
    if mode != "eager" and BACKEND == "tensorflow":
        import tensorflow as tf

        shapes = {**_unknown_lengths(arrays), **(shapes or {})}
        signature = {
            name: tf.TensorSpec(shapes[name], np.asarray(array).dtype)
            for name, array in arrays.items()
        }
        compiled = tf.function(function, input_signature=[signature], jit_compile=mode == "xla")
    elif mode != "eager" and BACKEND == "jax":
        import jax

        compiled = jax.jit(function)
    return lambda arrays: to_numpy(
        compiled({name: keras.ops.convert_to_tensor(array) for name, array in arrays.items()})
    )


def _unknown_lengths(arrays):
    """Shapes whose only known axes are the last of float arrays and of labels `[B, T, S, L]`."""
    shapes = {}
    for name, array in arrays.items():
        known = array.ndim > 0 and (_is_float(array) or array.ndim == 4)
        shapes[name] = (None,) * (array.ndim - known) + array.shape[array.ndim - known :]
    return shapes


def gradient_function(function, names):
    """Turn `function(tensors)` into `tensors -> (output, gradients)`.

    The gradients are those of `sum(output * tensors["upstream"])` by each of `names`.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def run(tensors):
            sources = [tensors[name] for name in names]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                output = function(tensors)
                loss = tf.reduce_sum(output * tensors["upstream"])
            gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
            return output, dict(zip(names, map(tf.convert_to_tensor, gradients), strict=True))

        return run

    if BACKEND == "torch":

        def run(tensors):
            sources = {name: tensors[name].detach().requires_grad_() for name in names}
            output = function({**tensors, **sources})
            return output, torch_gradients(output, tensors["upstream"], sources)

        return run

    import jax

    def loss(sources, tensors):
        output = function({**tensors, **sources})
        return keras.ops.sum(output * tensors["upstream"]), output

    def run(tensors):
        sources = {name: tensors[name] for name in names}
        (_, output), gradients = jax.value_and_grad(loss, has_aux=True)(sources, tensors)
        return output, gradients

    return run


def second_derivatives(function, names):
    """Turn `function(tensors)` into `tensors -> gradients of gradients`, by each of `names`.

    The first are those of `sum(output * tensors["upstream"])`, the second those of the sum of
    their squares. Not for PyTorch.
    """
    first = gradient_function(function, names)

    def squares(tensors):
        return sum(keras.ops.sum(gradient**2) for gradient in first(tensors)[1].values())

    def run(tensors):
        second = gradient_function(lambda t: squares({**t, "upstream": tensors["upstream"]}), names)
        return second({**tensors, "upstream": 1.0})[1]

    return run


def torch_gradients(output, upstream, sources):
    """PyTorch's gradients of `sum(output * upstream)` by each source, zeros where it is unused."""
    import torch

    loss = torch.sum(output * upstream.to(output.dtype))
    gradients = torch.autograd.grad(
        loss, list(sources.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(sources, gradients, strict=True))


def compile_runner(layer, mode, example, shapes=None, **call_arguments):
    """A runner of a built layer: `arrays -> (output, gradients)`, all NumPy.

    `arrays` holds the layer's tensor arguments and `upstream`, the gradient of the output. The
    gradients are by every float argument and, by index, every trainable variable. One trace
    serves all lengths.
    """
    names = [name for name, array in example.items() if _is_float(array) and name != "upstream"]
    variables = {f"variable_{i}": v for i, v in enumerate(layer.trainable_variables)}
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def run(tensors):
            sources = [tensors[name] for name in names]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                output = layer(**_without_upstream(tensors), **call_arguments)
                loss = tf.reduce_sum(output * tf.cast(tensors["upstream"], output.dtype))
            sources = sources + layer.trainable_variables
            gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
            gradients = map(tf.convert_to_tensor, gradients)
            return output, dict(zip([*names, *variables], gradients, strict=True))

        return compile_function(run, mode, example, shapes)

    if BACKEND == "torch":

        def run(tensors):
            sources = {name: tensors[name].detach().requires_grad_() for name in names}
            output = layer(**_without_upstream({**tensors, **sources}), **call_arguments)
            sources.update({name: variable.value for name, variable in variables.items()})
            return output, torch_gradients(output, tensors["upstream"], sources)

        return compile_function(run, mode, example)

    def call(tensors):
        trainable = [tensors[name] for name in variables]
        arguments = {name: x for name, x in tensors.items() if name not in variables}
        non_trainable = [v.value for v in layer.non_trainable_variables]
        output, _ = layer.stateless_call(
            trainable, non_trainable, **_without_upstream(arguments), **call_arguments
        )
        return output

    compiled = compile_function(gradient_function(call, [*names, *variables]), mode, example)
    return lambda arrays: compiled({**arrays, **{n: v.value for n, v in variables.items()}})


def _without_upstream(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != "upstream"}


def run_python(code, directory=ROOT, **environment):
    """Run Python source in a fresh process, at the repository's root unless told where, and return
    its output.
    """
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def check_layer(make_layer, inputs, tmp_path, mixed_tolerance=0.05, still=("key/bias",)):
    """Check what a Keras user takes for granted of any layer.

    Args:
        make_layer: makes a new layer; takes `dtype` as its only (keyword) argument.
        inputs: the layer's tensor arguments by name, NumPy arrays; batch first where of rank >= 3.
        tmp_path: a folder to save a model in.
        mixed_tolerance: relative error allowed to half precision.
        still: ends of the paths of variables that training leaves alone.
    """
    layer = make_layer(dtype="float32")
    output = to_numpy(layer(**inputs))
    _check_config(layer, inputs, output)
    _check_shapes(layer, inputs, output)
    for mode in COMPILED_MODES:
        run = compile_function(lambda tensors: layer(**tensors), mode, inputs)
        assert_close(run(inputs), output)
    _check_model(layer, inputs, output, tmp_path)
    _check_mixed_precision(make_layer, layer, inputs, output, mixed_tolerance)
    _check_fit(make_layer(dtype="float32"), inputs, output, still)


def _check_config(layer, inputs, output):
    config = layer.get_config()
    assert json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    copy(**inputs)
    copy.set_weights(layer.get_weights())
    assert_close(copy(**inputs), output, tolerance=1e-6)


def _symbolic(inputs, lengths_known):
    """Keras inputs for a functional model; all arguments are batched."""
    shapes = _unknown_lengths(inputs)
    return {
        name: keras.Input(
            (array.shape if lengths_known else shapes[name])[1:], dtype=array.dtype.name, name=name
        )
        for name, array in inputs.items()
    }


def _check_shapes(layer, inputs, output):
    for lengths_known in (True, False):
        symbol = layer(**_symbolic(inputs, lengths_known))
        for axis, (symbolic, real) in enumerate(zip(symbol.shape, output.shape, strict=True)):
            unknown = axis == 0 or (not lengths_known and axis < output.ndim - 1)
            assert symbolic == real or (symbolic is None and unknown), (symbol.shape, output.shape)
        assert symbol.dtype == output.dtype.name


def _functional(layer, inputs, lengths_known=False):
    symbols = _symbolic(inputs, lengths_known)
    return keras.Model(symbols, layer(**symbols))


def _check_model(layer, inputs, output, tmp_path):
    model = _functional(layer, inputs)
    assert_close(model(inputs), output)
    path = tmp_path / f"{layer.name}.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert_close(loaded(inputs), output, tolerance=1e-6)


def _check_mixed_precision(make_layer, layer, inputs, output, tolerance):
    for policy in ("mixed_bfloat16", "mixed_float16"):
        half = make_layer(dtype=policy)
        half(**inputs)
        half.set_weights(layer.get_weights())
        assert all(v.dtype == "float32" for v in half.trainable_variables)
        result = half(**inputs)
        assert keras.backend.standardize_dtype(result.dtype) == policy.removeprefix("mixed_")
        assert_close(keras.ops.cast(result, "float32"), output, tolerance=tolerance)


def _check_fit(layer, inputs, output, still):
    model = _functional(layer, inputs, lengths_known=True)
    before = [np.array(to_numpy(v.value)) for v in layer.trainable_variables]
    compiles = BACKEND != "torch"  # whose compiler takes a minute
    model.compile(keras.optimizers.SGD(0.1), "mean_squared_error", jit_compile=compiles)
    target = np.random.default_rng(0).normal(size=output.shape).astype("float32")
    history = model.fit(inputs, target, epochs=3, batch_size=len(output), verbose=0)
    losses = history.history["loss"]
    assert np.all(np.isfinite(losses)), losses
    assert losses[-1] < losses[0] or not before, losses
    for variable, old in zip(layer.trainable_variables, before, strict=True):
        if not variable.path.endswith(still):
            moved = np.any(to_numpy(variable.value) != old)
            assert moved, f"{variable.path} did not move"
