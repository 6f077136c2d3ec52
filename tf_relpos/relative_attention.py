"""Attention that knows relative positions, as a Keras layer (Shaw et al. 2018, section 3.2).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.caches import given
from tf_relpos.checks import check_boolean, check_whole, check_window
from tf_relpos.execution import is_named
from tf_relpos.free_axes import FreeAxes
from tf_relpos.masks import both
from tf_relpos.relation_ops import relation_scores
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.step_attention import StepAttention
from tf_relpos.tensor_ops import Tensor, heads_first, shape_of, times_transposed
from tf_relpos.windows import Windows


@keras.saving.register_keras_serializable(package="tf_relpos")
class RelativeMultiHeadAttention(StepAttention):
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
    def relative_keys(self) -> bool:
        return self.relation_keys

    @property
    def relative_values(self) -> bool:
        return self.relation_values

    @property
    def heads_share_relative_embedding(self) -> bool:
        return self.heads_share_relations

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
        self._check_masks(query, value, cache, query_mask, value_mask, key_mask, attention_mask)
        edges: dict[str, Any] = {}
        if cache is None:
            projected = self._project(value, key)
            windows = self._windows(query, value, use_causal_mask)
            if windows is None or return_attention_scores:
                mask = self._compute_attention_mask(
                    query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask
                )
            else:
                batch = shape_of(query)[0]
                mask = windows.mask(batch, both(value_mask, key_mask), attention_mask)
                edges["windows"] = windows
        else:
            mask = self._visible_in_cache(query, value, cache, offset, use_causal_mask)
            mask = both(attention_mask, mask)
            cache, projected = self._cached(cache, value, key, offset)
            if offset is not None:
                edges["query_offset"] = offset
        if use_causal_mask and self._has_own_masks():
            edges["is_causal"] = True
        output, weights = self._attend(
            query, *projected, mask, training, return_attention_scores, **edges
        )
        return given(output, weights if return_attention_scores else None, cache)

    def _has_own_masks(self) -> bool:
        """Whether no class upon this one may see more than `use_causal_mask` lets it."""
        names = ("_compute_attention", "_compute_attention_mask", "_compute_causal_mask")
        own = RelativeMultiHeadAttention
        return all(getattr(type(self), name) is getattr(own, name) for name in names)

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
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `EdgeAttention`. `is_causal`: `attention_mask` hides what is later than a query."""
        if windows is not None:
            query, key, value = windows.blocks(query), windows.slide(key), windows.slide(value)
            query_offset = windows.reach
        relations = self._positions(*self._lengths(query, key), query_offset, is_causal)
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
        k = self._projected(self._key_dense, value)
        q, k = heads_first(axes.fold(q)), heads_first(axes.fold(k))
        content = axes.unfold_pairs(ops.swapaxes(times_transposed(q, k), 0, 1))
        if not self.relation_keys:
            return content, ops.zeros_like(content)
        table = ops.cast(ops.convert_to_tensor(self.relation_key_embeddings), q.dtype)
        positions = self._positions(*self._lengths(query, value))
        by_position = ops.swapaxes(relation_scores(q, positions, table), 0, 1)
        return content, axes.unfold_pairs(by_position)

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
                f"relative_keys={self.relative_keys}"
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

    def _positions(
        self, T: Any, S: Any, offset: Any = 0, is_causal: bool = False
    ) -> RelativePositions | None:
        if not self.uses_relations:
            return None
        return RelativePositions(T, S, self.max_relative_position, offset, is_causal)

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
        self._check_masks(query, value, cache, query_mask, value_mask, key_mask, attention_mask)
        return self._symbolic(query, value, key, cache, return_attention_scores)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_relative_position": self.max_relative_position,
            "relative_keys": self.relative_keys,
            "relative_values": self.relative_values,
            "heads_share_relative_embedding": self.heads_share_relative_embedding,
        }
