"""Several runs of a table at a time."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from pipelines import reproduce
from pipelines.reproduction.parallel import Machine, Share
from pipelines.run.directory import RunDirectory
from tests.support.refusals import message_of, refused
from tests.support.runs import (
    ENVIRONMENT,
    ROOT,
    call,
    command,
    flags,
    history,
    run_command,
    train_flags,
)

pytestmark = pytest.mark.tensorflow_only

SMALL = {"warmup_steps": 2, "tokens_per_replica": 256, "log_every": 1, "export_dir": None}
ROWS = {"keys": "keys-k16-seed1", "values": "values-k16-seed1", "neither": "none-seed1"}

needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="two runs at a time need two cores",
)


def arguments(corpus, output, *rows, jobs=2, **values):
    return [
        *train_flags(corpus, None, **{**SMALL, **values}),
        *flags(table=3, rows=rows, output=output, jobs=jobs),
    ]


def test_cores_are_shared():
    machine = Machine(2, [0, 1, 5], [])
    assert machine.divided(2) == [Share([0, 5], None), Share([1], None)]
    assert machine.divided(1) == [Share([0, 1, 5], None)]
    assert Machine(2, [], []).divided(2) == [Share([], None)] * 2


def test_gpus_are_shared():
    machine = Machine(2, [0, 1, 2], ["3", "4", "7"])
    assert machine.divided(2) == [Share([0, 2], "3,7"), Share([1], "4")]


@pytest.mark.parametrize(("named", "expected"), [(None, ["0", "1"]), ("5,GPU-8", ["5", "GPU-8"])])
def test_gpus_are_left_to_the_runs(monkeypatch, named, expected):
    hidden = []
    devices = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *args: hidden.append(args))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert Machine.of(2).gpus == expected
    assert hidden == [([], "GPU")]
    with refused("^jobs must be at most 2, the GPUs that may be used, got 3$"):
        Machine.of(3)


def test_more_runs_than_cores(corpus, tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7}, raising=False)
    asked = arguments(corpus, tmp_path / "out", "keys", "values", steps=2, jobs=3)
    told = refusal(reproduce.main, asked)
    assert told == "jobs must be at most 2, the cores that may be used, got 3"
    assert not (tmp_path / "out").exists()


@needs_cores
def test_runs_at_a_time_are_those_of_one_after_the_other(corpus, tmp_path, monkeypatch, capfd):
    assert call(reproduce.main, arguments(corpus, tmp_path, *ROWS, steps=2), monkeypatch) == 0
    told = capfd.readouterr().out.splitlines()
    for number, name in enumerate(ROWS.values(), start=1):
        (first,) = (line for line in told if line.startswith(f"run {number} of 3: {name}; "))
        assert number < 3 or "finished, 2 left" in first or "finished, 1 left" in first
        assert [line for line in told if line.startswith(f"{name}: step 2/2")]
        found = json.loads((tmp_path / "runs" / name / "reproduction.json").read_text())
        assert found["finished"] and found["split"] == "test" and found["minutes"] > 0
    table = json.loads((tmp_path / "table-3.json").read_text())
    assert [len(row["runs"]) for row in table["rows"]] == [0, 1, 1, 1]

    # What is finished is not begun again, and what is left has all cores.
    asked = arguments(corpus, tmp_path, "keys", "keys_and_values", steps=2)
    assert call(reproduce.main, asked, monkeypatch) == 0
    told = capfd.readouterr().out
    assert "run 2 of 2: relative-k16-seed1; 1 finished, 1 left" in told and "of 2: keys" not in told
    found = json.loads((tmp_path / "runs/relative-k16-seed1/reproduction.json").read_text())
    assert f"{len(os.sched_getaffinity(0))} core" in found["device"]
    alone = arguments(corpus, tmp_path / "alone", "keys", steps=2, jobs=1)
    assert call(reproduce.main, alone, monkeypatch) == 0
    losses = [
        [record["loss"] for record in history(path / "runs" / ROWS["keys"])]
        for path in (tmp_path, tmp_path / "alone")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class Command:
    """`reproduce` in a process of its own, until it is over."""

    def __init__(self, corpus, output):
        self.output = Path(output)
        asked = arguments(corpus, output, "keys", "values", steps=100_000, checkpoint_every=50)
        self.log = self.output.parent / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command("reproduce", asked), cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log
            )

    def runs(self):
        return [RunDirectory(self.output / "runs" / ROWS[row]) for row in ("keys", "values")]

    def wait_for_checkpoints(self):
        """Gives the processes of the runs, once both have saved."""
        wait_until(lambda: all(run.checkpoints.steps() for run in self.runs()))
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split() if b"one_run" in command_of(pid)]

    def told(self):
        return self.log.read_text()


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def are_training(pids):
    return any(b"one_run" in command_of(pid) for pid in pids)


def wait_until(holds, seconds=300):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.2)


@pytest.fixture
def begun(corpus, tmp_path):
    """The command, which trains two runs, and their processes."""
    found = Command(corpus, tmp_path / "out")
    try:
        children = found.wait_for_checkpoints()
        assert len(children) == 2
        yield found, children
        wait_until(lambda: not are_training(children))
    finally:
        found.process.kill()
        found.process.wait()


@needs_cores
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_runs_and_the_same_command_goes_on(begun, corpus, number):
    found, _ = begun
    found.process.send_signal(number)
    assert found.process.wait(300) == 128 + number
    told = found.told()
    assert told.count(f"{number.name}: saving after this step") == 2
    assert told.endswith(f"stopped; the same command resumes from {found.output}\n")
    again = Command(corpus, found.output)
    try:
        wait_until(lambda: again.told().count("; resumed at step ") == 2)
    finally:
        again.process.terminate()
        assert again.process.wait(300) == 128 + signal.SIGTERM


@needs_cores
@pytest.mark.slow
def test_a_run_that_is_killed_ends_the_others(begun):
    found, children = begun
    os.kill(children[0], signal.SIGKILL)
    assert found.process.wait(300) == 2
    last = found.told().splitlines()[-1]
    assert last.startswith("error: ") and last.endswith(
        "-k16-seed1: its process was ended by SIGKILL; the same command resumes"
    )


@needs_cores
@pytest.mark.slow
def test_no_run_goes_on_without_the_command(begun):
    found, children = begun
    found.process.kill()
    found.process.wait()
    wait_until(lambda: not are_training(children))


@needs_cores
@pytest.mark.slow
def test_a_mistake_in_a_run_is_told_as_its_own(corpus, tmp_path):
    asked = arguments(corpus, tmp_path, "keys", "values", steps=50, learning_rate_scale=1e30)
    done = run_command("reproduce", asked)
    told = message_of(done.returncode, done.stderr, progress="(learning|tokenized) .*")
    assert "-k16-seed1: loss or gradient is no longer finite" in told
