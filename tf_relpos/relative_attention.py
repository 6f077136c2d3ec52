"""Attention that knows relative positions, as a Keras layer (Shaw et al. 2018, section 3.2).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size.
"""

from __future__ import annotations

import keras
from keras import ops

from tf_relpos.attention import RelationAwareAttention
from tf_relpos.relations import check_max_relative_position, relative_position_ids


@keras.saving.register_keras_serializable(package="tf_relpos")
class RelativeMultiHeadAttention(RelationAwareAttention):
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
        implementation: "transpose_reshape", "bucketed" or "auto".
        **kwargs: arguments of `keras.layers.MultiHeadAttention`.

    Call arguments: those of `keras.layers.MultiHeadAttention`, and for decoding step by step
        cache: `[B, 2, S_max, N, H]`, keys and values. Its length bounds the sequence.
        cache_update_index: an int or scalar int tensor n: the T given positions follow n that are
            in the cache. They are written to it at n, and queries sit at n .. n + T - 1; nothing
            beyond n + T is seen, and nothing later than itself by any query if `use_causal_mask`.
            `attention_mask` is then `[B, T, S_max]`; masks of `value` and `key` are not looked at.
            Without it the cache is attended as it is, and `value` is not used: for cross-attention,
            with `cache = layer.compute_cache(encoded)`.

    Returns:
        The output `[B, T, D]`; then the weights `[B, N, T, S]` if `return_attention_scores`; then
        the cache, written to, if a `cache` was given.

    Weights: `relative_key_embeddings` `[2k+1, H]` and `relative_value_embeddings`
    `[2k+1, value_dim]`, or with a leading N. Row r belongs to the clipped position r - k.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Example:
        layer = RelativeMultiHeadAttention(num_heads=8, key_dim=64, max_relative_position=16)
        y = layer(x, x, use_causal_mask=True)   # x: [B, T, D]

    Reference: Shaw, Uszkoreit and Vaswani 2018.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        max_relative_position=16,
        relative_keys=True,
        relative_values=True,
        heads_share_relative_embedding=True,
        implementation="auto",
        **kwargs,
    ):
        self.max_relative_position = check_max_relative_position(max_relative_position)
        super().__init__(
            num_heads,
            key_dim,
            num_relations=2 * self.max_relative_position + 1,
            relation_keys=relative_keys,
            relation_values=relative_values,
            heads_share_relations=heads_share_relative_embedding,
            implementation=implementation,
            **kwargs,
        )

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)

    @property
    def relative_key_embeddings(self):
        return self.relation_key_embeddings

    @property
    def relative_value_embeddings(self):
        return self.relation_value_embeddings

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        cache=None,
        cache_update_index=None,
    ):
        query_offset = 0
        if cache is None:
            if cache_update_index is not None:
                raise ValueError(
                    "`cache_update_index` needs a `cache`. "
                    f"Received: cache=None, cache_update_index={cache_update_index!r}"
                )
            projected_key, projected_value = self._project(value, key)
            attention_mask = self._compute_attention_mask(
                query,
                value,
                query_mask=query_mask,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
            )
        else:
            if cache_update_index is not None:
                query_offset = cache_update_index
                new = self.compute_cache(value, key)
                cache = _write_cache(cache, new, cache_update_index)
                seen = self._seen_mask(query, value, cache, query_offset, use_causal_mask)
                attention_mask = (
                    seen if attention_mask is None else ops.cast(attention_mask, "bool") & seen
                )
            projected_key, projected_value = cache[:, 0], cache[:, 1]
        relations = None
        if self.uses_relations:
            relations = relative_position_ids(
                ops.shape(query)[1],
                ops.shape(projected_key)[1],
                self.max_relative_position,
                query_offset,
            )
        output, scores = self._attend(
            query, projected_key, projected_value, relations, attention_mask, training
        )
        outputs = [output]
        if return_attention_scores:
            outputs.append(scores)
        if cache is not None:
            outputs.append(cache)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compute_cache(self, value, key=None):
        """Projected keys and values `[B, 2, S, N, H]` of the inputs `[B, S, D]`.

        Raises:
            ValueError: `value_dim` differs from `key_dim`, so that they do not stack.
        """
        if self.key_dim != self.value_dim:
            raise ValueError(
                "`cache` needs value_dim = key_dim, so that keys and values stack. "
                f"Received: value_dim={self.value_dim}, key_dim={self.key_dim}"
            )
        return ops.stack(self._project(value, key), axis=1)

    def _seen_mask(self, query, value, cache, query_offset, use_causal_mask):
        """Which of the cache's S positions each query may see: bool `[1, T, S]`."""
        S = ops.shape(cache)[2]
        num_written = query_offset + ops.shape(value)[1]
        key_positions = ops.expand_dims(ops.arange(S, dtype="int32"), 0)
        query_positions = query_offset + ops.arange(ops.shape(query)[1], dtype="int32")
        query_positions = ops.expand_dims(query_positions, 1)
        seen = ops.broadcast_to(key_positions < num_written, (ops.shape(query)[1], S))
        if use_causal_mask:
            seen = seen & (key_positions <= query_positions)
        if self._sliding_window is not None:
            seen = seen & (ops.abs(key_positions - query_positions) < self._sliding_window)
        return ops.expand_dims(seen, 0)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return super().compute_output_shape(query_shape, value_shape, key_shape)

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        cache=None,
        cache_update_index=None,
    ):
        key_length = value.shape[1] if cache is None else cache.shape[2]
        specs = self._specs(query, value, key, key_length, return_attention_scores)
        if cache is None:
            return specs
        specs = specs if return_attention_scores else (specs,)
        return (*specs, keras.KerasTensor(cache.shape, dtype=cache.dtype))

    def get_config(self):
        config = super().get_config()
        for general in (
            "num_relations",
            "relation_keys",
            "relation_values",
            "heads_share_relations",
        ):
            del config[general]
        return {
            **config,
            "max_relative_position": self.max_relative_position,
            "relative_keys": self.relation_keys,
            "relative_values": self.relation_values,
            "heads_share_relative_embedding": self.heads_share_relations,
        }


def _write_cache(cache, new, index):
    """`cache` `[B, 2, S, N, H]` with `new` `[B, 2, T, N, H]` at positions index .. index + T - 1.

    Written with `where`: `ops.slice_update` becomes an operation of XLA's in a TensorFlow graph,
    which a server without a compiler cannot run.
    """
    S, T = cache.shape[2], new.shape[2]
    if isinstance(index, int) and S is not None and T is not None and not 0 <= index <= S - T:
        raise ValueError(
            f"`cache_update_index` must be between 0 and {S - T} to write {T} positions into a "
            f"cache of {S}. Received: cache_update_index={index}"
        )
    source = ops.arange(ops.shape(cache)[2], dtype="int32") - ops.cast(index, "int32")
    last = ops.shape(new)[2] - 1
    is_new = ops.reshape((source >= 0) & (source <= last), (1, 1, -1, 1, 1))
    new = ops.cast(new, cache.dtype)
    if T != 1:
        new = ops.take(new, ops.clip(source, 0, last), axis=2)
    return ops.where(is_new, new, cache)
