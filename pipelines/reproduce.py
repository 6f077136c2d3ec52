"""Reproduces a table of the paper: python -m pipelines.reproduce --table 2"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.command_line import lasting_output, run
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.reproduction.command import make_table
from pipelines.reproduction.tables import DECIDED, TABLES
from pipelines.training.flags import StartFlags, parse

DESCRIPTION = """Train the models that a table of the paper compares, and write the table: Markdown,
a picture and JSON, beside the paper's own numbers.

Every flag of train_wmt but those for positions and the seed is taken, for all the runs. What is
finished is not trained again, in another table neither; the same command resumes what is not."""


@dataclass(frozen=True)
class ReproduceFlags(StartFlags):
    """Which table."""

    table: int = field(kw_only=True)
    """of the paper: 1, absolute against relative positions; 2, the clipping distance; 3, where
    relative positions enter"""
    rows: list[str] | None = None
    """some of its rows only: sinusoidal, relative, both; 0, 1, 2, ...; keys_and_values, keys,
    values, neither"""
    seeds: int = 1
    """runs of each row, with the seeds 1, 2, ..."""
    jobs: int = 1
    """runs that are trained at a time, each in a process with its share of the cores, or of the
    GPUs"""
    output: str | None = None
    """where the runs and the tables go; reproduction/<corpus> unless given"""

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise InputError(f"table must be 1, 2 or 3, got {self.table}")
        check_positive(self, "seeds", "jobs")
        TABLES[self.table].chosen(self.rows or [])


def main(arguments: Sequence[str]) -> int:
    with lasting_output():
        asked = parse(
            arguments, ReproduceFlags, DESCRIPTION, "python -m pipelines.reproduce", DECIDED
        )
        table = TABLES[asked.flags.table]
        return make_table(asked, table, table.chosen(asked.flags.rows or []), "reproduction")


if __name__ == "__main__":
    run(main)
