"""Attention over labelled edges as a Keras layer (Shaw et al. 2018, section 3.1).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size, R labels.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from tf_relpos.relation_ops import IMPLEMENTATIONS, relation_scores, relation_values
from tf_relpos.relations import check_relations


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
            initializer=keras.initializers.RandomUniform(-limit, limit),
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


def _without_mask(x):
    """`x` without its Keras mask, of which the projections would warn that they ignore it."""
    return x if getattr(x, "_keras_mask", None) is None else ops.copy(x)
