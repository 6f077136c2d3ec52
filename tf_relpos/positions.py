"""Sinusoidal position encodings, the baseline of Shaw et al. 2018, Table 1."""

from __future__ import annotations

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tf_relpos")
class SinusoidalPositionEncoding(keras.layers.Layer):
    """Adds sines and cosines of the position to its input.

        PE(pos, 2i)     = sin(pos / max_wavelength^(2i / D))
        PE(pos, 2i + 1) = cos(pos / max_wavelength^(2i / D))

    Sine and cosine are interleaved, as in the paper (tensor2tensor's code concatenates the two
    halves, which differs by a fixed permutation of the features).

    Args:
        max_wavelength: 10,000 in the paper.

    Call arguments:
        inputs: `[B, T, D]`.
        start_index: the position of the first of the T, an int or a scalar int tensor; a decoder
            that works step by step passes its step.

    Returns:
        `[B, T, D]`, the input plus the encoding.

    Reference: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, max_wavelength=10_000, **kwargs):
        if not max_wavelength > 1:
            raise ValueError(
                "`max_wavelength` must be a number > 1. "
                f"Received: max_wavelength={max_wavelength!r}"
            )
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.supports_masking = True

    def call(self, inputs, start_index=0):
        _, T, D = ops.shape(inputs)
        positions = ops.arange(T, dtype="int32") + ops.cast(start_index, "int32")
        feature = ops.arange(D, dtype="int32")
        exponent = ops.cast(2 * (feature // 2), "float32") / D
        rate = ops.power(ops.cast(self.max_wavelength, "float32"), -exponent)
        angle = ops.expand_dims(ops.cast(positions, "float32"), 1) * rate
        encoding = ops.where(feature % 2 == 0, ops.sin(angle), ops.cos(angle))  # [T, D]
        return inputs + ops.cast(encoding, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
