"""Which tokens may follow a hypothesis, and the most probable of them.

Of the `model` that `tf_relpos.search` searches this asks for the special ids alone. Axes: V
vocabulary.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.tensor_ops import Tensor, float32, own_rows_at, shape_of

_CHUNK = 64  # logits that are compared at once


def special_ids(model: Any) -> tuple[int, int, int]:
    """Padding, start and end."""
    return model.config.pad_id, model.config.start_id, model.config.end_id


def _may_follow(model: Any, token: Tensor) -> Tensor:
    """Whether a token may: neither the padding nor the start, unless that is the end as well."""
    pad_id, start_id, end_id = special_ids(model)
    allowed = (token != pad_id) & (token != start_id)
    return allowed | (token == end_id) if end_id in (pad_id, start_id) else allowed


def log_probs_of(logits: Tensor, must_end: Tensor, model: Any) -> Tensor:
    """float32 log-probabilities of the tokens that may follow.

    Padding and the start id never may, and where `must_end` (broadcast over V), the end alone.
    """
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    token = ops.arange(logits.shape[-1], dtype="int32")
    is_end = token == model.config.end_id
    allowed = _may_follow(model, token) & (is_end | ~ops.expand_dims(must_end, -1))
    return ops.where(allowed, log_probs, float32(-np.inf))


def most_probable(
    logits: Tensor,
    must_end: Tensor,
    count: int | Tensor,
    model: Any,
    may_end: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The most probable of the tokens that may follow, without the log-probabilities of all.

    Args:
        logits: `[..., V]`.
        must_end: bool, broadcast over `[...]`.
        count: how many tokens, an int or a scalar int tensor.
        may_end: bool scalar, whether the end may follow; where it must, it does. It may unless
            given.

    Returns:
        float32 log-probabilities and int32 tokens `[..., at least count or else V]`. Those that may
        not follow have -inf; the others are most probable first, and of equal ones the first.
    """
    end_id = model.config.end_id
    logits = ops.cast(logits, "float32")
    # Of which some may be the padding, the start, and the end, if it may not follow.
    best, tokens = top_k(logits, count + (2 if may_end is None else 3))
    largest = best[..., :1]
    total = largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))
    must_end = ops.expand_dims(must_end, -1)
    is_first = ops.arange(shape_of(tokens)[-1], dtype="int32") == 0
    best = ops.where(must_end, logits[..., end_id : end_id + 1], best)
    tokens = ops.where(must_end, end_id, tokens)
    allowed = _may_follow(model, tokens)
    if may_end is not None:
        allowed = allowed & (may_end | (tokens != end_id))
    allowed = ops.where(must_end, is_first, allowed)
    return ops.where(allowed, best - total, float32(-np.inf)), tokens


def top_k(x: Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """`ops.top_k(x, count)` of `[..., V]`, or of all V, sorted; exact also among equal numbers.

    The `count` largest numbers lie in those `count` chunks whose own largest are largest. Looking
    for these first reads `x` once by a fast reduction, where TensorFlow's top-k on a CPU keeps a
    heap, number by number.
    """
    *axes, V = shape_of(x)
    num_chunks = -(-V // _CHUNK)
    count = ops.minimum(count, V) if ops.is_tensor(count) else min(count, V)
    if num_chunks == 1:
        return sorted_top_k(x, count)
    padding = num_chunks * _CHUNK - V
    if padding:
        x = ops.pad(x, [(0, 0)] * len(axes) + [(0, padding)], constant_values=-np.inf)
    chunks = ops.reshape(x, (-1, num_chunks, _CHUNK))
    num_chosen = ops.minimum(count, num_chunks) if ops.is_tensor(count) else min(count, num_chunks)
    _, chosen = sorted_top_k(ops.max(chunks, axis=-1), num_chosen)
    chosen = ops.sort(chosen, axis=-1)  # so that of equal numbers the first is found first
    numbers = own_rows_at(chunks, chosen)
    largest, places = sorted_top_k(ops.reshape(numbers, (-1, num_chosen * _CHUNK)), count)
    first = own_rows_at(chosen, places // _CHUNK) * _CHUNK
    shape = (*axes, count)
    return ops.reshape(largest, shape), ops.reshape(first + places % _CHUNK, shape)


def sorted_top_k(x: Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """`ops.top_k`, of equal numbers the first one first, which PyTorch's leaves open; int32."""
    if keras.backend.backend() != "torch":
        return ops.top_k(x, count)
    places = ops.cast(ops.argsort(-x, axis=-1)[..., :count], "int32")
    return ops.take_along_axis(x, places, axis=-1), places
