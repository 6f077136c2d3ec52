"""Eq. 3 and 4 of all queries with one gradient for both, in TensorFlow's graphs for training on
CPUs.

Without it, what is made of operations has numbers of all pairs more often in memory, and passes
over them more often.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from tf_relpos.attention import Attention, gradient_means
from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import is_for_xla_on_cpu, may_train, picks_in_place, runs_eagerly
from tf_relpos.fused_passes import are_fused, fused_passes
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, exact_dtype, heads_first, heads_last

# Elements of the weights of all pairs, [N, B, T, S], up to which they are kept for the gradient, in
# a graph that does not know B those of one sentence.
MOST_KEPT = 1 << 28

# Pairs of a sentence, T S, from which one gradient pays in what XLA compiles; and up to which it is
# taken in place of blocks of queries: beyond, Keras's layer has much less in memory.
FEWEST_IN_XLA = 128 * 128
MOST_AT_ONCE = 2048 * 2048

# Elements of the weights of all pairs from which passes are worth being compiled for one shape.
FEWEST_FUSED = 1 << 20


def has_one_gradient(attention: Attention, training: Any, in_blocks: bool) -> bool:
    """Whether to `attend_at_once`: in TensorFlow's graphs for training on CPUs, by bucketing. Eager
    weights would not tell what they were made from, for a second derivative.

    In graphs in half precision, or without label vectors, where passes are fused; where queries
    would go in blocks else, if these are of sizes that are known and within bounds, too. In what
    XLA compiles with positions, of such sizes.

    Args:
        attention: of all queries, by the product, without dropout.
        training: whether a gradient is to be expected.
        in_blocks: whether queries would go in blocks else.
    """
    query, key = attention.query, attention.key
    if not may_train(training) or runs_eagerly(query):
        return False
    if not all(map(attention.is_bucketed, attention.tables.values())):
        return False
    pairs, elements = _sizes(query, key)
    if is_for_xla_on_cpu():
        of_positions = isinstance(attention.relations, RelativePositions)
        if not (of_positions and FEWEST_IN_XLA <= pairs <= MOST_AT_ONCE):
            return False
    elif picks_in_place():
        return False
    elif not _is_fused(query, key):
        is_exact = query.dtype == exact_dtype(query)
        return is_exact and bool(attention.tables) and not in_blocks
    return not in_blocks or (pairs <= MOST_AT_ONCE and elements <= MOST_KEPT)


def _sizes(query: Tensor, key: Tensor) -> tuple[float, float]:
    """T S and N B T S: infinite, if a graph does not know them."""
    N, B, T, _ = query.shape
    S = key.shape[2]
    if N is None or B is None or T is None or S is None:
        return math.inf, math.inf
    return T * S, N * B * T * S


def _is_fused(query: Tensor, key: Tensor) -> bool:
    """Whether XLA compiles passes over all pairs in a graph: within `fused_passes`, and where the
    graph knows sizes, so that it compiles once, and they are large enough for that to pay."""
    if are_fused():
        return True
    is_large = FEWEST_FUSED <= _sizes(query, key)[1] < math.inf
    return is_large and keras.backend.backend() == "tensorflow" and not picks_in_place()


def attend_at_once(attention: Attention) -> Tensor:
    """Eq. 3 and 4 of all queries, with one gradient for both: `[B, T, N, H]`.

    Of the weights' gradient the softmax's subtracts a mean over the pairs of a query, which is
    found without a look at them, from the result (see `gradient_means`), and goes into the numbers
    by label, of which every pair gets one.
    """
    inputs, unpacked = attention.packed()
    query = attention.query
    is_exact = query.dtype == exact_dtype(query)
    is_fused = _is_fused(query, attention.key)

    def attend(*inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        with fused_passes(is_fused):
            attended, weights, exact = unpacked(inputs).results()
        attended = heads_last(attended)  # as what comes next keeps it, too
        return attended, (weights, exact, attended)

    def gradient(inputs: Any, saved: Any, by_attended: Tensor) -> list[Tensor]:
        weights, exact, attended = saved
        # Half precision, to which the result is rounded, would lose some.
        means = heads_first(gradient_means(attended, by_attended)) if is_exact else None
        with fused_passes(is_fused):
            by_query, by_others = unpacked(inputs).gradients(
                exact, heads_first(by_attended), means=means, weights=weights
            )
        return [*by_query, *by_others]

    return with_gradient(attend, gradient, *inputs)
