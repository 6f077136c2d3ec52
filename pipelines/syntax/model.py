"""A small translator whose encoder knows dependencies, positions, or both."""

from __future__ import annotations

import keras

from pipelines.graphs.batches import MAX_DISTANCE, num_relations
from pipelines.graphs.config import ModelConfig
from pipelines.graphs.model import attending_block
from pipelines.syntax.trees import LABELS
from tf_relpos import DecoderBlock


def build(config: ModelConfig, kind: str, source_size: int, target_size: int) -> keras.Model:
    """`{"source" [B, S], "relations" [B, S, S] or [B, S, S, 2], "target" [B, T]}` to logits
    `[B, T, target_size]` of the words that follow. Padding has the id 0.

    Args:
        config: the model.
        kind: of relations, see `pipelines.graphs.batches.batches`.
        source_size, target_size: words of each language.
    """
    axes = (None, None, 2) if kind == "both" else (None, None)
    source = keras.Input([None], dtype="int32", name="source")
    relations = keras.Input(axes, dtype="int32", name="relations")
    target = keras.Input([None], dtype="int32", name="target")
    is_word = source > 0
    seen = keras.ops.expand_dims(is_word, 1)
    R = num_relations(len(LABELS), kind)
    x = keras.layers.Embedding(source_size, config.model_dim)(source)
    for _ in range(config.layers):
        x = attending_block(x, relations, seen, R, config)
    encoded = keras.layers.LayerNormalization()(x)
    y = keras.layers.Embedding(target_size, config.model_dim)(target)
    for _ in range(config.layers):
        block = DecoderBlock(
            config.model_dim,
            2 * config.model_dim,
            config.num_heads,
            MAX_DISTANCE,
            heads_share_relative_embedding=False,
            dropout=config.dropout,
            norm="pre",
        )
        y = block(y, encoded, source_mask=is_word)
    logits = keras.layers.Dense(target_size, name="logits")(keras.layers.LayerNormalization()(y))
    return keras.Model({"source": source, "relations": relations, "target": target}, logits)
