"""Layer normalization and dropout in few passes over their input, in training on TensorFlow: in one
within `fused_passes`.

Keras's layers in all else. The other backends have kernels of their own, or fuse what Keras
composes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import has_gpu
from tf_relpos.fused_passes import are_fused, fused
from tf_relpos.tensor_ops import Tensor, exact_dtype, shape_of


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
        return apply_dropout(self, inputs, training)


def apply_dropout(layer: keras.layers.Dropout, inputs: Tensor, training: bool | None) -> Tensor:
    """What any of Keras's layers gives, as `Dropout` computes it."""
    is_lean = keras.backend.backend() == "tensorflow" and layer.noise_shape is None
    if is_lean and training and 0 < layer.rate < 1:
        return dropout(inputs, layer.rate, layer.seed_generator.next())
    return keras.layers.Dropout.call(layer, inputs, training=training)


def layer_normalization(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta`, in float32 at least.

    The gradient is one formula in place of those of each operation. Sums are products with a column
    or a row, which are several times as fast on CPUs as TensorFlow's reductions (GPUs may round
    what they multiply). Within `fused_passes` there is one pass forward and one backward.

    Args:
        x: `[..., D]`, D known; mean and variance are over it.
        gamma, beta: `[D]`.
        epsilon: above 0.

    Returns:
        `[..., D]` of the type of `x`.

    Reference: Ba, Kiros and Hinton 2016, Layer Normalization, Eqs. 3 and 4.
    """
    D, exact = x.shape[-1], exact_dtype(x)
    # Variables become tensors by it, which is what may have a gradient of its own.
    gamma, beta = (ops.cast(ops.reshape(vector, (1, D)), exact) for vector in (gamma, beta))
    forward, backward = fused(_normalization), fused(_normalization_gradients)
    sum_rows = _sum_of_rows if are_fused() else _product_with_rows

    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, None]:
        return forward(x, gamma, beta, epsilon), None

    def gradient(inputs: Any, saved: None, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gamma, _ = inputs
        return backward(x, gamma, dy, epsilon, sum_rows)

    rows = ops.reshape(x, (-1, D))
    return ops.reshape(with_gradient(normalize, gradient, rows, gamma, beta), shape_of(x))


def _normalization(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """`layer_normalization` of rows `[M, D]`, with gamma and beta `[1, D]`."""
    h, _ = _normalized_rows(x, epsilon)
    return ops.cast(h * gamma + beta, x.dtype)


def _normalization_gradients(
    x: Tensor, gamma: Tensor, dy: Tensor, epsilon: float, sum_rows: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients by x, gamma and beta.

    With h = (x - mean) scale and g = dy gamma:
        dx = scale (g - mean(g) - h mean(g h))
    """
    h, scale = _normalized_rows(x, epsilon)  # which a graph has computed already, if not fused
    dy = ops.cast(dy, h.dtype)
    dy_h = dy * h
    mean_with_gamma = ops.transpose(gamma / x.shape[-1])
    constant = ops.matmul(dy, mean_with_gamma)
    dx = scale * (dy * gamma - constant - h * ops.matmul(dy_h, mean_with_gamma))
    return ops.cast(dx, x.dtype), sum_rows(dy_h), sum_rows(dy)


def _sum_of_rows(x: Tensor) -> Tensor:
    return ops.sum(x, axis=0, keepdims=True)


def _product_with_rows(x: Tensor) -> Tensor:
    """The same as a product with ones, which is as slow in XLA as the sum is in TensorFlow."""
    return ops.matmul(ops.ones((1, shape_of(x)[0]), dtype=x.dtype), x)


def _normalized_rows(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    D, exact = x.shape[-1], exact_dtype(x)
    mean_of = ops.full((D, 1), 1 / D, dtype=exact)
    return _normalized(ops.cast(x, exact), epsilon, lambda x: ops.matmul(x, mean_of))


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
    and the scale that of the share. Within `fused_passes` each has a word of its own, drawn where
    it is used, forward and backward: no mask is kept.

    Args:
        x: of any shape.
        rate: above 0 and below 1.
        seed: int `[2]`; the same one drops the same numbers, others where they are fused.

    Returns:
        As `x`.

    Reference: Srivastava et al. 2014, Dropout.
    """
    import tensorflow as tf

    seed = tf.cast(seed, tf.int32)
    if are_fused():
        return _fused_dropout(x, rate, seed)
    dropped, scale = _share(rate, bits=16)
    size = tf.size(x)
    words = _words(seed, (size + 1) // 2)
    bits = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    is_kept = tf.reshape(bits, tf.shape(x)) >= dropped - 2**15
    return tf.where(is_kept, x * scale, tf.zeros([], x.dtype))


def _share(rate: float, bits: int) -> tuple[int, float]:
    """How many of the numbers of so many bits drop, and what the others are multiplied by."""
    dropped = min(round(rate * 2**bits), 2**bits - 1)
    return dropped, 2**bits / (2**bits - dropped)


def _words(seed: Tensor, count: int | Tensor) -> Tensor:
    import tensorflow as tf

    return tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)


def _fused_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    import tensorflow as tf

    key = tf.bitcast(_words(seed, 2), tf.uint32)
    drop = fused(_dropped)

    def forward(x: Tensor, key: Tensor) -> tuple[Tensor, None]:
        return drop(x, key, rate), None

    def backward(inputs: Any, saved: None, dy: Tensor) -> tuple[Tensor]:
        return (drop(dy, inputs[1], rate),)

    # Flat, so that inputs of one size share what is compiled.
    flat = tf.reshape(x, [-1])
    return tf.reshape(with_gradient(forward, backward, flat, key), tf.shape(x))


def _dropped(x: Tensor, key: Tensor, rate: float) -> Tensor:
    """`dropout` of `[M]` by a word for each number: its place, mixed with a key, uint32 `[2]`.

    Random numbers that XLA draws take several times as long as all else. Each multiplication and
    shift is invertible, so that different places have different words, and they are those that
    MurmurHash3 ends with (Appleby 2011), behind which each bit depends on all bits of the place.
    """
    import tensorflow as tf

    def word(value: int) -> Tensor:
        return tf.constant(value, tf.uint32)

    def with_upper(bits: Tensor, shift: int) -> Tensor:
        return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, word(shift)))

    dropped, scale = _share(rate, bits=32)
    places = tf.bitcast(tf.range(tf.size(x)), tf.uint32)
    bits = tf.bitwise.bitwise_xor(places * word(0x9E3779B1) + key[0], key[1])
    bits = with_upper(bits, 16) * word(0x85EBCA6B)
    bits = with_upper(bits, 13) * word(0xC2B2AE35)
    bits = with_upper(bits, 16)
    return tf.where(bits >= word(dropped), x * scale, tf.zeros([], x.dtype))
