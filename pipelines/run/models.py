"""The model that a configuration describes."""

import tensorflow as tf

from pipelines.errors import InputError, reason_of
from tf_relpos import Transformer, TransformerConfig


def build_model(config: TransformerConfig, dtype: str = "float32") -> Transformer:
    """A `Transformer` with all its variables.

    Raises:
        InputError: there is no room for them.
    """
    try:
        model = Transformer(config, dtype=dtype)
        model.build()
    # The configuration is right as such: what remains is the size of a tensor.
    except (tf.errors.OpError, MemoryError, ValueError) as error:
        raise InputError(f"the model is too large for this machine: {reason_of(error)}") from error
    return model
