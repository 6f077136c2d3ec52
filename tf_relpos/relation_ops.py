"""The two terms that relations add to attention, as pure functions (Shaw et al. 2018, section 3.3).

    relation_scores   x_i W^Q (a^K_ij)^T        the second term of Eq. 5
    relation_values   sum_j alpha_ij a^V_ij     the second term of Eq. 3

Axes: B batch, T query positions, S key positions, N heads, H head size, R labels, L labels an edge.

`relations` holds integer labels, `[T, S]` for every sentence alike, `[B, T, S]`, or `[B, T, S, L]`
with up to L labels on an edge, whose vectors add. A negative label is no edge and adds nothing. A
`table` of label vectors is `[R, H]`, shared by the heads, or `[N, R, H]`.

Both implementations are exact:

    transpose_reshape   the paper's: gather a_ij as [T, S, H], then T parallel products of
                        [B*N, H] with [H, S]. Takes O(T S H) memory beyond plain attention.
    bucketed            multiplies by the R vectors of the table, not by the T S vectors of the
                        pairs, and picks (or sums) by label. Takes O(B N T R + T S R) memory.

Queries do not depend on each other, so that long sequences take less, in blocks of queries:
`queries_at_once` says how many, and `in_query_blocks` computes so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from tf_relpos.config import IMPLEMENTATIONS, check_choice
from tf_relpos.relations import Tensor, known_value

# Elements of the largest tensor, [T, S, R] or [T, S, H], with which all queries are computed at
# once: all lengths that `pipelines.benchmark.attention` measured with k = 16, up to T = S = 550.
# Beyond, blocks take a quarter of it each, 10 MB in float32, since TensorFlow begins the next
# blocks before it has ended one.
WIDEST = 10_000_000
BLOCK = WIDEST // 4


def relation_scores(
    query: Tensor, relations: Tensor, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`x_i W^Q (a^K_ij)^T`, the second term of Eq. 5, unscaled.

    Args:
        query: `[B, T, N, H]`.
        relations: int labels, see the module.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, N, T, S]`.
    """
    relations = _int32(relations, table)
    if choose_implementation(implementation, relations, table) == "bucketed":
        per_label = ops.einsum(f"btnh,{_table_axes(table)}->bntr", query, table)
        one_hot = _one_hot(relations, table, query.dtype)
        return ops.einsum(f"bntr,{_pair_axes(one_hot)}r->bnts", per_label, one_hot)
    a = _vectors_of_pairs(relations, table, query.dtype)
    if len(table.shape) == 2 and len(a.shape) == 3:
        B, T, N, H = ops.shape(query)
        queries = ops.reshape(ops.transpose(query, (1, 0, 2, 3)), (T, B * N, H))
        scores = ops.matmul(queries, ops.transpose(a, (0, 2, 1)))  # [T, B*N, S]
        scores = ops.reshape(scores, (T, B, N, ops.shape(a)[1]))
        return ops.transpose(scores, (1, 2, 0, 3))
    return ops.einsum(f"btnh,{_vector_axes(table, a)}->bnts", query, a)


