"""The encoder-decoder Transformer (Vaswani et al. 2017) with relative positions (Shaw et al. 2018).

Axes: B batch, S source positions, T target positions, D model size, N heads, H head size, K beams,
L positions of the decoder's cache, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_relpos.blocks import LAYER_NORM_EPSILON, AttentionInputs
from tf_relpos.checks import check_shape
from tf_relpos.config import TransformerConfig
from tf_relpos.decoder_block import DecoderBlock, Past
from tf_relpos.encoder_block import EncoderBlock
from tf_relpos.lean_layers import Dropout, LayerNormalization
from tf_relpos.parts import freeze_parts, give_own_policies, own_policies
from tf_relpos.positions import SinusoidalPositionEncoding
from tf_relpos.projections import times_weights
from tf_relpos.search import GROWING, SHARED, WEIGHTS
from tf_relpos.tensor_checks import check_ids
from tf_relpos.tensor_ops import Tensor, shape_of


@keras.saving.register_keras_serializable(package="tf_relpos")
class Transformer(keras.Model):
    """A sequence-to-sequence Transformer with one embedding for source, target and softmax.

    Args:
        config: a `TransformerConfig`.

    Call arguments:
        inputs: `{"source_ids": int [B, S], "target_ids": int [B, T]}`; `target_ids` is the input
            of the decoder, the target shifted right behind the start id. Padding is `pad_id`.
            Keras casts floats to int32, as it does for its own `Embedding`.

    Returns:
        logits `[B, T, V]`.

    Raises:
        ValueError: inputs that are no such ids, or of different batches.

    For decoding, `encode` once, then `step` from an `initial_cache`; `beam_search`,
    `greedy_search` and `sample` do so.

    Example:
        model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=8000))
        logits = model({"source_ids": source, "target_ids": shifted})
        ids, scores = beam_search(model, source)
    """

    def __init__(self, config: TransformerConfig, **kwargs):
        if type(config) is not TransformerConfig:  # no fields but its own would be loaded again
            raise ValueError(f"`config` must be a TransformerConfig. Received: config={config!r}")
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
        self.embedding_dropout = Dropout(config.dropout, dtype=self.dtype_policy)
        self.encoder_blocks = self._make_blocks(EncoderBlock, "encoder", config.encoder_layers)
        self.decoder_blocks = self._make_blocks(DecoderBlock, "decoder", config.decoder_layers)
        self.encoder_norm = self._make_final_norm("encoder_norm")
        self.decoder_norm = self._make_final_norm("decoder_norm")
        freeze_parts(self)

    def _make_blocks(self, kind, side, count):
        """The blocks of a side from the bottom up; the same one again where they share weights."""
        arguments = {**self.config.block_arguments, "dtype": self.dtype_policy}
        if self.config.share_layers:
            return [kind(name=f"{side}_0", **arguments)] * count
        return [kind(name=f"{side}_{i}", **arguments) for i in range(count)]

    def _make_final_norm(self, name):
        """Pre-norm leaves the sum of the residual stream to be normalized at the end."""
        if self.config.norm == "post":
            return None
        return LayerNormalization(epsilon=LAYER_NORM_EPSILON, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        self.embedding.build((None, None))
        self.position_encoding.build((None, None, self.config.model_dim))
        shape = (None, None, self.config.model_dim)
        layers = (
            *self.encoder_blocks,
            *self.decoder_blocks,
            self.encoder_norm,
            self.decoder_norm,
        )
        for layer in layers:
            if layer is not None and not layer.built:  # a shared one is built once
                layer.build(shape)
        give_own_policies(self)

    def make_train_function(self, force: bool = False) -> Any:
        """Keras's, with all variables there: TensorFlow traces a step twice that makes some, as
        Keras's `fit` does of the optimizer's, and tracing is what the first step takes long for."""
        self._build_all()
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    @property
    def input_dtype(self) -> str:
        """What Keras casts floats to, of which it makes the inputs of models that it exports,
        wraps or builds by itself: ids."""
        return "int32"

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Tensor:
        return ops.matmul(self.hidden(inputs, training), self.columns())

    def hidden(self, inputs: Mapping[str, Any], training: bool | None = None) -> Tensor:
        """What the logits are products of, with `columns`: `[B, T, D]`.

        Args:
            inputs: as for calling the model.
            training: likewise.

        Raises:
            ValueError: inputs that are no ids.
        """
        self._build_all()
        source_ids, target_ids = _both_ids(inputs, self.config.vocabulary_size)
        source_mask = ops.not_equal(source_ids, self.config.pad_id)
        encoded = self._encode(source_ids, source_mask, training)
        x = self._embed(target_ids, training=training)
        for block in self.decoder_blocks:
            x = block(x, encoded, source_mask=source_mask, training=training)
        return self._normalized(x)

    def attention_inputs(self, inputs: Mapping[str, Any]) -> dict[str, AttentionInputs]:
        """What every attention is called with, to look at one by one.

        Args:
            inputs: as for calling the model.

        Returns:
            By the names of the layers, from the bottom up: "encoder_0/self_attention", ...,
            "decoder_0/self_attention", "decoder_0/cross_attention", ...

        Raises:
            ValueError: inputs that are no ids.
        """
        source_ids, target_ids = _both_ids(inputs, self.config.vocabulary_size)
        self._build_all()
        source_mask = ops.not_equal(source_ids, self.config.pad_id)
        found = {}
        x = self._embed(source_ids, training=False)
        for number, block in enumerate(self.encoder_blocks):
            own = block.attention_inputs(x, source_mask)
            found[f"encoder_{number}/self_attention"] = own
            x = block(x, source_mask=source_mask, training=False)
        encoded = x if self.encoder_norm is None else self.encoder_norm(x)
        x = self._embed(target_ids, training=False)
        for number, block in enumerate(self.decoder_blocks):
            own, cross = block.attention_inputs(x, encoded, source_mask)
            found[f"decoder_{number}/self_attention"] = own
            found[f"decoder_{number}/cross_attention"] = cross
            x = block(x, encoded, source_mask=source_mask, training=False)
        return found

    def _build_all(self):
        """What calling the model does, for methods that call parts of it, and parts of blocks."""
        if not self.built:
            self.build()

    def _embed(self, ids, training, start_index=0):
        x = self.embedding(ids)
        x = x * self.config.model_dim**0.5
        if self.config.uses_sinusoidal:
            x = self.position_encoding(x, start_index=start_index)
        return self.embedding_dropout(x, training=training)

    def _encode(self, source_ids, source_mask, training=None):
        x = self._embed(source_ids, training=training)
        for block in self.encoder_blocks:
            x = block(x, source_mask=source_mask, training=training)
        return x if self.encoder_norm is None else self.encoder_norm(x)

    def _normalized(self, x):
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def columns(self) -> Tensor:
        """The vectors of all tokens, `[D, V]`, by which `hidden` gives logits."""
        if getattr(self.embedding, "quantization_mode", None) is None:
            table = self.embedding.embeddings
        else:  # these would be integers without their scales, and without LoRA's part
            table = self.embedding(ops.arange(self.config.vocabulary_size, dtype="int32"))
        return ops.transpose(ops.cast(table, self.compute_dtype))

    def step_weights(self) -> dict[str, Any]:
        """What `step` multiplies by, laid out as products of few rows want it.

        Returns:
            `{"columns": [D, V], "blocks": DecoderBlock.step_weights of each}`.
        """
        self._build_all()
        blocks = {block: block.step_weights() for block in dict.fromkeys(self.decoder_blocks)}
        return {
            "columns": self.columns(),
            "blocks": [blocks[block] for block in self.decoder_blocks],
        }

    def encode(self, source_ids: Any, step_weights: Any = None) -> dict[str, Any]:
        """What `step` needs to know of the source, computed once for all hypotheses.

        Args:
            source_ids: int `[B, S]`.
            step_weights: from `step_weights`, if that was called before.

        Returns:
            `{"mask": bool [B, S], "keys_values": for each decoder block two [B, N, S, H]}`, and
            `"weights"`, the step weights, which are of no sentence.
        """
        source_ids = _checked_ids("source_ids", source_ids, self.config.vocabulary_size)
        self._build_all()
        mask = ops.not_equal(source_ids, self.config.pad_id)
        encoded = self._encode(source_ids, mask, training=False)
        # A source of padding alone gives all of it the same weight, and must have nothing to say.
        encoded = encoded * ops.cast(ops.expand_dims(mask, -1), encoded.dtype)
        keys_values = [
            block.cross_attention.project_heads(encoded) for block in self.decoder_blocks
        ]
        weights = self.step_weights() if step_weights is None else step_weights
        return {"mask": mask, "keys_values": keys_values, WEIGHTS: weights}

    def initial_cache(
        self, memory: Mapping[str, Any], beam_size: Any, max_length: Any
    ) -> dict[str, Any]:
        """Empty self-attention caches for each decoder block.

        Args:
            memory: what `encode` gave.
            beam_size: K.
            max_length: L. An int makes caches of that length, as XLA needs them; a scalar int
                tensor, whose value a graph does not know, makes caches that grow, so that a step
                takes time for the positions that there are, and not for L.

        Returns:
            `"shared"`: `{"fixed": keys and values [B, N, L*K, H] for each decoder block}`, or else
            `{"growing": keys and values [B, N, 0, H] for each decoder block}`; and `"ancestors"`:
            int32 `[B, K, L or 0]`, which of the K entries of each position in the caches is that of
            the hypothesis.
        """
        keys, _ = memory["keys_values"][0]
        B, (N, H) = shape_of(keys)[0], (keys.shape[1], keys.shape[3])
        kind, length = "fixed", max_length
        if ops.is_tensor(max_length):
            # Zero, but not a 0 that the graph knows of: a loop could not change such a length.
            kind, length = GROWING, max_length * 0
        empty = ops.zeros((B, N, length * beam_size, H), dtype=keys.dtype)
        return {
            "ancestors": ops.zeros((B, beam_size, length), dtype="int32"),
            SHARED: {kind: [(empty, empty) for _ in self.decoder_blocks]},
        }

    def step(
        self, token_ids: Any, cache: Mapping[str, Any], index: Any, memory: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Logits of the next token of each hypothesis.

        Args:
            token_ids: int `[B, K]`, the token at position `index`.
            cache: from `initial_cache` or the step before.
            index: the position, a scalar int; 0 holds the start id.
            memory: what `encode` gave.

        Returns:
            logits `[B, K, V]` and the cache.
        """
        ((kind, old),) = cache[SHARED].items()
        sizes = cache["ancestors"].shape[:2]
        check_shape("cache", sizes, (memory["mask"].shape[0], token_ids.shape[1]))
        check_shape("token_ids", token_ids.shape, sizes)
        window = self.config.attention_window
        ancestors, past = _here(cache["ancestors"], index, window, grows=kind == GROWING)
        B, K = shape_of(token_ids)
        x = self._embed(ops.reshape(token_ids, (-1, 1)), False, index)
        x = ops.reshape(x, (-1, self.config.model_dim))
        source_bias = _bias(memory["mask"][:, None, None])
        new = []
        weights = memory[WEIGHTS]
        for block, block_cache, encoded, own in zip(
            self.decoder_blocks, old, memory["keys_values"], weights["blocks"], strict=True
        ):
            x, block_cache = block.step(x, block_cache, past, encoded, source_bias, own)
            new.append(block_cache)
        V = self.config.vocabulary_size
        logits = times_weights(self._normalized(x), {"kernel": weights["columns"]}, V)
        logits = ops.reshape(logits, (B, K, V))
        return logits, {"ancestors": ancestors, SHARED: {kind: new}}

    def compute_output_shape(self, input_shape: Mapping[str, tuple]) -> tuple[int | None, ...]:
        return (*input_shape["target_ids"], self.config.vocabulary_size)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **own_policies(self),
            "config": dataclasses.asdict(self.config),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Transformer:
        config = dict(config)
        return cls(TransformerConfig(**config.pop("config")), **config)


