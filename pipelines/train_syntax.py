"""Compares translators with and without syntax: python -m pipelines.train_syntax"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import lasting_output, parse_flags, run
from pipelines.errors import (
    InputError,
    check_dropout,
    check_files,
    check_heads,
    check_learning_rate,
    check_positive,
)
from pipelines.files.atomic import check_files_writable, exclusive_file
from pipelines.files.pictures import check_can_draw, check_picture, save_figure
from pipelines.importing import load_keras

DESCRIPTION = """Train small translators on the demo corpus, whose grammar knows the dependency tree
of each sentence: half of them know the positions of a source's words, half of them the
dependencies as well, as labels on the edges of the encoder's attention. Prints what they reach on
the way."""


@dataclass(frozen=True)
class SyntaxFlags:
    """What to compare."""

    seeds: int = 3
    """trainings of each kind, with the seeds 1, 2, ..."""
    train_pairs: int = 10_000
    """pairs of sentences to train on"""
    valid_pairs: int = 300
    """others to validate on"""
    steps: int = 600
    """updates"""
    every: int = 50
    """updates between two looks at the validation text"""
    layers: int = 2
    """of the encoder, and of the decoder"""
    model_dim: int = 64
    """width of the residual stream"""
    num_heads: int = 4
    """attention heads; must divide model_dim"""
    dropout: float = 0.1
    """on the inner layer of the feed-forward layers, and the output of each sub-layer"""
    batch_words: int = 1024
    """words of the sources of a batch, padding included"""
    learning_rate: float = 2e-3
    """the largest, after warming up; it falls along a cosine"""
    output: str | None = None
    """a JSON file for the results; what it has is not trained again"""
    picture: str | None = None
    """draws the learning curves, PNG or SVG by the name"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds", "train_pairs", "valid_pairs", "every", "layers")
        check_positive(self, "model_dim", "num_heads", "batch_words")
        if self.steps < self.every or self.steps % self.every:
            raise InputError(f"steps must be a multiple of every, {self.every}, got {self.steps}")
        check_heads(self)
        check_dropout(self.dropout)
        check_learning_rate(self.learning_rate)
        check_files(self, "output", "picture")
        if self.picture:
            check_picture("picture", self.picture)


def main(arguments: Sequence[str]) -> None:
    with lasting_output():
        flags = parse_flags(SyntaxFlags, DESCRIPTION, "python -m pipelines.train_syntax", arguments)
        if flags.picture:
            check_can_draw()
        check_files_writable(flags, "output", "picture")
        with exclusive_file(Path(flags.output), "output") if flags.output else nullcontext():
            load_keras()
            print(compared(flags), end="")


def compared(flags: SyntaxFlags) -> str:
    """Trains what is left to train; the table."""
    from pipelines.graphs.model import ModelConfig
    from pipelines.progress import progress
    from pipelines.syntax.data import read
    from pipelines.syntax.report import draw, markdown
    from pipelines.syntax.training import TrainingConfig, compare

    config = TrainingConfig(
        model=ModelConfig(
            layers=flags.layers,
            model_dim=flags.model_dim,
            num_heads=flags.num_heads,
            dropout=flags.dropout,
        ),
        train=flags.train_pairs,
        valid=flags.valid_pairs,
        words=flags.batch_words,
        steps=flags.steps,
        every=flags.every,
        learning_rate=flags.learning_rate,
    )
    with progress("making sentences"):
        text = read(flags.train_pairs, flags.valid_pairs, seed=1)
    output = Path(flags.output) if flags.output else None
    found = compare(config, text, range(1, flags.seeds + 1), output)
    if flags.picture:
        save_figure(draw(found), Path(flags.picture))
    return markdown(found)


if __name__ == "__main__":
    run(main)
