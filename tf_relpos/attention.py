"""Relation-aware attention as Keras layers (Shaw et al. 2018, section 3.1).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size, R labels.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from tf_relpos.relation_ops import IMPLEMENTATIONS, relation_scores, relation_values
from tf_relpos.relations import (
    check_max_relative_position,
    check_relations,
    relative_position_ids,
)


@keras.saving.register_keras_serializable(package="tf_relpos")
class RelationAwareAttention(keras.layers.MultiHeadAttention):
    """Multi-head attention over a directed graph whose edges carry labels.

        e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(H)      Eq. 4
        z_i  = sum_j alpha_ij (x_j W^V + a^V_ij)           Eq. 3

    where `a^K_ij` and `a^V_ij` are the learned vectors of the label `relations[i, j]` that joins
    query i to key j. Relative positions are one way to label, `RelativeMultiHeadAttention`.

    Everything else is `keras.layers.MultiHeadAttention`: its arguments, masks, dropout, scores,
    LoRA and serialization. Under half-precision policies the softmax is taken in float32.

    Args:
        num_heads: N.
        key_dim: H, the size of a head for queries and keys.
        num_relations: R, the number of labels.
        relation_keys: whether edges enter Eq. 4.
        relation_values: whether edges enter Eq. 3.
        heads_share_relations: one table `[R, H]` for all heads, or one for each, `[N, R, H]`.
        implementation: "transpose_reshape" (section 3.3), "bucketed", or "auto"; see
            `tf_relpos.relation_ops`. All give the same result.
        **kwargs: arguments of `keras.layers.MultiHeadAttention`. `flash_attention=True` and more
            than one attention axis are refused: no fused kernel takes these terms.

    Call arguments: those of `keras.layers.MultiHeadAttention`, and
        relations: int labels from 0 to R - 1, `[T, S]`, `[B, T, S]`, or `[B, T, S, L]` with up to L
            labels on an edge, whose vectors add. A negative label is no edge information: it adds
            nothing (the pair is still attended; use `attention_mask` to forbid it). Labels of R and
            above add nothing either; they are refused where their values are known (eager calls).

    Weights: `relation_key_embeddings` `[R, H]` and `relation_value_embeddings` `[R, value_dim]`,
    or with a leading N; Glorot uniform. Those switched off are None.

    Raises:
        ValueError: an argument that cannot work; the message names it, the rule and the value.

    Example:
        layer = RelationAwareAttention(num_heads=8, key_dim=64, num_relations=3)
        parent_child_other = np.array([[2, 0, 2], [1, 2, 0], [2, 1, 2]])
        y = layer(x, x, relations=parent_child_other)   # x: [B, 3, D]

    Reference: Shaw, Uszkoreit and Vaswani 2018, sections 3.1 and 3.3.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        num_relations,
        relation_keys=True,
        relation_values=True,
        heads_share_relations=True,
        implementation="auto",
        **kwargs,
    ):
        if not isinstance(num_relations, int) or num_relations < 1:
            raise ValueError(
                "`num_relations` must be a whole number >= 1. "
                f"Received: num_relations={num_relations!r}"
            )
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"`implementation` must be one of {IMPLEMENTATIONS}. "
                f"Received: implementation={implementation!r}"
            )
        if kwargs.pop("flash_attention", None):
            raise ValueError(
                "`flash_attention` must be None or False: no fused kernel computes the relation "
                "terms. Received: flash_attention=True"
            )
        axes = kwargs.get("attention_axes")
        if axes is not None and tuple(np.atleast_1d(axes)) not in ((1,), (-2,)):
            raise ValueError(
                "`attention_axes` must be None or 1: relations join positions of one axis. "
                f"Received: attention_axes={axes!r}"
            )
        super().__init__(num_heads, key_dim, **kwargs)
        self._flash_attention = False
        self.num_relations = num_relations
        self.relation_keys = bool(relation_keys)
        self.relation_values = bool(relation_values)
        self.heads_share_relations = bool(heads_share_relations)
        self.implementation = implementation
        self.relation_key_embeddings = None
        self.relation_value_embeddings = None

    @property
    def uses_relations(self) -> bool:
        return self.relation_keys or self.relation_values

    def build(self, query_shape, value_shape, key_shape=None, relations_shape=None):
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if shape is not None and len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have the shape [batch, positions, features]. "
                    f"Received: {name} of shape {tuple(shape)}"
                )
        super().build(query_shape, value_shape, key_shape)
        if self.relation_keys:
            self.relation_key_embeddings = self._add_table("relation_key_embeddings", self.key_dim)
        if self.relation_values:
            self.relation_value_embeddings = self._add_table(
                "relation_value_embeddings", self.value_dim
            )

    def _add_table(self, name, head_dim):
        heads = () if self.heads_share_relations else (self.num_heads,)
        limit = math.sqrt(6 / (self.num_relations + head_dim))  # Glorot's, for each head's table
        return self.add_weight(
            name=name,
            shape=(*heads, self.num_relations, head_dim),
            initializer=keras.initializers.RandomUniform(-limit, limit, seed=self.seed),
        )

    def _build_attention(self, rank):
        super()._build_attention(rank)
        half = self.compute_dtype in ("float16", "bfloat16")
        self._softmax = keras.layers.Softmax(dtype="float32" if half else self.dtype_policy)

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
        relations=None,
    ):
        if self.uses_relations:
            relations = check_relations(relations, self.num_relations)
        attention_mask = self._compute_attention_mask(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )
        projected_key, projected_value = self._project(value, key)
        output, scores = self._attend(
            query, projected_key, projected_value, relations, attention_mask, training
        )
        return (output, scores) if return_attention_scores else output

    def _project(self, value, key=None):
        """Keys and values `[B, S, N, H]` of the inputs `[B, S, D]`."""
        value = _without_mask(value)
        key = value if key is None else _without_mask(key)
        return self._key_dense(key), self._value_dense(value)

    def _attend(self, query, key, value, relations, attention_mask, training):
        """From the query `[B, T, D]` and projected keys and values to the layer's output."""
        query = _without_mask(query)
        attended, scores = self._compute_attention(
            self._query_dense(query),
            key,
            value,
            attention_mask,
            training,
            relations=relations,
        )
        if self._use_gate:
            attended = ops.multiply(attended, self._gate_dense(query))
        return self._output_dense(attended), scores

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        relations=None,
    ):
        """Eq. 5 and Eq. 3 on projected inputs: `[B, T, N, H]` and the weights `[B, N, T, S]`."""
        query = ops.multiply(query, ops.cast(self._inverse_sqrt_key_dim, query.dtype))
        scores = ops.einsum("btnh,bsnh->bnts", query, key)
        if self.relation_keys:
            scores = scores + relation_scores(
                query,
                relations,
                ops.cast(self.relation_key_embeddings, query.dtype),
                self.implementation,
            )
        weights = ops.cast(self._masked_softmax(scores, attention_mask), self.compute_dtype)
        dropped = self._dropout_layer(weights, training=training) if self.dropout > 0 else weights
        attended = ops.einsum("bnts,bsnh->btnh", dropped, value)
        if self.relation_values:
            attended = attended + relation_values(
                dropped,
                relations,
                ops.cast(self.relation_value_embeddings, value.dtype),
                self.implementation,
            )
        return attended, weights

    def compute_output_shape(self, query_shape, value_shape, key_shape=None, relations_shape=None):
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
        relations=None,
    ):
        if self.uses_relations:
            check_relations(relations, self.num_relations)
        return self._specs(query, value, key, value.shape[1], return_attention_scores)

    def _specs(self, query, value, key, key_length, return_attention_scores):
        key_shape = None if key is None else key.shape
        shape = self.compute_output_shape(query.shape, value.shape, key_shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        scores = (query.shape[0], self.num_heads, query.shape[1], key_length)
        return output, keras.KerasTensor(scores, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_relations": self.num_relations,
            "relation_keys": self.relation_keys,
            "relation_values": self.relation_values,
            "heads_share_relations": self.heads_share_relations,
            "implementation": self.implementation,
        }


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


def _without_mask(x):
    """`x` without its Keras mask, of which the projections would warn that they ignore it."""
    return x if getattr(x, "_keras_mask", None) is None else ops.copy(x)


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
    spread = ops.take(new, ops.clip(source, 0, last), axis=2)
    return ops.where(is_new, ops.cast(spread, cache.dtype), cache)
