"""Layer normalization and dropout in few passes over their input, in training on TensorFlow.

Keras's layers in all else. The other backends have kernels of their own, or fuse what Keras
composes.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.relation_ops import with_gradient
from tf_relpos.relations import Tensor


@keras.saving.register_keras_serializable(package="tf_relpos")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, over the last axis; in training on TensorFlow it is `layer_normalization`.

    Most is won in the gradient, and what is exported stays as converters know it.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if keras.backend.backend() != "tensorflow" or not training:
            return super().call(inputs)
        y = layer_normalization(inputs, self.gamma, self.beta, self.epsilon)
        return ops.cast(y, self.compute_dtype)


@keras.saving.register_keras_serializable(package="tf_relpos")
class Dropout(keras.layers.Dropout):
    """Keras's layer, of each number by itself; on TensorFlow it is `dropout`."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if keras.backend.backend() != "tensorflow" or not training or not self.rate:
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator.next())


def layer_normalization(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta`, in float32 at least.

    Sums are products with a column or a row, which are several times as fast on CPUs as
    TensorFlow's reductions, and the gradient is one formula in place of those of each operation.

    Args:
        x: `[..., D]`, D known; mean and variance are over it.
        gamma, beta: `[D]`.
        epsilon: above 0.

    Returns:
        `[..., D]` of the type of `x`.

    Reference: Ba, Kiros and Hinton 2016, Layer Normalization, Eqs. 3 and 4.
    """
    shape, dtype = ops.shape(x), x.dtype
    D, precision = shape[-1], keras.backend.result_type(dtype, "float32")
    gamma, beta = ops.cast(gamma, precision), ops.cast(beta, precision)

    def rows(x: Tensor) -> Tensor:
        return ops.reshape(ops.cast(x, precision), (-1, D))

    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Any]:
        mean_of = ops.full((D, 1), 1 / D, dtype=precision)
        centred = rows(x)
        centred = centred - ops.matmul(centred, mean_of)
        scale = ops.rsqrt(ops.matmul(ops.square(centred), mean_of) + epsilon)
        normalized = centred * scale
        y = ops.reshape(normalized * gamma + beta, shape)
        return ops.cast(y, dtype), (normalized, scale)

    # With h = (x - mean) * scale and g = dy gamma:
    #   dx = scale (g - mean(g) - h mean(g h))
    def gradient(inputs: Any, saved: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, gamma, _ = inputs
        h, scale = saved
        dy = rows(dy)
        dy_h = dy * h
        mean_with_gamma = ops.expand_dims(gamma / D, 1)
        constant = ops.matmul(dy, mean_with_gamma)
        dx = scale * (dy * gamma - constant - h * ops.matmul(dy_h, mean_with_gamma))
        sums = ops.ones((1, ops.shape(h)[0]), dtype=precision)
        dgamma, dbeta = (ops.reshape(ops.matmul(sums, by_row), (D,)) for by_row in (dy_h, dy))
        return ops.cast(ops.reshape(dx, shape), dtype), dgamma, dbeta

    return with_gradient(normalize, gradient, x, gamma, beta)


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
