"""Greedy, beam and sampling search over a step function.

The searches see no model class. They want an object with

    config.pad_id, config.start_id, config.end_id
    encode(source_ids [B, S])                       -> memory, whatever `step` wants of the source
    initial_cache(memory, beam_size, max_length)    -> cache, a tree of tensors [B, K, ...]
    step(token_ids [B, K], cache, index, memory)    -> logits [B, K, V], cache

Axes: B batch, S source positions, K hypotheses, L generated tokens, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops, tree

from tf_relpos.config import ALPHA, BEAM_SIZE

EXTRA_LENGTH = 50  # a translation may be this much longer than its source, as in tensor2tensor


def beam_search(model, source_ids, beam_size=BEAM_SIZE, alpha=ALPHA, max_length=None):
    """The K best translations of each sentence that a beam of K finds.

    At each step the K most probable extensions survive. Those that end are set aside, the others
    live on. A finished hypothesis of n tokens, its end included, scores

        log P(target | source) / ((5 + n) / 6)^alpha

    A sentence may take up to its own source length + 50 tokens, where the end is forced. It is done
    when no live hypothesis can still beat its K-th finished one, which never changes the result:
    a sentence is translated alike alone and in any batch (but for rounding).

    Args:
        model: see the module.
        source_ids: int `[B, S]`, padded with `pad_id`.
        beam_size: K >= 1, an int or a scalar int tensor; 1 is greedy search.
        alpha: length penalty; 0 is none.
        max_length: the same limit for all sentences instead, L. XLA needs an int where a graph does
            not know S: caches that grow with the translation are not for it.

    Returns:
        ids: int32 `[B, K, L]`, the end id included, then `pad_id`.
        scores: float32 `[B, K]`, best first.

    Reference: Wu et al. 2016 (GNMT), Eq. 14; Vaswani et al. 2017, section 6.1.
    """
    if not ops.is_tensor(beam_size) and (not isinstance(beam_size, int) or beam_size < 1):
        raise ValueError(f"`beam_size` must be a whole number >= 1. Received: {beam_size!r}")
    limits, longest = _limits(model, source_ids, max_length)
    memory = model.encode(source_ids)
    pad_id, start_id, end_id = _special_ids(model)
    B, K, L = ops.shape(source_ids)[0], beam_size, longest
    first_only = ops.where(ops.arange(K) == 0, 0.0, -np.inf)
    beam = _Beam(
        index=ops.convert_to_tensor(0, "int32"),
        tokens=ops.full((B, K), start_id, dtype="int32"),
        ids=ops.full((B, K, L), pad_id, dtype="int32"),
        log_probs=ops.zeros((B, K), dtype="float32") + first_only,
        finished_ids=ops.full((B, K, L), pad_id, dtype="int32"),
        finished_scores=ops.full((B, K), -np.inf, dtype="float32"),
        cache=model.initial_cache(memory, K, L),
    )
    penalty = functools.partial(length_penalty, alpha=alpha)

    def is_open(*state):
        beam = _Beam(*state)
        best_live = ops.max(beam.log_probs, axis=1)
        divisor = ops.maximum(penalty(beam.index + 1), penalty(limits))
        can_improve = best_live / divisor > ops.min(beam.finished_scores, axis=1)
        return ops.any(can_improve & (beam.index < limits))

    def extend(*state):
        beam = _Beam(*state)
        logits, cache = model.step(beam.tokens, beam.cache, beam.index, memory)
        log_probs = _log_probs(logits, ops.expand_dims(beam.index + 1 >= limits, 1), model)
        V = log_probs.shape[-1]
        extensions = ops.expand_dims(beam.log_probs, -1) + log_probs  # [B, K, V]
        log_probs, choices = ops.top_k(ops.reshape(extensions, (-1, K * V)), K)
        parents, tokens = choices // V, choices % V
        ids = _write(_select(beam.ids, parents), tokens, beam.index)
        ended = tokens == end_id
        scores = ops.where(ended, log_probs / penalty(beam.index + 1), -np.inf)
        scores, best = ops.top_k(ops.concatenate([beam.finished_scores, scores], axis=1), K)
        return _Beam(
            index=beam.index + 1,
            tokens=tokens,
            ids=ids,
            log_probs=ops.where(ended, -np.inf, log_probs),
            finished_ids=_select(ops.concatenate([beam.finished_ids, ids], axis=1), best),
            finished_scores=scores,
            cache=tree.map_structure(lambda x: _select(x, parents), cache),
        )

    beam = _Beam(*ops.while_loop(is_open, extend, tuple(beam)))
    return beam.finished_ids, beam.finished_scores


def greedy_search(model, source_ids, max_length=None):
    """The most probable token at each step, up to the end.

    Args:
        model, source_ids, max_length: as for `beam_search`.

    Returns:
        ids: int32 `[B, L]`, the end id included, then `pad_id`.
        scores: float32 `[B]`, the log-probability.
    """

    def most_probable(log_probs, index):
        return ops.cast(ops.argmax(log_probs, axis=-1), "int32")

    return _search_one(model, source_ids, most_probable, max_length)


def sample(model, source_ids, temperature=1.0, top_k=None, max_length=None, seed=None):
    """A translation drawn from the model, token by token.

    Args:
        model, source_ids, max_length: as for `beam_search`.
        temperature: > 0; logits are divided by it. Below 1 the likely tokens become likelier.
        top_k: draw from this many of the most probable tokens only.
        seed: an int for the same draws again.

    Returns:
        ids: int32 `[B, L]`, the end id included, then `pad_id`.
        scores: float32 `[B]`, the log-probability under the model itself (temperature 1, all
            tokens).

    Reference: Fan et al. 2018 (top-k).
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature!r}")
    if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"`top_k` must be None or a whole number >= 1. Received: top_k={top_k!r}")
    _, longest = _limits(model, source_ids, max_length)
    thresholds = keras.random.uniform((ops.shape(source_ids)[0], longest), seed=seed)

    def draw(log_probs, index):
        """Inverts the cumulative distribution at this step's uniform number."""
        if top_k is not None and top_k < log_probs.shape[-1]:
            least = ops.top_k(log_probs, top_k)[0][:, -1:]
            log_probs = ops.where(log_probs >= least, log_probs, -np.inf)
        cumulative = ops.cumsum(ops.softmax(log_probs / temperature), axis=-1)
        threshold = ops.take(thresholds, index, axis=1)[:, None] * cumulative[:, -1:]
        below = ops.sum(ops.cast(cumulative <= threshold, "int32"), axis=-1)
        # Rounding can put the threshold on the total, past the last token that can be drawn.
        possible = ops.where(ops.isfinite(log_probs), ops.arange(log_probs.shape[-1]), 0)
        return ops.minimum(below, ops.cast(ops.max(possible, axis=-1), "int32"))

    return _search_one(model, source_ids, draw, max_length)


