"""Memory of a training step by kind of position: python -m pipelines.benchmark.training_memory

The most that a process holds while it takes updates of a preset, weights, optimizer and TensorFlow
itself included, with relative positions over one with sinusoids: the medians of several processes,
which differ by some per cent. Linux alone.

And the most that the tensors took of it, where they are counted: the allocator of oneDNN takes
regions of memory that double in size and gives none back, so that a process whose tensors need a
little more may hold much more.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.benchmark import training_step
from pipelines.benchmark.measuring import settings_of, write_results
from pipelines.benchmark.peak_memory import (
    check_can_be_measured,
    in_a_process,
    peak_megabytes,
    peak_tensor_megabytes,
)
from pipelines.command_line import run
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags

_UPDATES = 3  # the first one compiles
_NAMES = {"megabytes": "the process", "tensor_megabytes": "its tensors"}


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
        print(*(f"{p} {m['megabytes']:,.0f} MB" for p, m in turn.items()), sep=", ", flush=True)
        turns.append(turn)
    medians: dict[str, dict[str, float]] = {
        kind: {p: statistics.median(turn[p][kind] for turn in turns) for p in turns[0]}
        for kind in turns[0]["sinusoidal"]
    }
    for kind, sizes in medians.items():
        for position, size in sizes.items():
            ratio = size / sizes["sinusoidal"]
            print(f"{_NAMES[kind]}, {position}: {size:,.0f} MB, {ratio:.3f} of sinusoidal")
    of_turns = [{p: m["megabytes"] for p, m in turn.items()} for turn in turns]
    write_results(flags.output, settings=settings_of(flags), **medians, megabytes_of_turns=of_turns)


def measured(position: str, flags: Benchmark) -> dict[str, float]:
    """The most megabytes that the process has held after some updates of a contestant, and that its
    tensors have taken, where they are counted."""
    update = training_step.update_of(flags, position)
    for _ in range(_UPDATES):
        update()
    tensors = peak_tensor_megabytes()
    counted = {} if tensors is None else {"tensor_megabytes": tensors}
    return {"megabytes": peak_megabytes(), **counted}


if __name__ == "__main__":
    run(main)
