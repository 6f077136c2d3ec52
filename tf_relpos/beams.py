"""Beam search over a step function, that of `tf_relpos.search`.

Axes: B batch, S source positions, K hypotheses, n of them given back, L generated tokens, V
vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from keras import ops, tree

from tf_relpos.candidates import most_probable, sorted_top_k, special_ids
from tf_relpos.checks import check_whole
from tf_relpos.config import ALPHA, BEAM_SIZE, MAX_ALPHA
from tf_relpos.search import (
    GROWING,
    SHARED,
    WEIGHTS,
    next_logits,
    source_of,
    weights_read_once,
    without_gradients,
    written,
)
from tf_relpos.tensor_checks import check_scalar, check_size
from tf_relpos.tensor_ops import Tensor, float32, own_rows_at, shape_of

_ALPHA_RULE = f"a number from {-MAX_ALPHA:g} to {MAX_ALPHA:g}"


@without_gradients
def beam_search(
    model: Any,
    source_ids: Any,
    beam_size: Any = BEAM_SIZE,
    alpha: Any = ALPHA,
    max_length: Any = None,
    nbest: Any = None,
    min_length: int = 0,
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
        min_length: how many tokens stand before the end, at least, an int >= 0; a limit of fewer
            comes first. With 1 no translation is empty: the end alone may be the most probable of
            all, above all where a model has learnt little.

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
    min_length = check_whole("min_length", min_length, least=0)
    alpha = check_scalar("alpha", alpha, _ALPHA_RULE, lambda x: -MAX_ALPHA <= x <= MAX_ALPHA)
    source_ids, limits, L = source_of(model, source_ids, max_length)
    B = shape_of(source_ids)[0]
    sentences = _Sentences(ops.arange(B, dtype="int32"), limits, model.encode(source_ids))
    search = _BeamSearch(model, K, n, alpha, min_length)
    beam = search.start(sentences, L)
    with weights_read_once(model):
        if ops.is_tensor(B) and _has(GROWING, beam.cache):
            return _in_rounds(search, beam, sentences)
        beam = search.run(beam, sentences)
    return beam.finished_ids, beam.finished_scores


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
    min_length: int

    def start(self, sentences: _Sentences, L: Any) -> _Beam:
        """One live hypothesis, of nothing."""
        pad_id, start_id, _ = special_ids(self.model)
        B, K, n = shape_of(sentences.places)[0], self.K, self.n
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
        B, K = shape_of(beam.tokens)[0], self.K
        logits, cache = next_logits(
            self.model, beam.tokens, beam.cache, beam.index, sentences.memory
        )
        must_end = ops.expand_dims(beam.index + 1 >= sentences.limits, 1)
        may_end = beam.index >= self.min_length if self.min_length else None
        log_probs, tokens = most_probable(logits, must_end, K, self.model, may_end)
        extensions = ops.expand_dims(beam.log_probs, -1) + log_probs  # [B, K, at least K]
        each = shape_of(tokens)[-1]
        log_probs, choices = sorted_top_k(ops.reshape(extensions, (B, K * each)), K)
        parents = choices // each
        tokens = own_rows_at(ops.reshape(tokens, (B, K * each)), choices)
        ids = written(own_rows_at(beam.ids, parents), tokens, beam.index)
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


def length_penalty(length: Any, alpha: Any) -> Tensor:
    """`((5 + length) / 6)^alpha`, length in tokens with the end (Wu et al. 2016, Eq. 14)."""
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def _in_rounds(search: _BeamSearch, beam: _Beam, sentences: _Sentences) -> tuple[Tensor, Tensor]:
    """Ids and scores of a search that sentences leave when they are done.

    They do so together, whenever no more than half of them are open: a batch's last sentences take
    a multiple of the steps of its first. The loop's tensors change their shapes.
    """

    def are_left(beam, sentences, ids, scores):
        return shape_of(sentences.places)[0] > 0

    def take_round(beam, sentences, ids, scores):
        beam, sentences = _Beam(*beam), _Sentences(*sentences)
        beam = search.run(beam, sentences, fewest=shape_of(sentences.places)[0] // 2)
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
        x if WEIGHTS in path or not len(x.shape) else ops.take(x, places, axis=0)
        for path, x in tree.flatten_with_path(state)
    ]
    return tree.pack_sequence_as(state, leaves)


def _follow(cache, parents):
    """The cache of hypotheses that extend `parents` `[B, K]`."""
    leaves = [
        x if SHARED in path else own_rows_at(x, parents)
        for path, x in tree.flatten_with_path(cache)
    ]
    return tree.pack_sequence_as(cache, leaves)
