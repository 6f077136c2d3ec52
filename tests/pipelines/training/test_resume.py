"""A run that is killed again and again ends as if nothing had been, to the last bit on one CPU."""

import json
import random
import signal
import subprocess
import time

import numpy as np
import pytest

from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
from pipelines.translators.open import open_translator
from tests.support.runs import ENVIRONMENT, ROOT, command, run_command, train_flags, write_corpus

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

STEPS = 120
# Nothing here falls on the steps of something else, so that any order of the two is met.
TRAINING = {
    "steps": STEPS,
    "warmup_steps": 50,
    "tokens_per_replica": 512,
    "dropout": 0.2,
    "attention_dropout": 0.1,
    "subword_sampling": 0.3,
    "log_every": 7,
    "valid_every": 10,
    "checkpoint_every": 6,
    "keep_checkpoints": 2,
    "average_checkpoints": 3,
}
# What is seen on disk when a run is killed: while it learns subwords, writes arrays, writes a
# checkpoint, has just written one; then at random moments; and at the end while it exports.
SEEN = [
    "run/prepared/..prepared.*.incomplete/valid.source",
    "run/prepared/..prepared.*.incomplete/.train.*.incomplete",
    "run/checkpoints/.step-*.incomplete",
    "run/checkpoints/step-*",
    "run/checkpoints/.step-*.incomplete",
    *[None] * 5,
    "export/.1.*.incomplete",
]
SIGNALS = {6: signal.SIGINT, 8: signal.SIGTERM}  # the others are SIGKILL


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"), train=20_000)


def arguments(text, place):
    return train_flags(text, place / "run", **TRAINING, export_dir=place / "export")


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    """Its directory, and how long it took."""
    place = tmp_path_factory.mktemp("uninterrupted")
    began = time.monotonic()
    result = run_command("train_wmt", arguments(text, place))
    assert result.returncode == 0, result.stderr
    return place, time.monotonic() - began


def test_a_run_killed_eleven_times_ends_like_one_left_alone(text, uninterrupted, tmp_path):
    expected, seconds = uninterrupted
    rng = random.Random(1)
    for number, seen in enumerate(SEEN):
        delay = rng.uniform(0, seconds) if seen is None else rng.uniform(0, 0.05)
        last_step = STEPS * (number + 1) // (len(SEEN) + 1)
        how = SIGNALS.get(number, signal.SIGKILL)
        kill(arguments(text, tmp_path), tmp_path, how, seen, delay, last_step)
    result = run_command("train_wmt", arguments(text, tmp_path))
    assert result.returncode == 0, result.stderr
    assert_same(tmp_path, expected)


def kill(arguments, place, how, seen, delay, last_step):
    """Trains until something is `seen` and the delay has passed, or `last_step` is over."""
    before = set(place.glob(seen)) if seen else set()
    with subprocess.Popen(
        command("train_wmt", arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if seen:
            while not set(place.glob(seen)) - before:
                assert process.poll() is None, f"{seen} was not seen: {process.stderr.read()}"
        end = time.monotonic() + delay
        while time.monotonic() < end and (seen or step_of(place) < last_step):
            time.sleep(0.001)
        assert process.poll() is None, process.stderr.read()
        process.send_signal(how)
        process.communicate()
    print(f"{how.name} after {seen or f'{delay:.1f} s'}, at step {step_of(place)}")
    assert process.returncode != 0


def step_of(place):
    steps = RunDirectory(place / "run").checkpoints.steps()
    return steps[-1] if steps else 0


def assert_same(place, expected_place):
    run, expected = (RunDirectory(p / "run") for p in (place, expected_place))
    assert history(run) == history(expected)
    assert run.scores() == expected.scores()
    assert run.checkpoints.best() == expected.checkpoints.best()
    assert run.checkpoints.steps() == expected.checkpoints.steps()
    assert states(run) == states(expected)
    for checkpoint in ("last", "best", "average"):
        pairs = zip(weights(run, checkpoint), weights(expected, checkpoint), strict=True)
        for found, wanted in pairs:
            np.testing.assert_array_equal(found, wanted, err_msg=checkpoint)
    for found, wanted in zip(optimizer(run), optimizer(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert [path.name for path in (place / "export").iterdir()] == ["1"]
    sources = (place / "run" / "prepared" / "test.source").read_text().splitlines()
    answers, wanted = (
        [hypotheses[0] for hypotheses in open_translator(p / "export").stream(sources)]
        for p in (place, expected_place)
    )
    assert answers == wanted
    assert not list(place.rglob(".*.incomplete"))


def history(run):
    """All records, without what is measured."""
    records = [json.loads(line) for line in run.history_path.read_text().splitlines()]
    return [{n: v for n, v in record.items() if n != "tokens_per_second"} for record in records]


def states(run):
    """What each checkpoint says of the run, without what is measured."""
    found = [json.loads(path.read_text()) for path in run.checkpoints.path.glob("*/state.json")]
    for state in found:
        state.get("interval", {}).pop("seconds", None)
    return sorted(found, key=str)


def weights(run, checkpoint):
    model = build_model(run.config().model)
    run.checkpoints.load(model, checkpoint)
    return model.get_weights()


def optimizer(run):
    path = run.checkpoints.path / f"step-{run.checkpoints.steps()[-1]:08d}" / "optimizer.npz"
    with np.load(path) as variables:
        return [variables[name] for name in variables.files]
