"""The two terms that relations add to attention, as pure functions (Shaw et al. 2018, section 3.3).

    relation_scores   x_i W^Q (a^K_ij)^T        the second term of Eq. 5
    relation_values   sum_j alpha_ij a^V_ij     the second term of Eq. 3

Axes: B batch, T query positions, S key positions, N heads, H head size, R labels, L labels an edge.

`relations` are `RelativePositions`, or integer labels: `[T, S]` for every sentence alike,
`[B, T, S]`, or `[B, T, S, L]` with up to L labels on an edge, whose vectors add. A label below 0 is
no edge and adds nothing. A `table` of label vectors is `[R, H]`, shared by the heads, or
`[N, R, H]`.

Both implementations are exact:

    transpose_reshape   the paper's: gather a_ij as [T, S, H], then T parallel products of
                        [B*N, H] with [H, S]. Takes O(T S H) memory beyond plain attention.
    bucketed            multiplies by the R vectors of the table, not by the T S vectors of the
                        pairs, and picks (or sums) by label. Takes O(B N T (R + S)) memory.

Like the paper's products, bucketing goes through the queries first, with what shares a query's
labels side by side: `[T, R, B*N]` by label and `[T, S, B*N]` by pair, so that a label picks (or
adds to) a whole row of B*N numbers. Where each sentence has labels of its own, the queries are B*T
and the rows N long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_relpos.config import IMPLEMENTATIONS, check_choice
from tf_relpos.relations import RelativePositions, Tensor, known_value

# Pairs of a sentence, T S, up to which all queries are computed at once in training; in inference,
# where blocks cost less, a quarter of that. Beyond: elements of the weights of one block,
# [B, N, t, S], and queries of which there may be as many, where an eighth of all is less.
WIDEST = 512 * 512
BLOCK = 1 << 20
FEWEST = 64

Relations = Tensor | RelativePositions


def relation_scores(
    query: Tensor, relations: Relations, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`x_i W^Q (a^K_ij)^T`, the second term of Eq. 5, unscaled.

    Args:
        query: `[B, T, N, H]`.
        relations: see the module.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, N, T, S]`.
    """
    if choose_implementation(implementation, relations, table) == "bucketed":
        relations, table = _within_reach(relations, table)
        return pick_by_label(label_scores(query, relations, table), relations)
    a = _vectors_of_pairs(relations, table, query.dtype)
    if not _is_shared(relations):
        return ops.einsum(f"btnh,{_vector_axes(table, a)}->bnts", query, a)
    B, T, N, _ = ops.shape(query)
    S = ops.shape(a)[-2]
    scores = ops.matmul(_by_position(query, "btnh", table), ops.swapaxes(a, -1, -2))
    if len(table.shape) == 2:
        return _transposed(ops.reshape(scores, (T, B, N, S)), "tbns", "bnts")
    return _transposed(scores, "ntbs", "bnts")


