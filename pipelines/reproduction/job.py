"""A whole table: prepare the text, train what remains, write the table after each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.config import RunConfig
from pipelines.corpora.corpus import Corpus
from pipelines.data.preparation import open_prepared
from pipelines.files.locks import one_at_a_time
from pipelines.reproduction.parallel import Machine
from pipelines.reproduction.remaining import train_remaining
from pipelines.reproduction.report import write_table
from pipelines.reproduction.results import Text, check_finished, results
from pipelines.reproduction.runs import finished_of, runs_of
from pipelines.reproduction.tables import Row, Table
from pipelines.training.devices import make_strategy
from pipelines.training.job import as_prepared, prepare_text


def reproduce(
    table: Table,
    rows: Sequence[Row],
    config: RunConfig,
    *,
    seeds: int,
    output: Path,
    corpus: Corpus | None = None,
    prepared_directory: str | None = None,
    jobs: int = 1,
) -> list[Path]:
    """Trains what a table needs, and writes it.

    Args:
        table: of the paper, or of changes.
        rows: those of it to train; what else has been trained is shown as well.
        config: what the runs have in common.
        seeds: runs of each row.
        output: the directory; `runs` in it is what all tables share, and `prepared` the text.
        corpus: the text, or
        prepared_directory: what `pipelines.prepare` made of it.
        jobs: runs at a time, each in a process of its own if there are several.

    Returns:
        The files of the table.

    Raises:
        EndedEarly: by a signal; what has been trained is saved and written.
        InputError: the user has to change something; before anything is trained, if that can be
            known.
    """
    machine = Machine.of(jobs)
    make_strategy(config.training)  # before TensorFlow reads the text
    if corpus is not None:
        prepared = prepare_text(config, corpus, output / "prepared")
    elif prepared_directory is not None:
        prepared = open_prepared(prepared_directory)
    else:
        raise ValueError("give either corpus or prepared_directory")
    name = prepared.settings["corpus"]
    split = table.split_of(prepared.splits, name)
    text = Text(
        name,
        split,
        prepared.text(split)[1],
        prepared.settings["target_language"],
    )
    runs = {
        row.name: runs_of(row, config, seeds, output / "runs", prepared, split)
        for row in table.rows
    }
    chosen = [run for row in rows for run in runs[row.name]]

    trained = as_prepared(config, prepared.settings)

    def write() -> list[Path]:
        with one_at_a_time(output):  # what another process has found meanwhile is not taken back
            finished = {name: finished_of(several) for name, several in runs.items()}
            return write_table(results(table, finished, trained, text), output)

    for several in runs.values():
        check_finished(several, split, len(text.references))
    for _ in train_remaining(chosen, machine):
        write()
    return write()
