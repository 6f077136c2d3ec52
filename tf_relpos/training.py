"""Loss and learning-rate schedule (Vaswani et al. 2017, sections 5.3 and 5.4)."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.checks import check_number, check_rate, check_shape, check_whole
from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import known_value
from tf_relpos.tensor_checks import check_is_padded
from tf_relpos.tensor_ops import Tensor, own_rows_at, shape_of

_LEAST_INT32 = -(2**31)


@keras.saving.register_keras_serializable(package="tf_relpos")
def smoothed_cross_entropy(
    target_ids: Any, logits: Any, smoothing: float = 0.1, pad_id: int = 0
) -> Tensor:
    """Cross-entropy against smoothed targets, token by token.

    The target distribution puts `1 - smoothing` on the target and `smoothing / (V - 1)` on each
    other id, as in tensor2tensor. Szegedy et al. and Keras spread their epsilon over all V ids, the
    target included: theirs is `smoothing * V / (V - 1)`. With `smoothing=0` this is the
    negative log-likelihood.

    It can be given to `compile(loss=...)` of Keras, which takes the mean over all positions, those
    of padding included unless the model's output carries a mask.

    Args:
        target_ids: int `[B, T]`, or the same in float32 or float64, as Keras's `fit` casts them.
        logits: `[B, T, V]`; the loss is computed in float32 whatever their precision.
        smoothing: from 0 up to, not including, 1.
        pad_id: positions with this target have loss 0.

    Returns:
        float32 `[B, T]`, in nats. Sum it and divide by the number of target tokens. It is NaN where
        a compiled function is given a target that is neither `pad_id` nor an id from 0 to V - 1.

    Raises:
        ValueError: `smoothing` is out of range, `target_ids` are not integers, have another shape
            than the logits, or, where their values are known, are out of range.

    Reference: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    smoothing = check_rate("smoothing", smoothing)
    pad_id = check_whole("pad_id", pad_id, least=_LEAST_INT32)
    # With p the softmax and c = 1 - smoothing, s = smoothing / (V - 1):
    #   -c log p_t - s sum_{v != t} log p_v = logsumexp(x) - (c - s) x_t - s sum_v x_v
    logits = ops.cast(_as_array("logits", logits, "numbers [B, T, V]"), "float32")
    if not len(logits.shape):
        raise ValueError(f"`logits` must be numbers [B, T, V]. Received: {logits!r}")
    V = logits.shape[-1]
    _check_targets(target_ids, V, pad_id)
    target_ids, is_whole = _as_ints(target_ids)
    check_shape("target_ids", target_ids.shape, logits.shape[:-1])
    of_others = smoothing / max(V - 1, 1)
    target_logit = number_at(logits, target_ids)
    loss = ops.logsumexp(logits, axis=-1) - (1 - smoothing - of_others) * target_logit
    if smoothing:
        loss = loss - of_others * ops.sum(logits, axis=-1)
    is_id = is_whole & (target_ids >= 0) & (target_ids < V)
    loss = ops.where(is_id, loss, ops.cast(np.nan, "float32"))
    return ops.where(is_whole & (target_ids == pad_id), ops.cast(0.0, "float32"), loss)


def _as_array(name, x, what):
    """An argument that may be a list as an array."""
    check_is_padded(name, x)
    try:
        array = x if hasattr(x, "dtype") else np.asarray(x)
        keras.backend.standardize_dtype(array.dtype)  # which knows no text, and no objects
    except ValueError as error:
        raise ValueError(f"`{name}` must be {what}. Received: {x!r}") from error
    return array


def _check_targets(target_ids, num_ids, pad_id):
    """Refuses targets that are no ids, where their values are known."""
    target_ids = _as_array("target_ids", target_ids, "integers [B, T]")
    dtype = keras.backend.standardize_dtype(target_ids.dtype)
    if "int" not in dtype and dtype not in ("float32", "float64"):
        raise ValueError(f"`target_ids` must hold integers. Received: dtype={dtype}")
    if (values := known_value(target_ids)) is None:
        return
    is_id = (values >= 0) & (values < num_ids) & (values == np.floor(values))
    wrong = values[~(is_id | (values == pad_id))]
    if wrong.size:
        raise ValueError(
            f"`target_ids` must be ids from 0 to {num_ids - 1}, or pad_id={pad_id}. "
            f"Received: {wrong.flat[0]}"
        )


def number_at(x: Tensor, indices: Tensor) -> Tensor:
    """One number of each row: of `[..., V]` at int `[...]`, `[...]`; whichever where an index is
    none of the row's.

    On TensorFlow it is gathered, where it would else take a pass over all numbers. Its gradient is
    such a pass, which XLA joins with others: that of a gather adds numbers up one by one.
    """
    V = x.shape[-1]

    def is_chosen(indices: Tensor) -> Tensor:
        return ops.expand_dims(indices, -1) == ops.arange(V, dtype=indices.dtype)

    if keras.backend.backend() != "tensorflow":
        return ops.sum(ops.where(is_chosen(indices), x, ops.zeros((), x.dtype)), axis=-1)

    def gather(x: Tensor, indices: Tensor) -> tuple[Tensor, None]:
        within = ops.reshape(ops.clip(indices, 0, V - 1), (-1, 1))
        return ops.reshape(own_rows_at(ops.reshape(x, (-1, V)), within), shape_of(indices)), None

    def gradient(inputs: Any, saved: None, by_number: Tensor) -> tuple[Tensor]:
        by_number = ops.expand_dims(by_number, -1)
        return (ops.where(is_chosen(inputs[1]), by_number, ops.zeros((), by_number.dtype)),)

    return with_gradient(gather, gradient, x, indices)


def _as_ints(target_ids):
    """The targets as int32, int64 if they may be larger, and which of them were whole numbers."""
    target_ids = ops.convert_to_tensor(target_ids)
    is_wide = keras.backend.standardize_dtype(target_ids.dtype) in ("int64", "uint32", "uint64")
    ints = ops.cast(target_ids, "int64" if is_wide else "int32")
    return ints, ops.cast(ints, target_ids.dtype) == target_ids


@keras.saving.register_keras_serializable(package="tf_relpos")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

        scale * model_dim^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)

    with s counted from 1: Keras's step 0 is s = 1.

    Args:
        model_dim: D.
        warmup_steps: the step with the highest rate, >= 1.
        scale: a factor on the whole, above 0.

    Raises:
        ValueError: an argument out of its range.

    Reference: Vaswani et al. 2017, Eq. 3.
    """

    def __init__(self, model_dim: float, warmup_steps: float = 4000, scale: float = 1.0):
        self.model_dim = _at_least_one("model_dim", model_dim)
        self.warmup_steps = _at_least_one("warmup_steps", warmup_steps)
        self.scale = check_number("scale", scale, "a number above 0", lambda x: 0 < x < math.inf)

    def __call__(self, step: Any) -> Tensor:
        s = ops.cast(step, "float32") + 1.0
        slope = ops.minimum(ops.rsqrt(s), s * self.warmup_steps**-1.5)
        return self.scale * self.model_dim**-0.5 * slope

    def get_config(self) -> dict[str, Any]:
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }


def _at_least_one(name, value):
    return check_number(name, value, "a number of at least 1", lambda x: 1 <= x < math.inf)
