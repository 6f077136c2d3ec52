"""What the runs scored on lengths that they were trained on and beyond, as values of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config import RunConfig
from pipelines.data.preparation import Prepared
from pipelines.generalization.tasks import Column, Task
from pipelines.reproduction.results import run_facts, summary, translations_of
from pipelines.reproduction.runs import Run
from pipelines.reproduction.tables import Row


@dataclass(frozen=True)
class Text:
    """A training text, its test set, and what is scored of it.

    Attributes:
        longest: the most words that are trained on.
        prepared: both texts.
        references: the right translations of the test set.
        columns: of the test set.
    """

    longest: int
    prepared: Prepared
    references: Sequence[str]
    columns: Sequence[Column]


def results(
    task: Task,
    texts: Sequence[Text],
    rows: Sequence[Row],
    runs: Mapping[tuple[str, int], Sequence[Run]],
    config: RunConfig,
    corpus: str,
) -> dict[str, Any]:
    """The comparison as far as its runs are finished.

    Args:
        task: what is counted.
        texts: what is trained and tested on.
        rows: in the order of the table.
        runs: by the row's name and the text's longest, those that are finished.
        config: what the runs have in common.
        corpus: the name of the whole text.

    Returns:
        What `docs/pages/lengths.md` describes.

    Raises:
        InputError: a run directory cannot be read.
    """
    signatures: dict[str, str] = {}
    records = []
    for row in rows:
        scored = {
            text.longest: [
                _record(run, text, task, signatures) for run in runs[row.name, text.longest]
            ]
            for text in texts
        }
        records.append(_row(row, texts, scored))
    return {
        "task": task.name,
        "title": task.title,
        "axis": task.axis,
        "measure": task.measure,
        "longest_trained": texts[0].longest if task.has_one_text else None,
        "corpus": corpus,
        "signatures": signatures,
        "config": config.to_dict(),
        "columns": [_column(text, column) for text in texts for column in text.columns],
        "rows": records,
    }


def _record(run: Run, text: Text, task: Task, signatures: dict[str, str]) -> dict[str, Any]:
    """The scores of a run, one for each column of its text, and where they are from."""
    translations = translations_of(run, len(text.references))
    scores = []
    for column in text.columns:
        score = task.score(
            [translations[n] for n in column.members], [text.references[n] for n in column.members]
        )
        if score.signature:
            signatures[score.name.lower()] = score.signature
        scores.append(round(score.score, 4))
    return {"longest": text.longest, **run_facts(run, "test"), "scores": scores}


def _row(
    row: Row, texts: Sequence[Text], scored: Mapping[int, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """A row of the table: of each column the scores' summary, none where there is no run yet."""
    values = [
        [record["scores"][number] for record in scored[text.longest]]
        for text in texts
        for number in range(len(text.columns))
    ]
    return {
        "name": row.name,
        "label": row.label,
        "model": dict(row.model),
        "scores": [summary(several) if several else None for several in values],
        "runs": [record for records in scored.values() for record in records],
    }


def _column(text: Text, column: Column) -> dict[str, Any]:
    return {
        "label": column.label,
        "place": column.place,
        "trained_up_to": text.longest,
        "trained_on": len(text.prepared.train),
        "shortest": column.shortest,
        "longest": column.longest,
        "tested_on": len(column.members),
    }
