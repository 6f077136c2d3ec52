"""Projections of an attention, and layers of a feed-forward, as one product for all positions.

A projection of Keras's makes one for each sentence, and TensorFlow sums as many gradients of its
kernel. Biases are added by what has a gradient in single precision: that of `tf.nn.bias_add`, which
Keras takes, adds up all positions in half precision on a CPU, and loses most of them.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from tf_relpos.tensor_ops import Tensor, shape_of

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_kernel_and_bias(dense: keras.layers.Layer) -> bool:
    """Whether kernel, bias and activation are all that a projection does: Keras made it, it is not
    quantized, nothing has been put in its place or in that of its `call`, no hook of PyTorch's
    waits for its calls, and `keras.distribution` does not lay out what it makes."""
    return (
        type(dense) in (keras.layers.EinsumDense, keras.layers.Dense)
        and dense.quantization_mode is None
        and "call" not in vars(dense)
        and not any(getattr(dense, hooks, None) for hooks in _HOOKS)
        and not _is_laid_out(dense)
    )


def _is_laid_out(dense: keras.layers.Layer) -> bool:
    distribution = keras.distribution.distribution()
    if distribution is None:
        return False
    return distribution.get_tensor_layout(f"{dense.path}/output") is not None


def _is_of_its_dtype(dense: keras.layers.Layer, x: Tensor) -> bool:
    """Whether it computes in the dtype of its input, in which the layer around it reads weights."""
    return dense.compute_dtype == keras.backend.standardize_dtype(x.dtype)


def product(dense: keras.layers.Layer, x: Tensor, *axes: int) -> Tensor:
    """What a projection of the attention makes of rows, as rows: one product of matrices.

    Args:
        dense: the projection.
        x: `[any, features]`.
        *axes: what it takes the features as.

    Returns:
        `[any, outputs]`.
    """
    if not is_kernel_and_bias(dense) or not _is_of_its_dtype(dense, x):
        y = dense(ops.reshape(x, (1, -1, *axes)))
        return ops.reshape(y, (-1, math.prod(y.shape[2:])))
    y = ops.matmul(x, ops.cast(ops.reshape(dense.kernel, (x.shape[-1], -1)), x.dtype))
    if dense.bias is not None:
        y = y + ops.cast(ops.reshape(dense.bias, (-1,)), x.dtype)
    return y if dense.activation is None else dense.activation(y)


def of_positions(dense: keras.layers.Layer, x: Tensor, num_axes: int = 1) -> Tensor:
    """What a projection makes of `[B, ..., T, features]`, by one product for all positions.

    Args:
        dense: the projection.
        x: its input.
        num_axes: how many axes the features have.

    Returns:
        `[B, ..., T, outputs]`, outputs on as many axes as the projection has.
    """
    is_lean = is_kernel_and_bias(dense) and _is_of_its_dtype(dense, x)
    if not is_lean or dense.activity_regularizer is not None:
        return dense(x)
    positions, kernel = shape_of(x)[:-num_axes], dense.kernel.shape
    axes, outputs = kernel[:num_axes], kernel[num_axes:]
    y = product(dense, ops.reshape(x, (-1, math.prod(axes))), *axes)
    return ops.reshape(y, (*positions, *outputs))
