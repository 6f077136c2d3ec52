"""What the command lines that make a table share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import InputError
from pipelines.files.pictures import check_can_draw
from pipelines.importing import load_keras
from pipelines.interruption import EndedEarly
from pipelines.reproduction.tables import Row, Table
from pipelines.training.flags import Asked


def make_table(asked: Asked, table: Table, rows: Sequence[Row], directory: str) -> int:
    """Trains what a table needs, writes it and prints it.

    Args:
        asked: by the flags, which have `seeds`, `jobs` and `output`.
        table: which.
        rows: those to train.
        directory: what is written lies in, unless there is an `output`.

    Returns:
        The exit status of the command.

    Raises:
        InputError: the user has to change something.
    """
    flags, config, corpus = asked
    if config.training.strategy == "multi_worker":
        raise InputError("strategy must be auto, one or mirrored here, got multi_worker")
    if corpus:
        table.split_of(corpus.splits, corpus.name)
    check_can_draw()  # what is missing should not show after hours
    load_keras()
    from pipelines.reproduction.job import reproduce

    output = Path(flags.output or Path(directory) / asked.text_name)
    try:
        found = reproduce(
            table,
            rows,
            config,
            seeds=flags.seeds,
            output=output,
            corpus=corpus,
            prepared_directory=flags.prepared,
            jobs=flags.jobs,
        )
    except EndedEarly as end:
        return end.told(output)
    tell_of_table(found)
    return 0


def tell_of_table(found: list[Path]) -> None:
    """Prints the table that is among the files, and where they are."""
    text = next(path for path in found if path.suffix == ".md")
    print(text.read_text(encoding="utf-8"))
    print("wrote", *found)
