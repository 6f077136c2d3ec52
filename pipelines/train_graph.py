"""Tells the nodes of labelled graphs apart: python -m pipelines.train_graph"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simple_parsing import choice

from pipelines.command_line import lasting_output, parse_flags, run
from pipelines.errors import (
    InputError,
    check_dropout,
    check_files,
    check_heads,
    check_learning_rate,
    check_positive,
    check_seed,
)
from pipelines.files.atomic import check_files_writable, exclusive
from pipelines.files.pictures import check_can_draw, check_picture, save_figure
from pipelines.files.records import write_json
from pipelines.importing import load_keras
from tf_relpos.config import COMPATIBILITIES

if TYPE_CHECKING:
    from pipelines.graphs.graph import Task
    from pipelines.graphs.training import TrainingConfig

DESCRIPTION = """Train a small Transformer whose attention knows the edges of a graph. With --train
and --test, two CoNLL-U files, it tells the part of speech of each word from the dependency graph
alone: all words look the same to it. With neither, it learns a question about families that it
makes up: the eyes of a person's mother's father's mother."""

FAMILIES = 2000, 400  # to train on and to test on


@dataclass(frozen=True)
class GraphFlags:
    """What to learn."""

    train: str | None = None
    """a CoNLL-U file to train on, plain, or compressed by gzip or xz"""
    test: str | None = None
    """another to test on"""
    hold_out: float | None = None
    """instead of --test: test on this share of the sentences of --train, the last"""
    relations: str = choice("graph", "order", "both", "none", default="graph")
    """what joins the words: the graph, their order, both, or nothing"""
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
    run_dir: str | None = None
    """keeps the model here; the same command goes on after the last epoch that was finished"""
    output: str | None = None
    """a JSON file for the result"""
    picture: str | None = None
    """draws a graph of the test, and the attention on it, PNG or SVG by the name"""
    picture_of: int = 1
    """which graph of the test that is"""

    def __post_init__(self) -> None:
        check_positive(
            self, "layers", "model_dim", "num_heads", "epochs", "batch_nodes", "picture_of"
        )
        check_heads(self)
        check_dropout(self.dropout)
        check_learning_rate(self.learning_rate)
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"weight_decay must be at least 0, got {self.weight_decay}")
        check_seed(self.seed)
        check_files(self, "output", "picture")
        self._check_text()
        self._check_picture()

    def _check_text(self) -> None:
        given = [name for name in ("test", "hold_out") if getattr(self, name) is not None]
        if self.train is None and given:
            raise InputError(f"{given[0]} needs train as well, which is not given")
        if self.train is not None and len(given) != 1:
            raise InputError(f"train needs test or hold_out, and not both, got {len(given)}")
        if self.hold_out is not None and not 0 < self.hold_out < 1:
            raise InputError(f"hold_out must be between 0 and 1, got {self.hold_out}")

    def _check_picture(self) -> None:
        if self.picture is None:
            if self.picture_of != 1:
                raise InputError(f"picture_of needs picture as well, got {self.picture_of} alone")
            return
        check_picture("picture", self.picture)
        if self.relations != "graph":
            raise InputError(
                f"picture shows the edges of a graph, so relations must be graph, "
                f"got {self.relations}"
            )


def main(arguments: Sequence[str]) -> None:
    with lasting_output(), contextlib.ExitStack() as stack:
        flags = parse_flags(GraphFlags, DESCRIPTION, "python -m pipelines.train_graph", arguments)
        if flags.picture:
            check_can_draw()
        check_files_writable(flags, "output", "picture")
        task = read(flags)
        if flags.picture and flags.picture_of > len(task.test):
            raise InputError(
                f"picture_of must be from 1 to {len(task.test)}, got {flags.picture_of}"
            )
        directory = Path(flags.run_dir) if flags.run_dir else None
        if directory:
            stack.enter_context(exclusive(directory, "run_dir"))
        load_keras()
        teach(flags, task, directory)


def read(flags: GraphFlags) -> Task:
    """The graphs; nothing slow is imported for them."""
    from pipelines.graphs.conllu import read_task
    from pipelines.graphs.family import family_task

    if flags.train is None:
        return family_task(*FAMILIES, seed=flags.seed)
    return read_task(flags.train, flags.test, flags.hold_out or 0.0)


def teach(flags: GraphFlags, task: Task, directory: Path | None) -> None:
    """Trains, tests, and writes what is asked for."""
    from pipelines.graphs.baselines import baselines
    from pipelines.graphs.picture import draw
    from pipelines.graphs.training import accuracy, attention_of, train

    look_up = baselines(task.train, task.test)
    for name, share in look_up.items():
        print(f"looked up by {name}: {share:.3f}", flush=True)
    config = config_of(flags)
    trained = train(task, config, directory)
    reached = accuracy(trained.model, task, config)
    print(f"test accuracy {reached:.3f}", flush=True)  # also if it cannot be written
    if flags.output:
        from pipelines.training.devices import description

        result = {
            "device": description(),
            "text": [Path(path).name for path in (flags.train, flags.test) if path],
            "settings": {"hold_out": flags.hold_out, **dataclasses.asdict(config)},
            "graphs": {"train": len(task.train), "test": len(task.test)},
            "looked_up": look_up,
            "parameters": trained.model.count_params(),
            "steps_per_second": trained.steps_per_second,
            "accuracy": reached,
        }
        write_json(Path(flags.output), result)
    if flags.picture:
        graph = task.test[flags.picture_of - 1]
        figure = draw(graph, task, *attention_of(trained.model, task, config, graph))
        save_figure(figure, Path(flags.picture))


def config_of(flags: GraphFlags) -> TrainingConfig:
    from pipelines.graphs.model import ModelConfig
    from pipelines.graphs.training import TrainingConfig

    model = ModelConfig(
        relations=flags.relations,
        layers=flags.layers,
        model_dim=flags.model_dim,
        num_heads=flags.num_heads,
        dropout=flags.dropout,
        compatibility=flags.compatibility,
    )
    return TrainingConfig(
        model=model,
        epochs=flags.epochs,
        nodes=flags.batch_nodes,
        learning_rate=flags.learning_rate,
        weight_decay=flags.weight_decay,
        seed=flags.seed,
    )


if __name__ == "__main__":
    run(main)
