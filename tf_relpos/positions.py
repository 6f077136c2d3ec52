"""Sinusoidal position encodings, the baseline of Shaw et al. 2018, Table 1."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from tf_relpos.checks import check_number
from tf_relpos.tensor_checks import FURTHEST, check_index, check_is_array, check_is_padded
from tf_relpos.tensor_ops import Tensor, shape_of


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
        inputs: `[..., T, D]`, floats.
        start_index: the position of the first of the T, an int or a scalar int tensor; a decoder
            that works step by step passes its step.

    Returns:
        `[..., T, D]`, the input plus the encoding.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Reference: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, max_wavelength: float = 10_000, **kwargs):
        self.max_wavelength = check_number(
            "max_wavelength", max_wavelength, "a number > 1", lambda x: 1 < x < math.inf
        )
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs: Any, start_index: Any = 0) -> Tensor:
        check_is_array("inputs", inputs)
        check_is_padded("inputs", inputs)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if "float" not in dtype or len(inputs.shape) < 2:
            raise ValueError(
                "`inputs` must be floats of the shape [..., T, D]. "
                f"Received: inputs of dtype {dtype} and shape {tuple(inputs.shape)}"
            )
        T, D = shape_of(inputs)[-2:]
        start = check_index("start_index", start_index, -FURTHEST)
        positions = ops.arange(T, dtype="int32") + start
        precision = "float64" if dtype == "float64" else "float32"
        feature = ops.arange(D, dtype="int32")
        exponent = ops.cast(2 * (feature // 2), precision) / D
        rate = ops.power(ops.cast(self.max_wavelength, precision), -exponent)
        angle = ops.expand_dims(ops.cast(positions, precision), 1) * rate
        encoding = ops.where(feature % 2 == 0, ops.sin(angle), ops.cos(angle))  # [T, D]
        return inputs + ops.cast(encoding, inputs.dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
