"""The encoder-decoder Transformer (Vaswani et al. 2017) with relative positions (Shaw et al. 2018).

Axes: B batch, S source positions, T target positions, D model size, N heads, H head size, K beams,
L positions of the decoder's cache, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import keras
from keras import ops

from tf_relpos.blocks import LAYER_NORM_EPSILON, DecoderBlock, EncoderBlock
from tf_relpos.config import TransformerConfig
from tf_relpos.positions import SinusoidalPositionEncoding


@keras.saving.register_keras_serializable(package="tf_relpos")
class Transformer(keras.Model):
    """A sequence-to-sequence Transformer with one embedding for source, target and softmax.

    Args:
        config: a `TransformerConfig`.

    Call arguments:
        inputs: `{"source_ids": int [B, S], "target_ids": int [B, T]}`; `target_ids` is the input
            of the decoder, the target shifted right behind the start id. Padding is `pad_id`.

    Returns:
        logits `[B, T, V]`.

    For decoding, `encode` once, then `step` from an `initial_cache`; `beam_search`,
    `greedy_search` and `sample` do so.

    Example:
        model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=8000))
        logits = model({"source_ids": source, "target_ids": shifted})
        ids, scores = beam_search(model, source)
    """

    def __init__(self, config: TransformerConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.embedding = keras.layers.Embedding(
            config.vocabulary_size,
            config.model_dim,
            embeddings_initializer=keras.initializers.RandomNormal(0.0, config.model_dim**-0.5),
            name="embedding",
            dtype=self.dtype_policy,
        )
        self.position_encoding = SinusoidalPositionEncoding(dtype=self.dtype_policy)
        self.embedding_dropout = keras.layers.Dropout(config.dropout, dtype=self.dtype_policy)
        self.encoder_blocks = [
            self._make_block(EncoderBlock, f"encoder_{i}") for i in range(config.encoder_layers)
        ]
        self.decoder_blocks = [
            self._make_block(DecoderBlock, f"decoder_{i}") for i in range(config.decoder_layers)
        ]
        self.encoder_norm = self._make_final_norm("encoder_norm")
        self.decoder_norm = self._make_final_norm("decoder_norm")

    def _make_block(self, block, name):
        config = self.config
        return block(
            config.model_dim,
            config.inner_dim,
            config.num_heads,
            max_relative_position=config.max_relative_position if config.uses_relative else None,
            relative_keys=config.relative_keys,
            relative_values=config.relative_values,
            heads_share_relative_embedding=config.heads_share_relative_embedding,
            implementation=config.implementation,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            inner_dropout=config.inner_dropout,
            norm=config.norm,
            name=name,
            dtype=self.dtype_policy,
        )

    def _make_final_norm(self, name):
        """Pre-norm leaves the sum of the residual stream to be normalized at the end."""
        if self.config.norm == "post":
            return None
        return keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, name=name, dtype=self.dtype_policy
        )

    def build(self, input_shape=None):
        self.embedding.build((None, None))
        self.position_encoding.build((None, None, self.config.model_dim))
        shape = (None, None, self.config.model_dim)
        for layer in (
            *self.encoder_blocks,
            *self.decoder_blocks,
            self.encoder_norm,
            self.decoder_norm,
        ):
            if layer is not None:
                layer.build(shape)

    def call(self, inputs, training=None):
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        _check_ids("source_ids", source_ids)
        _check_ids("target_ids", target_ids)
        source_mask = ops.not_equal(source_ids, self.config.pad_id)
        encoded = self._encode(source_ids, source_mask, training)
        x = self._embed(target_ids, training=training)
        for block in self.decoder_blocks:
            x = block(x, encoded, source_mask=source_mask, training=training)
        return self._logits(x)

    def _embed(self, ids, start_index=0, training=None):
        x = self.embedding(ids)
        x = x * ops.cast(self.config.model_dim**0.5, x.dtype)
        if self.config.uses_sinusoidal:
            x = self.position_encoding(x, start_index=start_index)
        return self.embedding_dropout(x, training=training)

    def _encode(self, source_ids, source_mask, training=None):
        x = self._embed(source_ids, training=training)
        for block in self.encoder_blocks:
            x = block(x, source_mask=source_mask, training=training)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def _logits(self, x):
        if self.decoder_norm is not None:
            x = self.decoder_norm(x)
        table = ops.cast(self.embedding.embeddings, x.dtype)
        return ops.matmul(x, ops.transpose(table))

    def encode(self, source_ids):
        """What `step` needs to know of the source, computed once for all hypotheses.

        Args:
            source_ids: int `[B, S]`.

        Returns:
            `{"mask": bool [B, S], "keys_values": a [B, 2, S, N, H] for each decoder block}`.
        """
        _check_ids("source_ids", source_ids)
        mask = ops.not_equal(source_ids, self.config.pad_id)
        encoded = self._encode(source_ids, mask, training=False)
        return {
            "mask": mask,
            "keys_values": [
                block.cross_attention.compute_cache(encoded) for block in self.decoder_blocks
            ],
        }

    def initial_cache(self, memory, beam_size, max_length):
        """Empty self-attention caches for each decoder block.

        Args:
            memory: what `encode` gave.
            beam_size: K.
            max_length: L, an int or a scalar int tensor.

        Returns:
            a list of `[B, K, 2, L, N, H]`. Where a graph does not know L, of `[B, K, 2, 0, N, H]`:
            they grow, so that a step takes time for the positions that there are, and not for L.
        """
        keys_values = memory["keys_values"][0]
        B, (N, H) = ops.shape(keys_values)[0], keys_values.shape[-2:]

        def zeros(length):
            return ops.zeros((B, beam_size, 2, length, N, H), dtype=keys_values.dtype)

        cache = zeros(max_length)
        if cache.shape[3] is None:
            cache = zeros(max_length * 0)  # a length that a graph knows could not change in a loop
        return [cache for _ in self.decoder_blocks]

    def step(self, token_ids, cache, index, memory):
        """Logits of the next token of each hypothesis.

        Args:
            token_ids: int `[B, K]`, the token at position `index`.
            cache: from `initial_cache` or the step before.
            index: the position, a scalar int; 0 holds the start id.
            memory: what `encode` gave.

        Returns:
            logits `[B, K, V]` and the cache.
        """
        B, K = ops.shape(token_ids)
        flat = ops.reshape(token_ids, (B * K, 1))
        x = ops.reshape(self._embed(flat, index, training=False), (B, K, self.config.model_dim))
        caches = []
        for block, block_cache, encoded in zip(
            self.decoder_blocks, cache, memory["keys_values"], strict=True
        ):
            x, block_cache = block.step(x, block_cache, index, encoded, memory["mask"])
            caches.append(block_cache)
        return self._logits(x), caches

    def compute_output_shape(self, input_shape):
        return (*input_shape["target_ids"], self.config.vocabulary_size)

    def get_config(self):
        base = super().get_config()
        return {**base, "config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(TransformerConfig(**config.pop("config")), **config)


def _check_ids(name, ids):
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must hold integer ids. Received: dtype={dtype}")
