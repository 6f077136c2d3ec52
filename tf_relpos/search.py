"""Greedy, beam and sampling search over a step function.

The searches see no model class. They want an object with

    config.pad_id, config.start_id, config.end_id
    encode(source_ids [B, S])                       -> memory, whatever `step` wants of the source:
                                                       a tree of tensors [B, ...], or of any shape
                                                       below a key "weights"
    initial_cache(memory, beam_size, max_length)    -> cache, a tree of tensors [B, K, ...], or
                                                       [B, ...] below a key "shared"
    step(token_ids [B, K], cache, index, memory)    -> logits [B, K, V], cache

with ids in int32. The start may be the padding or the end, as it is in models of others, and the
padding the end. `max_length`, L, is an int where it is known and a scalar int32 tensor in a graph
that will know it when it runs: the model may then let its cache grow from step to step, below a key
"growing". That key says that shapes may change, so that sentences that are done leave the batch.

They are inference: on PyTorch nothing is recorded for gradients, as in Keras's `predict`.

Axes: B batch, S source positions, K hypotheses, L generated tokens, V vocabulary.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops, tree

from tf_relpos.candidates import log_probs_of, most_probable, sorted_top_k, special_ids
from tf_relpos.checks import check_shape, check_whole
from tf_relpos.config import ALPHA, BEAM_SIZE, MAX_ALPHA
from tf_relpos.tensor_checks import (
    check_ids,
    check_scalar,
    check_size,
    is_symbolic,
)
from tf_relpos.tensor_ops import Tensor, float32, known_value, own_rows_at

_ALPHA_RULE = f"a number from {-MAX_ALPHA:g} to {MAX_ALPHA:g}"
_SHARED = "shared"  # of all hypotheses of a sentence, whose order they keep
_GROWING = "growing"  # longer at each step, which XLA does not know
_WEIGHTS = "weights"  # of all sentences
_SEARCHED = ("config", "encode", "initial_cache", "step")  # what a model is searched with
EXTRA_LENGTH = 50  # a translation may be this much longer than its source, as in tensor2tensor


def _inference(search: Callable[..., Any]) -> Callable[..., Any]:
    """A search of which PyTorch records nothing."""

    @functools.wraps(search)
    def searched(*args: Any, **kwargs: Any) -> Any:
        if keras.backend.backend() != "torch":
            return search(*args, **kwargs)
        with sys.modules["torch"].no_grad():
            return search(*args, **kwargs)

    return searched


@_inference
def beam_search(
    model: Any,
    source_ids: Any,
    beam_size: Any = BEAM_SIZE,
    alpha: Any = ALPHA,
    max_length: Any = None,
    nbest: Any = None,
) -> tuple[Tensor, Tensor]:
    """The best translations of each sentence that a beam of K finds.

    At each step the K most probable extensions survive. Those that end are set aside, the others
    live on. A finished hypothesis of n tokens, its end included, scores

        log P(target | source) / ((5 + n) / 6)^alpha

    A sentence may take up to its own source length + 50 tokens, where the end is forced. It is done
    when no live hypothesis can still beat the worst of the finished ones that are asked for, which
    never changes the result: a sentence is translated alike alone and in any batch (but for
    rounding), and its best translations are the same whether fewer or more of them are asked for.

    Args:
        model: see the module.
        source_ids: int `[B, S]`, padded with `pad_id`.
        beam_size: K >= 1, an int or a scalar int tensor; 1 is greedy search.
        alpha: length penalty, a number from -10 to 10 or a scalar float tensor; 0 is none.
        max_length: the same limit for all sentences instead, L >= 1, an int or a scalar int tensor.
            XLA needs an int where a graph does not know S: caches that grow with the translation
            are not for it.
        nbest: how many of the K are given back, n, from 1 to K, an int or a scalar int tensor; all
            of them unless given. The fewer, the sooner a sentence is done.

    Returns:
        ids: int32 `[B, n, L]`, the end id included, then `pad_id`.
        scores: float32 `[B, n]`, best first.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Reference: Wu et al. 2016 (GNMT), Eq. 14; Vaswani et al. 2017, section 6.1.
    """
    K = check_size("beam_size", beam_size)
    n = K if nbest is None else check_size("nbest", nbest)
    if isinstance(n, int) and isinstance(K, int) and n > K:
        raise ValueError(f"`nbest` must be at most `beam_size`, {K}. Received: nbest={n}")
    alpha = check_scalar("alpha", alpha, _ALPHA_RULE, lambda x: -MAX_ALPHA <= x <= MAX_ALPHA)
    source_ids, limits, L = _source(model, source_ids, max_length)
    B = ops.shape(source_ids)[0]
    sentences = _Sentences(ops.arange(B, dtype="int32"), limits, model.encode(source_ids))
    search = _BeamSearch(model, K, n, alpha)
    beam = search.start(sentences, L)
    with _weights_read_once(model):
        if ops.is_tensor(B) and _has(_GROWING, beam.cache):
            return _in_rounds(search, beam, sentences)
        beam = search.run(beam, sentences)
    return beam.finished_ids, beam.finished_scores


@_inference
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

    source_ids, limits, L = _source(model, source_ids, max_length)
    return _search_one(model, source_ids, choose, limits, L)


@_inference
def sample(
    model: Any,
    source_ids: Any,
    temperature: Any = 1.0,
    top_k: int | None = None,
    max_length: Any = None,
    seed: int | keras.random.SeedGenerator | None = None,
    uniforms: Any = None,
    top_p: Any = None,
) -> tuple[Tensor, Tensor]:
    """A translation drawn from the model, token by token.

    Args:
        model, source_ids, max_length: as for `beam_search`.
        temperature: a finite number > 0, or a scalar float tensor; logits are divided by it. Below
            1 the likely tokens become likelier.
        top_k: draw from this many of the most probable tokens only; of equal ones, the first.
        seed: an int >= 0 for the same draws again, or a `keras.random.SeedGenerator`.
        uniforms: float `[B, L]`, numbers from 0 to below 1 that decide each token of each sentence,
            instead of those that `seed` gives. With numbers of its own a sentence gets the same
            translation alone and in any batch (but for rounding).
        top_p: draw from the fewest most probable tokens that have this probability together, at
            `temperature` and of the `top_k`: a number above 0, at most 1, or a scalar float tensor.

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
    source_ids, limits, L = _source(model, source_ids, max_length)
    shape = (ops.shape(source_ids)[0], L)
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


