"""A whole comparison by length: prepare the texts, train what remains, write what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.config import RunConfig
from pipelines.corpora.by_length import ShortCorpus
from pipelines.errors import InputError
from pipelines.files.locks import one_at_a_time
from pipelines.generalization.report import write_report
from pipelines.generalization.results import Text, results
from pipelines.generalization.tasks import Task
from pipelines.reproduction.parallel import Machine
from pipelines.reproduction.remaining import train_remaining
from pipelines.reproduction.results import check_finished
from pipelines.reproduction.runs import finished_of, runs_of
from pipelines.reproduction.tables import Row
from pipelines.training.job import prepare_text


def generalize(
    task: Task,
    rows: Sequence[Row],
    config: RunConfig,
    *,
    seeds: int,
    output: Path,
    corpus: str,
    machine: Machine | None = None,
) -> list[Path]:
    """Trains models on short sentences, and writes how they translate longer ones.

    Args:
        task: what is trained on, tested on and counted.
        rows: the models.
        config: what the runs have in common.
        seeds: runs of each model on each text.
        output: the directory; `prepared` in it has the texts, `runs` the runs.
        corpus: the name of the whole text.
        machine: what to divide among several runs at a time, if there are to be several.

    Returns:
        The files that were written.

    Raises:
        EndedEarly: by a signal; what has been trained is saved and written.
        InputError: the user has to change something; before anything is trained, if that can be
            known.
    """
    texts = [_text(task, short, config, output) for short in task.corpora]
    runs = {
        (row.name, text.longest): runs_of(
            row, config, seeds, output / "runs" / str(text.longest), text.prepared, "test"
        )
        for text in texts
        for row in rows
    }

    def write() -> list[Path]:
        with one_at_a_time(output):  # what another process has found meanwhile is not taken back
            finished = {key: finished_of(several) for key, several in runs.items()}
            return write_report(results(task, texts, rows, finished, config, corpus), output)

    references = {text.longest: text.references for text in texts}
    for (_, longest), several in runs.items():
        check_finished(several, "test", len(references[longest]))
    every = {run.path: run for several in runs.values() for run in several}  # k = 16 is two rows
    by_seed = sorted(every.values(), key=lambda run: run.seed)
    for _ in train_remaining(by_seed, machine):
        write()
    return write()


def _text(task: Task, short: ShortCorpus, config: RunConfig, output: Path) -> Text:
    prepared = prepare_text(config, short, output / "prepared" / str(short.longest))
    if too_long := prepared.train.metadata["dropped"]["too long"]:
        raise InputError(
            f"max_length must be enough for all pairs of up to {short.longest} words, of which "
            f"{too_long:,} have more subwords, got {config.corpus.max_length}: choose more, and "
            f"remove {prepared.directory} before or choose another --output"
        )
    sources, references = prepared.text("test")
    return Text(short.longest, prepared, references, task.columns(short, sources, references))