def _here(ancestors, index, window, grows):
    """The ancestors `[B, K, L]` with those at position `index`, the hypotheses themselves, and the
    `Past` that they make; of the positions in the window, if there is one."""
    B, K, L = shape_of(ancestors)
    own = ops.reshape(ops.arange(K, dtype="int32"), (1, K, 1))
    if grows:
        ancestors = ops.concatenate([ancestors, ops.broadcast_to(own, (B, K, 1))], axis=2)
    else:
        places = ops.arange(L, dtype="int32")
        ancestors = ops.where(places == index, own, ancestors)
    is_own = ops.expand_dims(ancestors, -1) == ops.arange(K, dtype="int32")  # [B, K, L, K]
    if not grows:
        is_own = is_own & ops.expand_dims(places <= index, -1)
    if window is not None:
        places = ops.arange(shape_of(ancestors)[2], dtype="int32")
        is_own = is_own & ops.expand_dims(index - places <= window, -1)
    entries = K * shape_of(ancestors)[2]
    bias = _bias(ops.reshape(is_own, (B, 1, K, entries)))
    places = ops.arange(entries, dtype="int32") // K
    return ancestors, Past(K, bias, places - index, None if grows else places == index)


def _bias(is_seen):
    """What is added to scores: 0, or half of the lowest float32, so that the sum is finite."""
    lowest = float(np.finfo("float32").min) / 2
    zero = ops.zeros((), dtype="float32")
    return ops.where(is_seen, zero, ops.full((), lowest, dtype="float32"))


def _both_ids(inputs, vocabulary_size):
    if not isinstance(inputs, Mapping) or not {"source_ids", "target_ids"} <= set(inputs):
        received = tuple(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(
            "`inputs` must be a dict with `source_ids` and `target_ids`. Received: "
            f"inputs={received}"
        )
    source_ids = _checked_ids("source_ids", inputs["source_ids"], vocabulary_size)
    batch = source_ids.shape[0]
    return source_ids, _checked_ids("target_ids", inputs["target_ids"], vocabulary_size, batch)


def _checked_ids(name, ids, vocabulary_size, batch=None):
    ids = check_ids(name, ids, vocabulary_size)
    check_shape(name, ids.shape, (batch, None))
    return ids
