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
from typing import Any

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
Gradient = Callable[..., Any]


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
    if len(table.shape) == 2 and len(a.shape) == 3:
        B, T, N, H = ops.shape(query)
        queries = ops.reshape(ops.transpose(query, (1, 0, 2, 3)), (T, B * N, H))
        scores = ops.matmul(queries, ops.transpose(a, (0, 2, 1)))  # [T, B*N, S]
        scores = ops.reshape(scores, (T, B, N, ops.shape(a)[1]))
        return ops.transpose(scores, (1, 2, 0, 3))
    return ops.einsum(f"btnh,{_vector_axes(table, a)}->bnts", query, a)


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
    if len(table.shape) == 2 and len(a.shape) == 3:
        B, N, T, S = ops.shape(weights)
        rows = ops.reshape(ops.transpose(weights, (2, 0, 1, 3)), (T, B * N, S))
        values = ops.matmul(rows, a)  # [T, B*N, H]
        values = ops.reshape(values, (T, B, N, a.shape[-1]))
        return ops.transpose(values, (1, 0, 2, 3))
    return ops.einsum(f"bnts,{_vector_axes(table, a)}->btnh", weights, a)


def choose_implementation(implementation: str, relations: Relations, table: Tensor) -> str:
    """Resolves "auto": bucketing, save for one query, which the paper's form needs one product for,
    and where a graph knows that sentences are short for the table.

    `pipelines.benchmark.attention` measured on two CPU cores (results beside it, 2026-11-22), with
    R = 33 and S from 32 to 512: where all sentences have the labels `[T, S]`, bucketing is the
    faster one from about S = 4 R on, or S = R if the table has heads.

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
    is_short = isinstance(S, int) and num_labels * (1 if heads else 4) >= S
    return "transpose_reshape" if is_one or is_short else "bucketed"


def attend_in_blocks(
    size: int | Tensor,
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
) -> tuple[Tensor, ...]:
    """Eq. 3 and 4 for `size` queries at a time, since queries do not depend on each other.

    Memory is that of one block's pairs: the backward pass computes the weights again, as does
    FlashAttention (Dao et al. 2022), whose gradient this is, with the terms of the relations.

    Args:
        size: how many queries make a block, from 1 to T.
        weigh: the softmax of Eq. 4, `(query, key, tables, relations, mask) -> [B, N, T, S]`.
        combine: Eq. 3, `(weights, value, tables, relations) -> [B, T, N, H]`.
        query: `[B, T, N, H]`, scaled.
        key, value: `[B, N, S, H]`.
        tables: the label vectors of "key" and "value", where they are in use.
        relations: see the module.
        mask: which pairs are seen, `[B or 1, N or 1, T or 1, S or 1]`.
        kept: what dropout multiplies the weights by, `[B, N, T, S]`.
        with_weights: whether to return the weights, before dropout, as well.

    Returns:
        A tuple of the attended values `[B, T, N, H]` and, if asked for, the weights `[B, N, T, S]`.
    """
    B, T, N, _ = ops.shape(query)
    S, H = ops.shape(key)[2], value.shape[-1]
    dtype = keras.backend.standardize_dtype(query.dtype)
    of_relations, from_tensors = _tensors_of(relations)
    fixed = {"mask": mask, "kept": kept}
    fixed = {name: x for name, x in fixed.items() if x is not None}

    @ops.custom_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Any:
        vectors, others = others[: len(tables)], others[len(tables) :]
        named = dict(zip(tables, vectors, strict=True))
        constants = dict(zip(fixed, others, strict=False))
        mask, kept = constants.get("mask"), constants.get("kept")
        relations = from_tensors(*others[len(fixed) :])

        def dropped(weights: Tensor, block: _Block) -> Tensor:
            return weights if kept is None else weights * block.of(kept, 2)

        def forward(block: _Block) -> tuple[list[Tensor], list[Tensor]]:
            own, asked = block.of(query, 1), block.relations(relations)
            weights = ops.cast(weigh(own, key, named, asked, block.of(mask, 2)), dtype)
            attended = combine(dropped(weights, block), value, named, asked)
            return [attended, weights][: 1 + with_weights], []

        def gradient(*upstream: Any, **keywords: Any) -> tuple[Tensor | None, ...]:
            by_output = keras.tree.flatten([*upstream, *keywords.values()])

            def backward(block: _Block) -> tuple[list[Tensor], list[Tensor]]:
                own, asked = block.of(query, 1), block.relations(relations)
                by_attended = block.counted(block.of(by_output[0], 1), 1)
                weights = weigh(own, key, named, asked, block.of(mask, 2))
                used = dropped(ops.cast(weights, dtype), block)
                by_weights = ops.einsum("btnh,bnsh->bnts", by_attended, value)
                if "value" in named:
                    by_weights += relation_scores(by_attended, asked, named["value"])
                by_weights = dropped(by_weights, block)
                if with_weights:
                    by_weights += block.counted(block.of(by_output[1], 2), 2)
                by_weights = ops.cast(by_weights, weights.dtype)
                mean = ops.sum(by_weights * weights, axis=-1, keepdims=True)
                by_scores = ops.cast(weights * (by_weights - mean), dtype)
                by_query = ops.einsum("bnts,bnsh->btnh", by_scores, key)
                terms = [
                    ops.einsum("bnts,btnh->bnsh", by_scores, own),
                    ops.einsum("bnts,btnh->bnsh", used, by_attended),
                ]
                if "key" in named:
                    sums = sum_by_label(by_scores, asked, named["key"].shape[-2])
                    by_query += label_values(sums, asked, named["key"])
                    terms.append(_by_table(sums, own, asked, named["key"]))
                if "value" in named:
                    sums = sum_by_label(used, asked, named["value"].shape[-2])
                    terms.append(_by_table(sums, by_attended, asked, named["value"]))
                return [by_query], terms

            parts = [(ops.shape(query), 1)]
            inputs = (key, value, *vectors)
            (by_query,), totals = _in_blocks(backward, T, size, parts, inputs, query)
            return by_query, *totals, *(None for _ in others)

        parts = [((B, T, N, H), 1), ((B, N, T, S), 2)][: 1 + with_weights]
        return tuple(_in_blocks(forward, T, size, parts, (), query)[0]), gradient

    return attend(query, key, value, *tables.values(), *fixed.values(), *of_relations)


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
    length: int | Tensor,
    size: int | Tensor,
    parts: Sequence[tuple[tuple[Any, ...], int]],
    totals: Sequence[Tensor],
    like: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """Calls `function` for blocks of queries, one after the other.

    Args:
        function: from a block to its parts of some results, and its terms of some sums.
        length: T.
        size: how many queries make a block.
        parts: the shape of each result that has parts, and which of its axes is that of queries.
        totals: tensors like the sums.
        like: a tensor of the results' dtype, which also tells whether values are known.

    Returns:
        The results, and the sums, which are added up in single precision at least.
    """
    dtype = keras.backend.standardize_dtype(like.dtype)
    exact = "float64" if dtype == "float64" else "float32"
    count = (length + size - 1) // size
    if known_value(like[(slice(0, 1),) * len(like.shape)]) is not None:
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
    nothing = (
        0,
        tuple(ops.zeros(shape, dtype) for shape in rows_first),
        tuple(ops.zeros(ops.shape(total), exact) for total in totals),
    )
    _, wholes, sums = ops.while_loop(
        lambda index, *_: index < count, step, nothing, maximum_iterations=count
    )
    wholes = [ops.moveaxis(x, 0, axis) for x, (_, axis) in zip(wholes, parts, strict=True)]
    return wholes, [ops.cast(x, dtype) for x in sums]


def queries_at_once(query: Tensor, key: Tensor, training: bool | None) -> int | Tensor | None:
    """How many queries make one block, or None where all of them do.

    Blocks keep memory at or below plain attention's, and cost time, most of it in the backward
    pass, which computes the weights again. So they are made where T and S are known to be long,
    and, in inference, where a graph does not know them.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, N, S, H]`.
        training: as in the call of a layer.
    """
    (B, T, N, _), S = query.shape, key.shape[2]
    is_known = None not in (T, S)
    widest = WIDEST if training else WIDEST // 4
    if T == 1 or (widest >= T * S if is_known else training):
        return None
    if not is_known:
        (_, T, *_), S = ops.shape(query), ops.shape(key)[2]
    each = (1 if B is None else B) * N * S
    if isinstance(each, int) and isinstance(T, int):
        return max(min(BLOCK // max(each, 1), max(T // 8, FEWEST), T), 1)
    size = ops.minimum(BLOCK // ops.maximum(each, 1), ops.maximum(T // 8, FEWEST))
    return ops.maximum(ops.minimum(size, T), 1)  # T may be 0, in an empty batch


def label_scores(query: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """Each query by each vector of the table: `[T, R, B, N]`, or `[B, T, R, N]` for labels of a
    sentence each."""
    return ops.einsum(f"btnh,{_table_axes(table)}->{_axes(relations)}", query, table)


def label_values(per_label: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The vectors of the table, weighted as `label_scores` lays them out: `[B, T, N, H]`."""
    return ops.einsum(f"{_axes(relations)},{_table_axes(table)}->btnh", per_label, table)


def _by_table(per_label: Tensor, vectors: Tensor, relations: Relations, table: Tensor) -> Tensor:
    """The gradient of both by the table, `vectors` being what it is multiplied with."""
    return ops.einsum(f"{_axes(relations)},btnh->{_table_axes(table)}", per_label, vectors)


def pick_by_label(per_label: Tensor, relations: Relations) -> Tensor:
    """`[B, N, T, S]`: for every pair the number of its label, as `label_scores` lays them out."""
    num_labels = ops.shape(per_label)[1 if _is_shared(relations) else 2]
    tensors, from_tensors = _tensors_of(relations)

    @ops.custom_gradient
    def pick(per_label: Tensor, *tensors: Tensor) -> tuple[Tensor, Gradient]:
        own = from_tensors(*tensors)

        def gradient(*upstream: Tensor, **named: Tensor) -> tuple[Tensor | None, ...]:
            by_label = sum_by_label(_upstream(upstream, named), own, num_labels)
            return by_label, *(None for _ in tensors)

        return _pick(per_label, own), gradient

    return pick(per_label, *tensors)


def sum_by_label(per_pair: Tensor, relations: Relations, num_labels: int) -> Tensor:
    """The transpose of `pick_by_label`: for every label the sum of its pairs' numbers."""
    tensors, from_tensors = _tensors_of(relations)

    @ops.custom_gradient
    def add(per_pair: Tensor, *tensors: Tensor) -> tuple[Tensor, Gradient]:
        own = from_tensors(*tensors)

        def gradient(*upstream: Tensor, **named: Tensor) -> tuple[Tensor | None, ...]:
            return pick_by_label(_upstream(upstream, named), own), *(None for _ in tensors)

        return _sum(per_pair, own, num_labels), gradient

    return add(per_pair, *tensors)


def _tensors_of(relations: Relations) -> tuple[tuple[Tensor, ...], Callable[..., Relations]]:
    """The tensors in `relations`, and how to make these of others: what has a gradient of its own
    must be given all tensors that it uses, or JAX's rematerialization loses them."""
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
    rows = _rows_of_labels(relations, num_labels)
    num_edges = ops.shape(rows)[1]
    dtype = keras.backend.standardize_dtype(pairs.dtype)
    # Half precision would lose what is small beside a sum.
    pairs = ops.cast(pairs, "float64" if dtype == "float64" else "float32")
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
    labels = _int32(relations, num_labels)
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
        nearest = ops.minimum(k, ops.maximum(T + offset, S))
    table = table[..., k - nearest : k + nearest + 1, :]
    return relations._replace(max_relative_position=nearest), table


def _int32(relations: Tensor, num_labels: int) -> Tensor:
    """Labels of any integer type as int32, those of R and above as R, "none of them"."""
    dtype = keras.backend.standardize_dtype(relations.dtype)
    if dtype in ("int64", "uint32", "uint64"):
        relations = ops.minimum(relations, ops.cast(num_labels, dtype))
    if dtype == "int64":
        relations = ops.maximum(relations, ops.cast(-1, dtype))
    return ops.cast(relations, "int32")


def _upstream(positional: tuple[Tensor, ...], named: dict[str, Tensor]) -> Tensor:
    """The gradient of the output, which Keras's backends pass in two ways."""
    return named["upstream"] if "upstream" in named else positional[0]


def _is_shared(relations: Relations) -> bool:
    return isinstance(relations, RelativePositions) or len(relations.shape) == 2


def _axes(relations: Relations) -> str:
    return "trbn" if _is_shared(relations) else "btrn"


def _table_axes(table: Tensor) -> str:
    return "rh" if len(table.shape) == 2 else "nrh"


def _vector_axes(table: Tensor, a: Tensor) -> str:
    heads = "" if len(table.shape) == 2 else "n"
    batch = "b" if len(a.shape) - len(heads) == 4 else ""
    return f"{heads}{batch}tsh"


def _vectors_of_pairs(relations: Relations, table: Tensor, dtype: str) -> Tensor:
    """`a_ij`: `[T, S, H]` or `[B, T, S, H]`, with a leading N if the table has one."""
    if isinstance(relations, RelativePositions):
        return ops.take(table, relations.ids, axis=-2)
    relations = _int32(relations, table.shape[-2])
    last = table.shape[-2] - 1
    a = ops.take(table, ops.clip(relations, 0, last), axis=-2)
    is_edge = (relations >= 0) & (relations <= last)
    a = a * ops.expand_dims(ops.cast(is_edge, dtype), -1)
    return ops.sum(a, axis=-2) if len(relations.shape) == 4 else a
