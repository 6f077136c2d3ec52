"""Eq. 3 and 4 for some queries at a time, so that all pairs are never in memory at once.

The axes and the `relations` are those of `tf_relpos.relation_ops`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_relpos.bucketed import score_gradients, value_gradient
from tf_relpos.relation_ops import relation_scores
from tf_relpos.relations import Relations, is_shared, tensors_of
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import (
    Tensor,
    exact_dtype,
    has_gpu,
    has_value,
    heads_first,
    is_named,
    loop,
    turns,
    vary_alike,
    with_gradient,
)

# Pairs of a sentence, T S, up to which all queries are computed at once in training; in inference,
# where blocks cost less, a quarter of that. Beyond: elements of the weights of one block,
# [B, N, t, S], and queries of which there may be as many, where an eighth of all is less.
WIDEST = 512 * 512
BLOCK = 1 << 20
FEWEST = 64

# On a GPU, which small blocks leave idle: elements of all weights, [B, N, T, S], up to which all
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


class Attention(NamedTuple):
    """Eq. 3 and 4 of some queries, and their gradients.

    Attributes:
        weigh: the softmax of Eq. 4, `(query, key, tables, relations, mask) -> [B, N, T, S]`.
        combine: Eq. 3, `(weights, value, tables, relations) -> [B, T, N, H]`.
        query: `[B, T, N, H]`, scaled.
        key, value: `[B, N, S, H]`.
        tables: what else there is to learn: the label vectors of "key" and "value", where they are
            in use, and before them what the scores need beside.
        relations: see the module; None without label vectors.
        mask: which pairs are seen, `[B or 1, N or 1, T or 1, S or 1]`.
        kept: what dropout multiplies the weights by, `[B, N, T, S]`.
        score_gradients: of scores other than Eq. 5's: `(by_scores, query, key, tables, relations)`
            to the gradients by query, key and all tables but that of "value".
    """

    weigh: Callable[..., Tensor]
    combine: Callable[..., Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    tables: dict[str, Tensor]
    relations: Relations
    mask: Tensor | None = None
    kept: Tensor | None = None
    score_gradients: Callable[..., list[Tensor]] | None = None

    def packed(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Attention]]:
        """All its tensors, and how to make the same of others: what has a gradient of its own, and
        each of its branches, must be given all tensors that it uses."""
        of_relations, from_tensors = tensors_of(self.relations)
        optional = {"mask": self.mask, "kept": self.kept}
        others = {**self.tables, **{name: x for name, x in optional.items() if x is not None}}

        def unpacked(tensors: Sequence[Tensor]) -> Attention:
            query, key, value, *rest = tensors
            own = dict(zip(others, rest, strict=False))
            relations = from_tensors(*rest[len(own) :])
            if isinstance(relations, RelativePositions):
                # Seen from within a branch, as XLA takes lengths from without for unknown.
                T, S = ops.shape(query)[1], ops.shape(key)[2]
                relations = relations._replace(query_length=T, key_length=S)
            return self._replace(
                query=query,
                key=key,
                value=value,
                tables={name: own[name] for name in self.tables},
                relations=relations,
                mask=own.get("mask"),
                kept=own.get("kept"),
            )

        return [self.query, self.key, self.value, *others.values(), *of_relations], unpacked

    def of(self, block: _Queries) -> Attention:
        """The part of a block of queries."""
        return self._replace(
            query=block.of(self.query, 1),
            relations=block.relations(self.relations),
            mask=block.of(self.mask, 2),
            kept=block.of(self.kept, 2),
        )

    def exact_weights(self) -> Tensor:
        """`[B, N, T, S]`, in single precision at least."""
        return self.weigh(self.query, self.key, self.tables, self.relations, self.mask)

    def results(self) -> list[Tensor]:
        """The attended values, the weights, and these as exact as they were."""
        exact = self.exact_weights()
        weights = ops.cast(exact, self.query.dtype)
        used = dropped(weights, self.kept)
        return [self.combine(used, self.value, self.tables, self.relations), weights, exact]

    def gradients(
        self, exact: Tensor, by_attended: Tensor, by_returned: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients by the query; and by key, value and tables, from those by the results."""
        used = dropped(ops.cast(exact, self.query.dtype), self.kept)
        by_heads = heads_first(by_attended)
        by_weights = ops.matmul(by_heads, ops.swapaxes(self.value, -1, -2))
        if "value" in self.tables:
            by_weights += relation_scores(by_attended, self.relations, self.tables["value"])
        by_weights = dropped(by_weights, self.kept)
        if by_returned is not None:
            by_weights += by_returned
        by_scores = softmax_gradient(exact, by_weights, self.query.dtype)
        of_scores = self.score_gradients or _product_gradients
        by_query, by_key, *by_tables = of_scores(
            by_scores, self.query, self.key, self.tables, self.relations
        )
        by_value = ops.matmul(ops.swapaxes(used, -1, -2), by_heads)
        if "value" in self.tables:
            table = self.tables["value"]
            by_tables.append(value_gradient(used, by_attended, self.relations, table))
        return [by_query], [by_key, by_value, *by_tables]

    def results_in_blocks(self, with_weights: bool) -> list[Tensor]:
        """The attended values and, if asked for, the weights."""
        B, T, N, _ = ops.shape(self.query)
        S, H = ops.shape(self.key)[2], self.value.shape[-1]

        def of_block(block: _Queries) -> tuple[list[Tensor], list[Tensor]]:
            return self.of(block).results()[: 1 + with_weights], []

        parts = [((B, T, N, H), 1), ((B, N, T, S), 2)][: 1 + with_weights]
        results, _ = _in_blocks(of_block, self, parts, ())
        return results

    def gradients_in_blocks(
        self, by_attended: Tensor, by_returned: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """As `gradients`, of weights that are computed again."""

        def of_block(block: _Queries) -> tuple[list[Tensor], list[Tensor]]:
            own = self.of(block)
            by_own = block.counted(block.of(by_attended, 1), 1)
            by_weights = block.of(by_returned, 2)
            if by_weights is not None:
                by_weights = block.counted(by_weights, 2)
            return own.gradients(own.exact_weights(), by_own, by_weights)

        parts = [(ops.shape(self.query), 1)]
        return _in_blocks(of_block, self, parts, (self.key, self.value, *self.tables.values()))


def attend_in_blocks(
    attention: Attention, with_weights: bool, may_be_whole: bool
) -> tuple[Tensor, ...]:
    """Eq. 3 and 4 for some queries at a time, since queries do not depend on each other.

    Memory is that of one block's pairs: the backward pass computes the weights again, as does
    FlashAttention (Dao et al. 2022), whose gradient this is, with the terms of the relations.

    Args:
        attention: of all queries.
        with_weights: whether to return the weights, before dropout, as well.
        may_be_whole: whether it may turn out when a graph runs that the sentences are short: all
            queries are then computed at once, and the backward pass finds their weights.

    Returns:
        A tuple of the attended values `[B, T, N, H]` and, if asked for, the weights `[B, N, T, S]`.
    """
    inputs, unpacked = attention.packed()
    value_dim = attention.value.shape[-1]

    def either(whole: Callable[[], Any], in_blocks: Callable[[], Any]) -> Any:
        if not may_be_whole:
            return in_blocks()
        return ops.cond(_are_few(attention.query, attention.key, WIDEST), whole, in_blocks)

    def attend(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        def whole() -> tuple[list[Tensor], Tensor]:
            attended, weights, exact = unpacked(inputs).results()
            return [attended, weights][: 1 + with_weights], exact

        def in_blocks() -> tuple[list[Tensor], Tensor]:
            results = unpacked(inputs).results_in_blocks(with_weights)
            return results, ops.zeros((0, 0, 0, 0), exact_dtype(attention.query))

        results, exact = either(whole, in_blocks)
        return _join(results), exact

    def gradient(inputs: Sequence[Tensor], exact: Tensor, by_joined: Tensor) -> list[Tensor]:
        by_results = _part(by_joined, value_dim, with_weights)

        def whole() -> tuple[list[Tensor], list[Tensor]]:
            own = unpacked(inputs)
            B, T, N, _ = ops.shape(own.query)
            # Without its shape XLA takes it for one of the two that the branches before made.
            weights = ops.reshape(exact, (B, N, T, ops.shape(own.key)[2]))
            return own.gradients(weights, *by_results)

        def in_blocks() -> tuple[list[Tensor], list[Tensor]]:
            return unpacked(inputs).gradients_in_blocks(*by_results)

        by_query, by_others = either(whole, in_blocks)
        return [*by_query, *by_others]

    return _part(with_gradient(attend, gradient, *inputs), value_dim, with_weights)


def are_in_blocks(
    query: Tensor, key: Tensor, training: Any, implementation: str = "auto"
) -> bool | None:
    """Whether queries are to go in blocks; None where that turns out when a graph runs.

    Blocks keep memory at about plain attention's or below, and cost time, most in the backward
    pass, which computes the weights again. So they are made where T and S are known to be long,
    and where a graph does not know them: always in inference, and in training if they turn out to
    be, unless `lengths_up_to` rules that out. In training the paper's form, which has a gradient of
    its own, takes all queries at once wherever it is asked for, and so do lengths that have a name
    alone, which cannot be compared. On a GPU all queries are computed at once up to `MOST_ON_GPU`
    weights, where it is known how many there will be, at up to 1.7 times plain attention's memory.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, N, S, H]`.
        training: as in the call of a layer; a tensor may turn out to be True.
        implementation: as for `relation_scores`.
    """
    trains = ops.is_tensor(training) or training
    T, S = query.shape[1], key.shape[2]
    if T == 1 or is_named(T) or is_named(S):
        return False
    if trains and implementation == "transpose_reshape":
        return False
    if None in (T, S):
        if not trains:
            return True
        longest = _longest.get()
        return False if longest is not None and longest**2 <= WIDEST else None
    part = 1 if trains else 4
    if has_gpu() and query.shape[0] is not None:
        return query.shape[0] * key.shape[1] * T * S > MOST_ON_GPU // part
    return not _are_few(query, key, WIDEST // part)


def _join(results: Sequence[Tensor]) -> Tensor:
    """The attended values `[B, T, N, H]` alone, or with the weights, `[B, N, T, H + S]`: PyTorch's
    custom gradients in Keras know functions of one result."""
    if len(results) == 1:
        return results[0]
    attended, weights = results
    return ops.concatenate([ops.transpose(attended, (0, 2, 1, 3)), weights], axis=-1)


def _part(joined: Tensor, size: int, with_weights: bool) -> tuple[Tensor, ...]:
    """What `_join` has joined, or their gradients; `size` is H."""
    if not with_weights:
        return (joined,)
    return ops.transpose(joined[..., :size], (0, 2, 1, 3)), joined[..., size:]


def dropped(weights: Tensor, kept: Tensor | None) -> Tensor:
    """Weights after dropout: times what it `kept`, if there is any."""
    return weights if kept is None else weights * kept


def softmax_gradient(exact: Tensor, by_weights: Tensor, dtype: Any) -> Tensor:
    """The gradient by the scores of Eq. 4, from that by the weights, as precise as these are."""
    by_weights = ops.cast(by_weights, exact.dtype)
    mean = ops.sum(by_weights * exact, axis=-1, keepdims=True)
    return ops.cast(exact * (by_weights - mean), dtype)


def _product_gradients(
    by_scores: Tensor, query: Tensor, key: Tensor, tables: dict[str, Tensor], relations: Relations
) -> list[Tensor]:
    """Of Eq. 5, by query, key and, if it is in use, the table of keys."""
    by_query = heads_first(ops.matmul(by_scores, key))
    by_key = ops.matmul(ops.swapaxes(by_scores, -1, -2), heads_first(query))
    if "key" not in tables:
        return [by_query, by_key]
    by_position, by_table = score_gradients(by_scores, query, relations, tables["key"])
    return [by_query + by_position, by_key, by_table]


class _Queries:
    """Those of a block, one after the other: `size` of them from `start` on."""

    def __init__(self, start: int | Tensor, size: int | Tensor, stop: int | Tensor | None = None):
        self.start, self.size, self.stop = start, size, stop

    def of(self, x: Tensor | None, axis: int) -> Tensor | None:
        """The block's part of what has queries on `axis`, or one entry for all of them."""
        if x is None or x.shape[axis] == 1:
            return x
        shape = ops.shape(x)
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

    def counted(self, x: Tensor, axis: int) -> Tensor:
        """`x` with zeros from the query `stop` on, which another block counts."""
        if self.stop is None:
            return x
        is_own = ops.arange(self.size, dtype="int32") + self.start < self.stop
        shape = [-1 if i == axis else 1 for i in range(len(x.shape))]
        return x * ops.cast(ops.reshape(is_own, shape), x.dtype)


def _in_blocks(
    function: Callable[[_Queries], tuple[list[Tensor], list[Tensor]]],
    attention: Attention,
    parts: Sequence[tuple[tuple[Any, ...], int]],
    totals: Sequence[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Calls `function` for blocks of queries, one after the other.

    Args:
        function: from a block to its parts of some results, and its terms of some sums.
        attention: whose queries these are; they tell the dtype of the results, and whether values
            are known.
        parts: the shape of each result that has parts, and which of its axes is that of queries.
        totals: tensors like the sums.

    Returns:
        The results, and the sums, which are added up in single precision at least.
    """
    query = attention.query
    dtype, exact = keras.backend.standardize_dtype(query.dtype), exact_dtype(query)
    length, size = ops.shape(query)[1], _block_size(query, attention.key)
    count = turns((length + size - 1) // size, ops.shape(query)[0], ops.shape(attention.key)[2])
    if has_value(query):
        # Eagerly Python's own loop: the other one would be compiled at every call.
        pieces, sums = [], [ops.zeros(ops.shape(total), exact) for total in totals]
        for start in range(0, length, size):
            own, terms = function(_Queries(start, min(size, length - start)))
            pieces.append(own)
            sums = [s + ops.cast(term, exact) for s, term in zip(sums, terms, strict=True)]
        columns = zip(zip(*pieces, strict=True), parts, strict=True)
        wholes = [ops.concatenate(own, axis) for own, (_, axis) in columns]
        return wholes, [ops.cast(total, dtype) for total in sums]

    def step(index: Tensor, wholes: Any, sums: Any) -> tuple[Tensor, Any, Any]:
        # The first block ends where the second begins, so that all are equally long.
        stop = length - (count - 1 - index) * size
        block = _Queries(ops.maximum(stop - size, 0), size, stop)
        own, terms = function(block)
        rows = ops.expand_dims(ops.arange(size, dtype="int32") + block.start, 1)
        wholes = tuple(
            ops.scatter_update(whole, rows, ops.moveaxis(part, axis, 0))
            for whole, part, (_, axis) in zip(wholes, own, parts, strict=True)
        )
        sums = tuple(
            total + ops.reshape(ops.cast(term, exact), ops.shape(total))
            for total, term in zip(sums, terms, strict=True)
        )
        return index + 1, wholes, sums

    rows_first = [(shape[axis], *shape[:axis], *shape[axis + 1 :]) for shape, axis in parts]
    state: Any = (
        tuple(ops.zeros(shape, dtype) for shape in rows_first),
        tuple(ops.zeros(ops.shape(total), exact) for total in totals),
    )
    if ops.is_tensor(count) or count:
        state = vary_alike(state, query, attention.key, attention.value)
        state = loop(count, step, *state)
    wholes, sums = state
    wholes = [ops.moveaxis(x, 0, axis) for x, (_, axis) in zip(wholes, parts, strict=True)]
    return wholes, [ops.cast(x, dtype) for x in sums]


def _are_few(query: Tensor, key: Tensor, widest: int) -> bool | Tensor:
    return ops.shape(query)[1] * ops.shape(key)[2] <= widest


def _block_size(query: Tensor, key: Tensor) -> int | Tensor:
    """How many queries make a block."""
    _, T, N, _ = ops.shape(query)
    each = (query.shape[0] or 1) * N * ops.shape(key)[2]
    block = BLOCK_ON_GPU if has_gpu() else BLOCK
    if isinstance(each, int) and isinstance(T, int):
        return max(min(block // max(each, 1), max(T // 8, FEWEST), T), 1)
    size = ops.minimum(block // ops.maximum(each, 1), ops.maximum(T // 8, FEWEST))
    return ops.maximum(ops.minimum(size, T), 1)  # T may be 0, in an empty batch
