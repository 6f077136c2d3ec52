"""Dropout that draws half of the random numbers, on TensorFlow."""

from __future__ import annotations

import keras

from tf_relpos.relations import Tensor


@keras.saving.register_keras_serializable(package="tf_relpos")
class Dropout(keras.layers.Dropout):
    """Keras's layer; on TensorFlow it is `dropout` where each number is dropped by itself."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        is_lean = keras.backend.backend() == "tensorflow" and self.noise_shape is None
        if is_lean and training and self.rate:
            return dropout(inputs, self.rate, self.seed_generator.next())
        return super().call(inputs, training=training)


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
