"""What happens between training steps: progress, checkpoints, validation, interruption."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipelines.config import REMEDIES
from pipelines.errors import InputError, reason_of
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import TrainingRun
from pipelines.training.workers import Workers

_LOG = logging.getLogger(__name__)


class Counting(keras.callbacks.Callback):
    """Counts the updates, and adds up their logs over the log interval that they are in.

    The sums are in the state, so that a resumed run goes on with them.

    Args:
        state: where the run stands.
        log_every: updates in an interval.
    """

    def __init__(self, state: RunState, *, log_every: int):
        super().__init__()
        self.state = state
        self.log_every = log_every

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        sums = self.state.interval
        if self.state.step % self.log_every == 0:
            sums.clear()
        logs = {name: float(value) for name, value in logs.items()}
        added = {"skipped": 1} if logs["non_finite"] else {"updates": 1, **logs}
        for name, value in {**added, "seconds": time.monotonic() - self._started}.items():
            sums[name] = sums.get(name, 0) + value
        self.state.step += 1


class AfterCounting(keras.callbacks.Callback):
    """Does something with the state after each update, which `Counting` has counted before.

    Args:
        state: where the run stands.

    Raises:
        RuntimeError: while training: `Counting` is missing, or stands behind it in the list.
    """

    def __init__(self, state: RunState):
        super().__init__()
        self.state = state
        self._last_step = state.step

    def on_train_batch_end(self, batch, logs=None):
        if self.state.step == self._last_step:
            raise RuntimeError(f"Counting must come before {type(self).__name__}")
        self._last_step = self.state.step
        self.after_update()

    def after_update(self) -> None:
        raise NotImplementedError


class Progress(AfterCounting):
    """Reports loss, accuracy, speed and time left at the end of each log interval.

    Args:
        run: its `history.jsonl` and TensorBoard events are appended to.
        state: where the run stands.
        last_step: when it is over.
        log_every: updates between reports.
        learning_rate: the schedule.
    """

    def __init__(
        self,
        run: TrainingRun,
        state: RunState,
        *,
        last_step: int,
        log_every: int,
        learning_rate: Callable[[int], float],
    ):
        super().__init__(state)
        self.run = run
        self.last_step = last_step
        self.log_every = log_every
        self.learning_rate = learning_rate
        self.events = tf.summary.create_file_writer(str(run.events_path))
        self._updates, self._seconds = 0, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.monotonic()

    def after_update(self) -> None:
        self._updates += 1
        self._seconds += time.monotonic() - self._started
        if self.state.step % self.log_every == 0 or self.state.step == self.last_step:
            self._report()

    def _report(self) -> None:
        step, sums = self.state.step, self.state.interval
        record: dict[str, float] = {"step": step}
        line = f"step {step:,}/{self.last_step:,}"
        if "updates" in sums:
            record |= self._averages()
            line += (
                f"  loss {record['loss']:.3f}  accuracy {record['accuracy']:.3f}"
                f"  {record['tokens_per_second']:,.0f} tokens/s"
            )
        if "skipped" in sums:
            record["skipped"] = sums["skipped"]
            line += f"  {sums['skipped']:,} skipped: not finite"
        left = self._seconds / self._updates * (self.last_step - step)
        _LOG.info("%s  %s left", line, duration(left))
        self.run.add_history(record)
        write_events(self.events, step, record)

    def _averages(self) -> dict[str, float]:
        """Over the updates that were not skipped."""
        sums = self.state.interval
        tokens = sums["tokens"]
        return {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "accuracy": sums["correct"] / tokens,
            "learning_rate": float(self.learning_rate(self.state.step - 1)),
            "target_tokens_per_step": tokens / sums["updates"],
            "tokens_per_second": (tokens + sums["source_tokens"]) / sums["seconds"],
            "padding_share": 1 - (tokens + sums["source_tokens"]) / sums["positions"],
        }


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
                "loss or gradient is not finite any more; the last checkpoint is as it was: go on "
                f"from it with another of {', '.join(REMEDIES)}"
            )


def write_events(writer: tf.summary.SummaryWriter, step: int, record: Mapping[str, float]) -> None:
    """Writes scalars for TensorBoard.

    Raises:
        InputError: they cannot be written.
    """
    try:
        with writer.as_default():
            for name, value in record.items():
                if name != "step":
                    tf.summary.scalar(name, value, step)
        writer.flush()
    except tf.errors.OpError as error:
        raise InputError(f"cannot write events for TensorBoard: {reason_of(error)}") from error


def duration(seconds: float) -> str:
    """Time for people: 4 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
