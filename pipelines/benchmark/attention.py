"""Time of relative attention over plain attention's: python -m pipelines.benchmark.attention

Forward and backward pass of one attention core (projected queries, keys and values; both relative
terms), in the shapes of a training step. The contestants take turns, and the figures are medians
of ratios within a turn, so that a machine that slows down or is shared moves all of them alike.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from pipelines.command_line import parse_flags, run

IMPLEMENTATIONS = ("plain", "transpose_reshape", "bucketed")
SHAPES = ((128, 32), (64, 64), (32, 128), (8, 512))  # B, T of about 4,096 tokens


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_position: int = 16
    """k"""
    dtype: str = "float32"
    """float32 or bfloat16"""
    turns: int = 7
    """times that each contestant runs"""
    output: str | None = None
    """a JSON file to write"""


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.attention", arguments)
    from pipelines import quiet_tensorflow  # noqa: F401

    records = []
    for xla in (False, True):
        for batch, length in SHAPES:
            ratios = _measure(flags, batch, length, xla)
            records.append({"xla": xla, "B": batch, "T": length, **ratios})
            columns = "  ".join(f"{name} {ratio:5.2f}" for name, ratio in ratios.items())
            mode = "XLA  " if xla else "graph"
            print(f"{mode}  B {batch:4}  T {length:4}  {columns}", flush=True)
    if flags.output:
        settings = {k: v for k, v in vars(flags).items() if k != "output"}
        record = {"date": str(date.today()), "device": _device(), **settings, "ratios": records}
        with open(flags.output, "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=2) + "\n")


def _measure(flags: Benchmark, batch: int, length: int, xla: bool) -> dict[str, float]:
    """Median over turns of each implementation's time over plain attention's."""
    steps = {name: _step(flags, name, batch, length, xla) for name in IMPLEMENTATIONS}
    for step in steps.values():
        step()
    turns = [
        {name: _seconds(step) for name, step in steps.items()} for _ in range(max(1, flags.turns))
    ]
    return {
        name: statistics.median(turn[name] / turn["plain"] for turn in turns)
        for name in IMPLEMENTATIONS
        if name != "plain"
    }


def _step(
    flags: Benchmark, implementation: str, batch: int, length: int, xla: bool
) -> Callable[[], None]:
    import tensorflow as tf

    from tf_relpos import relative_position_ids
    from tf_relpos.relation_ops import relation_scores, relation_values

    def random(*shape):
        return tf.Variable(tf.cast(tf.random.normal(shape, stddev=0.1), flags.dtype))

    inputs = [random(batch, length, flags.num_heads, flags.head_dim) for _ in range(3)]
    labels = 2 * flags.max_relative_position + 1
    tables = [random(labels, flags.head_dim) for _ in range(2)]

    def attend():
        query, key, value = inputs
        scores = tf.einsum("btnh,bsnh->bnts", query, key)
        if implementation == "plain":
            return tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)
        ids = relative_position_ids(length, length, flags.max_relative_position)
        scores += relation_scores(query, ids, tables[0], implementation)
        weights = tf.nn.softmax(scores)
        values = tf.einsum("bnts,bsnh->btnh", weights, value)
        return values + relation_values(weights, ids, tables[1], implementation)

    variables = inputs if implementation == "plain" else inputs + tables

    @tf.function(jit_compile=xla, autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(attend()))
        return [tf.reduce_sum(tf.convert_to_tensor(g)) for g in tape.gradient(loss, variables)]

    return lambda: [float(gradient) for gradient in step()]


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _device() -> str:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    return f"CPU, {os.cpu_count()} cores, {platform.machine()}"


if __name__ == "__main__":
    run(main)
