"""Layer normalization and dropout in few passes over their input, in training on TensorFlow.

Keras's layers in all else. The other backends have kernels of their own, or fuse what Keras
composes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.tensor_ops import Tensor, exact_dtype, has_gpu, with_gradient


@keras.saving.register_keras_serializable(package="tf_relpos")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, over the last axis; in training on TensorFlow it is `layer_normalization`.

    In inference it is as many operations as there are in its formula, three fewer than Keras's, by
    reductions: of the few rows of a decoding step these take less time than products.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if keras.backend.backend() != "tensorflow":
            return super().call(inputs)
        if training and _is_on_cpu():
            y = layer_normalization(inputs, self.gamma, self.beta, self.epsilon)
        else:
            y = self._normalize(ops.cast(inputs, exact_dtype(inputs)))
        return ops.cast(y, self.compute_dtype)

    def _normalize(self, x: Tensor) -> Tensor:
        h, _ = _normalized(x, self.epsilon, lambda x: ops.mean(x, axis=-1, keepdims=True))
        return h * ops.cast(self.gamma, x.dtype) + ops.cast(self.beta, x.dtype)


@keras.saving.register_keras_serializable(package="tf_relpos")
class Dropout(keras.layers.Dropout):
    """Keras's layer; on TensorFlow it is `dropout` where each number is dropped by itself."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        is_lean = keras.backend.backend() == "tensorflow" and self.noise_shape is None
        if is_lean and training and self.rate:
            return dropout(inputs, self.rate, self.seed_generator.next())
        return super().call(inputs, training=training)


def layer_normalization(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta`, in float32 at least.

    Sums are products with a column or a row, which are several times as fast on CPUs as
    TensorFlow's reductions (GPUs may round what they multiply), and the gradient is one formula in
    place of those of each operation.

    Args:
        x: `[..., D]`, D known; mean and variance are over it.
        gamma, beta: `[D]`.
        epsilon: above 0.

    Returns:
        `[..., D]` of the type of `x`.

    Reference: Ba, Kiros and Hinton 2016, Layer Normalization, Eqs. 3 and 4.
    """
    shape, dtype = ops.shape(x), x.dtype
    D, exact = shape[-1], exact_dtype(x)
    # Variables become tensors by it, which is what may have a gradient of its own.
    gamma, beta = (ops.cast(ops.reshape(vector, (1, D)), exact) for vector in (gamma, beta))

    def rows(x: Tensor) -> Tensor:
        return ops.reshape(ops.cast(x, exact), (-1, D))

    def normalized(x: Tensor) -> tuple[Tensor, Tensor]:
        mean_of = ops.full((D, 1), 1 / D, dtype=exact)
        return _normalized(rows(x), epsilon, lambda x: ops.matmul(x, mean_of))

    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, None]:
        h, _ = normalized(x)
        return ops.cast(ops.reshape(h * gamma + beta, shape), dtype), None

    # With h = (x - mean) * scale and g = dy gamma:
    #   dx = scale (g - mean(g) - h mean(g h))
    def gradient(inputs: Any, saved: None, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gamma, _ = inputs
        h, scale = normalized(x)  # which a graph has computed already
        dy = rows(dy)
        dy_h = dy * h
        mean_with_gamma = ops.transpose(gamma / D)
        constant = ops.matmul(dy, mean_with_gamma)
        dx = scale * (dy * gamma - constant - h * ops.matmul(dy_h, mean_with_gamma))
        sum_of = ops.ones((1, ops.shape(h)[0]), dtype=exact)
        dgamma, dbeta = (ops.matmul(sum_of, by_row) for by_row in (dy_h, dy))
        return ops.cast(ops.reshape(dx, shape), dtype), dgamma, dbeta

    return with_gradient(normalize, gradient, x, gamma, beta)


def _normalized(
    x: Tensor, epsilon: float, mean: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """`(x - mean) / sqrt(variance + epsilon)`, and the scale that makes it, 1 / sqrt(...)."""
    centred = x - mean(x)
    scale = ops.rsqrt(mean(ops.square(centred)) + epsilon)
    return centred * scale, scale


def _is_on_cpu() -> bool:
    """Whether TensorFlow has no accelerator."""
    import tensorflow as tf

    return not has_gpu() and not tf.config.get_visible_devices("TPU")


def dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Sets a share of the numbers to 0, and scales the others so that the expectation stays.

    Of TensorFlow alone. Drawing is most of the time that dropout takes, and 16 random bits tell
    what to drop: two numbers have a word of 32 between them. The share is `rate` to within 2^-17,
    and the scale that of the share.

    Args:
        x: of any shape.
        rate: above 0 and below 1.
        seed: int `[2]`; the same one drops the same numbers.

    Returns:
        As `x`.

    Reference: Srivastava et al. 2014, Dropout.
    """
    import tensorflow as tf

    dropped = min(round(rate * 2**16), 2**16 - 1)
    size = tf.size(x)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.int32
    )
    bits = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    is_kept = tf.reshape(bits, tf.shape(x)) >= dropped - 2**15
    return tf.where(is_kept, x * (2**16 / (2**16 - dropped)), tf.zeros([], x.dtype))
