"""Compares a configuration with changes to it: python -m pipelines.ablate --changes dropout=0.2"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.command_line import lasting_output, run
from pipelines.flag_checks import check_positive
from pipelines.reproduction.changes import table_of_changes
from pipelines.reproduction.command import make_table
from pipelines.training.flags import StartFlags, parse

DESCRIPTION = """Train a configuration and changes to it, each by itself, score all of them on the
text for validation, and write the table: Markdown, a picture and JSON.

Every flag of train_wmt but the seed is taken, for the configuration that the changes are made to.
What is finished is not trained again; the same command resumes what is not."""


@dataclass(frozen=True)
class AblateFlags(StartFlags):
    """Which changes."""

    changes: list[str] = field(kw_only=True)
    """flags of the model and of training with other values, dropout=0.2; a row for each, or for
    several with commas between, model_dim=192,num_heads=6"""
    seeds: int = 1
    """runs of each row, with the seeds 1, 2, ..."""
    jobs: int = 1
    """runs that are trained at a time, each in a process with its share of the cores, or of the
    GPUs"""
    output: str | None = None
    """where the runs and the table go; ablation/<corpus> unless given"""

    def __post_init__(self) -> None:
        check_positive(self, "seeds", "jobs")


def main(arguments: Sequence[str]) -> int:
    with lasting_output():
        decided = ("seed", "initialize_from")
        asked = parse(arguments, AblateFlags, DESCRIPTION, "python -m pipelines.ablate", decided)
        table = table_of_changes(asked)
        return make_table(asked, table, table.rows, "ablation")


if __name__ == "__main__":
    run(main)
