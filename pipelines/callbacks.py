"""What happens between training steps: progress, checkpoints, validation, interruption."""

import signal
import sys
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from pipelines.checkpoints import RunDirectory
from pipelines.errors import InputError


class Progress(keras.callbacks.Callback):
    """Prints and records loss, accuracy, speed and time left, averaged over a log interval.

    Args:
        run: its `history.jsonl` and TensorBoard events are appended to.
        first_step, last_step: updates done before this session, and when it is over.
        log_every: updates between reports.
        learning_rate: the schedule.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        first_step: int,
        last_step: int,
        log_every: int,
        learning_rate: Callable[[int], float],
    ):
        super().__init__()
        self.run = run
        self.step = self.first_step = first_step
        self.last_step = last_step
        self.log_every = log_every
        self.learning_rate = learning_rate
        self.events = tf.summary.create_file_writer(str(run.events_path))
        self._logs: list[dict[str, tf.Tensor]] = []
        self._seconds = self._total_seconds = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self._logs.append({name: float(value) for name, value in logs.items()})
        self._seconds += time.monotonic() - self._started
        self.step += 1
        if self.step % self.log_every == 0 or self.step == self.last_step:
            self._report()

    def _report(self):
        sums = {name: sum(logs[name] for logs in self._logs) for name in self._logs[0]}
        tokens = sums["tokens"]
        record = {
            "step": self.step,
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "accuracy": sums["correct"] / tokens,
            "learning_rate": float(self.learning_rate(self.step - 1)),
            "target_tokens_per_step": tokens / len(self._logs),
            "tokens_per_second": (tokens + sums["source_tokens"]) / self._seconds,
            "padding_share": 1 - (tokens + sums["source_tokens"]) / sums["positions"],
        }
        self._total_seconds += self._seconds
        done = self.step - self.first_step
        left = self._total_seconds / done * (self.last_step - self.step)
        print(
            f"step {self.step:,}/{self.last_step:,}  loss {record['loss']:.3f}  "
            f"accuracy {record['accuracy']:.3f}  "
            f"{record['tokens_per_second']:,.0f} tokens/s  {duration(left)} left",
            flush=True,
        )
        self.run.add_history(record)
        write_events(self.events, self.step, record)
        self._logs, self._seconds = [], 0.0


class Checkpoints(keras.callbacks.Callback):
    """Saves every so many updates, every so many minutes, and at the end of training.

    Args:
        save: `save(step)` writes a checkpoint.
        first_step: updates done before.
        every: updates between checkpoints, 0 for none.
        minutes: between checkpoints, 0 for none.
    """

    def __init__(self, save: Callable[[int], None], first_step: int, every: int, minutes: float):
        super().__init__()
        self.save = save
        self.step = self.saved_step = first_step
        self.every = every
        self.seconds = 60 * minutes
        self.saved_at = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        is_due = self.every and self.step % self.every == 0
        if is_due or (self.seconds and time.monotonic() - self.saved_at >= self.seconds):
            self._save()

    def on_train_end(self, logs=None):
        if self.step > self.saved_step:
            self._save()

    def _save(self):
        self.save(self.step)
        self.saved_step, self.saved_at = self.step, time.monotonic()


class Validation(keras.callbacks.Callback):
    """Scores the model every so many updates and keeps the best checkpoint.

    Args:
        validate: `validate() -> BLEU`, 0 to 100.
        save: `save(step)` writes a checkpoint.
    """

    def __init__(
        self,
        validate: Callable[[], float],
        save: Callable[[int], None],
        run: RunDirectory,
        *,
        first_step: int,
        every: int,
    ):
        super().__init__()
        self.validate = validate
        self.save = save
        self.run = run
        self.step = first_step
        self.every = every
        self.events = tf.summary.create_file_writer(str(run.events_path))

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step % self.every:
            return
        bleu = self.validate()
        best = self.run.best()
        is_best = best is None or bleu > best["bleu"]
        if is_best:
            self.save(self.step)
            self.run.mark_best(self.step, bleu)
        print(
            f"step {self.step:,}  validation BLEU {bleu:.2f}" + ("  (best)" if is_best else ""),
            flush=True,
        )
        self.run.add_history({"step": self.step, "validation_bleu": bleu})
        write_events(self.events, self.step, {"validation_bleu": bleu})


class Interruption(keras.callbacks.Callback):
    """Ends training after the current update when SIGINT or SIGTERM arrives.

    A second signal of the same kind has its usual effect.
    """

    def __init__(self):
        super().__init__()
        self.signal: signal.Signals | None = None
        self._previous = {}

    def on_train_begin(self, logs=None):
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)

    def _receive(self, number, frame):
        self.signal = signal.Signals(number)
        signal.signal(number, self._previous[number])
        print(f"{self.signal.name}: saving after this step", file=sys.stderr, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        if self.signal is not None:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class NonFiniteLoss(keras.callbacks.Callback):
    """Ends training with an error, and without a checkpoint, when the loss is not a number."""

    def on_train_batch_end(self, batch, logs=None):
        if not tf.math.is_finite(logs["loss"]):
            raise InputError(
                "the loss is not finite any more: lower learning_rate_scale or raise warmup_steps; "
                "the last checkpoint is as it was"
            )


def write_events(writer: tf.summary.SummaryWriter, step: int, record: dict[str, float]) -> None:
    """Writes scalars for TensorBoard."""
    with writer.as_default():
        for name, value in record.items():
            if name != "step":
                tf.summary.scalar(name, value, step)
    writer.flush()


def duration(seconds: float) -> str:
    """Time for people: 4 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
