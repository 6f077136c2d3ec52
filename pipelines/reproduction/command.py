"""What the command lines that make a table share."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import InputError
from pipelines.files.pictures import check_can_draw
from pipelines.importing import load_keras
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
    return tell_of_table(found, output)


def tell_of_table(found: list[Path] | signal.Signals, output: Path) -> int:
    """Prints what has become of a table.

    Args:
        found: its files, or the signal that ended training early.
        output: their directory.

    Returns:
        The exit status of the command.
    """
    if isinstance(found, signal.Signals):
        print(f"stopped; the same command resumes from {output}")
        return 128 + found  # what a shell reports of a program ended by a signal
    text = next(path for path in found if path.suffix == ".md")
    print(text.read_text(encoding="utf-8"))
    print("wrote", *found)
    return 0
