"""What happens between updates: checkpoints, interruption, the end after a NaN."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import keras

from pipelines.config import REMEDIES
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.training.reports import AfterCounting
from pipelines.training.validation import Validation
from pipelines.training.workers import Workers


class ValidationAndCheckpoints(AfterCounting):
    """Validates, then saves: every so many updates, every so many minutes, and in the end.

    In this order: a run that resumes from a checkpoint has been validated at its step.

    Args:
        save: `save(interrupted=False)` writes a checkpoint of the state; interrupted is one where
            training ends before it is over, or that only the clock asks for beside regular ones.
        state: where the run stands.
        validation: what validates, if anything.
        last_step, patience: when training is over, see `RunState.is_over`.
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
        patience: int = 0,
        every: int,
        minutes: float,
    ):
        super().__init__(state)
        self.save = save
        self.validation = validation
        self.last_step = last_step
        self.patience = patience
        self.every = every
        self.seconds = 60 * minutes
        self.saved_step, self.saved_at = state.step, time.monotonic()

    def after_update(self) -> None:
        if self.validation:
            self.validation.run_if_due()
        is_due = self.every and self.state.step % self.every == 0
        if is_due or (self.seconds and time.monotonic() - self.saved_at >= self.seconds):
            # One by the clock beside those by steps is no part of an average: another run, or this
            # one resumed, has it elsewhere.
            self.save(interrupted=bool(self.every) and not is_due)
            self.saved_step, self.saved_at = self.state.step, time.monotonic()

    def on_train_end(self, logs=None):
        if self.state.step > self.saved_step:
            self.save(interrupted=not self.state.is_over(self.last_step, self.patience))


class Interruption(keras.callbacks.Callback):
    """Ends training after the current update when SIGINT, SIGTERM or SIGHUP arrives at any worker.

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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as shells and `nohup` ask for
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
                "loss or gradient is no longer finite, which no checkpoint has: give a different "
                f"{' or '.join(REMEDIES)}, to go on from the last one or else from the start"
            )