class _Sentences(NamedTuple):
    """What the search was given."""

    places: Any  # int32 [B], in the batch that was asked for
    limits: Any  # int32 [B], tokens that each may take
    memory: Any  # tree of [B, ...]


class _Beam(NamedTuple):
    """What the search has found."""

    index: Any  # int32 scalar: tokens generated so far
    tokens: Any  # int32 [B, K], the last token of each live hypothesis
    ids: Any  # int32 [B, K, L], live hypotheses
    log_probs: Any  # float32 [B, K], -inf where nothing lives
    finished_ids: Any  # int32 [B, n, L]
    finished_scores: Any  # float32 [B, n], best first, -inf where nothing has finished
    cache: Any  # tree of [B, K, ...]


class _BeamSearch(NamedTuple):
    """`beam_search` with its arguments, checked."""

    model: Any
    K: Any
    n: Any  # finished hypotheses that are kept
    alpha: Any

    def start(self, sentences: _Sentences, L: Any) -> _Beam:
        """One live hypothesis, of nothing."""
        pad_id, start_id, _ = special_ids(self.model)
        B, K, n = ops.shape(sentences.places)[0], self.K, self.n
        first_only = ops.where(ops.arange(K, dtype="int32") == 0, float32(0), float32(-np.inf))
        return _Beam(
            index=ops.convert_to_tensor(0, "int32"),
            tokens=ops.full((B, K), start_id, dtype="int32"),
            ids=ops.full((B, K, L), pad_id, dtype="int32"),
            log_probs=ops.zeros((B, K), dtype="float32") + first_only,
            finished_ids=ops.full((B, n, L), pad_id, dtype="int32"),
            finished_scores=ops.full((B, n), -np.inf, dtype="float32"),
            cache=self.model.initial_cache(sentences.memory, K, L),
        )

    def run(self, beam: _Beam, sentences: _Sentences, fewest: Any = 0) -> _Beam:
        """Steps until no more than `fewest` sentences are open."""

        def go_on(*state):
            is_open = self.is_open(_Beam(*state), sentences.limits)
            return ops.sum(ops.cast(is_open, "int32")) > fewest

        def extend(*state):
            return self.extend(_Beam(*state), sentences)

        return _Beam(*ops.while_loop(go_on, extend, tuple(beam)))

    def is_open(self, beam: _Beam, limits: Tensor) -> Tensor:
        """Which sentences' results may still change, bool `[B]`."""
        # With `initial`, because Keras refuses the largest of nothing: the batch may be empty.
        best_live = ops.max(beam.log_probs, axis=1, initial=-np.inf)
        divisor = ops.maximum(self.penalty(beam.index + 1), self.penalty(limits))
        worst_finished = ops.min(beam.finished_scores, axis=1, initial=np.inf)
        return (best_live / divisor > worst_finished) & (beam.index < limits)

    def extend(self, beam: _Beam, sentences: _Sentences) -> _Beam:
        """All hypotheses with one more token."""
        B, K = ops.shape(beam.tokens)[0], self.K
        logits, cache = _step(self.model, beam.tokens, beam.cache, beam.index, sentences.memory)
        must_end = ops.expand_dims(beam.index + 1 >= sentences.limits, 1)
        log_probs, tokens = most_probable(logits, must_end, K, self.model)  # [B, K, at least K]
        extensions = ops.expand_dims(beam.log_probs, -1) + log_probs
        each = ops.shape(tokens)[-1]
        log_probs, choices = sorted_top_k(ops.reshape(extensions, (B, K * each)), K)
        parents = choices // each
        tokens = own_rows_at(ops.reshape(tokens, (B, K * each)), choices)
        ids = _write(own_rows_at(beam.ids, parents), tokens, beam.index)
        ended = tokens == self.model.config.end_id
        scores = ops.where(ended, log_probs / self.penalty(beam.index + 1), float32(-np.inf))
        scores = ops.concatenate([beam.finished_scores, scores], axis=1)
        scores, best = sorted_top_k(scores, self.n)
        return _Beam(
            index=beam.index + 1,
            tokens=tokens,
            ids=ids,
            log_probs=ops.where(ended, float32(-np.inf), log_probs),
            finished_ids=own_rows_at(ops.concatenate([beam.finished_ids, ids], axis=1), best),
            finished_scores=scores,
            cache=_follow(cache, parents),
        )

    def penalty(self, length: Any) -> Tensor:
        return length_penalty(length, self.alpha)


