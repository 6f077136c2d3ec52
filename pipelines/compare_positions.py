"""Compares kinds of positions in plain Keras models: python -m pipelines.compare_positions"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from simple_parsing import choice

from pipelines.command_line import lasting_output, parse_flags, run
from pipelines.errors import (
    InputError,
    check_files,
    check_heads,
    check_learning_rate,
    check_positive,
)
from pipelines.files.atomic import check_files_writable, exclusive_file
from pipelines.importing import import_optional, load_keras

DESCRIPTION = """Train small Keras models without positions, with sinusoidal, with learnt absolute
and with relative ones, on a generated task that only order decides: who does what to whom in a
text, or what comes next in a series that repeats itself. Prints what they reach, also on longer
inputs."""


@dataclass(frozen=True)
class ComparisonFlags:
    """What to compare."""

    task: str = choice("text", "series", default="text")
    """a text, or a time series"""
    model: str = choice("functional", "keras_hub", default="functional")
    """a functional Keras model, or KerasHub's TransformerEncoder, of texts alone"""
    seeds: int = 3
    """trainings of each kind, with the seeds 1, 2, ..."""
    epochs: int = 10
    """how often each example is trained on"""
    layers: int = 1
    """blocks of attention and feed-forward"""
    model_dim: int = 32
    """width of the residual stream"""
    num_heads: int = 4
    """attention heads; must divide model_dim"""
    max_relative_position: int = 16
    """k: relative positions are clipped to this distance; 0 is no order"""
    batch: int = 64
    """examples in a batch"""
    learning_rate: float = 5e-3
    """the largest, after warming up; it falls along a cosine"""
    output: str | None = None
    """a JSON file for the results; what it has is not trained again"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds", "epochs", "layers", "model_dim", "num_heads", "batch")
        if self.max_relative_position < 0:
            raise InputError(
                f"max_relative_position must be at least 0, got {self.max_relative_position}"
            )
        check_heads(self)
        check_learning_rate(self.learning_rate)
        if self.model == "keras_hub" and self.task != "text":
            raise InputError(f"model keras_hub needs task text, got {self.task}")
        check_files(self, "output")


def main(arguments: Sequence[str]) -> None:
    with lasting_output():
        prog = "python -m pipelines.compare_positions"
        flags = parse_flags(ComparisonFlags, DESCRIPTION, prog, arguments)
        output = Path(flags.output) if flags.output else None
        check_files_writable(flags, "output")
        with exclusive_file(output, "output") if output else nullcontext():
            load_keras()
            if flags.model == "keras_hub":
                import_optional("keras_hub", "keras-hub", extra="hub")
            print(compared(flags, output), end="")


def compared(flags: ComparisonFlags, output: Path | None) -> str:
    """Trains what is left to train; the table."""
    from pipelines.classification.comparison import ComparisonConfig, compare
    from pipelines.classification.models import ModelConfig
    from pipelines.classification.report import markdown

    model = ModelConfig(
        style=flags.model,
        layers=flags.layers,
        model_dim=flags.model_dim,
        num_heads=flags.num_heads,
        max_relative_position=flags.max_relative_position,
    )
    config = ComparisonConfig(
        task=flags.task,
        model=model,
        epochs=flags.epochs,
        batch=flags.batch,
        learning_rate=flags.learning_rate,
    )
    return markdown(compare(config, range(1, flags.seeds + 1), output))


if __name__ == "__main__":
    run(main)