class _Beam(NamedTuple):
    index: Any  # int32 scalar: tokens generated so far
    tokens: Any  # int32 [B, K], the last token of each live hypothesis
    ids: Any  # int32 [B, K, L], live hypotheses
    log_probs: Any  # float32 [B, K], -inf where nothing lives
    finished_ids: Any  # int32 [B, K, L]
    finished_scores: Any  # float32 [B, K], best first, -inf where nothing has finished
    cache: Any  # tree of [B, K, ...]


def length_penalty(length, alpha):
    """`((5 + length) / 6)^alpha`, length in tokens with the end (Wu et al. 2016, Eq. 14)."""
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def _search_one(model, source_ids, pick, max_length):
    """One hypothesis a sentence; `pick(log_probs [B, V], index) -> token [B]`."""
    limits, longest = _limits(model, source_ids, max_length)
    memory = model.encode(source_ids)
    pad_id, start_id, end_id = _special_ids(model)
    B = ops.shape(source_ids)[0]

    def is_open(index, tokens, ids, scores, cache):
        return ops.any((tokens != end_id) & (tokens != pad_id)) & (index < longest)

    def extend(index, tokens, ids, scores, cache):
        logits, cache = model.step(ops.expand_dims(tokens, 1), cache, index, memory)
        log_probs = _log_probs(logits[:, 0], index + 1 >= limits, model)
        chosen = pick(log_probs, index)
        gained = ops.take_along_axis(log_probs, ops.expand_dims(chosen, 1), axis=1)[:, 0]
        is_over = (tokens == end_id) | (tokens == pad_id)
        chosen = ops.where(is_over, pad_id, chosen)
        scores = scores + ops.where(is_over, 0.0, gained)
        return index + 1, chosen, _write(ids, chosen, index), scores, cache

    _, _, ids, scores, _ = ops.while_loop(
        is_open,
        extend,
        (
            ops.convert_to_tensor(0, "int32"),
            ops.full((B,), start_id, dtype="int32"),
            ops.full((B, longest), pad_id, dtype="int32"),
            ops.zeros((B,), dtype="float32"),
            model.initial_cache(memory, 1, longest),
        ),
    )
    return ids, scores


def _special_ids(model):
    return model.config.pad_id, model.config.start_id, model.config.end_id


def _limits(model, source_ids, max_length):
    """How many tokens each sentence may take, int32 `[B]`, and the largest, L."""
    if max_length is not None:
        if isinstance(max_length, int) and max_length < 1:
            raise ValueError(f"`max_length` must be at least 1. Received: {max_length!r}")
        return ops.full((ops.shape(source_ids)[0],), max_length, dtype="int32"), max_length
    lengths = ops.sum(ops.cast(source_ids != model.config.pad_id, "int32"), axis=1)
    return lengths + EXTRA_LENGTH, ops.shape(source_ids)[1] + EXTRA_LENGTH


def _log_probs(logits, must_end, model):
    """float32 log-probabilities of the tokens that may follow.

    Padding and the start id never may, and where `must_end` (broadcast over V), the end alone.
    """
    pad_id, start_id, end_id = _special_ids(model)
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    token = ops.arange(logits.shape[-1], dtype="int32")
    allowed = (token != pad_id) & (token != start_id)
    allowed = allowed & ((token == end_id) | ~ops.expand_dims(must_end, -1))
    return ops.where(allowed, log_probs, -np.inf)


def _select(x, choices):
    """Rows `choices` `[B, K]` of the axis of hypotheses of `x` `[B, any, ...]`: `[B, K, ...]`."""
    shape = ops.shape(x)
    first_rows = ops.expand_dims(ops.arange(shape[0], dtype="int32") * shape[1], 1)
    rows = ops.reshape(first_rows + ops.cast(choices, "int32"), (-1,))
    flat = ops.reshape(x, (shape[0] * shape[1], *shape[2:]))
    selected = ops.take(flat, rows, axis=0)
    return ops.reshape(selected, (shape[0], ops.shape(choices)[1], *shape[2:]))


def _write(ids, tokens, index):
    """`ids` `[..., L]` with `tokens` `[...]` at position `index`."""
    here = ops.arange(ops.shape(ids)[-1], dtype="int32") == index
    return ops.where(here, ops.expand_dims(tokens, -1), ids)
