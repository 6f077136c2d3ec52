"""Eq. 3 and 4 for some queries at a time, so that all pairs are never in memory at once.

The axes are those of `tf_relpos.relation_ops`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from tf_relpos.attention import Attention
from tf_relpos.custom_gradients import with_gradient
from tf_relpos.execution import has_gpu, is_named, may_train, runs_eagerly
from tf_relpos.loops import loop, turns, vary_alike
from tf_relpos.relations import Relations, is_shared
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, exact_dtype, shape_of

# Pairs of a sentence, T S, up to which all queries are computed at once in training, if not more
# (`tf_relpos.attention_at_once.has_one_gradient`); in inference, where blocks cost less, a quarter
# of that. Beyond: elements of the weights of one block, [N, B, t, S], in a graph that does not know
# B those of one sentence, and queries of which there may be as many, where an eighth of all is
# less.
WIDEST = 512 * 512
BLOCK = 1 << 20
FEWEST = 64

# On a GPU, which small blocks leave idle: elements of all weights, [N, B, T, S], up to which all
# queries are computed at once in training, and of the weights of one block.
MOST_ON_GPU = 1 << 30
BLOCK_ON_GPU = 1 << 26

_longest: ContextVar[int | None] = ContextVar("longest", default=None)


@contextlib.contextmanager
def lengths_up_to(longest: int | None) -> Iterator[None]:
    """Tells how many positions a sentence has at most whose length a graph does not know.

    A graph for training that is made in this context has one way to attend where it would else have
    two, all queries at once and in blocks, each with its gradient.
    """
    token = _longest.set(longest)
    try:
        yield
    finally:
        _longest.reset(token)


def attend_in_blocks(attention: Attention, with_weights: bool, training: Any) -> tuple[Tensor, ...]:
    """Eq. 3 and 4 for some queries at a time, since queries do not depend on each other.

    Memory is that of one block's pairs: the backward pass computes the weights again, as does
    FlashAttention (Dao et al. 2022), whose gradient this is, with the terms of the relations.

    Args:
        attention: of all queries.
        with_weights: whether to return the weights, before dropout, as well.
        training: as in the call of a layer; see `may_train`. In training sentences of lengths that
            a graph does not know may turn out to be short when it runs: all queries are then
            computed at once, and the backward pass finds their weights.

    Returns:
        A tuple of the attended values `[N, B, T, H]` and, if asked for, the weights `[N, B, T, S]`.
    """
    inputs, unpacked = attention.packed()
    value_dim = attention.value.shape[-1]
    may_be_whole = may_train(training) and not _are_known(attention.query, attention.key)

    def either(whole: Callable[[], Any], in_blocks: Callable[[], Any]) -> Any:
        if not may_be_whole:
            return in_blocks()
        return ops.cond(_are_few(attention.query, attention.key, WIDEST), whole, in_blocks)

    def attend(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        def whole() -> tuple[list[Tensor], Tensor]:
            attended, weights, exact = unpacked(inputs).results()
            return [attended, weights][: 1 + with_weights], exact

        def in_blocks() -> tuple[list[Tensor], Tensor]:
            results = _results(unpacked(inputs), with_weights)
            return results, ops.zeros((0, 0, 0, 0), exact_dtype(attention.query))

        results, exact = either(whole, in_blocks)
        return _join(results), exact

    def gradient(inputs: Sequence[Tensor], exact: Tensor, by_joined: Tensor) -> list[Tensor]:
        by_results = _part(by_joined, value_dim, with_weights)

        def whole() -> tuple[list[Tensor], list[Tensor]]:
            own = unpacked(inputs)
            # Without its shape XLA takes it for one of the two that the branches before made.
            weights = ops.reshape(exact, (*shape_of(own.query)[:3], shape_of(own.key)[2]))
            return own.gradients(weights, *by_results)

        def in_blocks() -> tuple[list[Tensor], list[Tensor]]:
            return _gradients(unpacked(inputs), *by_results)

        by_query, by_others = either(whole, in_blocks)
        return [*by_query, *by_others]

    return _part(with_gradient(attend, gradient, *inputs), value_dim, with_weights)


def are_in_blocks(query: Tensor, key: Tensor, training: Any, implementation: str = "auto") -> bool:
    """Whether queries are to go in blocks, or may have to.

    Blocks keep memory at about plain attention's or below, and cost time, most in the backward
    pass, which computes the weights again. So they are made where T and S are known to be long,
    and where a graph does not know them: always in inference, and in training if they turn out to
    be, unless `lengths_up_to` rules that out. In training the paper's form, which has a gradient of
    its own, takes all queries at once wherever it is asked for, and so do lengths that have a name
    alone, which cannot be compared. On a GPU all queries are computed at once up to `MOST_ON_GPU`
    weights, where it is known how many there will be, at up to 1.7 times plain attention's memory.

    Args:
        query: `[N, B, T, H]`.
        key: `[N, B, S, H]`.
        training: as in the call of a layer; see `may_train`.
        implementation: as for `relation_scores`.
    """
    trains = may_train(training)
    N, B, T, _ = query.shape
    S = key.shape[2]
    if T == 1 or is_named(T) or is_named(S):
        return False
    if trains and implementation == "transpose_reshape":
        return False
    if not _are_known(query, key):
        longest = _longest.get()
        return not trains or longest is None or longest**2 > WIDEST
    part = 1 if trains else 4
    if has_gpu() and B is not None:
        return math.prod((N, B, T, S)) > MOST_ON_GPU // part
    return not _are_few(query, key, WIDEST // part)


def _join(results: Sequence[Tensor]) -> Tensor:
    """The attended values `[N, B, T, H]` alone, or with the weights, `[N, B, T, H + S]`: PyTorch's
    custom gradients in Keras know functions of one result."""
    return results[0] if len(results) == 1 else ops.concatenate(results, axis=-1)


def _part(joined: Tensor, size: int, with_weights: bool) -> tuple[Tensor, ...]:
    """What `_join` has joined, or their gradients; `size` is H."""
    if not with_weights:
        return (joined,)
    return joined[..., :size], joined[..., size:]


def _part_of(attention: Attention, block: _Queries) -> Attention:
    """The attention of a block of queries."""
    return attention._replace(
        query=block.of(attention.query),
        relations=block.relations(attention.relations),
        mask=block.of(attention.mask),
        dropout_mask=block.of(attention.dropout_mask),
    )


def _results(attention: Attention, with_weights: bool) -> list[Tensor]:
    """The attended values and, if asked for, the weights."""
    N, B, T, _ = shape_of(attention.query)
    columns = [attention.value.shape[-1], shape_of(attention.key)[2]][: 1 + with_weights]

    def of_block(block: _Queries) -> tuple[list[Tensor], list[Tensor]]:
        return _part_of(attention, block).results()[: 1 + with_weights], []

    results, _ = _in_blocks(of_block, attention, [(N, B, T, n) for n in columns], ())
    return results


def _gradients(
    attention: Attention, by_attended: Tensor, by_returned: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """As `Attention.gradients`, of weights that are computed again."""

    def of_block(block: _Queries) -> tuple[list[Tensor], list[Tensor]]:
        own = _part_of(attention, block)
        by_own, by_weights = (block.counted(block.of(x)) for x in (by_attended, by_returned))
        return own.gradients(own.exact_weights(), by_own, by_weights)

    parts = [shape_of(attention.query)]
    others = (attention.key, attention.value, *attention.tables.values())
    return _in_blocks(of_block, attention, parts, others)


class _Queries:
    """Those of a block, one after the other: `size` of them from `start` on."""

    def __init__(self, start: int | Tensor, size: int | Tensor, stop: int | Tensor | None = None):
        self.start, self.size, self.stop = start, size, stop

    def of(self, x: Tensor | None, axis: int = 2) -> Tensor | None:
        """The block's part of what has queries on `axis`, or one entry for all of them."""
        if x is None or x.shape[axis] == 1:
            return x
        shape = shape_of(x)
        starts = [self.start if i == axis else 0 for i in range(len(shape))]
        sizes = [self.size if i == axis else n for i, n in enumerate(shape)]
        return ops.slice(x, starts, sizes)

    def relations(self, relations: Relations) -> Relations:
        if relations is None:
            return None
        if not isinstance(relations, RelativePositions):
            return self.of(relations, 0 if is_shared(relations) else 1)
        offset = relations.query_offset + self.start
        return relations._replace(query_length=self.size, query_offset=offset)

    def counted(self, x: Tensor | None) -> Tensor | None:
        """`x` `[N, B, T, ...]` with zeros from the query `stop` on, which another block counts."""
        if x is None or self.stop is None:
            return x
        is_own = ops.arange(self.size, dtype="int32") + self.start < self.stop
        return x * ops.cast(ops.expand_dims(is_own, -1), x.dtype)


