"""The settings of models and trainings on graphs, as plain dataclasses.

Each field is a flag of the command lines, its docstring the flag's help.
"""

from __future__ import annotations

from dataclasses import dataclass

from simple_parsing import choice

from pipelines.errors import InputError
from pipelines.flag_checks import (
    check_dropout,
    check_heads,
    check_learning_rate,
    check_positive,
    check_seed,
)
from tf_relpos.config import COMPATIBILITIES


@dataclass(frozen=True)
class ModelConfig:
    """The model."""

    layers: int = 4
    """blocks of attention and feed-forward"""
    model_dim: int = 64
    """width of the residual stream"""
    num_heads: int = 4
    """attention heads; must divide model_dim"""
    dropout: float = 0.1
    """on the inner layer of the feed-forward layers, and the output of each sub-layer"""
    compatibility: str = choice(*COMPATIBILITIES, default="product")
    """of queries and keys: their product, or additive (Bahdanau et al. 2014), slower"""

    def __post_init__(self) -> None:
        check_positive(self, "layers", "model_dim", "num_heads")
        check_heads(self)
        check_dropout(self.dropout)


@dataclass(frozen=True)
class TrainingConfig:
    """How it is trained."""

    relations: str = choice("graph", "order", "both", "none", default="graph")
    """what joins the nodes: the graph, their order, both, or nothing"""
    epochs: int = 15
    """how often each graph is trained on"""
    batch_nodes: int = 768
    """words, or people, in a batch, padding included"""
    learning_rate: float = 2e-3
    """the largest, after warming up; it falls along a cosine"""
    weight_decay: float = 0.0
    """of AdamW"""
    seed: int = 1
    """of initial weights, dropout and the order of graphs, and of the families"""

    def __post_init__(self) -> None:
        check_positive(self, "epochs", "batch_nodes")
        check_learning_rate(self.learning_rate)
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay must be at least 0, got {self.weight_decay}")
        check_seed(self.seed)