def relation_values(
    weights: Tensor, relations: Tensor, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`sum_j alpha_ij a^V_ij`, the second term of Eq. 3.

    Args:
        weights: attention weights alpha, `[B, N, T, S]`.
        relations: int labels, see the module.
        table: the value vectors `w^V` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, T, N, H]`.
    """
    relations = _int32(relations, table)
    if choose_implementation(implementation, relations, table) == "bucketed":
        one_hot = _one_hot(relations, table, weights.dtype)
        per_label = ops.einsum(f"bnts,{_pair_axes(one_hot)}r->bntr", weights, one_hot)
        return ops.einsum(f"bntr,{_table_axes(table)}->btnh", per_label, table)
    a = _vectors_of_pairs(relations, table, weights.dtype)
    if len(table.shape) == 2 and len(a.shape) == 3:
        B, N, T, S = ops.shape(weights)
        rows = ops.reshape(ops.transpose(weights, (2, 0, 1, 3)), (T, B * N, S))
        values = ops.matmul(rows, a)  # [T, B*N, H]
        values = ops.reshape(values, (T, B, N, a.shape[-1]))
        return ops.transpose(values, (1, 0, 2, 3))
    return ops.einsum(f"bnts,{_vector_axes(table, a)}->btnh", weights, a)


def choose_implementation(implementation: str, relations: Tensor, table: Tensor) -> str:
    """Resolves "auto": the implementation that should be the faster, and the leaner where unsure.

    `pipelines.benchmark.attention` measured on two CPU cores (results beside it, 2026-11-21), for S
    from 32 to 512, R from 17 to 97 with a shared table and R = 33 with heads: where all sentences
    have the labels `[T, S]`, bucketing is the faster one from about S = 3 R on, or S = R if the
    table has heads. Elsewhere it takes the smaller tensor: `[T, S, R]` when bucketed, `[T, S, H]`
    (times N, if the table has heads) in the paper's form.

    Raises:
        ValueError: `implementation` is none of `IMPLEMENTATIONS`.
    """
    if check_choice("implementation", implementation, IMPLEMENTATIONS) != "auto":
        return implementation
    *heads, num_labels, head_dim = table.shape
    if len(relations.shape) == 2 and relations.shape[1] is not None:
        is_bucketed = relations.shape[1] > num_labels * (1 if heads else 3)
    else:
        num_tables = heads[0] or 1 if heads else 1  # None beside free axes of unknown size
        is_bucketed = num_labels <= 2 * head_dim * num_tables
    return "bucketed" if is_bucketed else "transpose_reshape"


def queries_at_once(relations: Tensor, table: Tensor, implementation: str) -> int | None:
    """How many queries make one block, or None where all of them do.

    Which is also so where T or S is not known: a graph that chose as it runs would hold a
    condition around a loop, which XLA does not compile. An unknown B counts as 1.
    """
    *heads, num_labels, head_dim = table.shape
    is_bucketed = choose_implementation(implementation, relations, table) == "bucketed"
    width = num_labels if is_bucketed else head_dim * (heads[0] if heads else 1)
    axis = query_axis(relations)
    T, *others = relations.shape[axis:]
    if T is None or None in others:
        return None
    each = math.prod(others) * (relations.shape[0] or 1 if axis else 1) * width
    return None if T == 1 or T * each <= WIDEST else max(BLOCK // each, 1)


def query_axis(relations: Tensor) -> int:
    """Which axis of the labels is that of the queries."""
    return 0 if len(relations.shape) == 2 else 1


def in_query_blocks(
    function: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    axes: Sequence[int],
    result_axes: Sequence[int],
    size: int,
) -> tuple[Tensor, ...]:
    """`function(*tensors)`, computed for `size` queries at a time, one block after the other.

    Args:
        function: of tensors, returns a tuple of tensors.
        tensors: what depends on the query, T known.
        axes: which axis of each tensor is that of the queries, T long.
        result_axes: likewise of the results.
        size: t, at least 1.

    Returns:
        The tuple that `function` returns for all queries.
    """
    T = ops.shape(tensors[0])[axes[0]]
    count = (T + size - 1) // size
    if known_value(tensors[0][(slice(0, 1),) * len(tensors[0].shape)]) is not None:
        # Eagerly a loop of Python's, in which blocks do not overlap and may be larger: `ops.map`
        # would compile the function at every call.
        size *= max(WIDEST // BLOCK, 1)
        starts = range(0, T, size)
        parts = (
            [_slice(x, axis, start, start + size) for x, axis in zip(tensors, axes, strict=True)]
            for start in starts
        )
        results = zip(*[function(*part) for part in parts], strict=True)
        return tuple(
            ops.concatenate(blocks, axis) for blocks, axis in zip(results, result_axes, strict=True)
        )

    def split(x: Tensor, axis: int) -> Tensor:
        shape = ops.shape(x)
        x = ops.pad(x, [(0, count * size - T if i == axis else 0) for i in range(len(shape))])
        x = ops.reshape(x, (*shape[:axis], count, size, *shape[axis + 1 :]))
        return ops.moveaxis(x, axis, 0)

    def join(x: Tensor, axis: int) -> Tensor:
        x = ops.moveaxis(x, 0, axis)
        shape = ops.shape(x)
        x = ops.reshape(x, (*shape[:axis], count * size, *shape[axis + 2 :]))
        return _slice(x, axis, 0, T)

    blocks = tuple(split(x, axis) for x, axis in zip(tensors, axes, strict=True))
    results = ops.map(lambda parts: tuple(function(*parts)), blocks)
    return tuple(join(x, axis) for x, axis in zip(results, result_axes, strict=True))


def _slice(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return x[(*(slice(None) for _ in range(axis)), slice(start, stop))]


def _int32(relations: Tensor, table: Tensor) -> Tensor:
    """Labels of any integer type as int32, those of R and above as R, "none of them"."""
    dtype = keras.backend.standardize_dtype(relations.dtype)
    num_labels = table.shape[-2]
    if dtype in ("int64", "uint32", "uint64"):
        relations = ops.minimum(relations, ops.cast(num_labels, dtype))
    if dtype == "int64":
        relations = ops.maximum(relations, ops.cast(-1, dtype))
    return ops.cast(relations, "int32")


def _table_axes(table: Tensor) -> str:
    return "rh" if len(table.shape) == 2 else "nrh"


def _pair_axes(per_pair: Tensor) -> str:
    return "ts" if len(per_pair.shape) == 3 else "bts"


def _vector_axes(table: Tensor, a: Tensor) -> str:
    heads = "" if len(table.shape) == 2 else "n"
    batch = "b" if len(a.shape) - len(heads) == 4 else ""
    return f"{heads}{batch}tsh"


def _one_hot(relations: Tensor, table: Tensor, dtype: str) -> Tensor:
    """`[T, S, R]` or `[B, T, S, R]`: how often each label stands on each edge."""
    one_hot = ops.one_hot(relations, table.shape[-2], dtype=dtype)  # all 0 for a label outside
    return ops.sum(one_hot, axis=-2) if len(relations.shape) == 4 else one_hot


def _vectors_of_pairs(relations: Tensor, table: Tensor, dtype: str) -> Tensor:
    """`a_ij`: `[T, S, H]` or `[B, T, S, H]`, with a leading N if the table has one."""
    last = table.shape[-2] - 1
    a = ops.take(table, ops.clip(relations, 0, last), axis=-2)
    is_edge = (relations >= 0) & (relations <= last)
    a = a * ops.expand_dims(ops.cast(is_edge, dtype), -1)
    return ops.sum(a, axis=-2) if len(relations.shape) == 4 else a
