"""What happens between updates: validation, checkpoints, interruption, the end after a NaN."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipelines.config import REMEDIES
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import TrainingRun
from pipelines.training.progress import AfterCounting, write_events
from pipelines.training.workers import Workers

_LOG = logging.getLogger(__name__)


class Validation:
    """Scores the model every so many updates and keeps the best checkpoint.

    Args:
        validate: `validate() -> BLEU`, 0 to 100.
        save: writes a checkpoint of the state.
        run: its `history.jsonl` and TensorBoard events are appended to.
        state: where the run stands.
        every: updates between validations.
    """

    def __init__(
        self,
        validate: Callable[[], float],
        save: Callable[[], None],
        run: TrainingRun,
        state: RunState,
        *,
        every: int,
    ):
        self.validate = validate
        self.save = save
        self.run = run
        self.state = state
        self.every = every
        self.events = tf.summary.create_file_writer(str(run.events_path))

    def run_if_due(self) -> None:
        step, best = self.state.step, self.state.best
        if step % self.every:
            return
        bleu = self.validate()
        is_best = best is None or bleu > best["bleu"]
        mark = "  (best)" if is_best else ""
        _LOG.info("step %s  validation BLEU %.2f%s", f"{step:,}", bleu, mark)
        self.run.add_history({"step": step, "validation_bleu": bleu})
        write_events(self.events, step, {"validation_bleu": bleu})
        if is_best:
            self.state.best = {"step": step, "bleu": bleu}
            self.save()


class ValidationAndCheckpoints(AfterCounting):
    """Validates, then saves: every so many updates, every so many minutes, and in the end.

    In this order: a run that resumes from a checkpoint has been validated at its step.

    Args:
        save: `save(interrupted=False)` writes a checkpoint of the state; interrupted is one where
            training ends before its last step.
        state: where the run stands.
        validation: what validates, if anything.
        last_step: when training is over.
        every: updates between checkpoints, 0 for none.
        minutes: between checkpoints, 0 for none.
    """

    def __init__(
        self,
        save: Callable[..., None],
        state: RunState,
        *,
        validation: Validation | None = None,
        last_step: int,
        every: int,
        minutes: float,
    ):
        super().__init__(state)
        self.save = save
        self.validation = validation
        self.last_step = last_step
        self.every = every
        self.seconds = 60 * minutes
        self.saved_step, self.saved_at = state.step, time.monotonic()

    def after_update(self) -> None:
        if self.validation:
            self.validation.run_if_due()
        is_due = self.every and self.state.step % self.every == 0
        if is_due or (self.seconds and time.monotonic() - self.saved_at >= self.seconds):
            self.save()
            self.saved_step, self.saved_at = self.state.step, time.monotonic()

    def on_train_end(self, logs=None):
        if self.state.step > self.saved_step:
            self.save(interrupted=self.state.step < self.last_step)


class Interruption(keras.callbacks.Callback):
    """Ends training after the current update when SIGINT or SIGTERM arrives at any worker.

    A second signal of the same kind has its usual effect.

    Attributes:
        signal: which it was, SIGTERM if another worker has received it; None without one.
    """

    def __init__(self, workers: Workers):
        super().__init__()
        self.workers = workers
        self.signal: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def on_train_begin(self, logs=None):
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)

    def _receive(self, number, frame):
        self.signal = signal.Signals(number)
        signal.signal(number, self._previous[number])
        # Not by `print`, which may be what the signal has interrupted.
        with contextlib.suppress(OSError):
            os.write(2, f"{self.signal.name}: saving after this step\n".encode())

    def on_train_batch_end(self, batch, logs=None):
        if self.workers.any(self.signal is not None):
            self.signal = self.signal or signal.SIGTERM
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class NonFiniteLoss(keras.callbacks.Callback):
    """Ends training with an error, and without a checkpoint, when loss or gradient is not finite.

    Args:
        skip: do so only after `MOST_SKIPPED` updates in a row, which the trainer has skipped.
    """

    MOST_SKIPPED = 100

    def __init__(self, skip: bool = False):
        super().__init__()
        self.most = self.MOST_SKIPPED if skip else 0
        self.in_a_row = 0

    def on_train_batch_end(self, batch, logs=None):
        is_finite = float(logs["non_finite"]) == 0
        self.in_a_row = 0 if is_finite else self.in_a_row + 1
        if self.in_a_row > self.most:
            raise InputError(
                "loss or gradient is no longer finite; the last checkpoint is intact: resume from "
                f"it with a different {' or '.join(REMEDIES)}"
            )
