"""Attention of one step of decoding (Shaw et al. 2018, section 3.1).

All queries of a step, of K hypotheses of each sentence, stand at the same position, so that `a_ij`
of Eq. 3 and 4 does not depend on i: a vector for each key, and the terms are products like others.

Axes: B batch, K hypotheses, S key positions, N heads, H head size, D model size.
"""

from __future__ import annotations

from typing import Any

from keras import ops

from tf_relpos.edge_attention import EdgeAttention
from tf_relpos.projections import product, row_weights, times_weights
from tf_relpos.tensor_ops import Tensor, rows_at, shape_of, times_transposed


class StepAttention(EdgeAttention):
    """What a decoder calls at each step, with all that does not change from step to step made
    before: `project_heads` of the encoded source, and the `row_weights`.

    No dropout, no scores, no gate, and no checks. The layer must have key_dim = value_dim.
    """

    max_relative_position: int

    def project_heads(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, N, S, H]` of the inputs `[B, S, D]`, for `attend_to`."""
        self._check_built("project_heads")
        self._check_keys(value)
        key, value = self._project(value)
        return ops.transpose(key, (0, 2, 1, 3)), ops.transpose(value, (0, 2, 1, 3))

    def row_weights(self, *names: str) -> dict[str, Tensor]:
        """What `project_rows` multiplies by, made once for many calls.

        Args:
            *names: any of "query", "key", "value".

        Returns:
            As `tf_relpos.projections.row_weights`, of the projections side by side, that of the
            query over sqrt(H) in Eq. 4: `{"kernel": [D, n*N*H]}`.
        """
        self._check_built("row_weights")
        denses = [getattr(self, f"_{name}_dense") for name in names]
        factors = [self._factor(name) for name in names]
        return row_weights(denses, self.compute_dtype, factors)

    def output_weights(self) -> dict[str, Tensor]:
        """What `attend_to` multiplies by at its end, `{"kernel": [N*H, D]}`, likewise."""
        self._check_built("output_weights")
        return row_weights([self._output_dense], self.compute_dtype, num_axes=2)

    def project_rows(
        self, x: Tensor, num_hypotheses: Any, weights: dict[str, Tensor], *names: str
    ) -> list[Tensor]:
        """Queries, keys and values of K hypotheses of each sentence, for `attend_to`.

        Args:
            x: `[B*K, D]`.
            num_hypotheses: K, an int or a scalar int tensor.
            weights: from `row_weights`.
            *names: those of `row_weights`.

        Returns:
            `[B, N, K, H]` for each name, queries over sqrt(H).
        """
        heads = len(names) * self.num_heads
        if weights:
            rows = times_weights(x, weights, heads * self.key_dim)
        else:
            projected = [product(getattr(self, f"_{n}_dense"), x, x.shape[-1]) for n in names]
            projected = [ops.cast(y, self.compute_dtype) for y in projected]
            factors = [ops.cast(self._factor(name), self.compute_dtype) for name in names]
            rows = ops.concatenate(
                [y * f for y, f in zip(projected, factors, strict=True)], axis=-1
            )
        rows = ops.reshape(rows, (-1, num_hypotheses, heads, self.key_dim))
        return ops.split(ops.transpose(rows, (0, 2, 1, 3)), len(names), axis=1)

    def _factor(self, name: str) -> float:
        is_scaled = name == "query" and not self.is_additive
        return float(self._inverse_sqrt_key_dim) if is_scaled else 1.0

    def attend_to(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        num_hypotheses: Any,
        bias: Tensor,
        weights: dict[str, Tensor],
        distances: Tensor | None = None,
    ) -> Tensor:
        """The layer's output `[B*K, D]` for K hypotheses of each sentence, all at one position.

        Args:
            query: `[B, N, K, H]` from `project_rows`.
            keys, values: `[B, N, S, H]` from `project_heads` or `project_rows`.
            num_hypotheses: K, an int or a scalar int tensor.
            bias: `[B, 1, K or 1, S]`, added to the scores: 0, or so low that a key gets no weight,
                as those beyond the `attention_window` must not.
            weights: from `output_weights`.
            distances: int `[S]`, from the queries' position to the keys'.
        """
        N, K, H = self.num_heads, num_hypotheses, self.key_dim
        a = None
        if self.relation_keys:
            a = self._vectors_at(distances, self.relation_key_embeddings, query.dtype)
        if self.is_additive:
            scores = self._additive_step_scores(query, keys if a is None else keys + a, K)
        else:
            scores = times_transposed(query, keys)
            if a is not None:
                scores = scores + _edge_scores(query, a)
        precise = self._softmax.compute_dtype
        scores = ops.cast(scores, precise) + ops.cast(bias, precise)
        shares = ops.cast(self._softmax(scores), query.dtype)
        attended = ops.matmul(shares, values)
        if self.relation_values:
            a = self._vectors_at(distances, self.relation_value_embeddings, query.dtype)
            edges = _edge_values(shares, a)
            # Added flat: TFLite's converter fails to move a transposition before this sum.
            attended = ops.reshape(attended, (-1, H)) + ops.reshape(edges, (-1, H))
            attended = ops.reshape(attended, (-1, N, K, H))
        rows = ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (-1, N * H))
        return product(self._output_dense, rows, N, H, weights=weights)

    def _additive_step_scores(self, query: Tensor, keys: Tensor, K: Any) -> Tensor:
        """`[B, N, K, S]` of queries `[B, N, K, H]` at one position, whose edges are in the keys
        `[B, N, S, H]` already: with a tensor K times as large as these."""
        N, S, H = self.num_heads, shape_of(keys)[2], self.key_dim
        queries = ops.reshape(query, (-1, K, 1, H))
        pairs = ops.tanh(queries + ops.reshape(keys, (-1, 1, S, H)))
        vectors = ops.cast(ops.convert_to_tensor(self.compatibility_vectors), query.dtype)
        pairs = ops.matmul(ops.reshape(pairs, (-1, N, K * S, H)), ops.expand_dims(vectors, -1))
        return ops.reshape(pairs, (-1, N, K, S))

    def _vectors_at(self, distances: Tensor, table: Tensor, dtype: str) -> Tensor:
        """The vectors of distances `[S]`: `[S, H]` or `[N, S, H]`."""
        k = self.max_relative_position
        table = ops.cast(ops.convert_to_tensor(table), dtype)
        return rows_at(table, ops.clip(distances, -k, k) + k)


def _edge_scores(query: Tensor, a: Tensor) -> Tensor:
    """The second term of Eq. 5, `[B, N, K, S]`, of queries `[B, N, K, H]` at one position, by the
    vectors of its edges, `[S, H]` or `[N, S, H]`."""
    if len(a.shape) == 3:
        return times_transposed(query, a)
    return ops.einsum("bnkh,sh->bnks", query, a)


def _edge_values(weights: Tensor, a: Tensor) -> Tensor:
    """The second term of Eq. 3, `[B, N, K, H]`, likewise of weights `[B, N, K, S]`."""
    if len(a.shape) == 3:
        return ops.matmul(weights, a)
    return ops.einsum("bnks,sh->bnkh", weights, a)
