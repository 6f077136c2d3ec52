"""Any number of replicas takes the steps that one device takes on the same global batches."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.support.layer_checks import assert_close
from tests.support.replica_steps import ROWS
from tests.support.runs import ENVIRONMENT, ROOT

pytestmark = pytest.mark.tensorflow_only

SHAPES = [(5, 7), (11, 4)] * 3

# What is trained, and on how many replicas it is to give the same.
CASES = {
    "clipped": (
        {"shapes": SHAPES, "longest": 11, "clip_norm": 0.05, "skip_non_finite": True},
        (1, 2),
    ),
}
SLOW_CASES = {
    # Only the last of two replicas has target tokens, and so scaled gradients that overflow.
    "overflow": (
        {
            "shapes": SHAPES,
            "longest": 11,
            "dtype": "mixed_float16",
            "empty_rows": -4,
            "initial_scale": 2.0**20,
        },
        (1, 2),
    ),
    "XLA": ({"shapes": [(5, 7), (3, 4), (11, 9)] * 2, "xla": "model"}, (1, 2)),
    "graph": ({"shapes": SHAPES}, (1, 4, 8)),
    "micro-batches": ({"shapes": SHAPES, "micro_batches": 2}, (1, 2, 4)),
    "rows without target tokens": ({"shapes": SHAPES, "empty_rows": 5}, (1, 4)),
    "bfloat16": ({"shapes": SHAPES, "dtype": "mixed_bfloat16"}, (1, 2)),
    "float16": ({"shapes": SHAPES, "dtype": "mixed_float16"}, (1, 2)),
}
# Half precision rounds each product to 8 or 11 bits, in another order on other replicas.
TOLERANCE = {"bfloat16": 0.03, "float16": 0.01, "overflow": 0.01}

DROPOUT = {"shapes": SHAPES[:1] * 3, "dropout": 0.3, "learning_rate": 0.0}


def train_on(replicas, cases, directory):
    """Logs and weights of the cases, `name.logs` and `name.weights`, from a process of its own."""
    path = directory / f"{replicas}.npz"
    program = ROOT / "tests/support/replica_steps.py"
    result = subprocess.run(
        [sys.executable, str(program), str(replicas), json.dumps(cases), str(path)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(np.load(path))


def train_all(cases, directory):
    """Results by number of replicas."""
    numbers = sorted({replicas for _, several in cases.values() for replicas in several})
    return {
        n: train_on(n, {name: c for name, (c, several) in cases.items() if n in several}, directory)
        for n in numbers
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return train_all(CASES, tmp_path_factory.mktemp("replicas"))


@pytest.fixture(scope="module")
def slow_results(tmp_path_factory):
    return train_all(SLOW_CASES, tmp_path_factory.mktemp("replicas"))


def check_same(results, name, replicas):
    tolerance = TOLERANCE.get(name, 1e-4)
    one, several = (results[n][f"{name}.logs"] for n in (1, replicas))
    np.testing.assert_array_equal(several[:, 1], one[:, 1])
    assert_close(several[:, 0], one[:, 0], tolerance)
    # Two logits that are nearly equal may change places.
    assert np.max(np.abs(several[:, 2] - one[:, 2])) <= (2 if name in TOLERANCE else 0)
    assert results[1][f"{name}.updates"] == results[replicas][f"{name}.updates"]
    one, several = (results[n][f"{name}.weights"] for n in (1, replicas))
    assert np.all(np.isfinite(several))
    assert_close(several, one, tolerance)


def pairs(cases):
    return [(name, n) for name, (_, several) in cases.items() for n in several[1:]]


@pytest.mark.parametrize(("name", "replicas"), pairs(CASES))
def test_same_losses_counts_and_weights(results, name, replicas):
    check_same(results, name, replicas)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replicas"), pairs(SLOW_CASES))
def test_same_losses_counts_and_weights_elsewhere(slow_results, name, replicas):
    check_same(slow_results, name, replicas)


def test_replicas_held_very_different_numbers_of_tokens(results):
    """Else the mean over replicas of their means would have passed."""
    tokens = results[1]["clipped.logs"][:, 1]
    assert tokens.tolist() == [sum(1 + row * T // ROWS for row in range(ROWS)) for T in (7, 4)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_overflow_costs_its_update_alone(slow_results, replicas):
    assert 0 < slow_results[replicas]["overflow.updates"] < len(SHAPES)


def test_training_lowered_the_loss(results):
    losses = results[1]["clipped.logs"][:, 0] / results[1]["clipped.logs"][:, 1]
    assert losses[4] < 0.99 * losses[0]  # of batches with the same lengths


@pytest.mark.slow
def test_some_replicas_had_no_target_token(slow_results):
    """Of four replicas with two rows each, those that have the last five rows."""
    tokens = slow_results[1]["rows without target tokens.logs"][:, 1]
    assert tokens.tolist() == [sum(1 + row * T // ROWS for row in range(3)) for T in (7, 4)] * 3


@pytest.mark.slow
def test_dropout_depends_on_the_seed_alone(tmp_path):
    cases = {"first": DROPOUT, "again": DROPOUT, "other": {**DROPOUT, "seed": 6}}
    found = train_on(2, cases, tmp_path)
    first, again, other = (found[f"{name}.logs"] for name in cases)
    np.testing.assert_array_equal(again, first)
    assert len(set(first[:, 0])) == len(first)
    assert np.all(np.abs(other[:, 0] - first[:, 0]) > 1e-3)
