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
"""

from __future__ import annotations

from keras import ops

from tf_relpos.config import IMPLEMENTATIONS


def relation_scores(query, relations, table, implementation: str = "auto"):
    """`x_i W^Q (a^K_ij)^T`, the second term of Eq. 5, unscaled.

    Args:
        query: `[B, T, N, H]`.
        relations: int labels, see the module.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, N, T, S]`.
    """
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


def relation_values(weights, relations, table, implementation: str = "auto"):
    """`sum_j alpha_ij a^V_ij`, the second term of Eq. 3.

    Args:
        weights: attention weights alpha, `[B, N, T, S]`.
        relations: int labels, see the module.
        table: the value vectors `w^V` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[B, T, N, H]`.
    """
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


def choose_implementation(implementation: str, relations, table) -> str:
    """Resolves "auto": the implementation that should be the faster, and the leaner where unsure.

    `pipelines.benchmark.attention` measured on two CPU cores (results beside it, 2026-11-21), for S
    from 32 to 512, R from 17 to 97 with a shared table and R = 33 with heads: where all sentences
    have the labels `[T, S]`, bucketing is the faster one from about S = 3 R on, or S = R if the
    table has heads. Elsewhere it takes the smaller tensor: `[T, S, R]` when bucketed, `[T, S, H]`
    (times N, if the table has heads) in the paper's form.

    Raises:
        ValueError: `implementation` is none of `IMPLEMENTATIONS`.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"`implementation` must be one of {IMPLEMENTATIONS}. "
            f"Received: implementation={implementation!r}"
        )
    if implementation != "auto":
        return implementation
    *heads, num_labels, head_dim = table.shape
    if len(relations.shape) == 2 and relations.shape[1] is not None:
        is_bucketed = relations.shape[1] > num_labels * (1 if heads else 3)
    else:
        is_bucketed = num_labels <= 2 * head_dim * (heads[0] if heads else 1)
    return "bucketed" if is_bucketed else "transpose_reshape"


def _table_axes(table) -> str:
    return "rh" if len(table.shape) == 2 else "nrh"


def _pair_axes(per_pair) -> str:
    return "ts" if len(per_pair.shape) == 3 else "bts"


def _vector_axes(table, a) -> str:
    heads = "" if len(table.shape) == 2 else "n"
    batch = "b" if len(a.shape) - len(heads) == 4 else ""
    return f"{heads}{batch}tsh"


def _one_hot(relations, table, dtype):
    """`[T, S, R]` or `[B, T, S, R]`: how often each label stands on each edge."""
    one_hot = ops.one_hot(relations, table.shape[-2], dtype=dtype)  # all 0 for a negative label
    return ops.sum(one_hot, axis=-2) if len(relations.shape) == 4 else one_hot


def _vectors_of_pairs(relations, table, dtype):
    """`a_ij`: `[T, S, H]` or `[B, T, S, H]`, with a leading N if the table has one."""
    a = ops.take(table, ops.maximum(relations, 0), axis=-2)
    is_edge = ops.expand_dims(ops.cast(relations >= 0, dtype), -1)
    a = a * is_edge
    return ops.sum(a, axis=-2) if len(relations.shape) == 4 else a
