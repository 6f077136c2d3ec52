"""The command line: what it learns, prints and writes, and how it goes on after an interruption."""

import dataclasses
import json
import logging
import os
import re

import numpy as np
import pytest

from pipelines import train_graph
from pipelines.errors import InputError
from pipelines.graphs import training
from pipelines.graphs.config import ModelConfig, TrainingConfig
from pipelines.graphs.conllu import read_task
from pipelines.graphs.training import accuracy, train
from tests.support.full_disk import largest_files
from tests.support.layer_checks import assert_close
from tests.support.refusals import message_of, refused
from tests.support.runs import call, flags
from tests.support.sentences import write_conllu

pytestmark = pytest.mark.tensorflow_only

SMALL = {"layers": 1, "model_dim": 12, "num_heads": 2, "epochs": 8, "batch_nodes": 64}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_conllu(tmp_path_factory.mktemp("text") / "trees.conllu", 160)


def printed_accuracy(output):
    return float(re.fullmatch(r"test accuracy (0\.\d{3}|1\.000)", output.splitlines()[-1])[1])


def test_parts_of_speech_from_the_graph_alone(text, tmp_path, monkeypatch, capfd):
    output, picture = tmp_path / "result.json", tmp_path / "graph.svg"
    arguments = flags(train=text, test=text, **SMALL, learning_rate=0.02, dropout=0.0)
    more = flags(output=output, picture=picture, picture_of=2)
    assert call(train_graph.main, [*arguments, *more], monkeypatch) == 0
    told = capfd.readouterr().out
    result = json.loads(output.read_text())
    assert printed_accuracy(told) == pytest.approx(result["accuracy"], abs=6e-4)
    assert result["accuracy"] > result["looked_up"]["own label"]
    assert result["steps_per_second"] > 0
    for name, share in result["looked_up"].items():
        assert f"looked up by {name}: {share:.3f}" in told
    assert len(re.findall(r"^epoch \d/8  loss", told, re.MULTILINE)) == 8
    assert "<svg" in picture.read_text()


def test_the_compatibility_reaches_the_model(text, monkeypatch):
    built = []
    monkeypatch.setattr(training, "build", lambda *given: built.append(given) or 1 / 0)
    arguments = flags(train=text, test=text, compatibility="additive")
    with pytest.raises(ZeroDivisionError):
        train_graph.main(arguments)
    assert built[0][0].compatibility == "additive"


class Interrupted(logging.Handler):
    """Ctrl-C while an epoch is told of: what is kept is the one before."""

    def emit(self, record):
        if record.getMessage().startswith("epoch 2/3"):
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(text, tmp_path, caplog):
    """Without relations, which is quick; all words are alike then."""
    task = read_task(str(text), None, 0.5)
    model = ModelConfig(layers=1, model_dim=4, num_heads=2, dropout=0.3)
    config = TrainingConfig("none", epochs=3, batch_nodes=96, learning_rate=0.05)
    whole = train(task, model, config).model
    counts = np.bincount(np.concatenate([graph.targets for graph in task.test]))
    shares = counts / counts.sum()
    assert np.min(np.abs(shares - accuracy(whole, task, config))) < 1e-6
    expected = whole.get_weights()
    log, handler = logging.getLogger(training.__name__), Interrupted()
    log.addHandler(handler)
    caplog.set_level(logging.INFO)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(task, model, config, tmp_path)
    finally:
        log.removeHandler(handler)
    found = train(task, model, config, tmp_path)
    assert "resumed after epoch 1/3" in caplog.text
    for weights, others in zip(found.model.get_weights(), expected, strict=True):
        assert_close(weights, others, tolerance=1e-4)
    assert train(task, model, config, tmp_path).steps_per_second is None  # nothing is left to do
    first = task.train[0]
    other = [first._replace(targets=np.roll(first.targets, 1)), *task.train[1:]]
    with refused("another training: sha256_of_train was"):
        train(task._replace(train=other), model, config, tmp_path)
    with refused(r"another training: epochs was 3, got 4"):
        train(task, model, dataclasses.replace(config, epochs=4), tmp_path)
    with refused(r"another training: dropout was 0.3, got 0.1$"):
        train(task, dataclasses.replace(model, dropout=0.1), config, tmp_path)
    once = dataclasses.replace(config, epochs=1)
    with (
        largest_files(4000),
        refused("cannot write .*state.keras"),
    ):
        train(task, model, once, tmp_path / "full")
    (kept,) = (tmp_path / "full").iterdir()
    assert kept.name == "config.json"
    # Nothing has been trained, which other settings could not go on from.
    smaller = dataclasses.replace(once, batch_nodes=48)
    assert train(task, model, smaller, tmp_path / "full").model
    other = tmp_path / "other" / "config.json"
    other.parent.mkdir()
    other.write_text('{"preset": "tiny"}')
    with refused("is of another training: model was None"):
        train(task, model, config, other.parent)
    assert other.read_text() == '{"preset": "tiny"}'
    for content in (b"", b"PK", (tmp_path / "state.keras").read_bytes()[:500]):
        (tmp_path / "state.keras").write_bytes(content)
        with refused(r"state.keras cannot be read: .*remove it"):
            train(task, model, config, tmp_path)


