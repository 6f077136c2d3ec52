"""Greedy search and sampling over a step function, that of `tf_relpos.search`: one hypothesis a
sentence.

Axes: B batch, S source positions, L generated tokens, V vocabulary, C candidates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_relpos.candidates import log_probs_of, most_probable, sorted_top_k, special_ids
from tf_relpos.checks import check_shape, check_whole
from tf_relpos.execution import known_value
from tf_relpos.search import (
    next_logits,
    source_of,
    weights_read_once,
    without_gradients,
    written,
)
from tf_relpos.tensor_checks import check_scalar, is_symbolic
from tf_relpos.tensor_ops import Tensor, float32, own_rows_at, shape_of


@without_gradients
def greedy_search(model: Any, source_ids: Any, max_length: Any = None) -> tuple[Tensor, Tensor]:
    """The most probable token at each step, up to the end.

    Args:
        model, source_ids, max_length: as for `beam_search`.

    Returns:
        ids: int32 `[B, L]`, the end id included, then `pad_id`.
        scores: float32 `[B]`, the log-probability.

    Raises:
        ValueError: as for `beam_search`.
    """

    def choose(logits, must_end, index):
        log_probs, tokens = most_probable(logits, must_end, 1, model)
        best = ops.argmax(log_probs, axis=-1, keepdims=True)
        token, gained = (own_rows_at(x, best)[:, 0] for x in (tokens, log_probs))
        return ops.where(ops.isfinite(gained), token, model.config.pad_id), gained

    source_ids, limits, L = source_of(model, source_ids, max_length)
    return _search_one(model, source_ids, choose, limits, L)


@without_gradients
def sample(
    model: Any,
    source_ids: Any,
    temperature: Any = 1.0,
    *,
    top_k: int | None = None,
    top_p: Any = None,
    max_length: Any = None,
    seed: int | keras.random.SeedGenerator | None = None,
    uniforms: Any = None,
) -> tuple[Tensor, Tensor]:
    """A translation drawn from the model, token by token.

    Args:
        model, source_ids, max_length: as for `beam_search`.
        temperature: a finite number > 0, or a scalar float tensor; logits are divided by it. Below
            1 the likely tokens become likelier.
        top_k: draw from this many of the most probable tokens only; of equal ones, the first.
        top_p: draw from the fewest most probable tokens that have this probability together, at
            `temperature` and of the `top_k`: a number above 0, at most 1, or a scalar float tensor.
        seed: an int >= 0 for the same draws again, or a `keras.random.SeedGenerator`.
        uniforms: float `[B, L]`, numbers from 0 to below 1 that decide each token of each sentence,
            instead of those that `seed` gives. With numbers of its own a sentence gets the same
            translation alone and in any batch (but for rounding).

    Returns:
        ids: int32 `[B, L]`, the end id included, then `pad_id`.
        scores: float32 `[B]`, the log-probability under the model itself (temperature 1, all
            tokens).

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Reference: Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p, or nucleus sampling).
    """
    temperature = check_scalar(
        "temperature", temperature, "a finite number > 0", lambda x: 0 < x < math.inf
    )
    # Below float32's smallest normal number, which hardware may take for 0.
    temperature = ops.maximum(temperature, float32(np.finfo("float32").tiny))
    if top_k is not None:
        top_k = check_whole("top_k", top_k)
    if top_p is not None:
        top_p = check_scalar("top_p", top_p, "a number above 0 and at most 1", lambda x: 0 < x <= 1)
    if seed is not None and not isinstance(seed, keras.random.SeedGenerator):
        seed = check_whole("seed", seed, least=0)
    source_ids, limits, L = source_of(model, source_ids, max_length)
    shape = (shape_of(source_ids)[0], L)
    if uniforms is None:
        uniforms = keras.random.uniform(shape, seed=seed, dtype="float32")
    elif seed is not None:
        raise ValueError("`uniforms` take the place of `seed`. Received: both")
    else:
        uniforms = _uniforms(uniforms)
        known = (source_ids.shape[0], None if is_symbolic(L) else L)
        check_shape("uniforms", uniforms.shape, known)
    draw = _Draw(model, temperature, top_k, top_p, uniforms)
    return _search_one(model, source_ids, draw, limits, L)


class _Draw(NamedTuple):
    """The choice of `sample`, with its arguments, checked."""

    model: Any
    temperature: Any
    top_k: int | None
    top_p: Any
    uniforms: Any  # float32 [B, L]

    def __call__(self, logits, must_end, index):
        """Inverts the cumulative distribution at this step's uniform number."""
        log_probs, tokens = self._candidates(logits, must_end)
        possible = ops.isfinite(log_probs)
        best = ops.max(log_probs, axis=-1, keepdims=True)
        weights = ops.exp((log_probs - best) / self.temperature)
        # -inf divided by a huge number is NaN where XLA multiplies with its reciprocal, 0.
        weights = ops.where(possible, weights, float32(0))
        cumulative = ops.cumsum(weights, axis=-1)
        if self.top_p is not None:
            possible = possible & (cumulative - weights < self.top_p * cumulative[:, -1:])
            cumulative = ops.cumsum(ops.where(possible, weights, float32(0)), axis=-1)
        threshold = ops.take(self.uniforms, index, axis=1)[:, None] * cumulative[:, -1:]
        below = ops.sum(ops.cast(cumulative <= threshold, "int32"), axis=-1)
        # Rounding can put the threshold on the total, past the last token that can be drawn.
        places = ops.arange(log_probs.shape[-1], dtype="int32")
        last = ops.max(ops.where(possible, places, 0), axis=-1)
        place = ops.expand_dims(ops.minimum(below, last), 1)
        gained = own_rows_at(log_probs, place)
        chosen = place if tokens is None else own_rows_at(tokens, place)
        return chosen[:, 0], gained[:, 0]

    def _candidates(self, logits, must_end):
        """Log-probabilities `[B, C]`, and whose they are; None where these are the places."""
        if self.top_k is not None:
            log_probs, tokens = most_probable(logits, must_end, self.top_k, self.model)
            log_probs, places = sorted_top_k(log_probs, min(self.top_k, log_probs.shape[-1]))
            return log_probs, own_rows_at(tokens, places)
        log_probs = log_probs_of(logits, must_end, self.model)
        if self.top_p is None:
            return log_probs, None
        return sorted_top_k(log_probs, log_probs.shape[-1])


