"""Floating point operations: those that a model needs, and those that the machine is capable of."""

from __future__ import annotations

import time

import numpy as np

from tf_relpos.config import TransformerConfig

PEAK_SIZE = 2048
_PRODUCTS = 5


def flops_of_pairs(
    config: TransformerConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Operations that an update needs for each sentence pair, whoever computes it.

    The forward pass over a pair of S and T ids, with E encoder and C decoder layers of width D and
    inner width I, takes two operations for each id and each weight that it is multiplied with,

        2 S (E (4 D^2 + 2 D I) + 2 C D^2) + 2 T (C (6 D^2 + 2 D I) + D V)

    where 2 C D^2 makes the keys and values that the decoder sees of the source, and two for each
    of the two products of an attention, causal or not,

        4 D (E S^2 + C (T^2 + T S))

    The backward pass takes twice as many. Not counted: padding; relative positions, which can be
    computed in several ways; biases, softmax, normalization, dropout; the optimizer.

    Args:
        config: of the model.
        source_lengths: int `[pairs]`, S, the end ids included.
        target_lengths: int `[pairs]`, T.

    Returns:
        float64 `[pairs]`.
    """
    S, T = (np.asarray(lengths, np.float64) for lengths in (source_lengths, target_lengths))
    D, V, E, C = (
        config.model_dim,
        config.vocabulary_size,
        config.encoder_layers,
        config.decoder_layers,
    )
    feed_forward = 2 * D * config.inner_dim
    weights = S * (E * (4 * D**2 + feed_forward) + 2 * C * D**2)
    weights += T * (C * (6 * D**2 + feed_forward) + D * V)
    attention = 2 * D * (E * S**2 + C * (T**2 + T * S))
    return 3 * 2 * (weights + attention)


def measured_peak(dtype: str) -> float:
    """Operations a second of TensorFlow's product of matrices, 2048^3 in a dtype, on the CPU.

    The fastest of five.
    """
    import tensorflow as tf

    a, b = (tf.cast(tf.random.normal((PEAK_SIZE, PEAK_SIZE)), dtype) for _ in range(2))
    tf.matmul(a, b)
    seconds = []
    for _ in range(_PRODUCTS):
        began = time.perf_counter()
        tf.matmul(a, b)
        seconds.append(time.perf_counter() - began)
    return 2 * PEAK_SIZE**3 / min(seconds)
