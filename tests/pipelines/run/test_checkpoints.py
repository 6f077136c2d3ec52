"""The checkpoints of a run: what comes back, what is kept, averages."""

import re

import numpy as np
import pytest

from pipelines.run.checkpoint_writer import CheckpointWriter
from pipelines.run.checkpoints import RunState
from tests.support.refusals import refused
from tests.support.runs import provenance, small_model

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def checkpoints(tmp_path):
    return CheckpointWriter(tmp_path / "checkpoints", provenance())


@pytest.fixture
def model_and_optimizer():
    return small_model()


@pytest.fixture
def model(model_and_optimizer):
    return model_and_optimizer[0]


@pytest.fixture
def optimizer(model_and_optimizer):
    return model_and_optimizer[1]


def randomize(model, optimizer, rng):
    for variable in (*model.weights, *optimizer.variables):
        if variable.dtype == "float32":
            variable.assign(rng.normal(size=variable.shape))


def files(checkpoints):
    return sorted(
        str(p.relative_to(checkpoints.path)) for p in checkpoints.path.rglob("*") if p.is_file()
    )


def test_restoring_brings_back_weights_and_optimizer(checkpoints, model, optimizer, rng):
    randomize(model, optimizer, rng)
    optimizer.iterations.assign(17)
    saved = [v.numpy() for v in (*model.weights, *optimizer.variables)]
    checkpoints.save(model, optimizer, RunState(17), keep=1)
    randomize(model, optimizer, rng)
    optimizer.iterations.assign(0)
    assert checkpoints.restore(model, optimizer).step == 17
    for variable, value in zip((*model.weights, *optimizer.variables), saved, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert int(optimizer.iterations) == 17


def test_a_run_that_has_been_moved_is_not_begun_anew(model, optimizer, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    writer = CheckpointWriter(run / "checkpoints", provenance())
    writer.save(model, optimizer, RunState(5), keep=1)
    run.rename(tmp_path / "moved")
    with refused(f"^run_dir {re.escape(str(run))} has been moved or removed while"):
        writer.save(model, optimizer, RunState(10), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_a_new_run_starts_at_zero(checkpoints, model, optimizer):
    assert checkpoints.steps() == []
    assert checkpoints.restore(model, optimizer) == RunState()
    assert not checkpoints.path.exists()


def test_the_last_and_the_best_are_kept(checkpoints, model, optimizer):
    state = RunState()
    for state.step in (1, 2, 3, 10, 20):
        if state.step == 2:
            state.best = {"step": 2, "bleu": 31.5}
        checkpoints.save(model, optimizer, state, keep=2)
    assert checkpoints.steps() == [2, 10, 20]
    assert checkpoints.best() == {"step": 2, "bleu": 31.5}


def test_those_of_interruptions_go_and_are_averaged_at_the_end_alone(checkpoints, model, optimizer):
    for step in (10, 20):
        checkpoints.save(model, optimizer, RunState(step), keep=2)
    checkpoints.save(model, optimizer, RunState(23), keep=2, interrupted=True)
    assert checkpoints.steps() == [10, 20, 23]
    assert checkpoints.average(model, 2) == [20, 23]  # where the run is ended there
    assert checkpoints.average_is_of_the_end()
    checkpoints.save(model, optimizer, RunState(30), keep=2)
    assert checkpoints.steps() == [20, 30]


def test_a_state_comes_back_to_the_last_bit(checkpoints, model, optimizer):
    state = RunState(7, {"step": 7, "bleu": 100 / 3}, {"loss": 0.1 + 0.2, "updates": 2})
    checkpoints.save(model, optimizer, state, keep=1)
    assert checkpoints.restore(model, optimizer) == state


def test_states_of_older_runs_lack_what_was_not_known_then():
    older = {"step": 7, "best": None, "interval": {}, "stopgap": False, "trained_with": {}}
    assert RunState.from_dict(older) == RunState(7)


def test_a_best_checkpoint_that_has_gone_is_none(checkpoints, model, optimizer, caplog):
    """A better one had come, behind which it was removed, and is damaged."""
    state = RunState(1, best={"step": 1, "bleu": 20.0})
    checkpoints.save(model, optimizer, state, keep=2)
    for step in (2, 3, 4):
        state.step, state.validations_since_best = step, step - 1
        if step == 4:
            state.best, state.validations_since_best = {"step": 4, "bleu": 21.0}, 0
        checkpoints.save(model, optimizer, state, keep=2)
    assert checkpoints.steps() == [3, 4]
    weights = checkpoints.path / "step-00000004" / "model.weights.h5"
    weights.write_bytes(weights.read_bytes()[:-1])
    found = checkpoints.restore(model, optimizer)
    assert (found.step, found.best, checkpoints.best()) == (3, None, None)
    assert not found.is_over(10, patience=2)
    assert "the best checkpoint, of step 1, is lost" in caplog.text


def test_best_json_follows_the_checkpoint(checkpoints, model, optimizer):
    """It may be ahead or behind after a kill, or damaged."""
    state = RunState(7, {"step": 7, "bleu": 31.5})
    checkpoints.save(model, optimizer, state, keep=1)
    for content in ('{"step": 9, "bleu": 40.0}', '{"step": 5', None):
        checkpoints.best_path.unlink()
        if content:
            checkpoints.best_path.write_text(content)
        checkpoints.restore(model, optimizer)
        assert checkpoints.best() == state.best


def test_average_is_numpys_mean(checkpoints, model, optimizer, rng):
    states = []
    for step in (5, 6, 7):
        randomize(model, optimizer, rng)
        states.append(model.get_weights())
        checkpoints.save(model, optimizer, RunState(step), keep=9)
    assert checkpoints.average(model, 2) == [6, 7]
    expected = [np.mean([a, b], axis=0) for a, b in zip(*states[1:], strict=True)]
    for name in ("in memory", "loaded"):
        for weight, value in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(weight, value, rtol=1e-6, atol=1e-7, err_msg=name)
        randomize(model, optimizer, rng)
        assert checkpoints.load(model, "average") == 7
    assert checkpoints.average(model, 99) == [5, 6, 7]


def test_an_average_is_made_anew_when_training_has_gone_on(checkpoints, model, optimizer, rng):
    values = {}
    for step in (5, 6, 7, 8):
        randomize(model, optimizer, rng)
        values[step] = model.get_weights()
        checkpoints.save(model, optimizer, RunState(step), keep=9)
        if step == 6:
            checkpoints.average(model, 2)
    checkpoints.save(model, optimizer, RunState(9), keep=9, interrupted=True)
    before = files(checkpoints)
    assert checkpoints.load(model, "average") == 8
    for weight, a, b in zip(model.get_weights(), values[7], values[8], strict=True):
        np.testing.assert_allclose(weight, np.mean([a, b], axis=0), rtol=1e-6, atol=1e-7)
    assert files(checkpoints) == before


def test_loading_by_name(checkpoints, model, optimizer, rng):
    values = {}
    for step in (1, 2):
        randomize(model, optimizer, rng)
        values[step] = model.get_weights()[0]
        checkpoints.save(model, optimizer, RunState(step), keep=9)
    checkpoints.save(model, optimizer, RunState(2, {"step": 1, "bleu": 9.5}), keep=9)
    for name, step in (("last", 2), ("best", 1)):
        assert checkpoints.load(model, name) == step
        np.testing.assert_array_equal(model.get_weights()[0], values[step])


def test_missing_checkpoints_are_named(checkpoints, model, optimizer):
    with refused("has no checkpoints yet"):
        checkpoints.load(model)
    checkpoints.save(model, optimizer, RunState(1), keep=1)
    with refused("no best checkpoint"):
        checkpoints.load(model, "best")
    with refused("no averaged checkpoint"):
        checkpoints.load(model, "average")
    with refused("checkpoint must be last, best or average, got first"):
        checkpoints.load(model, "first")


def test_another_model_does_not_fit(checkpoints, model, optimizer):
    checkpoints.save(model, optimizer, RunState(1), keep=1)
    other, _ = small_model(inner_dim=8)
    with refused("model.weights.h5 cannot be read"):
        checkpoints.load(other)
