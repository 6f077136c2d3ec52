"""Memory of a training step by kind of position: python -m pipelines.benchmark.training_memory

The most that a process holds while it takes updates of a preset, weights, optimizer and TensorFlow
itself included, with relative positions over one with sinusoids. Linux alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.benchmark import training_step
from pipelines.benchmark.measuring import settings_of, write_results
from pipelines.benchmark.peak_memory import check_can_be_measured, in_a_process, peak_megabytes
from pipelines.command_line import parse_flags, run

_UPDATES = 3  # the first one compiles


@dataclass(frozen=True)
class Benchmark(training_step.Step):
    """What to measure."""

    length: int = 64
    """of each side of a pair"""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """of the computation"""
    output: str | None = None
    """a JSON file to write"""


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(
        Benchmark, __doc__, "python -m pipelines.benchmark.training_memory", arguments
    )
    check_can_be_measured()
    settings = settings_of(flags)
    megabytes: dict[str, float] = {}
    for position in training_step.CONTESTANTS:
        megabytes[position] = in_a_process(measured, position, flags)
        ratio = megabytes[position] / megabytes["sinusoidal"]
        print(f"{position}: {megabytes[position]:,.0f} MB, {ratio:.3f} of sinusoidal", flush=True)
    write_results(flags.output, settings=settings, megabytes=megabytes)


def measured(position: str, flags: Benchmark) -> float:
    """The most megabytes that the process has held after some updates of a contestant."""
    update = training_step.update_of(flags, position)
    for _ in range(_UPDATES):
        update()
    return peak_megabytes()


if __name__ == "__main__":
    run(main)
