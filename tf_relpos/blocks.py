"""Encoder and decoder block of the Transformer (Vaswani et al. 2017, section 3.1).

Axes: B batch, S source positions, T target positions, D model size, N heads, H head size, K beams,
L positions of the decoder's cache.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from tf_relpos.config import NORMS
from tf_relpos.relative_attention import RelativeMultiHeadAttention

LAYER_NORM_EPSILON = 1e-6


class _Block(keras.layers.Layer):
    """What both blocks have: self-attention, feed-forward, and residuals around them.

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
    """

    def __init__(
        self,
        model_dim,
        inner_dim,
        num_heads,
        max_relative_position=16,
        relative_keys=True,
        relative_values=True,
        heads_share_relative_embedding=True,
        implementation="auto",
        dropout=0.0,
        attention_dropout=0.0,
        inner_dropout=0.0,
        norm="post",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if model_dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `model_dim`. "
                f"Received: num_heads={num_heads}, model_dim={model_dim}"
            )
        if norm not in NORMS:
            raise ValueError(f"`norm` must be one of {NORMS}. Received: norm={norm!r}")
        self.arguments = {
            "model_dim": model_dim,
            "inner_dim": inner_dim,
            "num_heads": num_heads,
            "max_relative_position": max_relative_position,
            "relative_keys": relative_keys,
            "relative_values": relative_values,
            "heads_share_relative_embedding": heads_share_relative_embedding,
            "implementation": implementation,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "inner_dropout": inner_dropout,
            "norm": norm,
        }
        relative = max_relative_position is not None
        self.self_attention = self._make_attention(
            "self_attention",
            max_relative_position=max_relative_position if relative else 0,
            relative_keys=relative and relative_keys,
            relative_values=relative and relative_values,
            heads_share_relative_embedding=heads_share_relative_embedding,
            implementation=implementation,
        )
        self.self_attention_norm = self._make_norm("self_attention_norm")
        self.inner = keras.layers.Dense(
            inner_dim, activation="relu", name="inner", dtype=self.dtype_policy
        )
        self.outer = keras.layers.Dense(model_dim, name="outer", dtype=self.dtype_policy)
        self.feed_forward_norm = self._make_norm("feed_forward_norm")
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.inner_dropout = keras.layers.Dropout(inner_dropout, dtype=self.dtype_policy)

    def _make_attention(self, name, **relative):
        model_dim, num_heads = self.arguments["model_dim"], self.arguments["num_heads"]
        # Glorot's limit of the [D, D] projections. Keras would take that of the [D, N, H]
        # kernels as if D were the window of a convolution, which starts them far too small.
        limit = math.sqrt(6 / (2 * model_dim))
        return RelativeMultiHeadAttention(
            num_heads,
            model_dim // num_heads,
            dropout=self.arguments["attention_dropout"],
            use_bias=False,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            name=name,
            dtype=self.dtype_policy,
            **relative,
        )

    def _make_norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, name=name, dtype=self.dtype_policy
        )

    def build(self, input_shape):
        shape = (None, None, self.arguments["model_dim"])
        inner_shape = (None, None, self.arguments["inner_dim"])
        self.self_attention.build(shape, shape)
        self.inner.build(shape)
        self.outer.build(inner_shape)
        for norm in (self.self_attention_norm, self.feed_forward_norm):
            norm.build(shape)

    def _residual(self, x, sublayer, norm, training):
        """`sublayer(x)` with dropout, the residual connection and the normalization around it."""
        if self.arguments["norm"] == "pre":
            return x + self.dropout(sublayer(norm(x)), training=training)
        return norm(x + self.dropout(sublayer(x), training=training))

    def _feed_forward(self, x, training):
        return self._residual(
            x,
            lambda y: self.outer(self.inner_dropout(self.inner(y), training=training)),
            self.feed_forward_norm,
            training,
        )

    def compute_output_shape(self, input_shape, *args, **kwargs):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self.arguments}


@keras.saving.register_keras_serializable(package="tf_relpos")
class EncoderBlock(_Block):
    """Self-attention and feed-forward.

    Args: those of `DecoderBlock`.

    Call arguments:
        x: `[B, S, D]`.
        source_mask: bool `[B, S]`, True at tokens, or None.

    Returns:
        `[B, S, D]`.
    """

    def call(self, x, source_mask=None, training=None):
        mask = None if source_mask is None else ops.expand_dims(source_mask, 1)
        x = self._residual(
            x,
            lambda y: self.self_attention(y, y, attention_mask=mask, training=training),
            self.self_attention_norm,
            training,
        )
        return self._feed_forward(x, training)


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

    Call arguments:
        x: `[B, T, D]`.
        encoded: `[B, S, D]`.
        source_mask: bool `[B, S]`, True at tokens, or None.

    Returns:
        `[B, T, D]`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cross_attention = self._make_attention(
            "cross_attention", max_relative_position=0, relative_keys=False, relative_values=False
        )
        self.cross_attention_norm = self._make_norm("cross_attention_norm")

    def build(self, input_shape, *_):
        super().build(input_shape)
        shape = (None, None, self.arguments["model_dim"])
        self.cross_attention.build(shape, shape)
        self.cross_attention_norm.build(shape)

    def call(self, x, encoded, source_mask=None, training=None):
        mask = None if source_mask is None else ops.expand_dims(source_mask, 1)
        x = self._residual(
            x,
            lambda y: self.self_attention(y, y, use_causal_mask=True, training=training),
            self.self_attention_norm,
            training,
        )
        x = self._residual(
            x,
            lambda y: self.cross_attention(y, encoded, attention_mask=mask, training=training),
            self.cross_attention_norm,
            training,
        )
        return self._feed_forward(x, training)

    def step(self, x, cache, index, encoded_cache, source_mask):
        """The block at one position, for K hypotheses of each sentence.

        Args:
            x: `[B, K, D]`.
            cache: keys and values of the positions before, `[B, K, 2, L, N, H]`; a position longer
                afterwards, where a graph does not know L.
            index: the position, a scalar int.
            encoded_cache: `cross_attention.compute_cache(encoded)`, `[B, 2, S, N, H]`. The K
                hypotheses attend to it side by side, as if they were K positions: no copies.
            source_mask: bool `[B, S]`.

        Returns:
            `[B, K, D]` and the cache with this position written to it.
        """
        B, K, D = ops.shape(x)

        def attend_to_target(y):
            nonlocal cache
            flat = ops.reshape(cache, (B * K, *ops.shape(cache)[2:]))
            if flat.shape[2] is None:
                flat = ops.pad(flat, [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)])
            y = ops.reshape(y, (B * K, 1, D))
            y, flat = self.self_attention(y, y, cache=flat, cache_update_index=index)
            cache = ops.reshape(flat, (B, K, *ops.shape(flat)[1:]))
            return ops.reshape(y, (B, K, D))

        def attend_to_source(y):
            mask = ops.expand_dims(source_mask, 1)
            y, _ = self.cross_attention(y, y, attention_mask=mask, cache=encoded_cache)
            return y

        x = self._residual(x, attend_to_target, self.self_attention_norm, training=False)
        x = self._residual(x, attend_to_source, self.cross_attention_norm, training=False)
        return self._feed_forward(x, training=False), cache
