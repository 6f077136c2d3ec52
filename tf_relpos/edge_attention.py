"""Attention over labelled edges: Eq. 3 and 4 as a Keras layer (Shaw et al. 2018, section 3.1).

Axes: B batch, T query positions, S key positions, N heads, H head size, D model size, R labels.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
from keras import ops

from tf_relpos.attention import Attention
from tf_relpos.attention_at_once import attend_at_once, has_one_gradient
from tf_relpos.bands import attend_in_bands, bands_of
from tf_relpos.caches import given, write
from tf_relpos.checked_attention import CheckedAttention
from tf_relpos.checks import check_choice
from tf_relpos.config import COMPATIBILITIES, IMPLEMENTATIONS
from tf_relpos.free_axes import FreeAxes
from tf_relpos.lean_layers import apply_dropout
from tf_relpos.masks import both, heads_first_mask, visible
from tf_relpos.parts import freeze_parts, give_own_policies, own_policies
from tf_relpos.projections import of_positions
from tf_relpos.query_blocks import are_in_blocks, attend_in_blocks
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Shape, Tensor, heads_first, heads_last, shape_of


class EdgeAttention(CheckedAttention):
    """Eq. 3 and 4 with their tables: what the two layers of this package are built upon.

    A layer upon it adds its arguments and its `call`, in which it projects (`_project`), says which
    pairs are seen, and attends (`_attend`). `_compute_attention` takes what Keras's takes, and the
    `relations` where they are in use.

    Inputs are `[B, ..., T, D]`: free axes, all but the attention axis, are further batch axes.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        num_relations: int,
        relation_keys: bool,
        relation_values: bool,
        heads_share_relations: bool,
        implementation: str,
        compatibility: str,
        **kwargs: Any,
    ) -> None:
        check_choice("implementation", implementation, IMPLEMENTATIONS)
        check_choice("compatibility", compatibility, COMPATIBILITIES)
        is_plain = compatibility == "product" and not (relation_keys or relation_values)
        super().__init__(num_heads, key_dim, is_plain=is_plain, **kwargs)
        self.num_relations = num_relations
        self.relation_keys = relation_keys
        self.relation_values = relation_values
        self.heads_share_relations = heads_share_relations
        self.implementation = implementation
        self.compatibility = compatibility
        self.compatibility_vectors = None
        self.relation_key_embeddings = None
        self.relation_value_embeddings = None

    @property
    def uses_relations(self) -> bool:
        return self.relation_keys or self.relation_values

    @property
    def is_additive(self) -> bool:
        return self.compatibility == "additive"

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        if self.is_additive:
            limit = math.sqrt(6 / (self.key_dim + 1))  # Glorot's, for each head's vector
            self.compatibility_vectors = self.add_weight(
                name="compatibility_vectors",
                shape=(self.num_heads, self.key_dim),
                initializer=keras.initializers.RandomUniform(-limit, limit),
            )
        if self.relation_keys:
            self.relation_key_embeddings = self._add_table("relation_key_embeddings", self.key_dim)
        if self.relation_values:
            self.relation_value_embeddings = self._add_table(
                "relation_value_embeddings", self.value_dim
            )
        freeze_parts(self)
        give_own_policies(self)

    def _add_table(self, name: str, head_dim: int) -> keras.Variable:
        heads = () if self.heads_share_relations else (self.num_heads,)
        limit = math.sqrt(6 / (self.num_relations + head_dim))  # Glorot's, for each head's table
        return self.add_weight(
            name=name,
            shape=(*heads, self.num_relations, head_dim),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )

    def _build_attention(self, rank: int) -> None:
        super()._build_attention(rank)
        half = self.compute_dtype in ("float16", "bfloat16")
        axis = tuple(range(-len(self._attention_axes), 0))
        self._softmax = Softmax(axis, dtype="float32" if half else self.dtype_policy)

    def _masked_softmax(
        self, attention_scores: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Of scores `[N, B, T, S]`, and of a mask with its heads first as well; with more than one
        attention axis as in Keras's layer."""
        weights = super()._masked_softmax(attention_scores, attention_mask)
        is_keras = len(self._attention_axes) > 1  # whose computation goes on with them
        return ops.cast(weights, self.compute_dtype) if is_keras else weights

    def _project(self, value: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, S, N, H]` of the inputs `[B, S, D]`."""
        value = _without_mask(value)
        key = value if key is None else _without_mask(key)
        return self._projected(self._key_dense, key), self._projected(self._value_dense, value)

    def _projected(self, dense: keras.layers.EinsumDense, x: Tensor) -> Tensor:
        """`[B, ..., T, N, H]` in the precision of the layer, whatever that of the projection."""
        return ops.cast(of_positions(dense, x), self.compute_dtype)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        training: bool | None,
        return_attention_scores: bool,
        **edges: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """From the query `[B, T, D]` and projected keys and values to the layer's output.

        `edges` go to `_compute_attention`; left out where there are none, so that a subclass may
        override it with the arguments that Keras's has.
        """
        query = _without_mask(query)
        attended, weights = self._compute_attention(
            self._projected(self._query_dense, query),
            key,
            value,
            attention_mask,
            training,
            return_attention_scores,
            **edges,
        )
        return self._output(query, attended), weights

    def _output(self, query: Tensor, attended: Tensor) -> Tensor:
        if self._use_gate:
            attended = ops.multiply(attended, self._projected(self._gate_dense, query))
        return of_positions(self._output_dense, attended, num_axes=2)

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        relations: Relations | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Eq. 5 and Eq. 3 on projected inputs: `[B, T, N, H]` and, if they are asked for, the
        weights `[B, N, T, S]`."""
        if use_causal_mask and not self._flash_attention:
            attention_mask = both(attention_mask, self._compute_causal_mask(query, value))
            use_causal_mask = False
        if self._flash_attention or len(self._attention_axes) > 1:  # plain attention
            return super()._compute_attention(
                query,
                key,
                value,
                attention_mask,
                training,
                return_attention_scores,
                use_causal_mask,
            )
        axes = None
        if len(query.shape) != 4:
            axes = FreeAxes.of(query, self._attention_axes[0])
            query, key, value = map(axes.fold, (query, key, value))
            attention_mask = axes.fold_mask(attention_mask)
            relations = axes.fold_relations(relations)
        attended, weights = self._attend_heads(
            heads_first(self._scaled(query)),
            heads_first(key),
            heads_first(value),
            heads_first_mask(attention_mask),
            training,
            return_attention_scores,
            relations,
        )
        weights = ops.swapaxes(weights, 0, 1) if return_attention_scores else None
        if axes is None:
            return attended, weights
        return axes.unfold(attended), None if weights is None else axes.unfold_pairs(weights)

    def _attend_heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        training: bool | None,
        return_attention_scores: bool,
        relations: Relations | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The same of scaled queries, of keys, values and masks with their heads first, `[N, B, T,
        H]` and `[N, B, T, S]`, and so are the weights, which may be None unless they are asked
        for."""
        tables = self._tables(query.dtype, relations)
        in_blocks = bool(tables) and are_in_blocks(query, key, training, self.implementation)
        may_be_alone = not (self.is_additive or return_attention_scores)  # without the weights
        attention = Attention(
            self._masked_softmax,
            query,
            key,
            value,
            tables,
            relations,
            attention_mask,
            implementation=self.implementation,
        )
        is_whole = may_be_alone and not self.dropout
        if is_whole and has_one_gradient(attention, training, in_blocks):
            return attend_at_once(attention), None
        if not in_blocks:
            weights = ops.cast(attention.exact_weights(), self.compute_dtype)
            used = self._dropped(weights, training)
            return heads_last(attention.attended(used)), weights
        attention = attention._replace(
            mask=_for_queries(attention_mask, shape_of(query)[2]),
            dropout_mask=self._dropout_mask(query, key, training),
        )
        if may_be_alone:
            bands = bands_of(relations, query, key, training)
            if bands:
                attended = attend_in_bands(attention, bands)
                return heads_last(attended), None
        attended, *found = attend_in_blocks(attention, return_attention_scores, training)
        return heads_last(attended), found[0] if found else None

    def _tables(self, dtype: Any, relations: Relations | None) -> dict[str, Tensor]:
        """What there is to learn beside the projections, by name, as `Attention` wants it: of the
        labels those that are in use."""
        named = {
            "vector": self.compatibility_vectors,
            "key": self.relation_key_embeddings,
            "value": self.relation_value_embeddings,
        }
        tables = {
            name: ops.cast(ops.convert_to_tensor(table), dtype)
            for name, table in named.items()
            if table is not None
        }
        if isinstance(relations, RelativePositions) and relations.is_causal:
            for name in tables.keys() - {"vector"}:
                tables[name] = tables[name][..., : relations.num_labels, :]
        return tables

    def _dropout_mask(self, query: Tensor, key: Tensor, training: bool | None) -> Tensor | None:
        """What dropout multiplies the weights `[N, B, T, S]` by, once for both passes."""
        if not (self.dropout and training):
            return None
        ones = ops.ones((*shape_of(query)[:3], shape_of(key)[2]), query.dtype)
        return self._dropped(ones, training)

    def _dropped(self, weights: Tensor, training: bool | None) -> Tensor:
        return apply_dropout(self._dropout_layer, weights, training) if self.dropout else weights

    def _scaled(self, query: Tensor) -> Tensor:
        """Projected queries as the scores take them: over sqrt(H) in Eq. 4."""
        if self.is_additive:
            return query
        return ops.multiply(query, self._inverse_sqrt_key_dim)

    def _compute_attention_mask(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | None:
        """All masks as one. Of Keras's this differs where there are free axes or a mask of heads,
        which it does not align with the others."""
        masks = (query_mask, value_mask, key_mask)
        if len(self._attention_axes) != 1:
            return super()._compute_attention_mask(
                query, value, *masks, attention_mask, use_causal_mask
            )
        if self._attention_axes[0] != len(query.shape) - 2:
            query_mask, value_mask, key_mask = (
                mask if mask is None else ops.moveaxis(mask, self._attention_axes[0], -1)
                for mask in masks
            )
        mask = super()._compute_attention_mask(
            query, value, query_mask, value_mask, key_mask, use_causal_mask=use_causal_mask
        )
        return both(attention_mask, mask)

    def _compute_causal_mask(self, query: Tensor, value: Tensor | None = None) -> Tensor:
        return visible(*self._lengths(query, value), causal=True)

    def _compute_sliding_window_mask(self, query: Tensor, value: Tensor | None = None) -> Tensor:
        return visible(*self._lengths(query, value), window=self._sliding_window)

    def _lengths(self, query: Tensor, value: Tensor | None = None) -> tuple[Any, Any]:
        """T and S. Of several attention axes the first, as in Keras's layer."""
        axis = self._attention_axes[0]
        return shape_of(query)[axis], shape_of(query if value is None else value)[axis]

    def compute_cache(self, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Projected keys and values `[B, 2, S, N, H]` of the inputs `[B, S, D]`.

        Raises:
            ValueError: `value_dim` differs from `key_dim`, so that they do not stack, or the layer
                has not been built.
        """
        self._check_stackable()
        self._check_built("compute_cache")
        self._check_keys(value, key)
        return ops.stack(self._project(value, key), axis=1)

    def _visible_in_cache(
        self, query: Tensor, value: Tensor, cache: Tensor, offset: Any, use_causal_mask: bool
    ) -> Tensor | None:
        """Which of the cache's S positions each query may see: bool `[1, T, S]`, None for all."""
        T, S = shape_of(query)[1], shape_of(cache)[2]
        window = self._sliding_window
        seen = None
        if use_causal_mask or window is not None or offset is not None:
            seen = visible(
                T, S, 0 if offset is None else offset, causal=use_causal_mask, window=window
            )
        if offset is not None:
            num_written = offset + shape_of(value)[1]
            seen = seen & (ops.arange(S, dtype="int32") < num_written)
        return seen

    def _cached(
        self, cache: Tensor, value: Tensor, key: Tensor | None, offset: int | Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The cache, with the given positions if there is an `offset`; its keys and values."""
        if offset is not None:
            cache = write(cache, self.compute_cache(value, key), offset)
        return cache, (cache[:, 0], cache[:, 1])

    def _symbolic(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None,
        cache: Tensor | None,
        return_attention_scores: bool,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        """What a call returns: the output, with weights and cache where they are asked for."""
        key_shape = None if key is None else key.shape
        shape = self.compute_output_shape(query.shape, value.shape, key_shape)
        axes = self._positive_axes(len(query.shape))
        free = [n for axis, n in enumerate(query.shape[:-1]) if axis not in axes]
        keys = [value.shape[axis] for axis in axes] if cache is None else [cache.shape[2]]
        by_key = (*free, self.num_heads, *(query.shape[axis] for axis in axes), *keys)
        dtype = self.compute_dtype
        output = keras.KerasTensor(shape, dtype=dtype)
        weights = keras.KerasTensor(by_key, dtype=dtype) if return_attention_scores else None
        cache = None if cache is None else keras.KerasTensor(cache.shape, dtype=cache.dtype)
        return given(output, weights, cache)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "implementation": self.implementation,
            "compatibility": self.compatibility,
            **own_policies(self),
        }


class Softmax(keras.layers.Softmax):
    """Keras's, which would warn that a single key gets all of the weight."""

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if inputs.shape[-1] != 1:
            return super().call(inputs, mask)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return super().call(inputs, mask)


def _for_queries(mask: Tensor | None, T: Any) -> Tensor | None:
    """A mask with all four axes, of which that of queries is known to be 1 or T long."""
    if mask is None or mask.shape[2] is not None:
        return mask
    N, B, _, S = shape_of(mask)
    return ops.broadcast_to(mask, (N, B, T, S))


def _without_mask(x: Tensor) -> Tensor:
    """`x` without its Keras mask, of which the projections would warn that they ignore it."""
    return x if getattr(x, "_keras_mask", None) is None else ops.copy(x)
