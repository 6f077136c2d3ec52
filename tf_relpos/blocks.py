"""Encoder and decoder block of the Transformer (Vaswani et al. 2017, section 3.1).

Axes: B batch, S source positions, T target positions, D model size, N heads, H head size, K beams,
L positions of the decoder's cache.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_relpos.caches import given
from tf_relpos.checks import check_shape
from tf_relpos.config import RELATIVE_FIELDS, check_block_arguments
from tf_relpos.lean_layers import Dropout, LayerNormalization
from tf_relpos.masks import both, visible
from tf_relpos.parts import freeze_parts, give_own_policies, own_policies
from tf_relpos.projections import of_positions
from tf_relpos.relative_attention import RelativeMultiHeadAttention
from tf_relpos.tensor_checks import check_is_padded
from tf_relpos.tensor_ops import Shape, Tensor, exact_dtype

LAYER_NORM_EPSILON = 1e-6
_ALL = ("query", "key", "value")
_NO_POSITIONS = {"max_relative_position": 0, "relative_keys": False, "relative_values": False}


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
        copies = ops.shape(cache)[2] // ops.shape(new)[2]
        is_here = ops.reshape(self.is_here, (1, 1, -1, 1))
        return ops.where(is_here, ops.tile(new, (1, 1, copies, 1)), cache)


class AttentionInputs(NamedTuple):
    """What a block calls one of its attentions with.

    Attributes:
        layer: the attention.
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        mask: bool `[B or 1, T or 1, S]`, the keys that a query sees; None for all of them.
    """

    layer: RelativeMultiHeadAttention
    query: Tensor
    value: Tensor
    mask: Tensor | None

    def weights(self) -> Tensor:
        """The weights of the attention, `[B, N, T, S]`."""
        return self.layer(
            self.query,
            self.value,
            attention_mask=self.mask,
            training=False,
            return_attention_scores=True,
        )[1]


class _Block(keras.layers.Layer):
    """What both blocks have: self-attention, feed-forward, and residuals around them."""

    def __init__(
        self,
        model_dim: int,
        inner_dim: int,
        num_heads: int,
        max_relative_position: int | None = 16,
        relative_keys: bool = True,
        relative_values: bool = True,
        heads_share_relative_embedding: bool = True,
        implementation: str = "auto",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
        norm: str = "post",
        attention_window: int | None = None,
        compatibility: str = "product",
        **kwargs,
    ):
        arguments = check_block_arguments(locals())
        super().__init__(**kwargs)
        self.supports_masking = True
        self.arguments = arguments
        relative = {name: arguments[name] for name in RELATIVE_FIELDS}
        if relative["max_relative_position"] is None:
            relative = _NO_POSITIONS
        self.self_attention = self._make_attention(
            "self_attention", attention_window=arguments["attention_window"], **relative
        )
        self.self_attention_norm = self._make_norm("self_attention_norm")
        self.inner = keras.layers.Dense(
            arguments["inner_dim"], activation="relu", name="inner", dtype=self.dtype_policy
        )
        self.outer = keras.layers.Dense(
            arguments["model_dim"], name="outer", dtype=self.dtype_policy
        )
        self.feed_forward_norm = self._make_norm("feed_forward_norm")
        self.dropout = Dropout(arguments["dropout"], dtype=self.dtype_policy)
        self.inner_dropout = Dropout(arguments["inner_dropout"], dtype=self.dtype_policy)
        self._make_cross_attention()
        freeze_parts(self)

    def _make_cross_attention(self):
        """Of the block that has one."""

    def _make_attention(self, name, **options):
        model_dim, num_heads = self.arguments["model_dim"], self.arguments["num_heads"]
        # Glorot's limit of the [D, D] projections. Keras would take that of the [D, N, H]
        # kernels as if D were the window of a convolution, which starts them far too small.
        limit = math.sqrt(6 / (2 * model_dim))
        return RelativeMultiHeadAttention(
            num_heads,
            model_dim // num_heads,
            dropout=self.arguments["attention_dropout"],
            compatibility=self.arguments["compatibility"],
            use_bias=False,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            name=name,
            dtype=self.dtype_policy,
            **options,
        )

    def _make_norm(self, name):
        return LayerNormalization(epsilon=LAYER_NORM_EPSILON, name=name, dtype=self.dtype_policy)

    def build(self, input_shape) -> None:
        shape = (None, None, self.arguments["model_dim"])
        check_shape("x", input_shape, shape)
        inner_shape = (None, None, self.arguments["inner_dim"])
        self.self_attention.build(shape, shape)
        self.inner.build(shape)
        self.outer.build(inner_shape)
        for norm in (self.self_attention_norm, self.feed_forward_norm):
            norm.build(shape)
        give_own_policies(self)

    def _check_input(self, x):
        if not hasattr(x, "shape"):
            raise ValueError(f"`x` must be a tensor [B, T, D]. Received: x={x!r}")
        check_shape("x", x.shape, (None, None, self.arguments["model_dim"]))

    def _symbolic(self, x):
        return keras.KerasTensor((*x.shape[:2], self.arguments["model_dim"]), self.compute_dtype)

    def _before(self, x, norm):
        """What a sub-layer is given."""
        return norm(x) if self.arguments["norm"] == "pre" else x

    def _after(self, x, y, norm, training):
        """The residual connection around a sub-layer whose output is `y`."""
        x = x + ops.cast(self.dropout(y, training=training), x.dtype)
        return norm(x) if self.arguments["norm"] == "post" else x

    def _visible(self, x, causal):
        """Which positions of `x` `[B, T, D]` each sees by the window and causality: `[1, T, T]`."""
        T, window = ops.shape(x)[1], self.arguments["attention_window"]
        return visible(T, T, causal=causal, window=None if window is None else window + 1)

    def _feed_forward(self, x, training):
        y = _dense(self.inner, self._before(x, self.feed_forward_norm))
        y = _dense(self.outer, self.inner_dropout(y, training=training))
        return self._after(x, y, self.feed_forward_norm, training)

    def compute_output_shape(self, input_shape, *args, **kwargs) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments, **own_policies(self)}


@keras.saving.register_keras_serializable(package="tf_relpos")
class EncoderBlock(_Block):
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
        return _attention_mask(source_mask, (x.shape[0], keys))

    def attention_inputs(
        self, x: Tensor, source_mask: Tensor | None = None, use_causal_mask: bool = False
    ) -> AttentionInputs:
        """What the self-attention is called with.

        Args: those of a call.
        """
        y = self._before(x, self.self_attention_norm)
        mask = _attention_mask(source_mask, x.shape[:2])
        if use_causal_mask or self.arguments["attention_window"] is not None:
            mask = both(mask, self._visible(x, causal=use_causal_mask))
        return AttentionInputs(self.self_attention, y, y, mask)


@keras.saving.register_keras_serializable(package="tf_relpos")
class DecoderBlock(_Block):
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
        self.cross_attention = self._make_attention("cross_attention", **_NO_POSITIONS)
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
        x = self._attend_to_targets(x, training)
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

    def _checked_mask(self, x, encoded, source_mask):
        """The mask of the cross-attention; all arguments are checked."""
        self._check_input(x)
        if not hasattr(encoded, "shape"):
            raise ValueError(f"`encoded` must be a tensor [B, S, D]. Received: encoded={encoded!r}")
        check_shape("encoded", encoded.shape, (x.shape[0], None, self.arguments["model_dim"]))
        return _attention_mask(source_mask, encoded.shape[:2])

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
        y = self._before(x, self.self_attention_norm)
        own = AttentionInputs(self.self_attention, y, y, self._visible(x, causal=True))
        x = self._attend_to_targets(x, training=False)
        y = self._before(x, self.cross_attention_norm)
        mask = _attention_mask(source_mask, encoded.shape[:2])
        return own, AttentionInputs(self.cross_attention, y, encoded, mask)

    def step_weights(self) -> dict[str, dict[str, Tensor]]:
        """What `step` multiplies by, made once for all steps."""
        return {
            "self_attention": self.self_attention.row_weights(*_ALL),
            "cross_attention": self.cross_attention.row_weights("query"),
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
        y = self.self_attention.attend_to(query, *cache, K, past.bias, past.distances)
        x = self._after(x, y, self.self_attention_norm, training=False)

        y = self._before(x, self.cross_attention_norm)
        (query,) = self.cross_attention.project_rows(y, K, weights["cross_attention"], "query")
        y = self.cross_attention.attend_to(query, *encoded, K, source_bias)
        x = self._after(x, y, self.cross_attention_norm, training=False)
        return self._feed_forward(x, training=False), cache


def _dense(layer, x):
    """A layer of the feed-forward; in half precision by a product of our own, for the gradient of
    its bias."""
    is_exact = keras.backend.standardize_dtype(x.dtype) == exact_dtype(x)
    return layer(x) if is_exact else of_positions(layer, x)


def _attention_mask(source_mask, shape):
    """The mask `[B, 1, S]` of a source, whose own is of the `shape` `[B, S]`."""
    if source_mask is None:
        return None
    check_is_padded("source_mask", source_mask)
    if not isinstance(source_mask, keras.KerasTensor):
        source_mask = ops.convert_to_tensor(source_mask)
    check_shape("source_mask", source_mask.shape, shape)
    return ops.expand_dims(source_mask, 1)
