"""Products with kernels whose rows lie badly in a CPU's cache.

Where in its nearest cache a processor keeps a number depends on the last bits of the address, so
that it can keep few numbers of a column whose rows are 1,024, 2,048 or 4,096 bytes apart. What
multiplies matrices copies them into blocks of its own, and where that is much of the work, or is
left out, it waits for memory: with AVX2 a product takes up to twice as long. A few columns of zeros
more, and no two rows are in each other's way.

Axes: M rows, D features, P outputs.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.custom_gradients import with_gradient
from tf_relpos.fused_passes import are_fused
from tf_relpos.tensor_ops import Tensor, times_transposed

# oneDNN multiplies without a copy if 1/D + 1/P is as much (version 3, AVX2).
_NOT_COPIED_FROM = 0.0038


def spread(x: Tensor, more: int = 16) -> Tensor:
    """`[M, P]` in single precision with so many columns of zeros behind, if its rows lie badly: 64
    bytes, a cache line, unless told otherwise."""
    is_float32 = keras.backend.standardize_dtype(x.dtype) == "float32"
    return ops.pad(x, ((0, 0), (0, more))) if is_float32 and _lie_badly(x.shape[-1]) else x


def _lie_badly(columns: int) -> bool:
    return columns >= 512 and columns % 256 == 0


def has_slow_gradient(features: int, outputs: int) -> bool:
    """Whether, within `fused_passes`, a kernel of this size has its gradient by `times_kernel`."""
    is_small = 1 / features + 1 / outputs >= _NOT_COPIED_FROM
    return are_fused() and is_small and (_lie_badly(features) or _lie_badly(outputs))


def times_kernel(x: Tensor, kernel: Tensor) -> Tensor:
    """`[M, D]` by `[D, P]`. Within `fused_passes` the gradient by a small kernel is that of rows
    that do not lie badly."""
    features, outputs = kernel.shape
    if not has_slow_gradient(features, outputs):
        return ops.matmul(x, kernel)

    def multiply(x: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
        return ops.matmul(x, kernel), None

    def gradient(inputs: Any, saved: None, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, kernel = inputs
        by_x = times_transposed(dy, kernel)
        # One of both is enough, of x where it can be, which several kernels share: with 544 columns
        # in place of 512 oneDNN copies what it multiplies.
        if _lie_badly(features):
            x = spread(x, 32)
        else:
            dy = spread(dy, 32)
        return by_x, ops.matmul(ops.transpose(x), dy)[:features, :outputs]

    return with_gradient(multiply, gradient, x, kernel)
