"""Tells the nodes of labelled graphs apart: python -m pipelines.train_graph"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.command_line import lasting_output, run
from pipelines.errors import InputError
from pipelines.files.atomic import check_files_writable
from pipelines.files.locks import exclusive
from pipelines.files.pictures import check_can_draw, check_picture, save_figure
from pipelines.files.records import settings_with_model, write_json
from pipelines.flag_checks import check_files, check_positive
from pipelines.flag_parser import parse_sections
from pipelines.graphs.config import ModelConfig, TrainingConfig
from pipelines.importing import load_keras

if TYPE_CHECKING:
    from pipelines.graphs.graph import Task

DESCRIPTION = """Train a small Transformer whose attention knows the edges of a graph. With --train
and --test, two CoNLL-U files, it tells the part of speech of each word from the dependency graph
alone: all words look the same to it. With neither, it learns a question about families that it
makes up: the eyes of a person's mother's father's mother."""

FAMILIES = 2000, 400  # to train on and to test on


@dataclass(frozen=True)
class GraphFlags:
    """What to learn from, and where to keep it."""

    train: str | None = None
    """a CoNLL-U file to train on, plain, or compressed by gzip or xz"""
    test: str | None = None
    """another to test on"""
    hold_out: float | None = None
    """instead of --test: test on this share of the sentences of --train, the last"""
    run_dir: str | None = None
    """keeps the model here; the same command goes on after the last epoch that was finished"""
    output: str | None = None
    """a JSON file for the result"""
    picture: str | None = None
    """draws a graph of the test, and the attention on it, PNG or SVG by the name"""
    picture_of: int = 1
    """which graph of the test that is"""

    def __post_init__(self) -> None:
        check_positive(self, "picture_of")
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


def main(arguments: Sequence[str]) -> None:
    with lasting_output(), contextlib.ExitStack() as stack:
        flags, model_config, config = parse(arguments)
        if flags.picture:
            check_can_draw()
        check_files_writable(flags, "output", "picture")
        task = read(flags, config.seed)
        if flags.picture and flags.picture_of > len(task.test):
            raise InputError(
                f"picture_of must be from 1 to {len(task.test)}, got {flags.picture_of}"
            )
        directory = Path(flags.run_dir) if flags.run_dir else None
        if directory:
            stack.enter_context(exclusive(directory, "run_dir"))
        load_keras()
        teach(flags, model_config, config, task, directory)


def parse(arguments: Sequence[str]) -> tuple[GraphFlags, ModelConfig, TrainingConfig]:
    """The flags, which fit together."""
    prog, sections = "python -m pipelines.train_graph", (GraphFlags, ModelConfig, TrainingConfig)
    flags, model_config, config = parse_sections(sections, DESCRIPTION, prog, arguments)
    if flags.picture and config.relations != "graph":
        raise InputError(
            "picture shows the edges of a graph, so relations must be graph, "
            f"got {config.relations}"
        )
    return flags, model_config, config


def read(flags: GraphFlags, seed: int) -> Task:
    """The graphs, families by this seed; nothing slow is imported for them."""
    from pipelines.graphs.conllu import read_task
    from pipelines.graphs.family import family_task

    if flags.train is None:
        return family_task(*FAMILIES, seed=seed)
    return read_task(flags.train, flags.test, flags.hold_out or 0.0)


def teach(
    flags: GraphFlags,
    model_config: ModelConfig,
    config: TrainingConfig,
    task: Task,
    directory: Path | None,
) -> None:
    """Trains, tests, and writes what is asked for."""
    from pipelines.graphs.baselines import baselines
    from pipelines.graphs.picture import draw
    from pipelines.graphs.training import accuracy, attention_of, train

    look_up = baselines(task.train, task.test)
    for name, share in look_up.items():
        print(f"looked up by {name}: {share:.3f}", flush=True)
    trained = train(task, model_config, config, directory)
    reached = accuracy(trained.model, task, config)
    print(f"test accuracy {reached:.3f}", flush=True)  # also if it cannot be written
    if flags.output:
        from pipelines.training.devices import description

        result = {
            "device": description(),
            "text": [Path(path).name for path in (flags.train, flags.test) if path],
            "settings": {"hold_out": flags.hold_out, **settings_with_model(model_config, config)},
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


if __name__ == "__main__":
    run(main)
