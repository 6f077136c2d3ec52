"""Trains a model to tell the nodes of graphs apart, with `model.fit`, and asks it."""

from __future__ import annotations

import hashlib
import logging
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from pipelines.errors import InputError, first_line
from pipelines.files.atomic import new_file
from pipelines.files.records import difference, read_json, settings_with_model, write_json
from pipelines.flag_checks import check_finite
from pipelines.graphs.batches import batches, plan
from pipelines.graphs.config import ModelConfig, TrainingConfig
from pipelines.graphs.graph import Graph, Task
from pipelines.graphs.model import build, is_seen
from pipelines.progress import Work, progress
from pipelines.training.adam import Adam
from pipelines.training.schedule import warmup_then_cosine
from tf_relpos.query_blocks import lengths_up_to

_LOG = logging.getLogger(__name__)

CLIPPED_AT = 1.0  # norm of the gradients
_STATE = "state.keras"
_SETTINGS = "config.json"


class Trained(NamedTuple):
    """A model, and how fast this call trained it; None if nothing was left to train."""

    model: keras.Model
    steps_per_second: float | None


@keras.saving.register_keras_serializable(package="pipelines")
class NodeAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The share of nodes, each of which counts alike. Keras takes the mean of each graph first, by
    which padding, and so the company of a graph in its batch, would count as well."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        logits = keras.ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        if sample_weight is not None:
            sample_weight = keras.ops.reshape(sample_weight, (-1,))
        super().update_state(keras.ops.reshape(y_true, (-1,)), logits, sample_weight)


def train(
    task: Task, model_config: ModelConfig, config: TrainingConfig, directory: Path | None = None
) -> Trained:
    """Trains; with a directory, goes on from the epoch that an interrupted call had finished.

    Raises:
        InputError: what is in the directory is of another training, or cannot be read; or the loss
            is not finite any more.
    """
    steps = steps_per_epoch(task, config)
    model = _resumed(task, model_config, config, directory)
    model = model or new_model(task, model_config, config)
    done = int(model.optimizer.iterations) // steps
    if done:
        _LOG.info("resumed after epoch %d/%d", done, config.epochs)
    seeds = [(config.seed, epoch) for epoch in range(done, config.epochs)]
    data = batches(task.train, len(task.labels), config.relations, config.batch_nodes, seeds)
    seconds = 0.0
    if seeds:
        longest = max(len(graph.nodes) for graph in task.train)
        with (
            lengths_up_to(longest),
            progress("training", "updates", steps * config.epochs, done=steps * done) as work,
        ):
            told = _Told(config, work, directory)
            model.fit(
                data,
                steps_per_epoch=steps,
                epochs=config.epochs,
                initial_epoch=done,
                callbacks=[told],
                shuffle=False,  # each epoch has an order of its own already
                verbose=0,
            )
            seconds = told.seconds
    return Trained(model, (len(seeds) * steps - 1) / seconds if seconds else None)


def new_model(task: Task, model_config: ModelConfig, config: TrainingConfig) -> keras.Model:
    """A compiled model with its first weights."""
    keras.utils.set_random_seed(config.seed)
    model = build(model_config, config.relations, task)
    updates = steps_per_epoch(task, config) * config.epochs
    compile_model(model, updates, config.learning_rate, config.weight_decay)
    return model


def compile_model(
    model: keras.Model, updates: int, learning_rate: float, weight_decay: float = 0.0
) -> None:
    """For logits `[B, T, V]` and targets `[B, T]`, of which those count that have a weight."""
    rate = warmup_then_cosine(updates, learning_rate)
    optimizer = Adam(rate, weight_decay=weight_decay or None, clipnorm=CLIPPED_AT)
    # Within `fit` its variables would be made in the graph, which is then made twice.
    optimizer.build(model.trainable_variables)
    # XLA would compile each shape anew, for longer than the training takes.
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[NodeAccuracy(name="accuracy")],
        jit_compile=False,
    )


def steps_per_epoch(task: Task, config: TrainingConfig) -> int:
    """The number of batches that the graphs to train on make."""
    return len(plan([len(graph.nodes) for graph in task.train], config.batch_nodes, None))


