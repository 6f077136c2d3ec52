"""Trainings that take turns, each in a process of its own, and the tokens that they tell of."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.benchmark.paused_process import PausedProcess
from pipelines.config import RunConfig
from pipelines.progress import progress

if TYPE_CHECKING:
    from pipelines.data.preparation import Prepared


@dataclass(frozen=True)
class Contestant:
    """One that trains.

    Attributes:
        name: for people.
        precision: of its matrix products.
        process: that trains, and prints a line after each update.
        tokens_of: the tokens of the update that a line tells of, given the seconds since the line
            before; 0 if it does not count, None if the line tells of something else.
    """

    name: str
    precision: str
    process: PausedProcess
    tokens_of: Callable[[str, float], float | None]

    def warm_up(self, updates: int) -> None:
        """Starts it, and waits until it has taken so many updates."""
        with progress(f"starting {self.name}"), self.process.turn() as lines:
            next(islice(self._updates(lines), updates - 1, None))

    def tokens_per_second(self, updates: int) -> float:
        """Of so many updates that count, in a turn."""
        with self.process.turn() as lines:
            taken = self._updates(lines)
            next(taken)  # it has begun in the turn before
            counted = list(islice((update for update in taken if update[0]), updates))
        return sum(tokens for tokens, _ in counted) / sum(seconds for _, seconds in counted)

    def _updates(self, lines: Iterator[str]) -> Iterator[tuple[float, float]]:
        """Tokens and seconds of each update, from line to line."""
        before = time.monotonic()
        for line in lines:
            now = time.monotonic()
            tokens = self.tokens_of(line, now - before)
            if tokens is not None:
                yield tokens, now - before
                before = now


class OurTokens:
    """The tokens of the updates of our runs: which pairs make up a batch follows from its number.

    Args:
        prepared: the text.
        config: of the runs, on one device.

    Call arguments:
        line: that a run has printed, "step 1,234/2,000  loss ..." after an update; all such lines
            in order.
        seconds: since the line before.

    Returns:
        See `Contestant`; 0 for the first update of each shape, which compiles.
    """

    def __init__(self, prepared: Prepared, config: RunConfig):
        from pipelines.training.batches import batches_of

        self._corpus, _, self._plan = batches_of(config, prepared, replicas=1)
        self._compiled: set[int] = set()

    def __call__(self, line: str, seconds: float) -> float | None:
        from pipelines.data.dataset import PAD_ID

        found = re.match(r"step ([\d,]+)/", line)
        if not found:
            return None
        bucket, numbers = self._plan.batch(int(found[1].replace(",", "")) - 1)
        if bucket not in self._compiled:
            self._compiled.add(bucket)
            return 0.0
        return float(sum((side != PAD_ID).sum() for side in self._corpus.gather(bucket, numbers)))


def our_command(config: RunConfig, prepared: Prepared, run_dir: Path, precision: str) -> list[str]:
    """What trains in a directory, and neither validates nor saves before the end."""
    values = {
        "preset": config.preset,
        "prepared": prepared.directory,
        "run_dir": run_dir,
        "export_dir": "none",
        "precision": precision,
        "steps": config.training.steps,
        "tokens_per_replica": config.training.tokens_per_replica,
        "log_every": config.training.log_every,
        "valid_every": 0,
        "checkpoint_every": 0,
        "checkpoint_minutes": 0,
    }
    flags = [f"--{name}={value}" for name, value in values.items()]
    return [sys.executable, "-m", "pipelines.train_wmt", *flags]
