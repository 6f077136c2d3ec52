"""The model that a configuration describes."""

from tf_relpos import Transformer, TransformerConfig


def build_model(config: TransformerConfig, dtype: str = "float32") -> Transformer:
    """A `Transformer` with all its variables."""
    model = Transformer(config, dtype=dtype)
    model.build()
    return model
