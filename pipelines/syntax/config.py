"""The settings of translators with and without syntax, as plain dataclasses.

Each field is a flag of `pipelines.train_syntax`, its docstring the flag's help.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.errors import InputError
from pipelines.flag_checks import check_learning_rate, check_positive
from pipelines.graphs.config import ModelConfig

MODEL = ModelConfig(layers=2)  # of the encoder, and as many of the decoder


@dataclass(frozen=True)
class TrainingConfig:
    """How each is trained."""

    train_pairs: int = 10_000
    """pairs of sentences to train on"""
    valid_pairs: int = 300
    """others to validate on"""
    steps: int = 600
    """updates"""
    every: int = 50
    """updates between two looks at the validation text"""
    batch_words: int = 1024
    """words of the sources of a batch, padding included"""
    learning_rate: float = 2e-3
    """the largest, after warming up; it falls along a cosine"""

    def __post_init__(self) -> None:
        check_positive(self, "train_pairs", "valid_pairs", "every", "batch_words")
        if self.steps < self.every or self.steps % self.every:
            raise InputError(f"steps must be a multiple of every, {self.every}, got {self.steps}")
        check_learning_rate(self.learning_rate)
