"""Additive compatibility beside the product: python -m pipelines.benchmark.compatibility

The whole layer with relative positions, forward and backward: seconds of a training step, the two
taking turns, in a graph and compiled by XLA; and how much more memory the process has held at its
peak, in a process of its own for each number. Linux alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipelines.benchmark.measuring import (
    compiled_step,
    ratios,
    seconds_in_turns,
    settings_of,
    write_results,
)
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process, megabytes_more
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from tf_relpos.config import COMPATIBILITIES


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    lengths: list[int] = field(default_factory=lambda: [32, 128, 256])
    """T"""
    tokens: int = 512
    """B times T"""
    num_heads: int = 8
    """N"""
    head_dim: int = 64
    """H"""
    max_relative_position: int = 16
    """k"""
    turns: int = 7
    """times that each contestant runs"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "num_heads", "head_dim", "max_relative_position")
        if not all(1 <= length <= self.tokens for length in self.lengths):
            raise InputError(f"lengths must be from 1 to tokens, {self.tokens}, got {self.lengths}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(
        Benchmark, __doc__, "python -m pipelines.benchmark.compatibility", arguments
    )
    check_can_be_measured()
    from pipelines.importing import load_keras

    load_keras()
    sizes = (flags.num_heads, flags.head_dim, flags.max_relative_position)
    records = []
    for xla in (False, True):
        for length in flags.lengths:
            shape = (flags.tokens // length, length)
            steps = {name: _step(name, shape, xla, *sizes) for name in COMPATIBILITIES}
            turns = seconds_in_turns(steps, flags.turns)
            record = {
                "xla": xla,
                "T": length,
                "seconds": {n: statistics.median(t[n] for t in turns) for n in COMPATIBILITIES},
                "ratio": ratios(turns, "product")["additive"],
                "megabytes": {
                    name: in_a_process(measured, name, shape, xla, *sizes)
                    for name in COMPATIBILITIES
                },
            }
            records.append(record)
            print(_line(record), flush=True)
    pairs = {
        T: flags.tokens * T * flags.num_heads * flags.head_dim * 4 / 1e6 for T in flags.lengths
    }
    write_results(flags.output, settings=settings_of(flags), one_tensor=pairs, steps=records)


def _line(record: dict) -> str:
    columns = (
        f"{name} {record['seconds'][name]:6.3f} s {record['megabytes'][name]:5.0f} MB"
        for name in COMPATIBILITIES
    )
    mode = "XLA  " if record["xla"] else "graph"
    return f"{mode}  T {record['T']:4}  {'  '.join(columns)}  {record['ratio']:5.2f}"


def _step(
    name: str, shape: tuple[int, int], xla: bool, num_heads: int, head_dim: int, k: int
) -> Callable[[], list[float]]:
    import tensorflow as tf

    from tf_relpos import RelativeMultiHeadAttention

    x = tf.random.normal((*shape, num_heads * head_dim))
    layer = RelativeMultiHeadAttention(num_heads, head_dim, k, compatibility=name)
    layer.build(x.shape, x.shape)
    return compiled_step(lambda: layer(x, x, training=True), layer.trainable_variables, xla)


def measured(name: str, shape: tuple[int, int], xla: bool, *sizes: int) -> float:
    """What the process has held more at its peak, after a step than before."""
    _step(name, (1, 9), xla, *sizes)()  # what a first call takes beside is not counted
    step = _step(name, shape, xla, *sizes)
    return megabytes_more(step)


if __name__ == "__main__":
    run(main)
