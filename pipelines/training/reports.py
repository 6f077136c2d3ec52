"""Counting the updates, and reporting their loss, accuracy, speed and time left."""

import logging
import time
from collections.abc import Callable

import keras

from pipelines.data.epoch_plan import EpochPlan
from pipelines.progress import Work, duration, phases_so_far
from pipelines.run.checkpoints import RunState
from pipelines.training.history import Recorder

_LOG = logging.getLogger(__name__)


class _Timed(keras.callbacks.Callback):
    """Knows for how many seconds an update has been going on."""

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.monotonic()

    def _since_began(self) -> float:
        return time.monotonic() - self._started


class Counting(_Timed):
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
        sums = state.interval
        if sums.get("updates", 0) + sums.get("skipped", 0) > state.step % log_every:
            sums.clear()  # of a whole interval, or of intervals of another length

    def on_train_batch_end(self, batch, logs=None):
        sums = self.state.interval
        if self.state.step % self.log_every == 0:
            sums.clear()
        logs = {name: float(value) for name, value in logs.items()}
        added = {"skipped": 1} if logs["non_finite"] else {"updates": 1, **logs}
        for name, value in {**added, "seconds": self._since_began()}.items():
            sums[name] = sums.get(name, 0) + value
        self.state.step += 1


class AfterCounting(_Timed):
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
        record: appends to the history of the run.
        state: where the run stands.
        last_step: when it is over.
        log_every: updates between reports.
        learning_rate: of the last update that was not skipped.
    """

    def __init__(
        self,
        record: Recorder,
        state: RunState,
        *,
        last_step: int,
        log_every: int,
        learning_rate: Callable[[], float],
    ):
        super().__init__(state)
        self.record = record
        self.last_step = last_step
        self.log_every = log_every
        self.learning_rate = learning_rate
        self._updates, self._seconds = 0, 0.0

    def after_update(self) -> None:
        self._updates += 1
        self._seconds += self._since_began()
        if self.state.step % self.log_every == 0 or self.state.step == self.last_step:
            self._report()

    def _report(self) -> None:
        step, sums = self.state.step, self.state.interval
        scalars: dict[str, float] = {"step": step}
        line = f"step {step:,}/{self.last_step:,}"
        if "updates" in sums:
            scalars |= self._averages()
            line += (
                f"  loss {scalars['loss']:.3f}  accuracy {scalars['accuracy']:.3f}"
                f"  {scalars['tokens_per_second']:,.0f} tokens/s"
            )
        if "skipped" in sums:
            scalars["skipped"] = sums["skipped"]
            line += f"  {sums['skipped']:,} skipped: not finite"
        left = self._seconds / self._updates * (self.last_step - step)
        _LOG.info("%s  %s left", line, duration(left))
        self.record(scalars)

    def _averages(self) -> dict[str, float]:
        """Over the updates that were not skipped."""
        sums = self.state.interval
        tokens = sums["tokens"]
        return {
            "loss": sums["loss"] / tokens,
            "nll": sums["nll"] / tokens,
            "accuracy": sums["correct"] / tokens,
            "learning_rate": self.learning_rate(),
            "target_tokens_per_step": tokens / sums["updates"],
            "tokens_per_second": (tokens + sums["source_tokens"]) / sums["seconds"],
            "padding_share": 1 - (tokens + sums["source_tokens"]) / sums["positions"],
        }


class StartUp(AfterCounting):
    """Tells what passed before the first update, and how long those took that had to compile.

    Args:
        state: where the run stands.
        plan: of the batches.
        micro_batches: batches of an update.
    """

    def __init__(self, state: RunState, plan: EpochPlan, micro_batches: int = 1):
        super().__init__(state)
        self.plan = plan
        self.micro_batches = micro_batches
        self.phases = phases_so_far()
        self._missing = set(plan.buckets)
        self._compiling = 0.0

    def after_update(self) -> None:
        if not self._missing:
            return
        seconds = self._since_began()
        if len(self._missing) == len(self.plan.buckets):
            self._tell_first(seconds)
        last = self.state.step * self.micro_batches
        shapes = {self.plan.bucket(last - number) for number in range(1, 1 + self.micro_batches)}
        if shapes & self._missing:
            self._compiling += seconds
            self._missing -= shapes
            if not self._missing:
                count, spent = len(self.plan.buckets), duration(self._compiling)
                _LOG.info(
                    f"compiled {count} shapes and took their first updates in {spent}, "
                    f"until step {self.state.step:,}"
                )

    def _tell_first(self, compiling: float) -> None:
        spent = {**self.phases.seconds, "compiling": compiling}
        parts = [f"{what} {duration(value)}" for what, value in spent.items() if value >= 0.5]
        total = duration(time.monotonic() - self.phases.began)
        _LOG.info(f"first step after {total}: {', '.join(parts)}")


class ProgressLine(keras.callbacks.Callback):
    """Counts updates on the line of the terminal, which speaks of compiling until there is one.

    Where there is no terminal, the log has nothing else to show until then.
    """

    def __init__(self, work: Work):
        super().__init__()
        self.work = work

    def on_train_batch_end(self, batch, logs=None):
        self.work.what = "training"
        self.work.is_logged = False
        self.work.advance()