def relation_values(
    weights: Tensor, relations: Relations, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`sum_j alpha_ij a^V_ij`, the second term of Eq. 3.

    Args:
        weights: attention weights alpha, `[B, N, T, S]`.
        relations: see the module.
        table: the value vectors `w^V` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, T, N, H]`.
    """
    if choose_implementation(implementation, relations, table) == "bucketed":
        relations, table = _within_reach(relations, table)
        per_label = sum_by_label(weights, relations, ops.shape(table)[-2])
        return label_values(per_label, relations, table)
    a = _vectors_of_pairs(relations, table, weights.dtype)
    if not _is_shared(relations):
        return ops.einsum(f"bnts,{_vector_axes(table, a)}->btnh", weights, a)
    B, N, T, _ = ops.shape(weights)
    values = ops.matmul(_by_position(weights, "bnts", table), a)
    if len(table.shape) == 2:
        return _transposed(ops.reshape(values, (T, B, N, a.shape[-1])), "tbnh", "btnh")
    return _transposed(values, "ntbh", "btnh")


def choose_implementation(implementation: str, relations: Relations, table: Tensor) -> str:
    """Resolves "auto": bucketing, save for one query, which the paper's form needs one product for,
    and where a graph knows that sentences are short for the table.

    `pipelines.benchmark.attention` measured it on CPU cores (results beside it), with R = 17, 33
    and 129: where all sentences have the labels `[T, S]`, bucketing is the faster one from about
    S = 3 R / 2 on, or S = R if the table has heads.

    Raises:
        ValueError: `implementation` is none of `IMPLEMENTATIONS`.
    """
    if check_choice("implementation", implementation, IMPLEMENTATIONS) != "auto":
        return implementation
    *heads, num_labels, _ = table.shape
    T, S = None, None
    if isinstance(relations, RelativePositions):
        T, S = relations.query_length, relations.key_length
    elif len(relations.shape) == 2:
        T, S = relations.shape
    is_one = isinstance(T, int) and T == 1
    longest = num_labels if heads else 3 * num_labels // 2
    is_short = isinstance(S, int) and longest >= S
    return "transpose_reshape" if is_one or is_short else "bucketed"


def attend_in_blocks(
    weigh: Callable[..., Tensor],
    combine: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tables: dict[str, Tensor],
    relations: Relations,
    mask: Tensor | None = None,
    kept: Tensor | None = None,
    with_weights: bool = False,
    may_be_whole: bool = False,
    score_gradients: Callable[..., list[Tensor]] | None = None,
) -> tuple[Tensor, ...]:
    """Eq. 3 and 4 for some queries at a time, since queries do not depend on each other.

    Memory is that of one block's pairs: the backward pass computes the weights again, as does
    FlashAttention (Dao et al. 2022), whose gradient this is, with the terms of the relations.

    Args:
        weigh: the softmax of Eq. 4, `(query, key, tables, relations, mask) -> [B, N, T, S]`.
        combine: Eq. 3, `(weights, value, tables, relations) -> [B, T, N, H]`.
        query: `[B, T, N, H]`, scaled.
        key, value: `[B, N, S, H]`.
        tables: what else there is to learn: the label vectors of "key" and "value", where they are
            in use, and before them what the scores need beside.
        relations: see the module; None without label vectors.
        mask: which pairs are seen, `[B or 1, N or 1, T or 1, S or 1]`.
        kept: what dropout multiplies the weights by, `[B, N, T, S]`.
        with_weights: whether to return the weights, before dropout, as well.
        may_be_whole: whether it may turn out when a graph runs that the sentences are short: all
            queries are then computed at once, and the backward pass finds their weights.
        score_gradients: of scores other than Eq. 5's: `(by_scores, query, key, tables, relations)`
            to the gradients by query, key and all tables but that of "value".

    Returns:
        A tuple of the attended values `[B, T, N, H]` and, if asked for, the weights `[B, N, T, S]`.
    """
    of_relations, from_tensors = tensors_of(relations)
    optional = {"mask": mask, "kept": kept}
    optional = {name: x for name, x in optional.items() if x is not None}

    def attention_of(inputs: Sequence[Tensor]) -> _Attention:
        query, key, value, *others = inputs
        own_tables = dict(zip(tables, others, strict=False))
        options = dict(zip(optional, others[len(tables) :], strict=False))
        own_relations = from_tensors(*others[len(tables) + len(optional) :])
        if isinstance(own_relations, RelativePositions):
            # Seen from within a branch, as XLA takes lengths from without for unknown.
            T, S = ops.shape(query)[1], ops.shape(key)[2]
            own_relations = own_relations._replace(query_length=T, key_length=S)
        ends = query, key, value, own_tables, own_relations
        return _Attention(weigh, combine, *ends, **options, score_gradients=score_gradients)

    def either(whole: Callable[[], Any], in_blocks: Callable[[], Any]) -> Any:
        if not may_be_whole:
            return in_blocks()
        return ops.cond(_are_few(query, key, WIDEST), whole, in_blocks)

    def attend(*inputs: Tensor) -> tuple[Any, Tensor]:
        def whole() -> tuple[list[Tensor], Tensor]:
            attended, weights, exact = attention_of(inputs).results()
            return [attended, weights][: 1 + with_weights], exact

        def in_blocks() -> tuple[list[Tensor], Tensor]:
            attention = attention_of(inputs)
            B, T, N, _ = ops.shape(attention.query)
            S, H = ops.shape(attention.key)[2], attention.value.shape[-1]

            def of_block(block: _Block) -> tuple[list[Tensor], list[Tensor]]:
                return attention.of(block).results()[: 1 + with_weights], []

            parts = [((B, T, N, H), 1), ((B, N, T, S), 2)][: 1 + with_weights]
            results, _ = _in_blocks(of_block, attention, parts, ())
            return results, ops.zeros((0, 0, 0, 0), exact_dtype(attention.query))

        results, exact = either(whole, in_blocks)
        return _join(results), exact

    def gradient(inputs: Sequence[Tensor], exact: Tensor, by_joined: Tensor) -> tuple[Any, ...]:
        by_results = _part(by_joined, value.shape[-1], with_weights)

        def whole() -> tuple[list[Tensor], list[Tensor]]:
            attention = attention_of(inputs)
            B, T, N, _ = ops.shape(attention.query)
            # Without its shape XLA takes it for one of the two that the branches before made.
            weights = ops.reshape(exact, (B, N, T, ops.shape(attention.key)[2]))
            return attention.gradients(weights, *by_results)

        def in_blocks() -> tuple[list[Tensor], list[Tensor]]:
            attention = attention_of(inputs)

            def of_block(block: _Block) -> tuple[list[Tensor], list[Tensor]]:
                own = attention.of(block)
                by_own = [
                    block.counted(block.of(x, axis), axis)
                    for x, axis in zip(by_results, (1, 2), strict=False)
                ]
                return own.gradients(own.exact_weights(), *by_own)

            parts = [(ops.shape(attention.query), 1)]
            totals = (attention.key, attention.value, *attention.tables.values())
            return _in_blocks(of_block, attention, parts, totals)

        (by_query,), by_others = either(whole, in_blocks)
        return by_query, *by_others, *(None for _ in inputs[1 + len(by_others) :])

    inputs = (query, key, value, *tables.values(), *optional.values(), *of_relations)
    return _part(with_gradient(attend, gradient, *inputs), value.shape[-1], with_weights)


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


class _Attention(NamedTuple):
    """Eq. 3 and 4 of some queries and their gradients, with the arguments of `attend_in_blocks`."""

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

    def of(self, block: _Block) -> _Attention:
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
        used = self._dropped(weights)
        return [self.combine(used, self.value, self.tables, self.relations), weights, exact]

    def gradients(
        self, exact: Tensor, by_attended: Tensor, by_returned: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients by the query; and by key, value and tables, from those by the results."""
        used = self._dropped(ops.cast(exact, self.query.dtype))
        by_heads = heads_first(by_attended)
        by_weights = ops.matmul(by_heads, ops.swapaxes(self.value, -1, -2))
        if "value" in self.tables:
            by_weights += relation_scores(by_attended, self.relations, self.tables["value"])
        by_weights = self._dropped(by_weights)
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
            sums = sum_by_label(used, self.relations, table.shape[-2])
            by_tables.append(label_gradient(sums, by_attended, self.relations, table))
        return [by_query], [by_key, by_value, *by_tables]

    def _dropped(self, weights: Tensor) -> Tensor:
        return weights if self.kept is None else weights * self.kept


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
    table = tables["key"]
    sums = sum_by_label(by_scores, relations, table.shape[-2])
    by_query += label_values(sums, relations, table)
    return [by_query, by_key, label_gradient(sums, query, relations, table)]


def heads_first(x: Tensor) -> Tensor:
    """`[B, T, N, H]` as `[B, N, T, H]`, and back. Products of what has its heads first take less
    time than einsums, which transpose more."""
    return ops.transpose(x, (0, 2, 1, 3))


class _Block:
    """Some of the queries, one after the other: `size` of them from `start` on."""

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
            return self.of(relations, 0 if _is_shared(relations) else 1)
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
    function: Callable[[_Block], tuple[list[Tensor], list[Tensor]]],
    attention: _Attention,
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
            own, terms = function(_Block(start, min(size, length - start)))
            pieces.append(own)
            sums = [s + ops.cast(term, exact) for s, term in zip(sums, terms, strict=True)]
        columns = zip(zip(*pieces, strict=True), parts, strict=True)
        wholes = [ops.concatenate(own, axis) for own, (_, axis) in columns]
        return wholes, [ops.cast(total, dtype) for total in sums]

    def step(index: Tensor, wholes: Any, sums: Any) -> tuple[Tensor, Any, Any]:
        # The first block ends where the second begins, so that all are equally long.
        stop = length - (count - 1 - index) * size
        block = _Block(ops.maximum(stop - size, 0), size, stop)
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
        0,
        tuple(ops.zeros(shape, dtype) for shape in rows_first),
        tuple(ops.zeros(ops.shape(total), exact) for total in totals),
    )
    if ops.is_tensor(count) or count:
        state = ops.while_loop(
            lambda index, *_: index < count, step, state, maximum_iterations=count
        )
    _, wholes, sums = state
    wholes = [ops.moveaxis(x, 0, axis) for x, (_, axis) in zip(wholes, parts, strict=True)]
    return wholes, [ops.cast(x, dtype) for x in sums]


def turns(count: int | Tensor, *sizes: int | Tensor) -> int | Tensor:
    """The turns of a loop that writes tensors of these sizes, part by part: none where there is
    nothing to write, which `scatter_update` refuses."""
    if 0 in [size for size in sizes if isinstance(size, int)]:
        return 0
    for size in sizes:
        if not isinstance(size, int):
            count = count * ops.minimum(size, 1)
    return count


def are_in_blocks(
    query: Tensor, key: Tensor, training: Any, implementation: str = "auto"
) -> bool | None:
    """Whether queries are to go in blocks; None where that turns out when a graph runs.

    Blocks keep memory at or below plain attention's, and cost time, most of it in the backward
    pass, which computes the weights again. So they are made where T and S are known to be long,
    and where a graph does not know them: always in inference, and in training if they turn out to
    be, unless the paper's form, with its own gradient, is asked for.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, N, S, H]`.
        training: as in the call of a layer; a tensor may turn out to be True.
        implementation: as for `relation_scores`.
    """
    trains = ops.is_tensor(training) or training
    T, S = query.shape[1], key.shape[2]
    if T == 1:
        return False
    if None in (T, S):
        if not trains:
            return True
        return False if implementation == "transpose_reshape" else None
    return not _are_few(query, key, WIDEST if trains else WIDEST // 4)


def _are_few(query: Tensor, key: Tensor, widest: int) -> bool | Tensor:
    return ops.shape(query)[1] * ops.shape(key)[2] <= widest


def _block_size(query: Tensor, key: Tensor) -> int | Tensor:
    """How many queries make a block."""
    _, T, N, _ = ops.shape(query)
    each = (query.shape[0] or 1) * N * ops.shape(key)[2]
    if isinstance(each, int) and isinstance(T, int):
        return max(min(BLOCK // max(each, 1), max(T // 8, FEWEST), T), 1)
    size = ops.minimum(BLOCK // ops.maximum(each, 1), ops.maximum(T // 8, FEWEST))
    return ops.maximum(ops.minimum(size, T), 1)  # T may be 0, in an empty batch


def label_scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """Each query by each vector of the table: `[T, R, B, N]`, or `[B, T, R, N]` for labels of a
    sentence each."""
    order, sizes = _row_axes(table), dict(zip("btnh", ops.shape(query), strict=True))
    scores = ops.matmul(_rows(query, "btnh", table), ops.swapaxes(table, -1, -2))
    scores = ops.reshape(scores, [*(sizes[axis] for axis in order), ops.shape(table)[-2]])
    return _transposed(scores, order + "r", _axes(relations))


def label_values(per_label: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The vectors of the table, weighted as `label_scores` lays them out: `[B, T, N, H]`."""
    axes = _axes(relations)
    order, sizes = _row_axes(table), dict(zip(axes, ops.shape(per_label), strict=True))
    values = ops.matmul(_rows(per_label, axes, table), table)
    values = ops.reshape(values, [*(sizes[axis] for axis in order), table.shape[-1]])
    return _transposed(values, order + "h", "btnh")


