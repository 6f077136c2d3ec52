"""Kinds of positions compared: what is learnt, kept, printed, and taken up again."""

import importlib.util
import json
import re

import keras
import numpy as np
import pytest

from pipelines import compare_positions
from pipelines.classification import comparison
from pipelines.classification.config import ModelConfig, TrainingConfig
from pipelines.classification.models import BLOCKS, POSITIONS, build
from pipelines.classification.report import markdown
from pipelines.classification.tasks import series_task, text_task
from pipelines.files.locks import exclusive_file
from tests.support.layer_checks import assert_close
from tests.support.runs import call, flags

pytestmark = pytest.mark.tensorflow_only

TASKS = {
    "text": lambda: text_task(train=40, test=20),
    "series": lambda: series_task(train=64, test=16),
}
SMALL = {"epochs": 1, "model_dim": 8, "num_heads": 2, "max_relative_position": 3}


@pytest.fixture
def tasks(monkeypatch):
    for name, task in TASKS.items():
        monkeypatch.setitem(comparison.TASKS, name, task)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("position", POSITIONS)
def test_only_positions_tell_the_order(kind, position, tmp_path):
    """The same words in another order; padding changes nothing; a model returns from disk."""
    if kind == "keras_hub" and importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras-hub is not installed")
    task = TASKS["text"]()
    model = build(ModelConfig(kind, layers=2, max_relative_position=3), position, task)
    one, other = (model.predict(task.test.inputs[i::2], verbose=0) for i in (0, 1))
    assert (np.max(np.abs(one - other)) < 1e-5) == (position == "none")
    longer = np.pad(task.test.inputs[::2], ((0, 0), (0, 5)))
    assert_close(model.predict(longer, verbose=0), one)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded.predict(longer, verbose=0), one)


@pytest.mark.parametrize("position", POSITIONS)
def test_forecasts_do_not_see_what_they_forecast(position):
    task = TASKS["series"]()
    model = build(ModelConfig(max_relative_position=3), position, task)
    series = task.test.inputs[:3].copy()
    before = model.predict(series, verbose=0)
    series[:, 20:] += 1
    after = model.predict(series, verbose=0)
    assert_close(after[:, :20], before[:, :20])
    assert np.all(np.any(after[:, 20:] != before[:, 20:], axis=1))


@pytest.mark.slow  # neither is that of a table of the paper's
@pytest.mark.parametrize("task", ["text", "series"])
def test_what_is_trained_is_not_trained_again(task, tasks, tmp_path, monkeypatch, capfd):
    kinds = ["none", "relative"]
    monkeypatch.setattr(comparison, "POSITIONS", kinds)
    output = tmp_path / "result.json"
    arguments = flags(task=task, **SMALL, output=output)
    assert call(compare_positions.main, [*arguments, "--seeds", "1"], monkeypatch) == 0
    first = json.loads(output.read_text())
    assert [(run["position"], run["seed"]) for run in first["runs"]] == [(p, 1) for p in kinds]
    cut = {**first, "runs": first["runs"][:1]}  # as an interruption leaves it
    output.write_text(json.dumps(cut))
    capfd.readouterr()
    assert call(compare_positions.main, [*arguments, "--seeds", "2"], monkeypatch) == 0
    told = capfd.readouterr().out
    found = json.loads(output.read_text())
    assert len(found["runs"]) == 4 and found["runs"][:1] == cut["runs"]
    assert told.endswith(markdown(found))
    assert len(re.findall(r"^\| \w.* \| -?\d\.\d{3} ± \d\.\d{3} \| ", told, re.MULTILINE)) == 2
    if task == "text":  # whatever it has learnt, it answers both of a pair alike
        (without,) = [r for r in found["runs"] if (r["position"], r["seed"]) == ("none", 1)]
        assert without["test"] == pytest.approx(0.5, abs=0.03)
    other = [*arguments, "--layers", "2"]
    assert call(compare_positions.main, other, monkeypatch) == 2
    told = capfd.readouterr().err
    assert "is of another comparison: layers was 1, got 2: remove it" in told  # inside of model


def test_means_are_over_the_seeds_that_are_asked_for(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "train", lambda *_: {"test": 0.5, "longer": 0.5})
    monkeypatch.setattr(comparison, "POSITIONS", ["none"])
    configs, output = (ModelConfig(), TrainingConfig()), tmp_path / "result.json"
    comparison.compare(*configs, [1, 2], output)
    monkeypatch.setattr(comparison, "POSITIONS", ["none", "relative"])
    for _ in range(2):  # trained, and found
        found = comparison.compare(*configs, [1], output)
        assert [(r["position"], r["seed"]) for r in found["runs"]] == [("none", 1), ("relative", 1)]
    assert len(json.loads(output.read_text())["runs"]) == 3


def test_a_loss_that_is_not_finite_ends_it(tasks, tmp_path, refusal):
    output = tmp_path / "result.json"
    values = {**SMALL, "task": "series", "seeds": 1, "batch": 8, "output": output}
    told = refusal(compare_positions.main, flags(**values, learning_rate=1e30))
    assert told == "loss is no longer finite: learning_rate must be smaller, got 1e+30"
    assert not output.exists()


def test_two_at_one_output_would_lose_what_one_has_trained(tmp_path, refusal):
    output = tmp_path / "result.json"
    with exclusive_file(output, "output"):
        told = refusal(compare_positions.main, flags(output=output))
    assert told.startswith(f"{output} is in use by process")


WRONG = [
    ({"task": "picture"}, "argument --task: invalid choice: 'picture'"),
    ({"seeds": 0}, "seeds must be at least 1, got 0"),
    ({"num_heads": 5}, "model_dim must be a multiple of num_heads, 5, got 32"),
    ({"max_relative_position": -1}, "max_relative_position must be at least 0, got -1"),
    ({"learning_rate": "nan"}, "learning_rate must be above 0 and finite, got nan"),
    ({"task": "series", "model": "keras_hub"}, "model keras_hub needs task text, got series"),
    ({"output": "/"}, "output must be a file, got a directory, /"),
]


@pytest.mark.parametrize("values, message", WRONG, ids=[message for _, message in WRONG])
def test_wrong_flags_are_told(values, message, refusal):
    assert message in refusal(compare_positions.main, flags(**values))