def test_a_loss_that_is_not_finite_ends_it_before_it_is_kept(text, tmp_path, monkeypatch, capfd):
    arguments = flags(train=text, test=text, **SMALL, learning_rate=1e30, run_dir=tmp_path / "run")
    status = call(train_graph.main, arguments, monkeypatch)
    output, errors = capfd.readouterr()
    told = message_of(status, errors)
    assert told == "loss is no longer finite: learning_rate must be smaller, got 1e+30"
    assert "accuracy" not in output
    assert not (tmp_path / "run" / "state.keras").exists()


@pytest.mark.slow
def test_a_question_three_hops_away_is_learnt(monkeypatch, capfd):
    assert call(train_graph.main, [], monkeypatch) == 0
    assert printed_accuracy(capfd.readouterr().out) >= 0.99


WRONG = [
    ({"test": "x"}, "test needs train as well"),
    ({"train": "x"}, "train needs test or hold_out, and not both, got 0"),
    ({"train": "x", "test": "x", "hold_out": 0.1}, "train needs test or hold_out"),
    ({"train": "x", "hold_out": 1.5}, "hold_out must be between 0 and 1, got 1.5"),
    ({"train": "absent", "hold_out": 0.5}, "train must name files that exist, got absent"),
    ({"layers": 0}, "layers must be at least 1, got 0"),
    ({"num_heads": 5}, "model_dim must be a multiple of num_heads, 5, got 64"),
    ({"dropout": 1}, "dropout must be at least 0 and below 1, got 1.0"),
    ({"learning_rate": "nan"}, "learning_rate must be above 0 and finite, got nan"),
    ({"weight_decay": -1}, "weight_decay must be at least 0, got -1.0"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"seed": 1 << 32}, "seed must be below 4,294,967,296, got 4294967296"),
    ({"relations": "words"}, "argument --relations: invalid choice: 'words'"),
    ({"picture": "a.pdf"}, "picture must end in .png or .svg, got a.pdf"),
    ({"picture": "a.png", "relations": "both"}, "relations must be graph, got both"),
    ({"picture_of": 2}, "picture_of needs picture as well"),
    ({"picture": "a.png", "picture_of": 401}, "picture_of must be from 1 to 400, got 401"),
    ({"output": "/"}, "output must be a file, got a directory, /"),
    ({"output": "/proc/x.json"}, "cannot write to output /proc/x.json: "),
]


@pytest.mark.parametrize("values, message", WRONG, ids=[message for _, message in WRONG])
def test_wrong_flags_are_told(values, message, refusal):
    assert message in refusal(train_graph.main, flags(**values))


def test_what_is_no_file_is_not_replaced(tmp_path, refusal):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told = refusal(train_graph.main, flags(output=pipe))
    assert told == f"output must be a file, got a pipe or a device, {pipe}"
    assert pipe.is_fifo()


def test_what_was_reached_is_told_even_if_it_cannot_be_written(tmp_path, monkeypatch, capfd):
    def refuse(path, value):
        raise InputError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(train_graph, "write_json", refuse)
    arguments = flags(epochs=1, layers=1, model_dim=8, num_heads=1, output=tmp_path / "x.json")
    status = call(train_graph.main, arguments, monkeypatch)
    output, errors = capfd.readouterr()
    assert "test accuracy 0." in output
    assert message_of(status, errors).endswith("No space left on device")