def label_gradient(
    per_label: Tensor, vectors: Tensor, relations: Relations, table: Tensor
) -> Tensor:
    """The gradient of both by the table, `vectors` being what it is multiplied with."""
    per_label = _rows(per_label, _axes(relations), table)
    return ops.matmul(ops.swapaxes(per_label, -1, -2), _rows(vectors, "btnh", table))


def _row_axes(table: Tensor) -> str:
    """The axes, all but the last, of what is multiplied by a table in one product, or in one for
    each head. An einsum makes one for each sentence or position, which takes longer."""
    return "btn" if len(table.shape) == 2 else "nbt"


def _rows(x: Tensor, axes: str, table: Tensor) -> Tensor:
    """`x` as a matrix of `B*T*N` rows, or as N of `B*T`, if the table has heads."""
    order = _row_axes(table)
    (last,) = set(axes) - set(order)
    x = _transposed(x, axes, order + last)
    *sizes, columns = ops.shape(x)
    if len(table.shape) == 2:
        return ops.reshape(x, (math.prod(sizes), columns))
    return ops.reshape(x, (sizes[0], sizes[1] * sizes[2], columns))


def _by_position(x: Tensor, axes: str, table: Tensor) -> Tensor:
    """`x`, of `[B, T, N]` and a last axis, as `[T, B*N, last]`, or as `[N, T, B, last]`, if the
    table has heads."""
    if len(table.shape) == 3:
        return _transposed(x, axes, "ntb" + axes[-1])
    x = _transposed(x, axes, "tbn" + axes[-1])
    T, B, N, last = ops.shape(x)
    return ops.reshape(x, (T, B * N, last))


