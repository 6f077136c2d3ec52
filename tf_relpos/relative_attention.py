"""Attention that knows relative positions, as a Keras layer (Shaw et al. 2018, section 3.2).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.attention import EdgeAttention
from tf_relpos.caches import given
from tf_relpos.checks import check_boolean, check_whole, check_window
from tf_relpos.free_axes import FreeAxes
from tf_relpos.masks import both
from tf_relpos.projections import is_plain, product
from tf_relpos.relation_ops import relation_scores
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor, heads_first, is_named, rows_at, times_transposed
from tf_relpos.windows import Windows


@keras.saving.register_keras_serializable(package="tf_relpos")
class RelativeMultiHeadAttention(EdgeAttention):
    """Attention between positions of a sequence that know how far apart they are.

    A drop-in for `keras.layers.MultiHeadAttention`: the label that joins query i to key j is their
    relative position clipped to k on either side (section 3.2), whose vectors enter Eq. 3 and 4.
    Sequences longer than any seen in training work. In cross-attention, query i is aligned with key
    i, both counted from 0.

    Args:
        num_heads: N.
        key_dim: H.
        max_relative_position: k >= 0; 2k + 1 labels. With k = 0 there is one label and no order.
        relative_keys: whether positions enter Eq. 4, `a^K`.
        relative_values: whether positions enter Eq. 3, `a^V`.
        heads_share_relative_embedding: one table `[2k+1, H]` for all heads (the paper's big model),
            or one for each, `[N, 2k+1, H]` (its base model).
        implementation: "transpose_reshape" is the paper's form, section 3.3, which takes O(T S H)
            numbers; "bucketed" multiplies by the 2k + 1 labels; "auto" picks by shape and device.
            The results are equal up to rounding.
        attention_window: r >= 0: a query sees what lies within r positions on either side, 2r + 1
            in all, as with Keras's `sliding_window=r + 1`, and nothing else is computed, in time
            and memory O(r T) (Vaswani et al. 2017, section 4). None for all positions. Returned
            weights, free axes, and several queries beside a cache still take O(T S). The output of
            a query that sees no key is undefined.
        compatibility: "product" (Eq. 4) or "additive", see `RelationAwareAttention`.
        **kwargs: arguments of `keras.layers.MultiHeadAttention`. With `attention_axes=-2` inputs
            may be `[B, ..., T, D]`, all but positions and features being batch. More than one axis,
            and `flash_attention=True`, are taken with both relative terms off and the product
            alone.

    Call arguments: those of `keras.layers.MultiHeadAttention`, and for decoding step by step
        cache: `[B, 2, S_max, N, H]`, keys and values, of the layer's compute dtype, in which it
            comes back. Its length bounds the sequence.
        cache_update_index: an int or scalar int tensor n: the T given positions follow n that are
            in the cache. They are written to it at n, and queries sit at n .. n + T - 1; nothing
            beyond n + T is seen, and nothing later than itself by any query if `use_causal_mask`.
            `attention_mask` is then `[B, T, S_max]`; masks of `value` and `key` are not looked at.
            Without it, as in cross-attention with `cache = layer.compute_cache(encoded)`, the cache
            is attended as it is, queries sit at 0 .. T - 1, and `value` is not looked at. An index
            that leaves too little room is refused where its value is known; elsewhere what would
            lie beyond the cache is not written.

    Returns:
        The output `[B, T, D]`; then the weights `[B, N, T, S]` if `return_attention_scores`; then
        the cache, written to, if a `cache` was given.

    Weights: `relative_key_embeddings` `[2k+1, H]` and `relative_value_embeddings`
    `[2k+1, value_dim]`, or with a leading N. Row r belongs to the clipped position r - k. With
    additive compatibility also `compatibility_vectors` `[N, H]`.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Example:
        layer = RelativeMultiHeadAttention(num_heads=8, key_dim=64, max_relative_position=16)
        y = layer(x, x, use_causal_mask=True)   # x: [B, T, D]

    Reference: Shaw, Uszkoreit and Vaswani 2018.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        max_relative_position: int = 16,
        relative_keys: bool = True,
        relative_values: bool = True,
        heads_share_relative_embedding: bool = True,
        implementation: str = "auto",
        attention_window: int | None = None,
        compatibility: str = "product",
        **kwargs: Any,
    ) -> None:
        window = check_window("attention_window", attention_window)
        if window is not None:
            if kwargs.get("sliding_window") is not None:
                raise ValueError(
                    "`attention_window` r and `sliding_window` r + 1 are the same: give one. "
                    f"Received: attention_window={attention_window}, "
                    f"sliding_window={kwargs['sliding_window']}"
                )
            kwargs["sliding_window"] = window + 1
        k = check_whole("max_relative_position", max_relative_position, least=0)
        share = check_boolean("heads_share_relative_embedding", heads_share_relative_embedding)
        super().__init__(
            num_heads,
            key_dim,
            num_relations=2 * k + 1,
            relation_keys=check_boolean("relative_keys", relative_keys),
            relation_values=check_boolean("relative_values", relative_values),
            heads_share_relations=share,
            implementation=implementation,
            compatibility=compatibility,
            **kwargs,
        )
        self.max_relative_position = k

    @property
    def attention_window(self) -> int | None:
        return None if self._sliding_window is None else self._sliding_window - 1

    @property
    def relative_key_embeddings(self) -> keras.Variable | None:
        return self.relation_key_embeddings

    @property
    def relative_value_embeddings(self) -> keras.Variable | None:
        return self.relation_value_embeddings

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        offset = self._check_call(query, value, key, cache, cache_update_index)
        self._check_masks(query, value, cache, attention_mask, query_mask, value_mask, key_mask)
        edges: dict[str, Any] = {}
        if cache is None:
            projected = self._project(value, key)
            windows = self._windows(query, value, use_causal_mask)
            if windows is None or return_attention_scores:
                mask = self._compute_attention_mask(
                    query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask
                )
            else:
                batch = ops.shape(query)[0]
                mask = windows.mask(batch, both(value_mask, key_mask), attention_mask)
                edges["windows"] = windows
        else:
            mask = self._visible_in_cache(query, value, cache, offset, use_causal_mask)
            mask = both(attention_mask, mask)
            cache, projected = self._cached(cache, value, key, offset)
            if offset is not None:
                edges["query_offset"] = offset
        output, weights = self._attend(
            query, *projected, mask, training, return_attention_scores, **edges
        )
        return given(output, weights if return_attention_scores else None, cache)

    def _windows(self, query: Tensor, value: Tensor, causal: bool) -> Windows | None:
        """How queries go in blocks, each beside the keys of its window; None if they do not."""
        r = self.attention_window
        if r is None or len(query.shape) != 3:
            return None
        T, S = self._lengths(query, value)
        if is_named(T) or is_named(S):  # of which no blocks can be made
            return None
        windows = Windows.of(T, S, r, causal)
        if isinstance(T, int) and isinstance(S, int) and windows.pairs >= T * S:
            return None
        return windows

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        query_offset: int | Tensor = 0,
        windows: Windows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if windows is not None:
            query, key, value = windows.blocks(query), windows.slide(key), windows.slide(value)
            query_offset = windows.reach
        relations = self._positions(*self._lengths(query, key), query_offset)
        attended, weights = super()._compute_attention(
            query,
            key,
            value,
            attention_mask,
            training,
            return_attention_scores,
            use_causal_mask,
            relations,
        )
        return attended if windows is None else windows.join(attended), weights

    def score_terms(self, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The two terms of Eq. 5, whose sum is what the softmax takes where there is no mask: what
        positions score by their content, and by how far apart they are.

        Args:
            query: `[B, T, D]`, as in a call.
            value: `[B, S, D]`, likewise.

        Returns:
            Two `[B, N, T, S]`; the second is 0 without `relative_keys`.

        Raises:
            ValueError: inputs of shapes that do not fit, the layer has not been built, or its
                compatibility is not the product, which alone is such a sum.
        """
        self._check_terms("score_terms")
        self._check_inputs(query=query, value=value)
        self._check_free_axes(query.shape, value.shape)
        q = self._scaled(self._projected(self._query_dense, query))
        axes = FreeAxes.of(q, self._attention_axes[0])
        q, k = axes.fold(q), axes.fold(self._projected(self._key_dense, value))
        content = axes.unfold_pairs(times_transposed(heads_first(q), heads_first(k)))
        if not self.relation_keys:
            return content, ops.zeros_like(content)
        table = ops.cast(ops.convert_to_tensor(self.relation_key_embeddings), q.dtype)
        positions = self._positions(*self._lengths(query, value), 0)
        return content, axes.unfold_pairs(relation_scores(q, positions, table))

    def distance_scores(self, query: Tensor) -> Tensor:
        """What every distance scores, wherever keys are: the second term of Eq. 5 for each row of
        the table instead of for each key.

        Args:
            query: `[B, T, D]`, as in a call.

        Returns:
            `[B, N, T, R]`; label r is the clipped distance r - k.

        Raises:
            ValueError: the layer has no `relative_keys`, it has not been built, or its
                compatibility is not the product.
        """
        self._check_terms("distance_scores")
        self._check_inputs(query=query)
        if not self.relation_keys:
            raise ValueError(
                "`distance_scores` needs a layer with `relative_keys`. Received: "
                f"relative_keys={self.relation_keys}"
            )
        q = self._scaled(self._projected(self._query_dense, query))
        axes = FreeAxes.of(q, self._attention_axes[0])
        table = ops.cast(ops.convert_to_tensor(self.relation_key_embeddings), q.dtype)
        by_row = "btnh,rh->bntr" if self.heads_share_relations else "btnh,nrh->bntr"
        return axes.unfold_pairs(ops.einsum(by_row, axes.fold(q), table))

    def _check_terms(self, method: str) -> None:
        self._check_built(method)
        if self.is_additive:
            raise ValueError(
                f"`{method}` needs a layer whose scores are the two terms of Eq. 5, with "
                f'compatibility="product". Received: compatibility={self.compatibility!r}'
            )

    def _positions(self, T: Any, S: Any, offset: Any) -> RelativePositions | None:
        if not self.uses_relations:
            return None
        return RelativePositions(T, S, self.max_relative_position, offset)

    def row_weights(self, *names: str) -> dict[str, Tensor]:
        """What `project_rows` multiplies by, made once for many calls.

        Args:
            *names: any of "query", "key", "value".

        Returns:
            The kernels side by side, that of the query over sqrt(H) in Eq. 4, as
            `{"kernel": [D, n*N*H]}`, and likewise "bias" `[n*N*H]` if the layer has any; nothing if
            a projection is more than these, such as a quantized one.
        """
        self._check_built("row_weights")
        denses = [getattr(self, f"_{name}_dense") for name in names]
        if not all(map(is_plain, denses)):
            return {}
        parts = {"kernel": [ops.reshape(x.kernel, (x.kernel.shape[0], -1)) for x in denses]}
        if denses[0].bias is not None:
            parts["bias"] = [ops.reshape(dense.bias, (-1,)) for dense in denses]
        factors = [self._factor(name) for name in names]
        return {
            part: ops.cast(
                ops.concatenate([x * f for x, f in zip(own, factors, strict=True)], axis=-1),
                self.compute_dtype,
            )
            for part, own in parts.items()
        }

    def project_rows(
        self, x: Tensor, num_hypotheses: Any, weights: dict[str, Tensor], *names: str
    ) -> list[Tensor]:
        """Queries, keys and values of K hypotheses of each sentence, for `attend_to`.

        Args:
            x: `[B*K, D]`.
            num_hypotheses: K, an int or a scalar int tensor.
            weights: from `row_weights`.
            *names: those of `row_weights`. The layer must have key_dim = value_dim.

        Returns:
            `[B, N, K, H]` for each name, queries over sqrt(H).
        """
        if weights:
            rows = ops.matmul(x, weights["kernel"])
            rows = rows + weights["bias"] if "bias" in weights else rows
        else:
            denses = {name: getattr(self, f"_{name}_dense") for name in names}
            rows = ops.concatenate(
                [
                    product(dense, x, x.shape[-1]) * ops.cast(self._factor(name), x.dtype)
                    for name, dense in denses.items()
                ],
                axis=-1,
            )
        heads = len(names) * self.num_heads
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
        distances: Tensor | None = None,
    ) -> Tensor:
        """The layer's output `[B*K, D]` for K hypotheses of each sentence, all at one position.

        What a decoder calls at each step, with all projected already: no dropout, no scores, no
        gate, and no checks. As all queries stand at the same place, `a_ij` of Eq. 3 and 4 does not
        depend on i.

        Args:
            query: `[B, N, K, H]` from `project_rows`.
            keys, values: `[B, N, S, H]` from `project_heads` or `project_rows`.
            num_hypotheses: K, an int or a scalar int tensor.
            bias: `[B, 1, K or 1, S]`, added to the scores: 0, or so low that a key gets no weight,
                as those beyond the `attention_window` must not.
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
        weights = ops.cast(self._softmax(scores), query.dtype)
        attended = ops.matmul(weights, values)
        if self.relation_values:
            a = self._vectors_at(distances, self.relation_value_embeddings, query.dtype)
            edges = _edge_values(weights, a)
            # Added flat: TFLite's converter fails to move a transposition before this sum.
            attended = ops.reshape(attended, (-1, H)) + ops.reshape(edges, (-1, H))
            attended = ops.reshape(attended, (-1, N, K, H))
        rows = ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (-1, N * H))
        return product(self._output_dense, rows, N, H)

    def _additive_step_scores(self, query: Tensor, keys: Tensor, K: Any) -> Tensor:
        """`[B, N, K, S]` of queries `[B, N, K, H]` at one position, whose edges are in the keys
        `[B, N, S, H]` already: with a tensor K times as large as these."""
        N, S, H = self.num_heads, ops.shape(keys)[2], self.key_dim
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

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        self._check_call(query, value, key, cache, cache_update_index)
        self._check_masks(query, value, cache, attention_mask, query_mask, value_mask, key_mask)
        return self._symbolic(query, value, key, cache, return_attention_scores)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_relative_position": self.max_relative_position,
            "relative_keys": self.relation_keys,
            "relative_values": self.relation_values,
            "heads_share_relative_embedding": self.heads_share_relations,
        }


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