def accuracy(model: keras.Model, task: Task, config: TrainingConfig) -> float:
    """The share of the nodes of the graphs to test on whose class the model tells.

    Raises:
        InputError: the loss on them is not finite: the last update was too much.
    """
    relations = config.relations
    data = batches(task.test, len(task.labels), relations, config.batch_nodes)
    with progress("testing"):
        found = model.evaluate(data, verbose=0, return_dict=True)
    check_finite(found["loss"], config.learning_rate)
    return float(found["accuracy"])


def attention_of(
    model: keras.Model, task: Task, config: TrainingConfig, graph: Graph
) -> tuple[np.ndarray, np.ndarray]:
    """The attention of each layer to a graph, `[layers, N, T, T]`, and each node's class, `[T]`."""
    ((inputs, _, _),) = batches([graph], len(task.labels), config.relations, config.batch_nodes)
    attentions = [a for a in model.layers if isinstance(a, keras.layers.MultiHeadAttention)]
    states = keras.Model(model.input, [layer.input[0] for layer in attentions])(inputs)
    weights = [
        layer(
            x,
            x,
            relations=inputs["relations"],
            attention_mask=is_seen(inputs["relations"]),
            return_attention_scores=True,
        )[1]
        for layer, x in zip(attentions, keras.tree.flatten(states), strict=True)
    ]
    classes = np.argmax(keras.ops.convert_to_numpy(model(inputs))[0], -1)
    return np.stack([keras.ops.convert_to_numpy(w)[0] for w in weights]), classes


def _resumed(
    task: Task, model_config: ModelConfig, config: TrainingConfig, directory: Path | None
) -> keras.Model | None:
    """The model and its optimizer after the last epoch; None if there was none."""
    if directory is None:
        return None
    settings = {
        **settings_with_model(model_config, config),
        "train": [len(task.train), sum(len(graph.nodes) for graph in task.train)],
        "sha256_of_train": _digest(task.train),
        "labels": [*task.labels],
        "classes": [*task.classes],
    }
    before = read_json(directory / _SETTINGS)
    is_begun = isinstance(before, dict) and before.keys() == settings.keys()
    if before is None or (is_begun and not (directory / _STATE).exists()):  # no epoch has ended
        write_json(directory / _SETTINGS, settings)
        return None
    if not isinstance(before, dict):
        raise InputError(f"{directory / _SETTINGS} cannot be read: it must have a table")
    if which := difference({name: before.get(name) for name in settings}, settings):
        raise InputError(f"run_dir {directory} is of another training: {which}")
    state = directory / _STATE
    try:
        # Of what is no archive Keras says that it is not there.
        with zipfile.ZipFile(state):
            return keras.saving.load_model(state)
    except Exception as error:  # of Keras, zipfile, h5py or json: whatever the damage meets first
        raise InputError(
            f"{state} cannot be read: {first_line(error)}: remove it to train from the beginning"
        ) from error


def _digest(graphs: Sequence[Graph]) -> str:
    """Which tells graphs from others."""
    digest = hashlib.sha256()
    for graph in graphs:
        for array in (graph.nodes, graph.edges, graph.targets):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class _Told(keras.callbacks.Callback):
    """Tells of each epoch, and keeps what is needed to go on after it, if the loss is finite."""

    def __init__(self, config: TrainingConfig, work: Work, directory: Path | None):
        super().__init__()
        self.config = config
        self.work, self.directory = work, directory
        self.seconds = 0.0  # without the first step, which waits for the graph
        self._began: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Dropout depends on the seed and the epoch alone, so that resumed training drops the same.

        The states of its generators are variables, but no weights, and are not saved.
        """
        if self._began is not None:  # what is written between epochs does not count
            self._began = time.perf_counter()
        states = [v for v in self.model.variables if v.path.endswith("seed_generator_state")]
        rng = np.random.default_rng((self.config.seed, epoch))
        for state in states:
            state.assign(rng.integers(0, 1 << 31, state.shape))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.work.advance()
        now = time.perf_counter()
        if self._began is not None:
            self.seconds += now - self._began
        self._began = now

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        check_finite(logs["loss"], self.config.learning_rate)
        _LOG.info(
            "epoch %d/%d  loss %.4f  accuracy %.3f",
            *(epoch + 1, self.config.epochs, logs["loss"], logs["accuracy"]),
        )
        if self.directory:
            with new_file(self.directory / _STATE) as temporary:
                whole = temporary.with_name(f"{temporary.name}.keras")
                try:
                    self.model.save(whole)
                    whole.replace(temporary)
                finally:
                    whole.unlink(missing_ok=True)
