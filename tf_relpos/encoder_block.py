"""The encoder's block of the Transformer (Vaswani et al. 2017, section 3.1).

Axes are those of `tf_relpos.blocks`.
"""

from __future__ import annotations

from typing import Any

import keras

from tf_relpos.blocks import AttentionInputs, Block, attention_mask
from tf_relpos.caches import given
from tf_relpos.masks import both
from tf_relpos.tensor_ops import Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_relpos")
class EncoderBlock(Block):
    """Self-attention and feed-forward. With a causal mask it is the block of a decoder-only model,
    such as a language model.

    Args:
        model_dim: D.
        inner_dim: width of the feed-forward sub-layer.
        num_heads: N; must divide D.
        max_relative_position: k of the self-attention, or None for no relative positions.
        relative_keys, relative_values, heads_share_relative_embedding, implementation: see
            `RelativeMultiHeadAttention`.
        dropout: on the output of each sub-layer.
        attention_dropout: on the attention weights.
        inner_dropout: on the inner layer of the feed-forward sub-layer.
        norm: "post", `LayerNorm(x + sublayer(x))`, or "pre", `x + sublayer(LayerNorm(x))`.
        attention_window: r of the self-attention, which sees r positions on either side, or None.
        compatibility: of all attentions, see `RelativeMultiHeadAttention`.

    Call arguments:
        x: `[B, S, D]`. Positions that its Keras mask (`Embedding(mask_zero=True)`) marks as
            padding are not attended to; the output has the same mask.
        source_mask: bool `[B, S]`, True at tokens, or None.
        use_causal_mask: whether no position sees a later one.
        cache, cache_update_index: keys and values `[B, 2, S_max, N, D/N]` of earlier positions, and
            how many there are, for generation step by step; see `RelativeMultiHeadAttention`.
            `source_mask` is `[B, S_max]` then, and Keras's masks are not looked at.
        mask: the Keras mask of `x`, `[B, S]`, where a wrapper such as `TimeDistributed` gives it.

    Returns:
        `[B, S, D]`, and the cache, written to, if one was given.

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit together.
    """

    def call(
        self,
        x: Tensor,
        source_mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if mask is not None and cache is None:
            source_mask = both(source_mask, mask)
        mask = self._checked_mask(x, source_mask, cache, cache_update_index)
        x = self._as_numbers(x)
        y = self._before(x, self.self_attention_norm)
        found = self.self_attention(
            y,
            y,
            attention_mask=mask,
            training=training,
            use_causal_mask=use_causal_mask,
            cache=cache,
            cache_update_index=cache_update_index,
        )
        y, cache = found if cache is not None else (found, None)
        x = self._after(x, y, self.self_attention_norm, training)
        return given(self._feed_forward(x, training), cache)

    def compute_output_shape(self, input_shape: Shape, *args: Any, **kwargs: Any) -> Shape:
        return input_shape

    def compute_output_spec(
        self,
        x: Tensor,
        source_mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
        mask: Tensor | None = None,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, ...]:
        self._checked_mask(x, source_mask, cache, cache_update_index)
        x = self._symbolic(x)
        return self.self_attention.compute_output_spec(
            x, x, cache=cache, cache_update_index=cache_update_index
        )

    def _checked_mask(self, x, source_mask, cache, cache_update_index):
        """The mask of the self-attention; all arguments are checked."""
        self._check_input(x)
        keys = x.shape[1]
        if cache is not None:
            self.self_attention._check_call(x, x, None, cache, cache_update_index)
            keys = cache.shape[2]
        return attention_mask(source_mask, (x.shape[0], keys))

    def attention_inputs(
        self, x: Tensor, source_mask: Tensor | None = None, use_causal_mask: bool = False
    ) -> AttentionInputs:
        """What the self-attention is called with.

        Args: those of a call.
        """
        y = self._before(self._as_numbers(x), self.self_attention_norm)
        mask = attention_mask(source_mask, x.shape[:2])
        if use_causal_mask or self.arguments["attention_window"] is not None:
            mask = both(mask, self._visible(x, causal=use_causal_mask))
        return AttentionInputs(self.self_attention, y, y, mask)
