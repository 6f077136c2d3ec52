"""What remains of some runs is trained: one after the other, or several at a time."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Sequence

from pipelines.progress import duration
from pipelines.reproduction.parallel import Machine, names_of, train_at_once
from pipelines.reproduction.runs import Run

_LOG = logging.getLogger(__name__)


def train_remaining(runs: Sequence[Run], machine: Machine | None = None) -> Iterator[Run]:
    """Trains those that are not finished, and says before each how many there are and how long.

    Args:
        runs: all of them.
        machine: what to divide among several at a time; None trains one after the other, here.

    Yields:
        Each run when it is finished.

    Raises:
        EndedEarly: by a signal; what has been trained is saved.
        InputError: a run cannot be gone on with, or was trained for longer; before any is trained.
    """
    remaining = [run for run in runs if not run.is_finished()]
    for run in remaining:
        run.check_continues()
    at_once = min(machine.jobs, len(remaining)) if machine else 1
    names = names_of(runs)

    def tell(run: Run) -> None:
        number = len(runs) - len(remaining) + remaining.index(run) + 1
        done = [run.record()["minutes"] for run in runs if run.is_finished()]
        left = len(runs) - len(done)
        rounds = -(-left // at_once)
        time_left = duration(60 * statistics.mean(done) * rounds) if done else "unknown"
        _LOG.info(
            f"run {number} of {len(runs)}: {names[run.path]}; "
            f"{len(done)} finished, {left} left, time left {time_left}"
        )

    if machine and remaining:
        yield from train_at_once(remaining, names, machine.divided(at_once), tell)
        return
    for run in remaining:
        tell(run)
        run.train()
        yield run
