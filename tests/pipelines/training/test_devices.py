"""Precision, compilation and strategy: what was asked for, or what suits the device."""

import os

import pytest
import tensorflow as tf

from pipelines.config import TrainingConfig
from pipelines.errors import InputError
from pipelines.training import devices
from tests.support.layer_checks import run_python

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_precision_asked_for_is_taken(precision):
    assert devices.precision(TrainingConfig(precision=precision)) == precision


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="about CPUs")
@pytest.mark.parametrize(
    "features, fastest",
    [
        ("avx2", "float32"),
        ("avx2 avx512f", "float32"),
        ("AuthenticAMD avx2 avx512f", "float32"),
        ("AuthenticAMD avx2 avx512f avx512_bf16", "mixed_bfloat16"),
        ("GenuineIntel avx2 avx512f avx512_bf16", "float32"),
        ("GenuineIntel avx2 avx512f avx512_bf16 amx_bf16", "mixed_bfloat16"),
    ],
)
def test_half_precision_where_the_cpu_gains_by_it(monkeypatch, features, fastest):
    monkeypatch.setattr(devices, "_cpu_features", lambda: set(features.split()))
    assert devices.precision(TrainingConfig()) == fastest


def test_compilation():
    assert devices.xla_scope(TrainingConfig(jit="on")) == "model"
    assert devices.xla_scope(TrainingConfig(jit="off")) == "nothing"
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert devices.xla_scope(TrainingConfig()) == ("model" if has_gpu else "passes")


def test_strategies():
    one = devices.make_strategy(TrainingConfig(strategy="one"))
    assert isinstance(one, tf.distribute.OneDeviceStrategy)
    mirrored = devices.make_strategy(TrainingConfig(strategy="mirrored"))
    assert isinstance(mirrored, tf.distribute.MirroredStrategy)
    auto = devices.make_strategy(TrainingConfig())
    several = len(tf.config.list_logical_devices("GPU")) > 1
    assert isinstance(auto, tf.distribute.MirroredStrategy if several else type(one))


def test_virtual_cpus_come_too_late_once_tensorflow_runs():
    tf.constant(1) + 1
    with pytest.raises(InputError, match="virtual_cpus must be set before .*, got 5"):
        devices.make_strategy(TrainingConfig(virtual_cpus=5))


def test_virtual_cpus_are_replicas():
    output = run_python(
        """
from pipelines.training import devices
from pipelines.config import TrainingConfig
for strategy in ("auto", "mirrored", "one"):
    made = devices.make_strategy(TrainingConfig(virtual_cpus=3, strategy=strategy))
    print(type(made).__name__, made.num_replicas_in_sync)
"""
    )
    assert output.splitlines() == [
        "MirroredStrategy 3",
        "MirroredStrategy 3",
        "OneDeviceStrategy 1",
    ]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="about Linux")
@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="about CPUs")
def test_only_the_cores_of_this_process_are_told_of():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert devices.description().startswith("CPU, 1 core, ")
    finally:
        os.sched_setaffinity(0, mine)
