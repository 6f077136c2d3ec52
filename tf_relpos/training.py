"""Loss and learning-rate schedule (Vaswani et al. 2017, sections 5.3 and 5.4)."""

from __future__ import annotations

import keras
from keras import ops


def smoothed_cross_entropy(target_ids, logits, smoothing=0.1, pad_id=0):
    """Cross-entropy against smoothed targets, token by token.

    The target distribution puts `1 - smoothing` on the target and `smoothing / (V - 1)` on each
    other id. With `smoothing=0` this is the negative log-likelihood.

    Args:
        target_ids: int `[B, T]`.
        logits: `[B, T, V]`; the loss is computed in float32 whatever their precision.
        smoothing: from 0 up to, not including, 1.
        pad_id: positions with this target have loss 0.

    Returns:
        float32 `[B, T]`, in nats. Sum it and divide by the number of target tokens.

    Raises:
        ValueError: `smoothing` is out of range, or `target_ids` are not integers.

    Reference: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(
            f"`smoothing` must be at least 0 and below 1. Received: smoothing={smoothing!r}"
        )
    target_ids = ops.convert_to_tensor(target_ids)
    dtype = keras.backend.standardize_dtype(target_ids.dtype)
    if "int" not in dtype:
        raise ValueError(f"`target_ids` must hold integers. Received: dtype={dtype}")
    # With p the softmax and c = 1 - smoothing, s = smoothing / (V - 1):
    #   -c log p_t - s sum_{v != t} log p_v = logsumexp(x) - (c - s) x_t - s sum_v x_v
    logits = ops.cast(logits, "float32")
    V = logits.shape[-1]
    of_others = smoothing / (V - 1)
    is_target = ops.expand_dims(target_ids, -1) == ops.arange(V, dtype=dtype)
    target_logit = ops.sum(ops.where(is_target, logits, 0.0), axis=-1)
    loss = ops.logsumexp(logits, axis=-1) - (1 - smoothing - of_others) * target_logit
    if smoothing:
        loss = loss - of_others * ops.sum(logits, axis=-1)
    return ops.where(target_ids == pad_id, 0.0, loss)


@keras.saving.register_keras_serializable(package="tf_relpos")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

        scale * model_dim^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)

    with s counted from 1: Keras's step 0 is s = 1.

    Args:
        model_dim: D.
        warmup_steps: the step with the highest rate, >= 1.
        scale: a factor on the whole.

    Reference: Vaswani et al. 2017, Eq. 3.
    """

    def __init__(self, model_dim, warmup_steps=4000, scale=1.0):
        for name, value in (("model_dim", model_dim), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value!r}")
        if scale <= 0:
            raise ValueError(f"`scale` must be above 0. Received: scale={scale!r}")
        self.model_dim = model_dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        s = ops.cast(step, "float32") + 1.0
        slope = ops.minimum(ops.rsqrt(s), s * self.warmup_steps**-1.5)
        return self.scale * self.model_dim**-0.5 * slope

    def get_config(self):
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
