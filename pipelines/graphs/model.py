"""A small Transformer whose attention knows the edges of a graph, and nothing of positions."""

from __future__ import annotations

from typing import Any

import keras

from pipelines.graphs.batches import num_relations
from pipelines.graphs.config import ModelConfig
from pipelines.graphs.graph import Task
from tf_relpos import RelationAwareAttention


def build(config: ModelConfig, kind: str, task: Task) -> keras.Model:
    """Nodes `[B, T]` and relations `[B, T, T]` or `[B, T, T, L]` to logits `[B, T, classes]`.

    Padding has the number 0, and no node sees it.

    Args:
        config: the model.
        kind: of relations, see `pipelines.graphs.batches.batches`.
        task: whose nodes and labels these are.
    """
    axes = (None, None, 2) if kind == "both" else (None, None)
    nodes = keras.Input([None], dtype="int32", name="nodes")
    relations = keras.Input(axes, dtype="int32", name="relations")
    seen = keras.ops.expand_dims(nodes > 0, 1)
    if kind != "none":
        seen = keras.ops.logical_and(seen, is_seen(relations))
    x = keras.layers.Embedding(task.node_kinds, config.model_dim)(nodes)
    R = num_relations(len(task.labels), kind)
    for _ in range(config.layers):
        x = attending_block(x, relations, seen, R, config)
    x = keras.layers.LayerNormalization()(x)
    logits = keras.layers.Dense(len(task.classes), name="logits")(x)
    return keras.Model({"nodes": nodes, "relations": relations}, logits)


def attending_block(
    x: keras.KerasTensor,
    relations: keras.KerasTensor,
    seen: keras.KerasTensor,
    num_relations: int,
    config: ModelConfig,
) -> keras.KerasTensor:
    """Attention to the pairs that are `seen`, with their `relations`, if there are any, and a
    feed-forward layer."""
    uses_relations = num_relations > 0
    attention = RelationAwareAttention(
        config.num_heads,
        config.model_dim // config.num_heads,
        max(num_relations, 1),
        relation_keys=uses_relations,
        relation_values=uses_relations,
        heads_share_relations=False,
        compatibility=config.compatibility,
    )
    y = keras.layers.LayerNormalization()(x)
    x = _add(x, attention(y, y, relations=relations, attention_mask=seen), config.dropout)
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(2 * config.model_dim, activation="gelu")(y)
    y = keras.layers.Dropout(config.dropout)(y)
    return _add(x, keras.layers.Dense(config.model_dim)(y), config.dropout)


def is_seen(relations: Any) -> Any:
    """Which pairs have a label, `[B, T, T]`: a node attends to what it is joined to."""
    is_edge = relations >= 0
    return keras.ops.any(is_edge, axis=-1) if len(relations.shape) == 4 else is_edge


def _add(x: keras.KerasTensor, y: keras.KerasTensor, dropout: float) -> keras.KerasTensor:
    return keras.layers.Add()([x, keras.layers.Dropout(dropout)(y)])
