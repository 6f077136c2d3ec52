"""Several processes on loopback train one model, as they would on several machines."""

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from pipelines import train_wmt
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.input import training_dataset
from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
from pipelines.training.workers import Workers, check_tf_config, replicas_of
from tests.support.layer_checks import assert_close
from tests.support.refusals import message_of, refused
from tests.support.runs import ENVIRONMENT, MODEL, ROOT, command, flags, history, run_command

pytestmark = pytest.mark.tensorflow_only

LIMIT = 300  # seconds until a process that hangs is killed
QUIET = {**ENVIRONMENT, "TF_CPP_MIN_LOG_LEVEL": "3"}  # as users have it
STEPS = 20
TOKENS = 336  # of a global batch: 24 pairs of 14 subwords at most


@pytest.fixture(scope="module")
def prepared(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    sides = {"source": "en", "target": "de"}
    files = {f"train_{side}": corpus / f"train.{language}" for side, language in sides.items()}
    # Of one length, so that each global batch has as many pairs for 2 workers and for 3.
    values = {**files, "vocabulary_size": MODEL["vocabulary_size"], "num_shapes": 1}
    assert run_command("prepare", flags(**values, output=directory)).returncode == 0
    return directory


def train_arguments(prepared, run_dir, workers, **values):
    model = {name: value for name, value in MODEL.items() if name != "vocabulary_size"}
    training = {
        "steps": STEPS,
        "warmup_steps": STEPS,
        "learning_rate_scale": 0.3,  # at 1 such short training makes rounding grow a thousandfold
        "tokens_per_replica": TOKENS // workers,
        "strategy": "multi_worker" if workers > 1 else "one",
        "log_every": 1,
        "checkpoint_every": 5,
        "dropout": 0.0,
        "export_dir": "none",
    }
    return flags(prepared=prepared, run_dir=run_dir, **{**model, **training, **values})


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(commands, chief=False):
    """A process for each of the commands, all workers of one cluster."""
    addresses = [f"localhost:{port}" for port in free_ports(len(commands))]
    cluster = {"worker": addresses}
    tasks = [{"type": "worker", "index": i} for i in range(len(commands))]
    if chief:
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        tasks = [{"type": "chief", "index": 0}, *tasks[:-1]]
    with contextlib.ExitStack() as stack:
        processes = []
        for words, task in zip(commands, tasks, strict=True):
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**QUIET, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def started(prepared, base, count, chief=False, **values):
    """The processes of all workers, each with a run directory of its own. `values` are flags; one
    that is a list has an entry for each worker."""
    commands = []
    for number in range(count):
        own = {n: v[number] if isinstance(v, list) else v for n, v in values.items()}
        arguments = train_arguments(prepared, base / str(number), count, **own)
        commands.append(command("train_wmt", arguments))
    return running(commands, chief)


def ended(process):
    """Exit status, standard output and standard error of a process that comes to its end."""
    output, errors = process.communicate(timeout=LIMIT)
    return process.returncode, output, errors


def weights(run_dir):
    run = RunDirectory(run_dir)
    model = build_model(run.config().model)
    assert run.checkpoints.load(model) == STEPS
    return np.concatenate([w.ravel() for w in model.get_weights()])


def losses(run_dir):
    return [record["loss"] for record in history(run_dir)]


@pytest.fixture(scope="module")
def alone(prepared, tmp_path_factory):
    """The run directory of one process with the same global batches."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    result = run_command("train_wmt", train_arguments(prepared, run_dir, 1))
    assert result.returncode == 0, result.stderr
    return run_dir


def check_like_alone(alone, base):
    assert_close(losses(base / "0"), losses(alone), tolerance=1e-4)
    assert_close(weights(base / "0"), weights(alone), tolerance=1e-4)
    assert losses(alone)[-1] < 0.8 * losses(alone)[0]
    assert [path.name for path in base.iterdir()] == ["0"]  # the chief alone writes


@pytest.mark.parametrize(
    ("count", "chief"), [(2, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_workers_train_like_one_process(prepared, alone, tmp_path, count, chief):
    exports = [tmp_path / str(number) / "export" for number in range(count)]
    with started(prepared, tmp_path, count, chief, export_dir=exports) as processes:
        results = [ended(process) for process in processes]
    assert [(status, errors) for status, _, errors in results] == [(0, "")] * count
    assert "step 20/20" in results[0][1]
    for _, output, _ in results[1:]:
        (told,) = output.splitlines()
        assert "waits for the other workers of TF_CONFIG: localhost:" in told
    assert (exports[0] / "1" / "saved_model.pb").exists()
    check_like_alone(alone, tmp_path)


@pytest.mark.slow
def test_who_leaves_first_is_not_missed(tmp_path):
    """All have asked, but one leaves as soon as it has the answer, before the other has told that
    it has it as well."""
    left = tmp_path / "left"
    code = f"""
import os, pathlib, time
from pipelines.training.workers import Workers, connect
workers = Workers.of(connect())
if workers.is_chief:
    workers.wait_for_all()
    assert pathlib.Path({str(left)!r}).exists()
else:
    workers.any(False)
    time.sleep(1)
    pathlib.Path({str(left)!r}).touch()
    os._exit(0)
"""
    with running([[sys.executable, "-c", code]] * 2) as processes:
        results = [ended(process) for process in processes]
    assert [status for status, _, _ in results] == [0, 0], results


def wait_for(path):
    deadline = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_the_others_stop_when_a_worker_dies_and_all_resume(prepared, alone, tmp_path):
    """Two of the commands are cut short: by a death, and by a signal that asks to stop."""
    with started(prepared, tmp_path, 2) as (chief, worker):
        wait_for(tmp_path / "0" / "checkpoints" / "step-00000005")
        worker.kill()
        status, _, errors = ended(chief)
    told = message_of(status, errors)
    assert told.startswith("another worker has stopped or cannot be reached: start all")

    with started(prepared, tmp_path, 2) as processes:
        wait_for(tmp_path / "0" / "checkpoints" / "step-00000010")
        processes[1].send_signal(signal.SIGTERM)
        assert [ended(process)[0] for process in processes] == [128 + signal.SIGTERM] * 2
    assert 10 <= RunDirectory(tmp_path / "0").checkpoints.steps()[-1] < STEPS

    with started(prepared, tmp_path, 2) as processes:
        assert [ended(process)[0] for process in processes] == [0, 0]
    check_like_alone(alone, tmp_path)


@pytest.mark.slow
def test_workers_stop_when_the_chief_dies(prepared, tmp_path):
    with started(prepared, tmp_path, 2, steps=100_000) as (chief, worker):
        wait_for(tmp_path / "0" / "checkpoints" / "step-00000005")
        chief.kill()
        status, _, errors = ended(worker)
    assert status != 0
    assert "error: another worker has stopped" in errors


def test_workers_with_other_flags_are_refused(prepared, tmp_path):
    with started(prepared, tmp_path, 2, label_smoothing=[0.1, 0.2]) as processes:
        for process, who in zip(processes, ("another one", "this one"), strict=True):
            status, _, errors = ended(process)
            rule = "the flags must be the same on all workers, but "
            assert message_of(status, errors).startswith(rule + who)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_epoch_holds_each_pair_once_whatever_the_number_of_workers(prepared, count):
    """Pairs are told apart by what they hold. Those that fill no batch come in the next epoch."""
    corpus = TokenizedCorpus.open(prepared / "train")
    sizes = [2 * count] * len(corpus.buckets)
    plan = EpochPlan(corpus.pairs_per_bucket, sizes, seed=3)
    steps = next(step for step in itertools.count() if plan.epoch(step))
    everything = [
        row.tobytes() + label.tobytes()
        for step in range(steps)
        for row, label in zip(*corpus.gather(*plan.batch(step)), strict=True)
    ]
    found = []
    for index in range(count):
        dataset = training_dataset(
            corpus,
            plan,
            first_step=0,
            num_steps=steps,
            num_replicas=count,
            replica_ids=replicas_of(index, count, replicas=count),
        )
        for batch in dataset.as_numpy_iterator():
            found += [
                row.tobytes() + label.tobytes()
                for row, label in zip(batch["source_ids"], batch["labels"], strict=True)
            ]
    assert len(found) == sum(pairs - pairs % (2 * count) for pairs in corpus.pairs_per_bucket)
    assert sorted(found) == sorted(everything)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": [2222]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1", 7]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1", "b:x"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1", "b:99999"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": 5}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0.5}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1e999}}',
    ],
)
def test_what_tf_config_must_say(text):
    with refused("^strategy multi_worker needs TF_CONFIG=.*got "):
        check_tf_config(text)


def test_all_addresses_with_that_of_the_task_first():
    cluster = {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    assert check_tf_config(text) == ["[::1]:3", "a:1", "b:2"]


def test_a_worker_tells_what_it_waits_for_and_ctrl_c_ends_it(prepared, tmp_path):
    own, other = (f"localhost:{port}" for port in free_ports(2))
    config = {"cluster": {"worker": [own, other]}, "task": {"type": "worker", "index": 0}}
    with subprocess.Popen(
        command("train_wmt", train_arguments(prepared, tmp_path / "run", 2)),
        cwd=ROOT,
        env={**QUIET, "TF_CONFIG": json.dumps(config)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == (
                f"{own} waits for the other workers of TF_CONFIG: {other}\n"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == -signal.SIGINT
        finally:
            process.kill()
    assert not (tmp_path / "run").exists()


def test_what_several_workers_need(tmp_path, monkeypatch, refusal):
    def told(**values):
        arguments = flags(strategy="multi_worker", run_dir=tmp_path / "run", **values)
        return refusal(train_wmt.main, arguments)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert told().startswith("strategy multi_worker needs --prepared, a directory")
    assert "needs TF_CONFIG" in told(prepared=tmp_path)
    assert "virtual_cpus is for strategy mirrored" in told(prepared=tmp_path, virtual_cpus=2)
    assert not list(tmp_path.iterdir())


def test_one_process_is_the_chief_of_itself():
    workers = Workers.of(tf.distribute.get_strategy())
    assert (workers.index, workers.count, list(workers.replicas)) == (0, 1, [0])
    assert workers.is_chief
    assert workers.any(True)
    assert not workers.any(False)
    (value,) = workers.from_chief([np.arange(3)])
    np.testing.assert_array_equal(value, np.arange(3))
    workers.check_same({"flags": {"a": 1}})
