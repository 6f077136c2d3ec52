"""Projections of an attention, and layers of a feed-forward, as one product for all positions.

A projection of Keras's makes one for each sentence, and TensorFlow sums as many gradients of its
kernel. Biases are added by what has a gradient in single precision: that of `tf.nn.bias_add`, which
Keras takes, adds up all positions in half precision on a CPU, and loses most of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
from keras import ops

from tf_relpos.kernels import times_kernel
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


def product(
    dense: keras.layers.Layer, x: Tensor, *axes: int, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """What a projection makes of rows, as rows: one product of matrices.

    Args:
        dense: the projection.
        x: `[any, features]`.
        *axes: what it takes the features as.
        weights: its `row_weights`, if they were made before.

    Returns:
        `[any, outputs]`.
    """
    if weights is None:
        dtype = keras.backend.standardize_dtype(x.dtype)
        weights = row_weights([dense], dtype, num_axes=len(axes))
    if not weights:
        y = dense(ops.reshape(x, (1, -1, *axes)))
        return ops.reshape(y, (-1, math.prod(y.shape[2:])))
    y = times_weights(x, weights, math.prod(dense.kernel.shape[len(axes) :]))
    return y if dense.activation is None else dense.activation(y)


def row_weights(
    denses: Sequence[keras.layers.Layer],
    dtype: str,
    factors: Sequence[float] = (1.0,),
    num_axes: int = 1,
) -> dict[str, Tensor]:
    """What `times_weights` multiplies by, made once for many calls.

    Args:
        denses: projections of the same input, whose outputs are to be side by side.
        dtype: in which to compute.
        factors: what the outputs of each are multiplied by.
        num_axes: how many axes the features have.

    Returns:
        `{"kernel": [features, outputs]}`, and likewise "bias" `[outputs]` if they have any; nothing
        if one is more than kernel and bias, such as a quantized one, or has another precision.
    """
    if not all(is_kernel_and_bias(dense) and dense.compute_dtype == dtype for dense in denses):
        return {}

    def side_by_side(parts: list[Tensor]) -> Tensor:
        scaled = [x if f == 1 else x * f for x, f in zip(parts, factors, strict=True)]
        whole = scaled[0] if len(scaled) == 1 else ops.concatenate(scaled, axis=-1)
        return ops.cast(whole, dtype)

    features = math.prod(denses[0].kernel.shape[:num_axes])
    kernels = [ops.reshape(dense.kernel, (features, -1)) for dense in denses]
    if denses[0].bias is None:
        return {"kernel": side_by_side(kernels)}
    biases = [ops.reshape(dense.bias, (-1,)) for dense in denses]
    return {"kernel": side_by_side(kernels), "bias": side_by_side(biases)}


def times_weights(x: Tensor, weights: dict[str, Tensor], outputs: int) -> Tensor:
    """Rows `[any, features]` by `row_weights`: `[any, outputs]`.

    Of a `spread` kernel the further columns are left out.
    """
    y = times_kernel(x, weights["kernel"])
    if y.shape[-1] != outputs:
        y = y[:, :outputs]
    return y + weights["bias"] if "bias" in weights else y


def of_positions(dense: keras.layers.Layer, x: Tensor, num_axes: int = 1) -> Tensor:
    """What a projection makes of `[B, ..., T, features]`, by one product for all positions.

    Args:
        dense: the projection.
        x: its input.
        num_axes: how many axes the features have.

    Returns:
        `[B, ..., T, outputs]`, outputs on as many axes as the projection has.
    """
    # In the dtype of its input, in which the layer around it reads weights.
    dtype = keras.backend.standardize_dtype(x.dtype)
    is_lean = is_kernel_and_bias(dense) and dense.compute_dtype == dtype
    if not is_lean or dense.activity_regularizer is not None:
        return dense(x)
    positions, kernel = shape_of(x)[:-num_axes], dense.kernel.shape
    axes, outputs = kernel[:num_axes], kernel[num_axes:]
    y = product(dense, ops.reshape(x, (-1, math.prod(axes))), *axes)
    return ops.reshape(y, (*positions, *outputs))