def _in_rounds(search: _BeamSearch, beam: _Beam, sentences: _Sentences) -> tuple[Tensor, Tensor]:
    """Ids and scores of a search that sentences leave when they are done.

    They do so together, whenever no more than half of them are open: a batch's last sentences take
    a multiple of the steps of its first. The loop's tensors change their shapes.
    """

    def are_left(beam, sentences, ids, scores):
        return ops.shape(sentences.places)[0] > 0

    def take_round(beam, sentences, ids, scores):
        beam, sentences = _Beam(*beam), _Sentences(*sentences)
        beam = search.run(beam, sentences, fewest=ops.shape(sentences.places)[0] // 2)
        places = ops.expand_dims(sentences.places, 1)
        ids = ops.scatter_update(ids, places, beam.finished_ids)
        scores = ops.scatter_update(scores, places, beam.finished_scores)
        (left,) = ops.nonzero(search.is_open(beam, sentences.limits))
        return *_sentences_of((beam, sentences), left), ids, scores

    state = beam, sentences, beam.finished_ids, beam.finished_scores
    _, _, ids, scores = ops.while_loop(are_left, take_round, state)
    return ids, scores


def _has(key, nested):
    return any(key in path for path, _ in tree.flatten_with_path(nested))


def _sentences_of(state, places):
    """What belongs to the sentences at `places` `[any]`."""
    leaves = [
        x if _WEIGHTS in path or not len(x.shape) else ops.take(x, places, axis=0)
        for path, x in tree.flatten_with_path(state)
    ]
    return tree.pack_sequence_as(state, leaves)


def length_penalty(length: Any, alpha: Any) -> Tensor:
    """`((5 + length) / 6)^alpha`, length in tokens with the end (Wu et al. 2016, Eq. 14)."""
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def _search_one(model, source_ids, pick, limits, longest):
    """One hypothesis a sentence; `pick(logits [B, V], must_end [B], index)` gives for each its
    token and the log-probability of it, `[B]`."""
    memory = model.encode(source_ids)
    pad_id, start_id, end_id = special_ids(model)
    B = ops.shape(source_ids)[0]

    def is_open(index, is_over, tokens, ids, scores, cache):
        return ops.any(~is_over) & (index < longest)

    def extend(index, is_over, tokens, ids, scores, cache):
        logits, cache = _step(model, ops.expand_dims(tokens, 1), cache, index, memory)
        chosen, gained = pick(logits[:, 0], index + 1 >= limits, index)
        chosen = ops.where(is_over, pad_id, chosen)
        scores = scores + ops.where(is_over, float32(0), gained)
        is_over = is_over | (chosen == end_id) | (chosen == pad_id)
        return index + 1, is_over, chosen, _write(ids, chosen, index), scores, cache

    with _weights_read_once(model):
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


def _step(model, tokens, cache, index, memory):
    """The logits `[B, K, V]` and the cache that the model makes of the last tokens `[B, K]`."""
    found = model.step(tokens, cache, index, memory)
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise ValueError(f"`model.step` must give back logits and the cache. Received: {found!r}")
    logits, cache = found
    check_shape("logits", logits.shape, (None, None, None))
    if max(special_ids(model)) >= logits.shape[-1]:
        raise ValueError(
            f"`model.config` must have ids below the number of logits, {logits.shape[-1]}. "
            f"Received: pad_id, start_id, end_id = {special_ids(model)}"
        )
    return logits, cache


def _source(model, source_ids, max_length):
    """The source, int32 `[B, S]`; how many tokens each sentence may take, int32 `[B]`; and the
    most, L."""
    if missing := [name for name in _SEARCHED if not hasattr(model, name)]:
        raise ValueError(
            f"`model` must be a Transformer, or have {', '.join(_SEARCHED)} as it has. "
            f"Received: model={model!r}, without {missing[0]}"
        )
    for name in ("pad_id", "start_id", "end_id"):
        check_whole(f"model.config.{name}", getattr(model.config, name, None), least=0)
    source_ids = check_ids("source_ids", source_ids, getattr(model.config, "vocabulary_size", None))
    check_shape("source_ids", source_ids.shape, (None, None))
    source_ids = ops.cast(source_ids, "int32")
    B, S = ops.shape(source_ids)
    if max_length is not None:
        L = check_size("max_length", max_length)
        return source_ids, ops.full((B,), L, dtype="int32"), L
    lengths = ops.sum(ops.cast(source_ids != model.config.pad_id, "int32"), axis=1)
    return source_ids, lengths + EXTRA_LENGTH, S + EXTRA_LENGTH


def _follow(cache, parents):
    """The cache of hypotheses that extend `parents` `[B, K]`."""
    leaves = [
        x if _SHARED in path else own_rows_at(x, parents)
        for path, x in tree.flatten_with_path(cache)
    ]
    return tree.pack_sequence_as(cache, leaves)


def _weights_read_once(model):
    """A scope in which a loop finds the weights as they were before it, and reads no variables."""
    # Copies, as a tensor made of a variable is read where it is used, which is in the loop.
    weights = [w for w in getattr(model, "weights", ()) if isinstance(w, keras.Variable)]
    return keras.StatelessScope([(weight, ops.copy(weight)) for weight in weights])


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


def _write(ids, tokens, index):
    """`ids` `[..., L]` with `tokens` `[...]` at position `index`."""
    here = ops.arange(ops.shape(ids)[-1], dtype="int32") == index
    return ops.where(here, ops.expand_dims(tokens, -1), ids)
