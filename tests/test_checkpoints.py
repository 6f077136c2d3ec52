"""The run directory: complete or absent checkpoints, what is kept, averages, and other flags."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from pipelines.checkpoints import RunDirectory, RunState
from pipelines.config import default_config
from pipelines.errors import InputError
from tf_relpos import Transformer, TransformerConfig

pytestmark = pytest.mark.tensorflow_only

SIZES = {
    "vocabulary_size": 11,
    "model_dim": 6,
    "inner_dim": 7,
    "num_heads": 3,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def model():
    model = Transformer(TransformerConfig(**SIZES))
    model.build()
    return model


@pytest.fixture
def optimizer(model):
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    return optimizer


def randomize(model, optimizer, rng):
    for variable in (*model.weights, *optimizer.variables):
        if variable.dtype == "float32":
            variable.assign(rng.normal(size=variable.shape))


def config(**training):
    default = default_config("tiny", demo=True)
    return dataclasses.replace(default, training=dataclasses.replace(default.training, **training))


def files(run):
    return sorted(str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file())


def test_restoring_brings_back_weights_and_optimizer(run, model, optimizer, rng):
    randomize(model, optimizer, rng)
    optimizer.iterations.assign(17)
    saved = [v.numpy() for v in (*model.weights, *optimizer.variables)]
    run.save(model, optimizer, RunState(17), keep=1)
    randomize(model, optimizer, rng)
    optimizer.iterations.assign(0)
    assert run.restore(model, optimizer).step == 17
    for variable, value in zip((*model.weights, *optimizer.variables), saved, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert int(optimizer.iterations) == 17


def test_a_new_run_starts_at_zero(run, model, optimizer):
    assert run.steps() == []
    assert run.restore(model, optimizer) == RunState()
    assert not run.path.exists()


def test_the_last_and_the_best_are_kept(run, model, optimizer):
    state = RunState()
    for state.step in (1, 2, 3, 10, 20):
        if state.step == 2:
            state.best = {"step": 2, "bleu": 31.5}
        run.save(model, optimizer, state, keep=2)
    assert run.steps() == [2, 10, 20]
    assert run.best() == {"step": 2, "bleu": 31.5}


def test_stopgaps_go_with_the_next_checkpoint_and_are_not_averaged(run, model, optimizer):
    for step in (10, 20):
        run.save(model, optimizer, RunState(step), keep=2)
    run.save(model, optimizer, RunState(23), keep=2, stopgap=True)
    assert run.steps() == [10, 20, 23]
    assert run.average(model, 2) == [10, 20]
    run.save(model, optimizer, RunState(30), keep=2)
    assert run.steps() == [20, 30]


def test_a_state_comes_back_to_the_last_bit(run, model, optimizer):
    state = RunState(7, {"step": 5, "bleu": 100 / 3}, {"loss": 0.1 + 0.2, "updates": 2})
    run.save(model, optimizer, state, keep=1)
    assert run.restore(model, optimizer) == state


def test_best_json_follows_the_checkpoint(run, model, optimizer):
    """It may be ahead or behind after a kill, or damaged."""
    state = RunState(7, {"step": 7, "bleu": 31.5})
    run.save(model, optimizer, state, keep=1)
    for content in ('{"step": 9, "bleu": 40.0}', '{"step": 5', None):
        run.best_path.unlink()
        if content:
            run.best_path.write_text(content)
        run.restore(model, optimizer)
        assert run.best() == state.best


def test_what_a_killed_process_leaves_is_not_a_checkpoint(run, model, optimizer):
    run.save(model, optimizer, RunState(1), keep=1)
    half = run.checkpoints_path / ".step-00000002.0123abcd.incomplete"
    half.mkdir()
    (half / "model.weights.h5").write_bytes(b"half")
    assert run.steps() == [1]
    assert run.restore(model, optimizer).step == 1
    with run.locked():
        assert not half.exists()


def test_average_is_numpys_mean(run, model, optimizer, rng):
    states = []
    for step in (5, 6, 7):
        randomize(model, optimizer, rng)
        states.append(model.get_weights())
        run.save(model, optimizer, RunState(step), keep=9)
    assert run.average(model, 2) == [6, 7]
    expected = [np.mean([a, b], axis=0) for a, b in zip(*states[1:], strict=True)]
    for name in ("in memory", "loaded"):
        for weight, value in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(weight, value, rtol=1e-6, atol=1e-7, err_msg=name)
        randomize(model, optimizer, rng)
        assert run.load(model, "average") == 7
    assert run.average(model, 99) == [5, 6, 7]


def test_loading_by_name(run, model, optimizer, rng):
    values = {}
    for step in (1, 2):
        randomize(model, optimizer, rng)
        values[step] = model.get_weights()[0]
        run.save(model, optimizer, RunState(step), keep=9)
    run.save(model, optimizer, RunState(2, {"step": 1, "bleu": 9.5}), keep=9)
    for name, step in (("last", 2), ("best", 1)):
        assert run.load(model, name) == step
        np.testing.assert_array_equal(model.get_weights()[0], values[step])


def test_missing_checkpoints_are_named(run, model, optimizer):
    with pytest.raises(InputError, match="has no checkpoints yet"):
        run.load(model)
    run.save(model, optimizer, RunState(1), keep=1)
    with pytest.raises(InputError, match="no best checkpoint"):
        run.load(model, "best")
    with pytest.raises(InputError, match="no averaged checkpoint"):
        run.load(model, "average")
    with pytest.raises(InputError, match="checkpoint must be last, best or average, got first"):
        run.load(model, "first")


def test_another_model_does_not_fit(run, model, optimizer):
    run.save(model, optimizer, RunState(1), keep=1)
    other = Transformer(TransformerConfig(**{**SIZES, "inner_dim": 8}))
    other.build()
    with pytest.raises(InputError, match="model.weights.h5 cannot be read") as caught:
        run.load(other)
    assert "\n" not in str(caught.value)


def test_configuration_is_kept(run):
    run.start(config(seed=7))
    assert run.config() == config(seed=7)
    run.start(config(seed=7))


def test_resuming_with_another_configuration_names_the_field(run, model, optimizer):
    run.start(config(seed=7))
    run.save(model, optimizer, RunState(1), keep=1)
    message = "run_dir .*run was started with seed 7, not 8: choose another --run_dir or the same"
    with pytest.raises(InputError, match=message):
        run.start(config(seed=8))
    assert run.config().training.seed == 7
    run.start(config(seed=7, steps=99_999, log_every=1))
    assert run.config().training.steps == 99_999


def test_before_the_first_checkpoint_flags_may_change(run):
    run.start(config(seed=7))
    run.start(config(seed=8))
    assert run.config().training.seed == 8


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is not a run directory: no config.json"),
        ("{", "config.json cannot be read: "),
        ("[]", "config.json cannot be read: "),
        ('{"preset": "tiny"}', "config.json cannot be read: 'model'"),
        ('{"preset": 1, "model": {"heads": 3}}', "config.json cannot be read: .*heads"),
    ],
)
def test_unreadable_configurations_are_told(run, content, message):
    run.path.mkdir()
    if content is not None:
        run.config_path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        run.config()
    assert "\n" not in str(caught.value)


def test_impossible_places_are_told(run, tmp_path):
    with pytest.raises(InputError, match="there is no run directory .*run"):
        run.config()
    run.path.write_text("a file")
    for path in (run.path, run.path / "below"):
        with (
            pytest.raises(InputError, match=f"cannot write to run_dir {path}: "),
            RunDirectory(path).locked(),
        ):
            pass
    (tmp_path / "odd" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="has checkpoints, but no config.json"):
        RunDirectory(tmp_path / "odd").start(config())


def test_history_is_rewound_to_the_checkpoint(run):
    run.path.mkdir()
    for step in (1, 2, 3):
        run.add_history({"step": step, "loss": step / 2})
    with run.history_path.open("a") as file:
        file.write('{"step": 1, "lo')  # cut short when the process was killed
    run.rewind_history(2)
    lines = run.history_path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_scores_are_appended_once(run):
    run.path.mkdir()
    for bleu in (1.5, 2.5, 1.5):
        run.add_score({"bleu": bleu, "split": "täst"})
    scores = json.loads(run.scores_path.read_text(encoding="utf-8"))
    assert [score["bleu"] for score in scores] == [1.5, 2.5]
    assert scores[0]["split"] == "täst"
