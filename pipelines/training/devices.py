"""Which devices train, in which precision, and whether XLA compiles for them."""

import os
import platform
from pathlib import Path

import tensorflow as tf

from pipelines.config import TrainingConfig
from pipelines.errors import InputError
from pipelines.training.trainer import XlaScope
from pipelines.training.workers import connect

# Words of /proc/cpuinfo, one of these sets: products of bfloat16 take about half of float32's time
# by AMD's avx512_bf16, and twice as long by that of an Intel processor that offers no AMX.
_FAST_AT_BFLOAT16 = ({"amx_bf16"}, {"avx512_bf16", "AuthenticAMD"})


def make_strategy(config: TrainingConfig) -> tf.distribute.Strategy:
    """The strategy that the flags ask for. Call it before TensorFlow has used a device.

    Raises:
        InputError: `virtual_cpus` after TensorFlow has started or with several workers, or there is
            no connection with the other workers.
    """
    if config.strategy == "multi_worker":
        if config.virtual_cpus > 1:
            raise InputError(
                "virtual_cpus is for strategy mirrored, a worker has one CPU replica; "
                f"got {config.virtual_cpus} and strategy multi_worker"
            )
        return connect()
    if config.virtual_cpus > 1:
        _split_cpu(config.virtual_cpus)
    devices = [d.name for d in tf.config.list_logical_devices("GPU")]
    if not devices or config.virtual_cpus > 1:
        devices = [d.name for d in tf.config.list_logical_devices("CPU")]
    if config.strategy == "one" or (config.strategy == "auto" and len(devices) == 1):
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.MirroredStrategy(devices)


def precision(config: TrainingConfig) -> str:
    """Keras's dtype policy: the one asked for, or the fastest that trains well."""
    if config.precision != "auto":
        return config.precision
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        capable = details.get("compute_capability", (0, 0)) >= (8, 0)
    else:
        capable = any(words <= _cpu_features() for words in _FAST_AT_BFLOAT16)
    return "mixed_bfloat16" if capable else "float32"


def description() -> str:
    """The device, and of a CPU the cores that this process may use, and what decides how fast they
    multiply matrices, where Linux tells."""
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16")
    features = "".join(f", {name}" for name in known if name in _cpu_features())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU, {cores} core{'s' * (cores != 1)}, {platform.machine()}{features}"


def xla_scope(config: TrainingConfig) -> XlaScope:
    """What XLA compiles, see `TranslationTrainer`.

    On CPUs that are passes over memory alone: XLA's matrix products are slower there than
    TensorFlow's.
    """
    if config.jit == "off":
        return "nothing"
    is_model = config.jit == "on" or bool(tf.config.get_visible_devices("GPU"))
    return "model" if is_model else "passes"


def _split_cpu(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, wanted)
    except RuntimeError:
        if len(tf.config.list_logical_devices("CPU")) != count:
            raise InputError(
                f"virtual_cpus must be set before TensorFlow has started, got {count}"
            ) from None


def _cpu_features() -> set[str]:
    """What Linux tells of the processor, its vendor among it; nothing elsewhere."""
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return set()