def _search_one(model, source_ids, pick, limits, longest):
    """One hypothesis a sentence; `pick(logits [B, V], must_end [B], index)` gives for each its
    token and the log-probability of it, `[B]`."""
    memory = model.encode(source_ids)
    pad_id, start_id, end_id = special_ids(model)
    B = shape_of(source_ids)[0]

    def is_open(index, is_over, tokens, ids, scores, cache):
        return ops.any(~is_over) & (index < longest)

    def extend(index, is_over, tokens, ids, scores, cache):
        logits, cache = next_logits(model, ops.expand_dims(tokens, 1), cache, index, memory)
        chosen, gained = pick(logits[:, 0], index + 1 >= limits, index)
        chosen = ops.where(is_over, pad_id, chosen)
        scores = scores + ops.where(is_over, float32(0), gained)
        is_over = is_over | (chosen == end_id) | (chosen == pad_id)
        return index + 1, is_over, chosen, written(ids, chosen, index), scores, cache

    with weights_read_once(model):
        *_, ids, scores, _ = ops.while_loop(
            is_open,
            extend,
            (
                ops.convert_to_tensor(0, "int32"),
                ops.zeros((B,), dtype="bool"),
                ops.full((B,), start_id, dtype="int32"),
                ops.full((B, longest), pad_id, dtype="int32"),
                ops.zeros((B,), dtype="float32"),
                model.initial_cache(memory, 1, longest),
            ),
        )
    return ids, scores


def _uniforms(values):
    """What decides draws, float32; refused where it is known and wrong."""
    try:
        uniforms = ops.convert_to_tensor(values, dtype="float32")
        known = known_value(values)
        wrong = [] if known is None else known[~((known >= 0) & (known < 1))].tolist()
    except (TypeError, ValueError) as error:
        raise ValueError(f"`uniforms` must be numbers [B, L]. Received: {values!r}") from error
    if wrong:
        raise ValueError(f"`uniforms` must be from 0 to below 1. Received: {wrong[0]}")
    return uniforms
