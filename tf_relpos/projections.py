"""Projections of an attention as one product for all positions.

A projection of Keras's makes one for each sentence, and TensorFlow sums as many gradients of its
kernel.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from tf_relpos.tensor_ops import Tensor

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_plain(dense: keras.layers.Layer) -> bool:
    """Whether kernel, bias and activation are all that a projection does: Keras made it, it is not
    quantized, nothing has been put in its place, and no hook of PyTorch's waits for its calls."""
    return (
        type(dense) is keras.layers.EinsumDense
        and dense.quantization_mode is None
        and not any(getattr(dense, hooks, None) for hooks in _HOOKS)
    )


def product(dense: keras.layers.EinsumDense, x: Tensor, *axes: int) -> Tensor:
    """What a projection of the attention makes of rows, as rows: one product of matrices.

    Args:
        dense: the projection.
        x: `[any, features]`.
        *axes: what it takes the features as.

    Returns:
        `[any, outputs]`.
    """
    if not is_plain(dense):
        y = dense(ops.reshape(x, (1, -1, *axes)))
        return ops.reshape(y, (-1, math.prod(y.shape[2:])))
    x = ops.cast(x, dense.compute_dtype)
    y = ops.matmul(x, ops.cast(ops.reshape(dense.kernel, (x.shape[-1], -1)), x.dtype))
    if dense.bias is not None:
        y = y + ops.cast(ops.reshape(dense.bias, (-1,)), x.dtype)
    return y if dense.activation is None else dense.activation(y)


def of_positions(dense: keras.layers.EinsumDense, x: Tensor, num_axes: int = 1) -> Tensor:
    """What a projection makes of `[B, ..., T, features]`, by one product for all positions.

    Args:
        dense: the projection.
        x: its input.
        num_axes: how many axes the features have.

    Returns:
        `[B, ..., T, outputs]`, outputs on as many axes as the projection has.
    """
    if not is_plain(dense) or dense.activity_regularizer is not None:
        return dense(x)
    positions, kernel = ops.shape(x)[:-num_axes], dense.kernel.shape
    axes, outputs = kernel[:num_axes], kernel[num_axes:]
    y = product(dense, ops.reshape(x, (-1, math.prod(axes))), *axes)
    return ops.reshape(y, (*positions, *outputs))
