"""The settings of models whose positions are compared, as plain dataclasses.

Each field is a flag of `pipelines.compare_positions`, its docstring the flag's help.
"""

from __future__ import annotations

from dataclasses import dataclass

from simple_parsing import choice

from pipelines.errors import InputError
from pipelines.flag_checks import check_heads, check_learning_rate, check_positive


@dataclass(frozen=True)
class ModelConfig:
    """The model."""

    model: str = choice("functional", "keras_hub", default="functional")
    """a functional Keras model, or KerasHub's TransformerEncoder, of texts alone"""
    layers: int = 1
    """blocks of attention and feed-forward"""
    model_dim: int = 32
    """width of the residual stream"""
    num_heads: int = 4
    """attention heads; must divide model_dim"""
    max_relative_position: int = 16
    """k: relative positions are clipped to this distance; 0 is no order"""

    def __post_init__(self) -> None:
        check_positive(self, "layers", "model_dim", "num_heads")
        check_heads(self)
        if self.max_relative_position < 0:
            raise InputError(
                f"max_relative_position must be at least 0, got {self.max_relative_position}"
            )


@dataclass(frozen=True)
class TrainingConfig:
    """What it learns, and how."""

    task: str = choice("text", "series", default="text")
    """a text, or a time series"""
    epochs: int = 10
    """how often each example is trained on"""
    batch: int = 64
    """examples in a batch"""
    learning_rate: float = 5e-3
    """the largest, after warming up; it falls along a cosine"""

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "batch")
        check_learning_rate(self.learning_rate)
