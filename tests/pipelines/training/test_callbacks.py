"""What happens between updates, each callback fed by hand."""

import os
import signal

import keras
import pytest
import tensorflow as tf

from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.training import callbacks
from pipelines.training.reports import Counting
from pipelines.training.workers import Workers
from tests.support.updates import feed, logs

pytestmark = pytest.mark.tensorflow_only


def checkpoints_of(steps, **values):
    """At which of so many steps from 4 on it saves, and whether for an interruption."""
    state, saved = RunState(4), []

    def save(interrupted=False):
        saved.append((state.step, interrupted))

    callback = callbacks.ValidationAndCheckpoints(
        save, state, **{"last_step": 10, "every": 0, "minutes": 0, **values}
    )
    feed([logs()] * steps, Counting(state, log_every=3), callback)
    return saved


def test_checkpoints_by_updates_and_at_the_end():
    assert checkpoints_of(6, every=3) == [(6, False), (9, False), (10, False)]
    assert checkpoints_of(6, every=5) == [(5, False), (10, False)]
    assert checkpoints_of(6) == [(10, False)]


def test_where_training_is_interrupted_it_saves():
    assert checkpoints_of(3, every=5) == [(5, False), (7, True)]
    assert checkpoints_of(1, every=5) == [(5, False)]


def test_checkpoints_by_time():
    # A billionth of a minute passes between any two updates.
    assert checkpoints_of(3, minutes=1e-9) == [(5, False), (6, False), (7, False)]
    # Beside those by updates they are like those of an interruption, no part of an average.
    assert checkpoints_of(3, every=3, minutes=1e-9) == [(5, True), (6, False), (7, True)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_training_after_the_update(number, capfd):
    previous = signal.getsignal(number)
    interruption = callbacks.Interruption(Workers(tf.distribute.get_strategy()))
    interruption.set_model(keras.Model())
    interruption.model.stop_training = False
    interruption.on_train_begin()
    interruption.on_train_batch_end(0)
    assert not interruption.model.stop_training
    os.kill(os.getpid(), number)
    assert signal.getsignal(number) == previous  # a second one has its usual effect
    interruption.on_train_batch_end(1)
    assert interruption.model.stop_training
    assert interruption.signal == number
    interruption.on_train_end()
    assert all(signal.getsignal(n) != interruption._receive for n in interruption._previous)
    assert "saving after this step" in capfd.readouterr().err


def test_a_signal_that_is_ignored_is_left_so():
    """As `nohup` does, and shells of what they start with `&`."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interruption = callbacks.Interruption(Workers(tf.distribute.get_strategy()))
    try:
        interruption.on_train_begin()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        interruption.on_train_end()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert interruption.signal is None


def test_an_update_that_is_not_finite_ends_training():
    callback = callbacks.NonFiniteLoss()
    callback.on_train_batch_end(0, {"non_finite": 0.0})
    with pytest.raises(InputError, match="loss or gradient is no longer finite"):
        callback.on_train_batch_end(1, {"non_finite": 2.0})


def test_skipped_updates_end_training_when_they_are_too_many_in_a_row():
    callback = callbacks.NonFiniteLoss(skip=True)
    for _ in range(3):
        for _ in range(callback.MOST_SKIPPED):
            callback.on_train_batch_end(0, {"non_finite": 1.0})
        callback.on_train_batch_end(0, {"non_finite": 0.0})
    with pytest.raises(InputError, match="is no longer finite"):
        for _ in range(callback.MOST_SKIPPED + 1):
            callback.on_train_batch_end(0, {"non_finite": 1.0})


def test_an_interruption_that_tensorflow_takes_for_an_error_is_one():
    """Ctrl-C while it makes the error of another worker, which was interrupted as well."""
    workers = Workers(tf.distribute.get_strategy())
    mixed = "MISMATCH: ORIGINAL UnavailableError REPLACED BY KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt), workers.reporting_loss_of_others():
        raise RuntimeError(mixed)
    with pytest.raises(RuntimeError, match="^other$"), workers.reporting_loss_of_others():
        raise RuntimeError("other")
