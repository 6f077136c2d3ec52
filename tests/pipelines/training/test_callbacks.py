"""What happens between updates, each callback fed by hand."""

import dataclasses
import json
import logging
import os
import signal

import keras
import pytest
import tensorflow as tf

from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.training import callbacks
from pipelines.training.workers import Workers
from tests.support.runs import open_run

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def run(tmp_path):
    return open_run(tmp_path / "run")


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "pipelines")


def feed(steps, *several):
    """As `fit` does: a dict of logs for each update, to the callbacks in their order."""
    for callback in several:
        callback.on_train_begin()
    for number, logs in enumerate(steps):
        for callback in several:
            callback.on_train_batch_begin(number)
        for callback in several:
            callback.on_train_batch_end(number, logs=logs)
    for callback in several:
        callback.on_train_end()


def progress(run, state, *, log_every, last_step=9, learning_rate=lambda step: 1.0):
    """`Counting` and `Progress`."""
    return (
        callbacks.Counting(state, log_every=log_every),
        callbacks.Progress(
            run, state, last_step=last_step, log_every=log_every, learning_rate=learning_rate
        ),
    )


def logs(loss=6.0, tokens=3.0):
    return {
        "loss": loss,
        "nll": loss / 2,
        "correct": 1.0,
        "tokens": tokens,
        "source_tokens": 5.0,
        "positions": 20.0,
        "non_finite": 0.0,
    }


def test_progress_weighs_by_tokens(run, caplog):
    steps = [(6.0, 3.0), (1.0, 1.0), (4.0, 2.0), (2.0, 2.0), (9.0, 3.0)]
    feed(
        [logs(*step) for step in steps],
        *progress(
            run, RunState(10), last_step=15, log_every=2, learning_rate=lambda step: step / 10
        ),
    )
    lines = (run.path / "history.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [12, 14, 15]
    assert [record["loss"] for record in records] == [7 / 4, 6 / 4, 9 / 3]
    assert [record["nll"] for record in records] == [7 / 8, 6 / 8, 9 / 6]
    assert [record["accuracy"] for record in records] == [2 / 4, 2 / 4, 1 / 3]
    # The rate of the update that was made: that of the schedule's step 11 led to step 12.
    assert [record["learning_rate"] for record in records] == [1.1, 1.3, 1.4]
    assert records[0]["padding_share"] == pytest.approx(1 - (3 + 1 + 5 + 5) / 40)
    assert records[0]["target_tokens_per_step"] == 2.0
    assert all(record["tokens_per_second"] > 0 for record in records)
    assert caplog.messages[0].startswith("step 12/15  loss 1.750  accuracy 0.500  ")
    assert caplog.messages[-1].endswith("  0 s left")
    assert [p.name for p in run.events_path.iterdir()][0].startswith("events.out.tfevents")


def test_a_resumed_interval_is_that_of_an_uninterrupted_run(run):
    """The sums in the state are those of JSON, as a checkpoint keeps them."""
    steps = [logs(loss, tokens) for loss, tokens in ((0.1, 3.0), (0.2, 1.0), (0.3, 7.0))]
    feed(steps, *progress(run, RunState(), log_every=3))
    state = RunState()
    feed(steps[:2], *progress(run, state, log_every=3))
    state = RunState(**json.loads(json.dumps(dataclasses.asdict(state))))
    feed(steps[2:], *progress(run, state, log_every=3))
    records = [json.loads(line) for line in (run.path / "history.jsonl").read_text().splitlines()]
    for record in records:
        del record["tokens_per_second"]
    assert len(records) == 2 and records[0] == records[1]


def test_a_new_interval_starts_from_nothing_whenever_it_was_reported(run):
    """What is saved with a checkpoint does not depend on whether it was reported before."""
    state = RunState()
    counting, reporting = progress(run, state, log_every=2)
    saved = []

    class Saving(callbacks.AfterCounting):
        def after_update(self):
            saved.append(state.interval["updates"])

    feed([logs()] * 4, counting, Saving(state), reporting)
    feed([logs()] * 2, counting, reporting, Saving(state))
    assert saved == [1, 2, 1, 2, 1, 2]


def test_nothing_looks_at_a_step_that_has_not_been_counted(run):
    state = RunState()
    counting, reporting = progress(run, state, log_every=2)
    for several in ((reporting, counting), (reporting,)):
        with pytest.raises(RuntimeError, match="Counting must come before Progress"):
            feed([logs()], *several)


def checkpoints_of(steps, **values):
    """At which of so many steps from 4 on it saves, and whether for an interruption."""
    state, saved = RunState(4), []

    def save(interrupted=False):
        saved.append((state.step, interrupted))

    callback = callbacks.ValidationAndCheckpoints(
        save, state, **{"last_step": 10, "every": 0, "minutes": 0, **values}
    )
    feed([logs()] * steps, callbacks.Counting(state, log_every=3), callback)
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


def test_the_best_validation_is_saved_after_it_is_recorded(run, caplog):
    """Whoever resumes from a checkpoint finds the validation of its step."""
    state, saved = RunState(), []

    def save():
        recorded = json.loads(run.history_path.read_text().splitlines()[-1])
        assert recorded == {"step": state.step, "validation_bleu": state.best["bleu"]}
        saved.append(dict(state.best))

    scores = iter([10.0, 30.0, 20.0, 30.0, 40.0])
    validation = callbacks.Validation(lambda: next(scores), save, run, state, every=2)
    checkpoints = callbacks.ValidationAndCheckpoints(
        lambda interrupted: None, state, validation=validation, last_step=11, every=0, minutes=0
    )
    feed([logs()] * 11, callbacks.Counting(state, log_every=3), checkpoints)
    assert saved == [
        {"step": 2, "bleu": 10.0},
        {"step": 4, "bleu": 30.0},
        {"step": 10, "bleu": 40.0},
    ]
    assert state.best == saved[-1]
    records = [json.loads(line) for line in run.history_path.read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10]
    assert "step 4  validation BLEU 30.00  (best)" in caplog.messages


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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


def test_an_update_that_is_not_finite_ends_training():
    callback = callbacks.NonFiniteLoss()
    callback.on_train_batch_end(0, {"non_finite": 0.0})
    with pytest.raises(InputError, match="loss or gradient is not finite any more"):
        callback.on_train_batch_end(1, {"non_finite": 2.0})


def test_skipped_updates_end_training_when_they_are_too_many_in_a_row():
    callback = callbacks.NonFiniteLoss(skip=True)
    for _ in range(3):
        for _ in range(callback.MOST_SKIPPED):
            callback.on_train_batch_end(0, {"non_finite": 1.0})
        callback.on_train_batch_end(0, {"non_finite": 0.0})
    with pytest.raises(InputError, match="is not finite any more"):
        for _ in range(callback.MOST_SKIPPED + 1):
            callback.on_train_batch_end(0, {"non_finite": 1.0})


def test_skipped_updates_are_counted_and_left_out_of_the_averages(run, caplog):
    skipped = {**logs(loss=float("nan")), "non_finite": 1.0}
    steps = [logs(loss=6.0), skipped, skipped, skipped]
    feed(steps, *progress(run, RunState(), last_step=4, log_every=2))
    first, second = map(json.loads, run.history_path.read_text().splitlines())
    assert (first["step"], first["loss"], first["skipped"]) == (2, 2.0, 1)
    assert second == {"step": 4, "skipped": 2}
    assert "step 4/4  2 skipped: not finite" in caplog.messages[-1]


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (3540, "59 min"), (11_100, "3 h 05 min")],
)
def test_durations_are_for_people(seconds, text):
    assert callbacks.duration(seconds) == text
