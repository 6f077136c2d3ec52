"""Attention within a window beside all pairs, masked: python -m pipelines.benchmark.window

The whole layer on one long sequence, forward and backward: seconds of a step, the contestants
taking turns, and how much more memory the process has held at its peak, in a process of its own for
each number. All pairs are skipped where they would need more than `gigabytes`. Linux alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.benchmark.measuring import (
    compiled_step,
    seconds_in_turns,
    settings_of,
    write_results,
)
from pipelines.benchmark.memory import megabytes_of
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags

if TYPE_CHECKING:
    import keras

COPIES = 4  # of the weights [N, T, S], which a training step of all pairs holds, about


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    lengths: list[int] = field(default_factory=lambda: [1024, 2048, 4096, 8192, 16384, 32768])
    """T"""
    window: int = 64
    """r: a query sees r positions on either side"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_position: int = 16
    """k"""
    turns: int = 7
    """times that each contestant runs"""
    gigabytes: float = 12.0
    """memory that all pairs may take"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "window", "num_heads", "head_dim", "max_relative_position")
        if not all(length >= 2 for length in self.lengths):
            raise InputError(f"lengths must be at least 2, got {self.lengths}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.window", arguments)
    check_can_be_measured()
    from pipelines.importing import load_keras

    load_keras()
    records = []
    for length in flags.lengths:
        fits = COPIES * 4 * flags.num_heads * length**2 <= flags.gigabytes * 2**30
        names = ("window", "all pairs") if fits else ("window",)
        steps = {name: _step(_layer(name, flags), length, flags.head_dim) for name in names}
        turns = seconds_in_turns(steps, flags.turns)
        seconds = {name: statistics.median(turn[name] for turn in turns) for name in names}
        megabytes = {name: in_a_process(measured, name, length, flags) for name in names}
        records.append({"T": length, "seconds": seconds, "megabytes": megabytes})
        columns = (f"{name} {seconds[name]:7.3f} s {megabytes[name]:6.0f} MB" for name in names)
        print(
            f"T {length:5}  {'  '.join(columns)}{'' if fits else '  all pairs skipped'}", flush=True
        )
    write_results(flags.output, settings=settings_of(flags), steps=records)


def _layer(name: str, flags: Benchmark) -> keras.Layer:
    import keras

    from tf_relpos import RelativeMultiHeadAttention

    sizes = flags.num_heads, flags.head_dim
    if name == "window":
        k = flags.max_relative_position
        return RelativeMultiHeadAttention(*sizes, k, attention_window=flags.window)
    return keras.layers.MultiHeadAttention(*sizes, sliding_window=flags.window + 1)


def _step(layer: keras.Layer, length: int, features: int) -> Callable[[], list[float]]:
    import tensorflow as tf

    x = tf.random.normal((1, length, features))
    layer.build(x.shape, x.shape)
    return compiled_step(lambda: layer(x, x, training=True), layer.trainable_variables)


def measured(name: str, length: int, flags: Benchmark) -> float:
    """What the process has held more at its peak, after a step than before."""
    return megabytes_of(_layer(name, flags), length, "graph", True, flags.head_dim)


if __name__ == "__main__":
    run(main)
