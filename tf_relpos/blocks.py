"""What the encoder's and the decoder's block of the Transformer have (Vaswani et al. 2017, section
3.1): self-attention, feed-forward, and residuals around them.

Axes: B batch, S source positions, T target positions, D model size, N heads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_relpos.checks import check_shape
from tf_relpos.config import RELATIVE_FIELDS, check_block_arguments
from tf_relpos.kernels import has_slow_gradient
from tf_relpos.lean_layers import Dropout, LayerNormalization
from tf_relpos.masks import visible
from tf_relpos.parts import freeze_parts, give_own_policies, own_policies
from tf_relpos.projections import of_positions
from tf_relpos.relative_attention import RelativeMultiHeadAttention
from tf_relpos.tensor_checks import check_is_padded
from tf_relpos.tensor_ops import Shape, Tensor, exact_dtype, shape_of

LAYER_NORM_EPSILON = 1e-6
NO_POSITIONS = {"max_relative_position": 0, "relative_keys": False, "relative_values": False}


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


class Block(keras.layers.Layer):
    """Self-attention and feed-forward. The arguments are those of `EncoderBlock`."""

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
        **kwargs: Any,
    ) -> None:
        arguments = check_block_arguments(locals())
        super().__init__(**kwargs)
        self.supports_masking = True
        self.arguments = arguments
        relative = {name: arguments[name] for name in RELATIVE_FIELDS}
        if relative["max_relative_position"] is None:
            relative = NO_POSITIONS
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

    def build(self, input_shape: Shape) -> None:
        shape = (None, None, self.arguments["model_dim"])
        check_shape("x", input_shape, shape)
        inner_shape = (None, None, self.arguments["inner_dim"])
        self.self_attention.build(shape, shape)
        self.inner.build(shape)
        self.outer.build(inner_shape)
        for norm in (self.self_attention_norm, self.feed_forward_norm):
            norm.build(shape)
        give_own_policies(self)

    def _check_input(self, x, name="x", batch=None):
        if not hasattr(x, "shape"):
            raise ValueError(f"`{name}` must be a tensor [B, T, D]. Received: {name}={x!r}")
        check_shape(name, x.shape, (batch, None, self.arguments["model_dim"]))

    def _as_numbers(self, x):
        """Integers, and booleans, as floating-point numbers, which Keras leaves as they are."""
        is_float = keras.backend.is_float_dtype(x.dtype)
        return x if is_float else ops.cast(x, self.compute_dtype)

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
        T, window = shape_of(x)[1], self.arguments["attention_window"]
        return visible(T, T, causal=causal, window=None if window is None else window + 1)

    def _feed_forward(self, x, training):
        y = self._before(x, self.feed_forward_norm)
        y = _dense(self.inner, y, self.arguments["inner_dim"])
        y = self.inner_dropout(y, training=training)
        y = _dense(self.outer, y, self.arguments["model_dim"])
        return self._after(x, y, self.feed_forward_norm, training)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments, **own_policies(self)}


def _dense(layer, x, outputs):
    """A layer of the feed-forward; by a product of our own for the gradient of its bias in half
    precision, and of its kernel in training on CPUs if that is slow (see `tf_relpos.kernels`)."""
    is_exact = keras.backend.standardize_dtype(x.dtype) == exact_dtype(x)
    is_usual = is_exact and not has_slow_gradient(x.shape[-1], outputs)
    return layer(x) if is_usual else of_positions(layer, x)


def attention_mask(source_mask: Tensor | None, shape: Shape) -> Tensor | None:
    """The mask `[B, 1, S]` of a source, whose own is of the `shape` `[B, S]`."""
    if source_mask is None:
        return None
    check_is_padded("source_mask", source_mask)
    if not isinstance(source_mask, keras.KerasTensor):
        source_mask = ops.convert_to_tensor(source_mask)
    check_shape("source_mask", source_mask.shape, shape)
    return ops.expand_dims(source_mask, 1)
