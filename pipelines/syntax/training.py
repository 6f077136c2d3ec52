"""Trains translators that differ in what their encoders know, and keeps their curves."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sacrebleu
import tensorflow as tf

from pipelines.files.records import settings_with_model
from pipelines.flag_checks import check_finite
from pipelines.graphs.batches import plan
from pipelines.graphs.config import ModelConfig
from pipelines.graphs.training import compile_model
from pipelines.progress import Work, progress
from pipelines.syntax.config import TrainingConfig
from pipelines.syntax.data import END, PAD, START, Text, batches
from pipelines.syntax.model import build
from pipelines.syntax.trees import text_of
from pipelines.training.kept_runs import KeptRuns, circumstances
from tf_relpos.query_blocks import lengths_up_to

_LOG = logging.getLogger(__name__)
_CURVES = ("step", "validation_loss", "validation_accuracy")
_FIELDS = {"relations": str, "seed": int, **dict.fromkeys(_CURVES, list), "bleu": float}

KINDS = ("order", "both")  # positions alone, and with dependencies
EXTRA_WORDS = 10  # a translation may be this many words longer than its source


def compare(
    model_config: ModelConfig,
    config: TrainingConfig,
    text: Text,
    seeds: Sequence[int],
    output: Path | None = None,
) -> dict[str, Any]:
    """Trains each of `KINDS` with each seed, but what has been trained.

    Args:
        model_config, config: of each training.
        text: to train and to validate on.
        seeds: of the first weights, dropout and the order of batches.
        output: a JSON file, written after each training; those that it has are not repeated.

    Returns:
        The settings and, of each training with these seeds, its curve and the BLEU at its end.

    Raises:
        InputError: the file cannot be read or written, or is of another comparison; or a loss is
            not finite any more.
    """
    settings = settings_with_model(model_config, config)
    kept = KeptRuns(output, settings, _FIELDS)
    every = itertools.product(seeds, KINDS)
    wanted = [(seed, kind) for seed, kind in every if not kept.has(seed=seed, relations=kind)]
    done = config.steps * len(kept)
    steps = done + config.steps * len(wanted)
    with progress("training", "updates", steps, done=done) as work:
        for seed, kind in wanted:
            found = train(model_config, config, text, kind, seed, work)
            kept.add(relations=kind, seed=seed, **found)
    return kept.of_seeds(seeds)


def train(
    model_config: ModelConfig,
    config: TrainingConfig,
    text: Text,
    relations: str,
    seed: int,
    work: Work,
) -> dict[str, Any]:
    """Trains one model; its curve, and the BLEU of its greedy translations at the end.

    Raises:
        InputError: the loss is not finite any more.
    """
    began = time.monotonic()
    keras.utils.set_random_seed(seed)
    sizes = len(text.source_words), len(text.target_words)
    model = build(model_config, relations, *sizes)
    compile_model(model, config.steps, config.learning_rate)
    valid = batches(text.valid, relations, config.batch_words)
    per_epoch = len(batches(text.train, relations, config.batch_words))
    seeds = [(seed, epoch) for epoch in range(-(-config.steps // per_epoch))]
    longest = max(max(len(each.source), len(each.target)) for each in text.train)
    with lengths_up_to(longest):
        history = model.fit(
            batches(text.train, relations, config.batch_words, seeds),
            steps_per_epoch=config.every,
            epochs=config.steps // config.every,
            validation_data=valid,
            callbacks=[_Told(f"seed {seed}, {relations}", config, work)],
            shuffle=False,
            verbose=0,
        ).history
    translations = translate(model, text, relations, config.batch_words)
    bleu = sacrebleu.corpus_bleu(translations, [[example.reference for example in text.valid]])
    _LOG.info("seed %d, %s: BLEU %.2f", seed, relations, bleu.score)
    return {
        "step": [config.every * (i + 1) for i in range(len(history["loss"]))],
        "validation_loss": history["val_loss"],
        "validation_accuracy": history["val_accuracy"],
        "bleu": bleu.score,
        **circumstances(model, began),
    }


def translate(model: keras.Model, text: Text, relations: str, words: int) -> list[str]:
    """Greedy translations of the sentences to validate on."""

    @tf.function(reduce_retracing=True)
    def next_words(inputs: dict[str, tf.Tensor], place: tf.Tensor) -> tf.Tensor:
        return tf.argmax(model(inputs, training=False)[:, place], -1, output_type=tf.int32)

    numbers = plan([len(example.source) for example in text.valid], words, None)
    found: dict[int, str] = {}
    for batch, (inputs, _, _) in zip(numbers, batches(text.valid, relations, words), strict=True):
        B, S = inputs["source"].shape
        ids = np.full((B, S + EXTRA_WORDS + 1), PAD, "int32")
        ids[:, 0] = START
        is_done = np.zeros(B, bool)
        for place in range(S + EXTRA_WORDS):
            inputs["target"] = tf.constant(ids[:, :-1])
            new = next_words(inputs, tf.constant(place)).numpy()
            ids[:, place + 1] = np.where(is_done, PAD, new)
            is_done |= new == END
            if is_done.all():
                break
        for number, row in zip(batch.tolist(), ids, strict=True):
            found[number] = text_of(
                [text.target_words[i] for i in row if i not in (PAD, START, END)]
            )
    return [found[number] for number in range(len(found))]


class _Told(keras.callbacks.Callback):
    """Tells of each point of the curve, as long as the loss is finite."""

    def __init__(self, name: str, config: TrainingConfig, work: Work):
        super().__init__()
        self.name, self.config, self.work = name, config, work

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.work.advance()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for name in ("loss", "val_loss"):
            check_finite(logs[name], self.config.learning_rate)
        _LOG.info(
            "%s: step %d  loss %.3f  validation loss %.3f  accuracy %.3f",
            *(self.name, (epoch + 1) * self.config.every),
            *(logs[name] for name in ("loss", "val_loss", "val_accuracy")),
        )