def _in_blocks(
    function: Callable[[_Queries], tuple[list[Tensor], list[Tensor]]],
    attention: Attention,
    parts: Sequence[tuple[Any, ...]],
    totals: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Calls `function` for blocks of queries, one after the other.

    Args:
        function: from a block to its parts of some results, and its terms of some sums.
        attention: whose queries these are; they tell the dtype of the results, and whether values
            are known.
        parts: the shape of each result that has parts, `[N, B, T, ...]`.
        totals: tensors like the sums.

    Returns:
        The results, and the sums, which are added up in single precision at least.
    """
    query = attention.query
    dtype, exact = keras.backend.standardize_dtype(query.dtype), exact_dtype(query)
    length, size = shape_of(query)[2], _block_size(query, attention.key)
    stride = max(size, 1) if isinstance(size, int) else ops.maximum(size, 1)  # T may be 0
    # Not -(-length // stride): ONNX rounds quotients toward 0.
    count = turns((length + stride - 1) // stride, shape_of(query)[1], shape_of(attention.key)[2])
    if runs_eagerly(query):
        # Eagerly Python's own loop: the other one would be compiled at every call.
        pieces, sums = [], [ops.zeros(shape_of(total), exact) for total in totals]
        for start in range(0, length, stride):
            own, terms = function(_Queries(start, min(size, length - start)))
            pieces.append(own)
            sums = [s + ops.cast(term, exact) for s, term in zip(sums, terms, strict=True)]
        wholes = [ops.concatenate(own, axis=2) for own in zip(*pieces, strict=True)]
        return wholes, [ops.cast(total, dtype) for total in sums]

    def step(index: Tensor, wholes: Any, sums: Any) -> tuple[Tensor, Any, Any]:
        # The first block ends where the second begins, so that all are equally long.
        stop = length - (count - 1 - index) * size
        block = _Queries(ops.maximum(stop - size, 0), size, stop)
        own, terms = function(block)
        rows = ops.expand_dims(ops.arange(size, dtype="int32") + block.start, 1)
        wholes = tuple(
            ops.scatter_update(whole, rows, ops.moveaxis(part, 2, 0))
            for whole, part in zip(wholes, own, strict=True)
        )
        sums = tuple(
            total + ops.reshape(ops.cast(term, exact), shape_of(total))
            for total, term in zip(sums, terms, strict=True)
        )
        return index + 1, wholes, sums

    rows_first = [(T, N, B, columns) for N, B, T, columns in parts]
    state: Any = (
        tuple(ops.zeros(shape, dtype) for shape in rows_first),
        tuple(ops.zeros(shape_of(total), exact) for total in totals),
    )
    if ops.is_tensor(count) or count:
        state = vary_alike(state, query, attention.key, attention.value)
        state = loop(count, step, *state)
    wholes, sums = state
    return [ops.moveaxis(x, 0, 2) for x in wholes], [ops.cast(x, dtype) for x in sums]


def _are_known(query: Tensor, key: Tensor) -> bool:
    """Whether a graph knows T and S."""
    return None not in (query.shape[2], key.shape[2])


def _are_few(query: Tensor, key: Tensor, widest: int) -> bool | Tensor:
    return shape_of(query)[2] * shape_of(key)[2] <= widest


def _block_size(query: Tensor, key: Tensor) -> int | Tensor:
    """How many queries make a block: none only if there are none."""
    N, _, T, _ = shape_of(query)
    each = N * (query.shape[1] or 1) * shape_of(key)[2]
    block = BLOCK_ON_GPU if has_gpu() else BLOCK
    if isinstance(each, int) and isinstance(T, int):
        return min(max(block // max(each, 1), 1), max(T // 8, FEWEST), T)
    most = ops.maximum(block // ops.maximum(each, 1), 1)
    return ops.minimum(ops.minimum(most, ops.maximum(T // 8, FEWEST)), T)
