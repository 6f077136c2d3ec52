"""Trains a model with each kind of positions, and keeps what it reached."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import keras

from pipelines.classification.models import POSITIONS, ModelConfig, build
from pipelines.classification.tasks import TASKS, Examples, Task, explained
from pipelines.files.records import read_comparison, write_json
from pipelines.progress import progress
from pipelines.training.devices import description
from pipelines.training.schedule import warmup_then_cosine

_LOG = logging.getLogger(__name__)
_FIELDS = {"position": str, "seed": int, "test": float, "longer": float}  # of a run, some of them


@dataclass(frozen=True)
class ComparisonConfig:
    """What all trainings have in common.

    Attributes:
        task: one of `TASKS`.
        model: the model.
        epochs: how often each example is seen.
        batch: examples of an update.
        learning_rate: Adam's largest.
    """

    task: str = "text"
    model: ModelConfig = field(default_factory=ModelConfig)
    epochs: int = 8
    batch: int = 64
    learning_rate: float = 5e-3


def compare(
    config: ComparisonConfig, seeds: Iterable[int], output: Path | None = None
) -> dict[str, Any]:
    """Trains with each kind of positions and each seed what has not been trained.

    Args:
        config: of each training.
        seeds: of the first weights, dropout and the order of examples.
        output: a JSON file, written after each training; those that it has are not repeated.

    Returns:
        The settings and, of each training, what it reached.

    Raises:
        InputError: the file cannot be read or written, or is of another comparison.
    """
    settings = dataclasses.asdict(config)
    found = read_comparison(output, settings, _FIELDS)
    done = {(run["seed"], run["position"]) for run in found["runs"]}
    wanted = [each for each in itertools.product(seeds, POSITIONS) if each not in done]
    if not wanted:
        return found
    with progress("making examples"):
        task = TASKS[config.task]()
    with progress("training", "models", len(wanted) + len(done), done=len(done)) as work:
        for seed, position in wanted:
            run = {"position": position, "seed": seed, **train(config, task, position, seed)}
            _LOG.info("%s, seed %d: %.3f, longer %.3f", *(run[name] for name in _TOLD))
            found["runs"].append(run)
            if output:
                write_json(output, found)
            work.advance()
    return found


_TOLD = ("position", "seed", "test", "longer")


def train(config: ComparisonConfig, task: Task, position: str, seed: int) -> dict[str, Any]:
    """Trains one model; what it reached, and on what."""
    began = time.monotonic()
    keras.utils.set_random_seed(seed)
    model = build(config.model, position, task)
    updates = -(-len(task.train.targets) // config.batch) * config.epochs
    rate = warmup_then_cosine(updates, config.learning_rate)
    loss = keras.losses.BinaryCrossentropy(from_logits=True) if task.words else "mse"
    model.compile(keras.optimizers.Adam(rate), loss)
    inputs, targets, _ = task.train
    model.fit(inputs, targets, batch_size=config.batch, epochs=config.epochs, verbose=0)
    return {
        "test": score(model, task.test),
        "longer": score(model, task.longer),
        "parameters": model.count_params(),
        "minutes": round((time.monotonic() - began) / 60, 2),
        "date": str(date.today()),
        "device": description(),
    }


def score(model: keras.Model, examples: Examples) -> float:
    """The share of right answers, or of a series's variance that forecasts explain."""
    outputs = model.predict(examples.inputs, batch_size=200, verbose=0)
    if examples.targets.ndim > 1:
        return explained(examples, outputs)
    return float(((outputs[:, 0] > 0) == examples.targets).mean())
