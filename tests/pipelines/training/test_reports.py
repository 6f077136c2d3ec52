"""Counting updates and reporting them, fed by hand."""

import dataclasses
import itertools
import json
import logging
from types import SimpleNamespace

import pytest

from pipelines.data.epoch_plan import EpochPlan
from pipelines.progress import Work, phases
from pipelines.progress import progress as block
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.training.history import recorder_of
from pipelines.training.reports import AfterCounting, Counting, Progress, ProgressLine, StartUp
from pipelines.training.schedule import schedule_of
from tests.support.runs import history
from tests.support.updates import feed, logs

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "pipelines")


def progress(run, state, *, log_every, last_step=9, learning_rate=lambda: 1.0):
    """`Counting` and `Progress`."""
    return (
        Counting(state, log_every=log_every),
        Progress(
            recorder_of(run),
            state,
            last_step=last_step,
            log_every=log_every,
            learning_rate=learning_rate,
        ),
    )


def test_progress_weighs_by_tokens(run, caplog):
    steps = [(6.0, 3.0), (1.0, 1.0), (4.0, 2.0), (2.0, 2.0), (9.0, 3.0)]
    state = RunState(10)
    feed(
        [logs(*step) for step in steps],
        *progress(
            run, state, last_step=15, log_every=2, learning_rate=lambda: (state.step - 1) / 10
        ),
    )
    lines = (run.path / "history.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [12, 14, 15]
    assert [record["loss"] for record in records] == [7 / 4, 6 / 4, 9 / 3]
    assert [record["nll"] for record in records] == [7 / 8, 6 / 8, 9 / 6]
    assert [record["accuracy"] for record in records] == [2 / 4, 2 / 4, 1 / 3]
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

    class Saving(AfterCounting):
        def after_update(self):
            saved.append(state.interval["updates"])

    feed([logs()] * 4, counting, Saving(state), reporting)
    feed([logs()] * 2, counting, reporting, Saving(state))
    assert saved == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "steps, before, after, expected",
    [(100, 100, 30, 1), (100, 60, 100, 1), (100, 7, 50, 1), (110, 50, 30, 11), (110, 50, 50, 11)],
)
def test_an_interval_of_another_length_counts_no_update_twice(run, steps, before, after, expected):
    """A run may be resumed with another `log_every`: the sums are of its own interval alone."""
    state = RunState()
    feed([logs()] * steps, *progress(run, state, log_every=before, last_step=10**6))
    state = RunState(**json.loads(json.dumps(dataclasses.asdict(state))))
    feed([logs()], Counting(state, log_every=after))
    assert state.interval["updates"] == expected


def test_nothing_looks_at_a_step_that_has_not_been_counted(run):
    state = RunState()
    counting, reporting = progress(run, state, log_every=2)
    for several in ((reporting, counting), (reporting,)):
        with pytest.raises(RuntimeError, match="Counting must come before Progress"):
            feed([logs()], *several)


def test_skipped_updates_are_counted_and_left_out_of_the_averages(run, caplog):
    skipped = {**logs(loss=float("nan")), "non_finite": 1.0}
    steps = [logs(loss=6.0), skipped, skipped, skipped]
    feed(steps, *progress(run, RunState(), last_step=4, log_every=2))
    first, second = map(json.loads, run.history_path.read_text().splitlines())
    assert (first["step"], first["loss"], first["skipped"]) == (2, 2.0, 1)
    assert second == {"step": 4, "skipped": 2}
    assert "step 4/4  2 skipped: not finite" in caplog.messages[-1]


def test_the_first_step_tells_what_it_waited_for_and_the_last_shape_how_long_all_took(
    caplog, monkeypatch
):
    """Three shapes in batches 0 to 5: two buckets of one batch each, one of four."""
    plan = EpochPlan([4, 16, 0, 5], [4, 4, 4, 4], 1)
    order = [plan.bucket(batch) for batch in range(6)]
    complete = 1 + max(order.index(bucket) for bucket in (0, 1, 3))
    clock = itertools.count(100.0, 10.0)  # each look at it takes ten seconds
    fake = SimpleNamespace(monotonic=clock.__next__)
    monkeypatch.setattr("pipelines.progress.time", fake)
    with phases():
        for what in ("loading", "tokenizing"):
            with block(what, is_shown=False):
                pass
        state = RunState()
        several = Counting(state, log_every=9), StartUp(state, plan)
        monkeypatch.setattr("pipelines.training.reports.time", fake)
        feed([logs()] * 6, *several)
    first, last = (line for line in caplog.messages)
    assert first == "first step after 2 min: loading 10 s, tokenizing 10 s, compiling 20 s"
    told = f"compiled 3 shapes and took their first updates in 60 s, until step {complete}"
    assert last == told


def test_the_line_speaks_of_compiling_until_there_is_an_update():
    work = Work("compiling", "steps", 9, 4)
    feed([logs()], line := ProgressLine(work))
    assert (work.what, work.done, work.is_logged) == ("training", 5, False)
    feed([logs()] * 2, line)
    assert work.done == 7


def test_a_run_tells_the_rate_of_its_last_update(trained_run):
    schedule = schedule_of(RunDirectory(trained_run).config())
    records = history(trained_run)
    assert records
    for record in records:
        assert record["learning_rate"] == pytest.approx(float(schedule(record["step"] - 1)))
