"""The decoder's block of the Transformer (Vaswani et al. 2017, section 3.1), and one step of it.

Axes: those of `tf_relpos.blocks`, H head size, K beams, L positions of the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from tf_relpos.blocks import NO_POSITIONS, AttentionInputs, Block, attention_mask
from tf_relpos.checks import check_shape
from tf_relpos.parts import give_own_policies
from tf_relpos.projections import product, row_weights
from tf_relpos.tensor_ops import Shape, Tensor, shape_of

_ALL = ("query", "key", "value")


class Past(NamedTuple):
    """Where the hypotheses of a sentence find their earlier positions in caches `[B, N, L*K, H]`.

    A cache has K entries for each position, of the hypotheses that there were at the time. Later
    hypotheses go back to some of them, so that it is their `bias` that follows a search, and no
    cache ever moves.

    Attributes:
        num_hypotheses: K, an int or a scalar int tensor.
        bias: float32 `[B, 1, K, L*K]`, added to scores: 0 where a hypothesis has been, as
            far as the attention's window reaches, or so low that the entry gets no weight.
        distances: int32 `[L*K]`, from this position to that of each entry.
        is_here: bool `[L*K]`, the entries of this position; None where caches grow, and it is
            appended.
    """

    num_hypotheses: Any
    bias: Tensor
    distances: Tensor
    is_here: Tensor | None

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """The cache with the `[B, N, K, H]` of this position."""
        if self.is_here is None:
            return ops.concatenate([cache, new], axis=2)
        # Not `ops.slice_update`, which a server without XLA could not run.
        copies = shape_of(cache)[2] // shape_of(new)[2]
        is_here = ops.reshape(self.is_here, (1, 1, -1, 1))
        return ops.where(is_here, ops.tile(new, (1, 1, copies, 1)), cache)


@keras.saving.register_keras_serializable(package="tf_relpos")
class DecoderBlock(Block):
    """Causal self-attention, attention to the encoder's output, and feed-forward.

    Positions are relative in the self-attention only: source and target positions do not align.

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
        x: `[B, T, D]`.
        encoded: `[B, S, D]`.
        source_mask: bool `[B, S]`, True at tokens, or None.

        Positions that the Keras masks of `x` and `encoded` tell to be padding are not attended to;
        the output has the mask of `x`.

    Returns:
        `[B, T, D]`.

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit together.
    """

    def _make_cross_attention(self):
        self.cross_attention = self._make_attention("cross_attention", **NO_POSITIONS)
        self.cross_attention_norm = self._make_norm("cross_attention_norm")

    def build(
        self,
        x_shape: Shape,
        encoded_shape: Shape | None = None,
        source_mask_shape: Shape | None = None,
    ) -> None:
        super().build(x_shape)
        shape = (None, None, self.arguments["model_dim"])
        if encoded_shape is not None:
            check_shape("encoded", encoded_shape, shape)
        self.cross_attention.build(shape, shape)
        self.cross_attention_norm.build(shape)
        give_own_policies(self)

    def call(
        self,
        x: Tensor,
        encoded: Tensor,
        source_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        mask = self._checked_mask(x, encoded, source_mask)
        x = self._attend_to_targets(self._as_numbers(x), training)
        encoded = self._as_numbers(encoded)
        y = self._before(x, self.cross_attention_norm)
        y = self.cross_attention(y, encoded, attention_mask=mask, training=training)
        x = self._after(x, y, self.cross_attention_norm, training)
        return self._feed_forward(x, training)

    def compute_output_spec(
        self,
        x: Tensor,
        encoded: Tensor,
        source_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        self._checked_mask(x, encoded, source_mask)
        return self._symbolic(x)

    def compute_output_shape(self, x_shape: Shape, *args: Any, **kwargs: Any) -> Shape:
        return x_shape

    def _checked_mask(self, x, encoded, source_mask):
        """The mask of the cross-attention; all arguments are checked."""
        self._check_input(x)
        self._check_input(encoded, "encoded", x.shape[0])
        return attention_mask(source_mask, encoded.shape[:2])

    def _attend_to_targets(self, x, training):
        y = self._before(x, self.self_attention_norm)
        y = self.self_attention(y, y, use_causal_mask=True, training=training)
        return self._after(x, y, self.self_attention_norm, training)

    def attention_inputs(
        self, x: Tensor, encoded: Tensor, source_mask: Tensor | None = None
    ) -> tuple[AttentionInputs, AttentionInputs]:
        """What the self-attention and the attention to `encoded` are called with.

        Args: those of a call.
        """
        x, encoded = self._as_numbers(x), self._as_numbers(encoded)
        y = self._before(x, self.self_attention_norm)
        own = AttentionInputs(self.self_attention, y, y, self._visible(x, causal=True))
        x = self._attend_to_targets(x, training=False)
        y = self._before(x, self.cross_attention_norm)
        mask = attention_mask(source_mask, encoded.shape[:2])
        return own, AttentionInputs(self.cross_attention, y, encoded, mask)

    def step_weights(self) -> dict[str, dict[str, Tensor]]:
        """What `step` multiplies by, made once for all steps."""
        return {
            "self_attention": self.self_attention.row_weights(*_ALL),
            "self_attention_output": self.self_attention.output_weights(),
            "cross_attention": self.cross_attention.row_weights("query"),
            "cross_attention_output": self.cross_attention.output_weights(),
            "inner": row_weights([self.inner], self.compute_dtype),
            "outer": row_weights([self.outer], self.compute_dtype),
        }

    def step(
        self,
        x: Tensor,
        cache: tuple[Tensor, Tensor],
        past: Past,
        encoded: tuple[Tensor, Tensor],
        source_bias: Tensor,
        weights: dict[str, dict[str, Tensor]],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The block at one position, for K hypotheses of each sentence.

        Args:
            x: `[B*K, D]`.
            cache: keys and values of the positions before, `[B, N, L*K, H]` each.
            past: where in the cache the positions of each hypothesis are.
            encoded: `cross_attention.project_heads` of the encoder's output, `[B, N, S, H]` each.
                The K hypotheses attend to it side by side, as if they were K positions: no copies.
            source_bias: `[B, 1, 1, S]`, what is added to the scores of the source's positions.
            weights: from `step_weights`.

        Returns:
            `[B*K, D]` and the cache with this position written to it.
        """
        K = past.num_hypotheses
        y = self._before(x, self.self_attention_norm)
        query, *new = self.self_attention.project_rows(y, K, weights["self_attention"], *_ALL)
        cache = tuple(past.write(*pair) for pair in zip(cache, new, strict=True))
        output = weights["self_attention_output"]
        y = self.self_attention.attend_to(query, *cache, K, past.bias, output, past.distances)
        x = self._after(x, y, self.self_attention_norm, training=False)

        y = self._before(x, self.cross_attention_norm)
        (query,) = self.cross_attention.project_rows(y, K, weights["cross_attention"], "query")
        output = weights["cross_attention_output"]
        y = self.cross_attention.attend_to(query, *encoded, K, source_bias, output)
        x = self._after(x, y, self.cross_attention_norm, training=False)

        y = self._before(x, self.feed_forward_norm)
        y = product(self.inner, y, y.shape[-1], weights=weights["inner"])
        y = ops.cast(y, self.compute_dtype)  # of an inner layer with a precision of its own
        y = product(self.outer, y, y.shape[-1], weights=weights["outer"])
        return self._after(x, y, self.feed_forward_norm, training=False), cache
