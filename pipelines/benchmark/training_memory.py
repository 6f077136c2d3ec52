"""Memory of a training step by kind of position: python -m pipelines.benchmark.training_memory

The most that a process holds while it takes updates of a preset, weights, optimizer and TensorFlow
itself included, with relative positions over one with sinusoids: the medians of several processes,
which differ by some per cent. Linux alone.

And, beside it, the most that tensors of 256 KiB and more took of that: oneDNN's allocator, which
counts them, gives nothing back to the system and takes regions of it that double in size, so that a
process whose tensors need a little more may hold much more.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.benchmark import training_step
from pipelines.benchmark.measuring import settings_of, write_results
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process, peak_megabytes
from pipelines.command_line import parse_flags, run
from pipelines.errors import check_positive

_UPDATES = 3  # the first one compiles


@dataclass(frozen=True)
class Benchmark(training_step.Step):
    """What to measure."""

    length: int = 64
    """of each side of a pair"""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """of the computation"""
    turns: int = 3
    """processes of each contestant, one after the other"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "turns")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(
        Benchmark, __doc__, "python -m pipelines.benchmark.training_memory", arguments
    )
    check_can_be_measured()
    turns = []
    for _ in range(flags.turns):
        turn = {p: in_a_process(measured, p, flags) for p in training_step.CONTESTANTS}
        print(*(f"{p} {all_:,.0f} MB" for p, (all_, _) in turn.items()), sep=", ", flush=True)
        turns.append(turn)
    kinds = ("megabytes", "tensor_megabytes")
    results: dict[str, dict[str, float]] = {
        kind: {p: statistics.median(turn[p][i] for turn in turns) for p in turns[0]}
        for i, kind in enumerate(kinds)
    }
    for position, size in results["megabytes"].items():
        ratio = size / results["megabytes"]["sinusoidal"]
        print(f"{position}: {size:,.0f} MB, {ratio:.3f} of sinusoidal")
    of_turns = [{p: all_ for p, (all_, _) in turn.items()} for turn in turns]
    write_results(flags.output, settings=settings_of(flags), **results, megabytes_of_turns=of_turns)


def measured(position: str, flags: Benchmark) -> list[float]:
    """The most megabytes that the process has held after some updates of a contestant, and that its
    large tensors have taken: 0 where no allocator counts them."""
    update = training_step.update_of(flags, position)
    for _ in range(_UPDATES):
        update()
    import tensorflow as tf

    try:
        tensors = tf.config.experimental.get_memory_info("CPU:0")["peak"] / 1e6
    except ValueError:  # TensorFlow's own allocator counts nothing
        tensors = 0.0
    return [peak_megabytes(), tensors]


if __name__ == "__main__":
    run(main)
