"""Run directories whose files have been changed on purpose, checksums included: one line each."""

import json
import shutil

import pytest

from pipelines.files.checksums import write_checksums
from pipelines.run.directory import RunDirectory
from pipelines.translators.open import open_translator
from tests.support.exported_forms import forms
from tests.support.refusals import refused

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def run(tmp_path):
    return RunDirectory(shutil.copytree(forms()["run"], tmp_path / "run"))


def rewrite_state(run, change):
    """Changes the state of the last checkpoint, so that its checksums are right."""
    directory = run.checkpoints.path / f"step-{run.checkpoints.steps()[-1]:08d}"
    path = directory / "state.json"
    state = change(json.loads(path.read_text()))
    path.write_text(state if isinstance(state, str) else json.dumps(state))
    (directory / "SHA256SUMS").unlink()
    write_checksums(directory)


def refusal(run):
    with refused() as told:
        open_translator(run.path)
    return str(told.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "step"}, "must have a step"),
        (lambda state: [state], "must have a step"),
        (lambda state: None, "must have a step"),
        (lambda state: {**state, "step": "7"}, "its step is of another kind"),
        (lambda state: {**state, "best": [1]}, "its best is of another kind"),
        (lambda state: {**state, "best": {"bleu": 3.0}}, "its best must have a step and a bleu"),
        (lambda state: {**state, "best": {"step": 3}}, "its best must have a step and a bleu"),
        (lambda state: {**state, "trained_with": 3}, "its trained_with is of another kind"),
        (lambda state: {**state, "trained_with": {"config": {}}}, "what it was trained with"),
        (lambda state: {**state, "trained_with": {"config": 7}}, "what it was trained with"),
        (lambda state: "[" * 100_000, "state.json cannot be read"),
    ],
)
def test_a_state_that_is_none(run, change, message):
    rewrite_state(run, change)
    assert message in refusal(run)


HUGE = {
    "vocabulary_size": 10**13,
    "model_dim": 4 * 10**12,
    "inner_dim": 10**13,
    "encoder_layers": 1000,
    "max_relative_position": 10**13,
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_model_takes_no_memory(run, name):
    config = json.loads(run.config_path.read_text())
    config["model"][name] = HUGE[name]
    run.config_path.write_text(json.dumps(config))
    assert "has been changed: the checkpoints were trained with" in refusal(run)
    rewrite_state(run, lambda state: {**state, "trained_with": {"config": config}})
    assert "must hold the model of config.json, but is too small for it" in refusal(run)


def test_more_layers_than_there_may_be(run):
    config = json.loads(run.config_path.read_text())
    config["model"]["encoder_layers"] = 10**13
    run.config_path.write_text(json.dumps(config))
    assert "config.json cannot be read: `encoder_layers` must be at most 1000" in refusal(run)


def test_a_configuration_without_end(run):
    run.config_path.write_text("[" * 100_000)
    assert "config.json cannot be read: " in refusal(run)
