"""The model that a configuration describes."""

import dataclasses
import math

import tensorflow as tf

from pipelines.errors import InputError, reason_of
from tf_relpos import Transformer, TransformerConfig


def build_model(
    config: TransformerConfig, dtype: str = "float32", longest: int | None = None
) -> Transformer:
    """A `Transformer` with all its variables.

    Args:
        config: of the model.
        dtype: its precision.
        longest: the most subwords of a sentence, where that is known. Graphs that do not know the
            lengths must otherwise be ready for any, and short sentences are attended to faster in
            the paper's form (`pipelines.benchmark.attention`).

    Raises:
        InputError: there is no room for them.
    """
    labels = 2 * config.max_relative_position + 1
    is_shared = config.heads_share_relative_embedding
    if config.implementation == "auto" and is_shared and (longest or math.inf) <= 8 * labels:
        config = dataclasses.replace(config, implementation="transpose_reshape")
    try:
        model = Transformer(config, dtype=dtype)
        model.build()
    # The configuration is right as such: what remains is the size of a tensor.
    except (tf.errors.OpError, MemoryError, ValueError) as error:
        raise InputError(f"the model is too large for this machine: {reason_of(error)}") from error
    return model
