"""Attention over a directed graph with labelled edges, as a Keras layer.

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size, R labels.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tf_relpos.caches import given
from tf_relpos.checks import check_boolean, check_whole
from tf_relpos.edge_attention import EdgeAttention
from tf_relpos.label_checks import check_relations, check_tells_labels_apart
from tf_relpos.masks import both
from tf_relpos.tensor_ops import Shape, Tensor, shape_of


@keras.saving.register_keras_serializable(package="tf_relpos")
class RelationAwareAttention(EdgeAttention):
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
        compatibility: "product" is Eq. 4; "additive" is that of Bahdanau et al. 2014, with edges,
            `e_ij = v^T tanh(x_i W^Q + x_j W^K + a^K_ij)` and a vector v of each head. It makes
            no `[B, N, T, S, H]` (`tf_relpos.compatibility`), but takes longer, and `implementation`
            is then that of Eq. 3 alone.
        **kwargs: arguments of `keras.layers.MultiHeadAttention`. Where edges enter either equation,
            or compatibility is additive, `flash_attention=True` is refused, since no fused kernel
            takes these terms, and so is more than one attention axis.

    Call arguments: those of `keras.layers.MultiHeadAttention`, and
        relations: int labels from 0 to R - 1, `[T, S]`, `[B, T, S]`, or `[B, T, S, L]` with up to L
            labels on an edge, whose vectors add. An axis of 1 in place of B is for all sentences. A
            negative label is no edge information: it adds nothing (the pair is still attended; use
            `attention_mask` to forbid it). Labels of R and above add nothing either; they are
            refused where their values are known (eager calls).
        cache, cache_update_index: keys and values of earlier nodes, for a graph that grows or nodes
            that are asked again and again: see `RelativeMultiHeadAttention`. S is then S_max, also
            of `relations`: what joins the T given nodes to all that there is room for.

    Inputs are `[B, T, D]`. With `attention_axes=-2` they may be `[B, ..., T, D]`: all but the
    positions and the features is batch, and shares the `relations` of its sentence.

    Weights: `relation_key_embeddings` `[R, H]` and `relation_value_embeddings` `[R, value_dim]`,
    or with a leading N; Glorot uniform. Those switched off are None. With additive compatibility
    `compatibility_vectors` `[N, H]`, likewise.

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
        num_heads: int,
        key_dim: int,
        num_relations: int,
        relation_keys: bool = True,
        relation_values: bool = True,
        heads_share_relations: bool = True,
        implementation: str = "auto",
        compatibility: str = "product",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            num_relations=check_whole("num_relations", num_relations, least=1),
            relation_keys=check_boolean("relation_keys", relation_keys),
            relation_values=check_boolean("relation_values", relation_values),
            heads_share_relations=check_boolean("heads_share_relations", heads_share_relations),
            implementation=implementation,
            compatibility=compatibility,
            **kwargs,
        )

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape,
        key_shape: Shape | None = None,
        relations_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)

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
        relations: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        offset = self._check_call(query, value, key, cache, cache_update_index)
        edges = self._edges(query, value, relations, cache)
        self._check_masks(query, value, cache, query_mask, value_mask, key_mask, attention_mask)
        if cache is None:
            mask = self._compute_attention_mask(
                query, value, query_mask, value_mask, key_mask, attention_mask, use_causal_mask
            )
            projected = self._project(value, key)
        else:
            mask = self._visible_in_cache(query, value, cache, offset, use_causal_mask)
            mask = both(attention_mask, mask)
            cache, projected = self._cached(cache, value, key, offset)
        output, weights = self._attend(
            query, *projected, mask, training, return_attention_scores, **edges
        )
        return given(output, weights if return_attention_scores else None, cache)

    def _edges(
        self, query: Tensor, value: Tensor, relations: Any, cache: Tensor | None
    ) -> dict[str, Tensor]:
        """The labels, checked, where they are in use."""
        if not self.uses_relations:
            return {}
        axis = self._positive_axes(len(query.shape))[0]
        keys = value.shape[axis] if cache is None else cache.shape[2]
        lengths = (query.shape[axis], keys)
        is_called = not isinstance(query, keras.KerasTensor)
        if not is_called and self.autocast and "float" in str(getattr(relations, "dtype", "")):
            check_tells_labels_apart(self.compute_dtype, self.num_relations)
        relations = check_relations(relations, self.num_relations, lengths, query.shape[0])
        if len(relations.shape) == 3 and relations.shape[0] == 1:
            relations = relations[0]
        elif len(relations.shape) > 2 and relations.shape[0] in (1, None) and is_called:
            sizes = shape_of(query)[0], *shape_of(relations)[1:]
            relations = ops.broadcast_to(relations, sizes)
        return {"relations": relations}

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape,
        key_shape: Shape | None = None,
        relations_shape: Shape | None = None,
    ) -> Shape:
        return super().compute_output_shape(query_shape, value_shape, key_shape)

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
        relations: Tensor | None = None,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        self._check_call(query, value, key, cache, cache_update_index)
        self._edges(query, value, relations, cache)
        self._check_masks(query, value, cache, query_mask, value_mask, key_mask, attention_mask)
        return self._symbolic(query, value, key, cache, return_attention_scores)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_relations": self.num_relations,
            "relation_keys": self.relation_keys,
            "relation_values": self.relation_values,
            "heads_share_relations": self.heads_share_relations,
        }
