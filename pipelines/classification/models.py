"""Two classifiers as people write them, with the positions that they are given.

Axes: B batch, T positions, D model size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from pipelines.classification.config import ModelConfig
from pipelines.classification.tasks import PADDING, Task
from pipelines.importing import import_optional
from tf_relpos import RelativeMultiHeadAttention, SinusoidalPositionEncoding

# `[B, T, D]` to as much; with bool `[B, T]`, which positions are no padding, or None: then causal.
Block = Callable[[Any, Any], Any]


def build(config: ModelConfig, position: str, task: Task) -> keras.Model:
    """Words `[B, T]` to the logit of a class, `[B, 1]`; or a series to forecasts, `[B, T, 1]` both.

    Args:
        config: the model.
        position: one of `POSITIONS`.
        task: what it is to learn.
    """
    D = config.model_dim
    if task.words:
        inputs = keras.Input([None], dtype="int32")
        # As large as sines, which would drown what starts as small as Keras starts it.
        start = keras.initializers.RandomNormal(stddev=1.0)
        x = keras.layers.Embedding(task.words, D, start)(inputs)
        seen = inputs != PADDING
    else:
        inputs = keras.Input([None, 1])
        x = keras.layers.Dense(D)(inputs)
        seen = None
    if position == "sinusoidal":
        x = SinusoidalPositionEncoding()(x)
    elif position == "learnt":
        length = max(examples.inputs.shape[1] for examples in task[:3])
        x = keras.layers.Add()([x, _learnt_positions(inputs, length, D)])
    for _ in range(config.layers):
        block = BLOCKS[config.model](config, is_relative=position == "relative")
        x = block(x, seen)
    if task.words:
        x = keras.layers.GlobalAveragePooling1D()(x, mask=seen)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def _learnt_positions(inputs: Any, length: int, size: int) -> Any:
    """A vector for each position, `[B, T, D]`, which stays as it starts where training never is."""
    ids = inputs if len(inputs.shape) == 2 else inputs[..., 0]
    positions = keras.ops.cumsum(keras.ops.ones_like(ids, dtype="int32"), axis=1) - 1
    return keras.layers.Embedding(length, size)(positions)


def functional_block(config: ModelConfig, is_relative: bool) -> Block:
    """Attention and feed-forward of a functional model, in Keras's layers.

    Masks are given by hand: what adds a tensor without one loses that of the embedding.
    """
    size = config.model_dim // config.num_heads
    if is_relative:
        attention = RelativeMultiHeadAttention(config.num_heads, size, config.max_relative_position)
    else:
        attention = keras.layers.MultiHeadAttention(config.num_heads, size)

    def block(x: Any, seen: Any) -> Any:
        if seen is None:
            y = attention(x, x, use_causal_mask=True)
        else:
            y = attention(x, x, attention_mask=keras.ops.expand_dims(seen, 1))
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, y]))
        y = keras.layers.Dense(2 * config.model_dim, activation="relu")(x)
        y = keras.layers.Dense(config.model_dim)(y)
        return keras.layers.LayerNormalization()(keras.layers.Add()([x, y]))

    return block


def keras_hub_block(config: ModelConfig, is_relative: bool) -> Block:
    """KerasHub's encoder, which makes its attention itself."""
    sizes = 2 * config.model_dim, config.num_heads
    if is_relative:
        k = config.max_relative_position
        encoder = _relative_encoder()(*sizes, max_relative_position=k)
    else:
        encoder = _keras_hub().layers.TransformerEncoder(*sizes)
    return lambda x, seen: encoder(x, padding_mask=seen)


BLOCKS = {"functional": functional_block, "keras_hub": keras_hub_block}
POSITIONS = ("none", "sinusoidal", "learnt", "relative")


def _keras_hub() -> Any:
    return import_optional("keras_hub", "keras-hub", extra="hub")


@functools.cache
def _relative_encoder() -> type[keras.layers.Layer]:
    """KerasHub's encoder with relative positions, as the documents show it."""

    base: Any = _keras_hub().layers.TransformerEncoder

    @keras.saving.register_keras_serializable("pipelines")
    class RelativeTransformerEncoder(base):
        def __init__(self, *args, max_relative_position=16, **kwargs):
            super().__init__(*args, **kwargs)
            self.max_relative_position = max_relative_position

        def __setattr__(self, name, value):
            if name == "_self_attention_layer":
                own = {"max_relative_position": self.max_relative_position}
                value = RelativeMultiHeadAttention.from_config({**value.get_config(), **own})
            super().__setattr__(name, value)

        def get_config(self):
            own = {"max_relative_position": self.max_relative_position}
            return {**super().get_config(), **own}

    return RelativeTransformerEncoder