def _transposed(x: Tensor, axes: str, order: str) -> Tensor:
    """`x`, whose axes are these letters, with the axes in another order."""
    return x if axes == order else ops.transpose(x, [axes.index(axis) for axis in order])


def pick_by_label(per_label: Tensor, relations: Relations) -> Tensor:
    """`[B, N, T, S]`: for every pair the number of its label, as `label_scores` lays them out."""
    num_labels = ops.shape(per_label)[1 if _is_shared(relations) else 2]
    tensors, from_tensors = tensors_of(relations)

    def pick(per_label: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return _pick(per_label, from_tensors(*tensors)), None

    def gradient(inputs: Any, saved: None, by_pair: Tensor) -> tuple[Tensor | None, ...]:
        _, *tensors = inputs
        by_label = sum_by_label(by_pair, from_tensors(*tensors), num_labels)
        return by_label, *(None for _ in tensors)

    return with_gradient(pick, gradient, per_label, *tensors)


def sum_by_label(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """The transpose of `pick_by_label`: for every label the sum of its pairs' numbers."""
    tensors, from_tensors = tensors_of(relations)

    def add(per_pair: Tensor, *tensors: Tensor) -> tuple[Tensor, None]:
        return _sum(per_pair, from_tensors(*tensors), num_labels), None

    def gradient(inputs: Any, saved: None, by_label: Tensor) -> tuple[Tensor | None, ...]:
        _, *tensors = inputs
        return pick_by_label(by_label, from_tensors(*tensors)), *(None for _ in tensors)

    return with_gradient(add, gradient, per_pair, *tensors)


def with_gradient(
    function: Callable[..., tuple[Tensor, Any]], gradient: Callable[..., Any], *inputs: Tensor
) -> Any:
    """A function's result, with a gradient of its own.

    Args:
        function: from `inputs` to the result and what `gradient` needs of it beside.
        gradient: `(inputs, what it needs, gradient of the result) -> gradients of the inputs`.
        inputs: all tensors that either uses, or JAX's rematerialization loses them.
    """

    @ops.custom_gradient
    def call(*inputs: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        # An eager tape would record, and keep, all that the function makes. A graph does not, and
        # a second derivative needs to know what was saved from what.
        stopped = map(ops.stop_gradient, inputs) if has_value(inputs[0]) else inputs
        result, saved = function(*stopped)

        def backward(*upstream: Any, **named: Any) -> Any:
            # By its position; on PyTorch by a name, behind the inputs.
            return gradient(inputs, saved, *(named.values() or upstream))

        return result, backward

    return call(*map(ops.convert_to_tensor, inputs))


def tensors_of(relations: Relations) -> tuple[tuple[Tensor, ...], Callable[..., Relations]]:
    """The tensors in `relations`, and how to make these of others: what has a gradient of its own
    must be given all tensors that it uses."""
    if relations is None:
        return (), lambda: None
    if not isinstance(relations, RelativePositions):
        return (ops.convert_to_tensor(relations),), lambda labels: labels
    if not ops.is_tensor(relations.query_offset):
        return (), lambda: relations
    return (relations.query_offset,), lambda offset: relations._replace(query_offset=offset)


def _pick(per_label: Tensor, relations: Relations) -> Tensor:
    if not _is_shared(relations):
        B, T, R, N = ops.shape(per_label)
        pairs = _pick_rows(ops.reshape(per_label, (B * T, R, N)), relations)
        S = ops.shape(relations)[2]
        return ops.transpose(ops.reshape(pairs, (B, T, S, N)), (0, 3, 1, 2))
    T, R, B, N = ops.shape(per_label)
    pairs = _pick_rows(ops.reshape(per_label, (T, R, B * N)), relations)
    is_positions = isinstance(relations, RelativePositions)
    S = relations.key_length if is_positions else ops.shape(relations)[1]
    return ops.reshape(ops.transpose(pairs), (B, N, T, S))


def _sum(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    B, N, T, S = ops.shape(per_pair)
    if not _is_shared(relations):
        pairs = ops.reshape(ops.transpose(per_pair, (0, 2, 3, 1)), (B * T, S, N))
        return ops.reshape(_sum_rows(pairs, relations, num_labels), (B, T, num_labels, N))
    pairs = ops.transpose(ops.reshape(per_pair, (B * N, T * S)))
    pairs = ops.reshape(pairs, (T, S, B * N))
    return ops.reshape(_sum_rows(pairs, relations, num_labels), (T, num_labels, B, N))


def _pick_rows(per_label: Tensor, relations: Relations) -> Tensor:
    """From M queries by label, `[M, R, X]`, to their pairs, `[M * S, X]`."""
    M, R, X = ops.shape(per_label)
    if isinstance(relations, RelativePositions):
        rows = relations.ids + R * ops.expand_dims(ops.arange(M, dtype="int32"), 1)
        return ops.take(ops.reshape(per_label, (M * R, X)), ops.reshape(rows, (-1,)), axis=0)
    per_label = ops.pad(per_label, ((0, 0), (0, 1), (0, 0)))  # what no label picks
    rows = _rows_of_labels(relations, R)
    pairs = ops.take(ops.reshape(per_label, (M * (R + 1), X)), rows, axis=0)
    return ops.sum(pairs, axis=1)


def _sum_rows(pairs: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """From the pairs of M queries, `[M, S, X]`, to their sums by label, `[M, R, X]`."""
    if isinstance(relations, RelativePositions):
        return _sum_positions(pairs, relations)
    M, S, X = ops.shape(pairs)
    if 0 in tuple(pairs.shape):  # nothing to add up, which Keras refuses on PyTorch
        return ops.zeros((M, num_labels, X), pairs.dtype)
    rows = _rows_of_labels(relations, num_labels)
    num_edges = ops.shape(rows)[1]
    dtype = keras.backend.standardize_dtype(pairs.dtype)
    pairs = ops.cast(pairs, exact_dtype(pairs))  # half precision loses what is small beside a sum
    pairs = ops.reshape(pairs, (M * S, X))
    if len(relations.shape) == 4:
        pairs = ops.repeat(pairs, num_edges, axis=0)
    sums = ops.segment_sum(pairs, ops.reshape(rows, (-1,)), num_segments=M * (num_labels + 1))
    return ops.cast(ops.reshape(sums, (M, num_labels + 1, X))[:, :num_labels], dtype)


def _sum_positions(pairs: Tensor, positions: RelativePositions) -> Tensor:
    """Beyond the clipping distance a label has many pairs, whose sum is a product with zeros and
    ones; within it a label has one pair at most, on a diagonal."""
    k = positions.max_relative_position
    T, S, X = ops.shape(pairs)
    if isinstance(k, int) and k == 0:
        return ops.sum(pairs, axis=1, keepdims=True)
    rows = ops.expand_dims(ops.arange(T, dtype="int32"), 1)
    queries = rows + ops.cast(positions.query_offset, "int32")
    distances = ops.expand_dims(ops.arange(S, dtype="int32"), 0) - queries
    far = ops.stack([distances <= -k, distances >= k], axis=1)  # [T, 2, S]
    sides = ops.matmul(ops.cast(far, pairs.dtype), pairs)
    keys = queries + ops.arange(1 - k, k, dtype="int32")  # [T, R - 2]
    is_there = (keys >= 0) & (keys < S)
    near = ops.take(
        ops.reshape(pairs, (T * S, X)), ops.clip(keys, 0, S - 1) + S * rows, axis=0
    ) * ops.cast(ops.expand_dims(is_there, -1), pairs.dtype)
    return ops.concatenate([sides[:, :1], near, sides[:, 1:]], axis=1)


def _rows_of_labels(relations: Tensor, num_labels: int) -> Tensor:
    """int32 `[M * S, L]`: where the label of query m stands among M times R + 1 rows, of which the
    last of a query's is no label."""
    labels = int32_labels(relations, num_labels)
    is_edge = (labels >= 0) & (labels < num_labels)
    labels = ops.where(is_edge, labels, num_labels)
    *queries, S, L = ops.shape(labels) if len(labels.shape) == 4 else (*ops.shape(labels), 1)
    M = math.prod(queries)
    first = ops.arange(M, dtype="int32") * (num_labels + 1)
    rows = ops.reshape(labels, (M, S, L)) + ops.reshape(first, (M, 1, 1))
    return ops.reshape(rows, (M * S, L))


def _within_reach(relations: Relations, table: Tensor) -> tuple[Relations, Tensor]:
    """Positions and table without the labels of distances that no pair has."""
    if not isinstance(relations, RelativePositions):
        return relations, table
    T, S, k, offset = relations
    if k == 0 or not isinstance(offset, int):
        return relations, table
    if isinstance(T, int) and isinstance(S, int):
        nearest = min(k, max(T + offset, S))
    else:
        nearest = ops.minimum(k, ops.maximum(ops.maximum(T + offset, S), 1))
    table = table[..., k - nearest : k + nearest + 1, :]
    return relations._replace(max_relative_position=nearest), table


def int32_labels(relations: Tensor, num_labels: int) -> Tensor:
    """Labels of any integer type as int32, those of R and above as R, "none of them"."""
    dtype = keras.backend.standardize_dtype(relations.dtype)
    if dtype in ("int64", "uint32", "uint64"):
        relations = ops.minimum(relations, ops.cast(num_labels, dtype))
    if dtype == "int64":
        relations = ops.maximum(relations, ops.cast(-1, dtype))
    return ops.cast(relations, "int32")


def has_value(x: Tensor) -> bool:
    """Whether this runs eagerly."""
    return known_value(x[(slice(0, 1),) * len(x.shape)]) is not None


def exact_dtype(x: Tensor) -> str:
    """Its dtype, or single precision instead of half."""
    return keras.backend.result_type(x.dtype, "float32")


def _is_shared(relations: Relations) -> bool:
    return isinstance(relations, RelativePositions) or len(relations.shape) == 2


def _axes(relations: Relations) -> str:
    return "trbn" if _is_shared(relations) else "btrn"


def _vector_axes(table: Tensor, a: Tensor) -> str:
    heads = "" if len(table.shape) == 2 else "n"
    batch = "b" if len(a.shape) - len(heads) == 4 else ""
    return f"{heads}{batch}tsh"


def _vectors_of_pairs(relations: Relations, table: Tensor, dtype: str) -> Tensor:
    """`a_ij`: `[T, S, H]` or `[B, T, S, H]`, with a leading N if the table has one."""
    if isinstance(relations, RelativePositions):
        return ops.take(table, relations.ids, axis=-2)
    relations = int32_labels(relations, table.shape[-2])
    last = table.shape[-2] - 1
    a = ops.take(table, ops.clip(relations, 0, last), axis=-2)
    is_edge = (relations >= 0) & (relations <= last)
    a = a * ops.expand_dims(ops.cast(is_edge, dtype), -1)
    return ops.sum(a, axis=-2) if len(relations.shape) == 4 else a
