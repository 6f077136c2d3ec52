"""Trains a model with each kind of positions, and keeps what it reached."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from pipelines.classification.config import ModelConfig, TrainingConfig
from pipelines.classification.models import POSITIONS, build
from pipelines.classification.tasks import TASKS, Examples, Task, explained
from pipelines.files.records import settings_with_model
from pipelines.flag_checks import check_finite
from pipelines.progress import progress
from pipelines.training.kept_runs import KeptRuns, circumstances
from pipelines.training.schedule import warmup_then_cosine

_LOG = logging.getLogger(__name__)
_FIELDS = {"position": str, "seed": int, "test": float, "longer": float}  # of a run, some of them


def compare(
    model_config: ModelConfig,
    config: TrainingConfig,
    seeds: Sequence[int],
    output: Path | None = None,
) -> dict[str, Any]:
    """Trains with each kind of positions and each seed what has not been trained.

    Args:
        model_config, config: of each training.
        seeds: of the first weights, dropout and the order of examples.
        output: a JSON file, written after each training; those that it has are not repeated.

    Returns:
        The settings and, of each training with these seeds, what it reached.

    Raises:
        InputError: the file cannot be read or written, or is of another comparison; or a loss is
            not finite any more.
    """
    settings = settings_with_model(model_config, config)
    kept = KeptRuns(output, settings, _FIELDS)
    every = itertools.product(seeds, POSITIONS)
    wanted = [(seed, kind) for seed, kind in every if not kept.has(seed=seed, position=kind)]
    if not wanted:
        return kept.of_seeds(seeds)
    with progress("making examples"):
        task = TASKS[config.task]()
    with progress("training", "models", len(wanted) + len(kept), done=len(kept)) as work:
        for seed, position in wanted:
            reached = train(model_config, config, task, position, seed)
            scores = position, seed, reached["test"], reached["longer"]
            _LOG.info("%s, seed %d: %.3f, longer %.3f", *scores)
            kept.add(position=position, seed=seed, **reached)
            work.advance()
    return kept.of_seeds(seeds)


def train(
    model_config: ModelConfig, config: TrainingConfig, task: Task, position: str, seed: int
) -> dict[str, Any]:
    """Trains one model; what it reached, and on what.

    Raises:
        InputError: the loss is not finite any more.
    """
    began = time.monotonic()
    keras.utils.set_random_seed(seed)
    model = build(model_config, position, task)
    updates = -(-len(task.train.targets) // config.batch) * config.epochs
    rate = warmup_then_cosine(updates, config.learning_rate)
    loss = keras.losses.BinaryCrossentropy(from_logits=True) if task.words else "mse"
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)  # or the step is traced twice
    model.compile(optimizer, loss)
    inputs, targets, _ = task.train
    check = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: check_finite(logs["loss"], config.learning_rate)
    )
    model.fit(
        inputs,
        targets,
        batch_size=config.batch,
        epochs=config.epochs,
        callbacks=[check],
        verbose=0,
    )
    return {
        "test": score(model, task.test),
        "longer": score(model, task.longer),
        **circumstances(model, began),
    }


def score(model: keras.Model, examples: Examples) -> float:
    """The share of right answers, or of a series's variance that forecasts explain."""
    outputs = model.predict(examples.inputs, batch_size=200, verbose=0)
    if examples.targets.ndim > 1:
        return explained(examples, outputs)
    return float(((outputs[:, 0] > 0) == examples.targets).mean())
