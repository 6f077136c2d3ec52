"""What happens between training steps: progress, checkpoints, validation, interruption."""

import contextlib
import os
import signal
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from pipelines.config import REMEDIES
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.training.workers import Workers


class Progress(keras.callbacks.Callback):
    """Counts the updates; prints and records their loss, accuracy, speed and time left.

    It comes first of those that look at `state.step`. Losses are averaged over a log interval,
    whose sums are in the state, so that a resumed run goes on with them.

    Args:
        run: its `history.jsonl` and TensorBoard events are appended to.
        state: where the run stands.
        last_step: when it is over.
        log_every: updates between reports.
        learning_rate: the schedule.
    """

    def __init__(
        self,
        run: RunDirectory,
        state: RunState,
        *,
        last_step: int,
        log_every: int,
        learning_rate: Callable[[int], float],
    ):
        super().__init__()
        self.run = run
        self.state = state
        self.last_step = last_step
        self.log_every = log_every
        self.learning_rate = learning_rate
        self.events = tf.summary.create_file_writer(str(run.events_path))
        self._steps = 0
        self._total_seconds = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        logs = {name: float(value) for name, value in logs.items()}
        self._add(**{"skipped": 1} if logs["non_finite"] else {"updates": 1, **logs})
        seconds = time.monotonic() - self._started
        self._add(seconds=seconds)
        self._total_seconds += seconds
        self._steps += 1
        self.state.step += 1
        if self.state.step % self.log_every == 0 or self.state.step == self.last_step:
            self._report()

    def _add(self, **values):
        sums = self.state.interval
        for name, value in values.items():
            sums[name] = sums.get(name, 0) + value

    def _report(self):
        step, sums = self.state.step, self.state.interval
        record = {"step": step}
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
        left = self._total_seconds / self._steps * (self.last_step - step)
        print(f"{line}  {duration(left)} left", flush=True)
        self.run.add_history(record)
        write_events(self.events, step, record)
        sums.clear()

    def _averages(self):
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


class Validation(keras.callbacks.Callback):
    """Scores the model every so many updates and keeps the best checkpoint.

    It comes before `Checkpoints`: a run that resumes from a step has been validated there.

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
        run: RunDirectory,
        state: RunState,
        *,
        every: int,
    ):
        super().__init__()
        self.validate = validate
        self.save = save
        self.run = run
        self.state = state
        self.every = every
        self.events = tf.summary.create_file_writer(str(run.events_path))

    def on_train_batch_end(self, batch, logs=None):
        step, best = self.state.step, self.state.best
        if step % self.every:
            return
        bleu = self.validate()
        is_best = best is None or bleu > best["bleu"]
        print(
            f"step {step:,}  validation BLEU {bleu:.2f}" + ("  (best)" if is_best else ""),
            flush=True,
        )
        self.run.add_history({"step": step, "validation_bleu": bleu})
        write_events(self.events, step, {"validation_bleu": bleu})
        if is_best:
            self.state.best = {"step": step, "bleu": bleu}
            self.save()


class Checkpoints(keras.callbacks.Callback):
    """Saves every so many updates, every so many minutes, and at the end of training.

    Args:
        save: `save(stopgap=False)` writes a checkpoint of the state; a stopgap where training ends
            before its last step.
        state: where the run stands.
        last_step: when it is over.
        every: updates between checkpoints, 0 for none.
        minutes: between checkpoints, 0 for none.
    """

    def __init__(
        self,
        save: Callable[..., None],
        state: RunState,
        *,
        last_step: int,
        every: int,
        minutes: float,
    ):
        super().__init__()
        self.save = save
        self.state = state
        self.last_step = last_step
        self.every = every
        self.seconds = 60 * minutes
        self.saved_step, self.saved_at = state.step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        is_due = self.every and self.state.step % self.every == 0
        if is_due or (self.seconds and time.monotonic() - self.saved_at >= self.seconds):
            self.save()
            self.saved_step, self.saved_at = self.state.step, time.monotonic()

    def on_train_end(self, logs=None):
        if self.state.step > self.saved_step:
            self.save(stopgap=self.state.step < self.last_step)


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
        self._previous = {}

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


def write_events(writer: tf.summary.SummaryWriter, step: int, record: dict[str, float]) -> None:
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
        reason = error.message.splitlines()[0].rpartition("}} ")[2]
        raise InputError(f"cannot write events for TensorBoard: {reason}") from error


def duration(seconds: float) -> str:
    """Time for people: 4 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
