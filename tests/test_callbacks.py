"""What happens between updates, each callback fed by hand."""

import json
import os
import signal

import keras
import pytest

from pipelines import callbacks
from pipelines.checkpoints import RunDirectory
from pipelines.errors import InputError

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def feed(callback, steps):
    """As `fit` does: a dict of logs for each update."""
    callback.on_train_begin()
    for number, logs in enumerate(steps):
        callback.on_train_batch_begin(number)
        callback.on_train_batch_end(number, logs=logs)
    callback.on_train_end()


def logs(loss=6.0, tokens=3.0):
    return {
        "loss": loss,
        "nll": loss / 2,
        "correct": 1.0,
        "tokens": tokens,
        "source_tokens": 5.0,
        "positions": 20.0,
    }


def test_progress_weighs_by_tokens(run, capsys):
    progress = callbacks.Progress(
        run, first_step=10, last_step=15, log_every=2, learning_rate=lambda step: step / 10
    )
    steps = [(6.0, 3.0), (1.0, 1.0), (4.0, 2.0), (2.0, 2.0), (9.0, 3.0)]
    feed(progress, [logs(*step) for step in steps])
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
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("step 12/15  loss 1.750  accuracy 0.500  ")
    assert printed[-1].endswith("  0 s left")
    assert [p.name for p in run.events_path.iterdir()][0].startswith("events.out.tfevents")


def test_checkpoints_by_updates_and_at_the_end():
    saved = []
    feed(callbacks.Checkpoints(saved.append, first_step=4, every=3, minutes=0), [{}] * 6)
    assert saved == [6, 9, 10]
    saved.clear()
    feed(callbacks.Checkpoints(saved.append, first_step=4, every=5, minutes=0), [{}] * 6)
    assert saved == [5, 10]
    saved.clear()
    feed(callbacks.Checkpoints(saved.append, first_step=4, every=0, minutes=0), [{}] * 2)
    assert saved == [6]


def test_checkpoints_by_time():
    saved = []
    # A billionth of a minute passes between any two updates.
    feed(callbacks.Checkpoints(saved.append, first_step=0, every=0, minutes=1e-9), [{}] * 3)
    assert saved == [1, 2, 3]


def test_the_best_validation_is_marked_and_survives_a_restart(run, capsys):
    run.checkpoints_path.mkdir()
    saved = []

    def validate(scores, first_step):
        scores = iter(scores)
        callback = callbacks.Validation(
            lambda: next(scores), saved.append, run, first_step=first_step, every=2
        )
        feed(callback, [{}] * 6)

    validate([10.0, 30.0, 20.0], first_step=0)
    assert saved == [2, 4]
    assert run.best() == {"step": 4, "bleu": 30.0}
    validate([25.0, 30.0, 40.0], first_step=6)
    assert saved == [2, 4, 12]
    assert run.best() == {"step": 12, "bleu": 40.0}
    records = [json.loads(line) for line in run.history_path.read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    assert records[2]["validation_bleu"] == 20.0
    assert "step 4  validation BLEU 30.00  (best)" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_update(number, capsys):
    previous = signal.getsignal(number)
    interruption = callbacks.Interruption()
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
    assert "saving after this step" in capsys.readouterr().err


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_training(loss):
    callback = callbacks.NonFiniteLoss()
    callback.on_train_batch_end(0, {"loss": 1.5})
    with pytest.raises(InputError, match="the loss is not finite"):
        callback.on_train_batch_end(1, {"loss": loss})


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (3540, "59 min"), (11_100, "3 h 05 min")],
)
def test_durations_are_for_people(seconds, text):
    assert callbacks.duration(seconds) == text
