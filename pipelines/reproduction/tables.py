"""The three tables of the paper: their rows, and the BLEU that it reports (Shaw et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InputError
from tf_relpos.config import TransformerConfig


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: what a command line calls it.
        label: what the table calls it.
        model: the fields of `TransformerConfig` that it is about.
        paper: BLEU in the paper, a number for each of the table's `paper_columns`; none for what
            the paper has no number of.
    """

    name: str
    label: str
    model: Mapping[str, Any]
    paper: Sequence[float] = ()

    def model_of(self, config: TransformerConfig) -> TransformerConfig:
        """The model of the row, like `config` in everything else."""
        return dataclasses.replace(config, **self.model)


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        number: as in the paper.
        title: what it compares.
        paper_columns: what the paper measured.
        baseline: the name of the row that the others are compared with.
        rows: in the paper's order.
    """

    number: int
    title: str
    paper_columns: Sequence[str]
    baseline: str
    rows: Sequence[Row]

    def chosen(self, names: Sequence[str]) -> list[Row]:
        """The rows of these names, all of them if there are none.

        Raises:
            InputError: there is no such row.
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                raise InputError(
                    f"rows must be of {', '.join(known)} in Table {self.number}, got {name}"
                )
        return [row for row in self.rows if not names or row.name in names]


_BOTH = {"position": "relative", "relative_keys": True, "relative_values": True}


def _distance(k: int, *paper: float) -> Row:
    return Row(str(k), f"k = {k}", {**_BOTH, "max_relative_position": k}, paper)


# Section 4.2. The paper says of sinusoids beside relative positions that they had no benefit.
_TABLE_1 = Table(
    1,
    "Absolute against relative positions",
    ("base EN-DE", "base EN-FR", "big EN-DE", "big EN-FR"),
    "sinusoidal",
    (
        Row(
            "sinusoidal",
            "sinusoidal",
            {**_BOTH, "position": "sinusoidal"},
            (26.5, 38.2, 27.9, 41.2),
        ),
        Row("relative", "relative", _BOTH, (26.8, 38.7, 29.2, 41.5)),
        Row("both", "relative and sinusoidal", {**_BOTH, "position": "both"}),
    ),
)

_TABLE_2 = Table(
    2,
    "The clipping distance k",
    ("EN-DE",),
    "16",
    tuple(
        _distance(k, bleu)
        for k, bleu in (
            (0, 12.5),
            (1, 25.5),
            (2, 25.8),
            (4, 25.9),
            (16, 25.8),
            (64, 25.9),
            (256, 25.8),
        )
    ),
)

_TABLE_3 = Table(
    3,
    "Where relative positions enter",
    ("EN-DE",),
    "keys_and_values",
    (
        Row("keys_and_values", "keys and values", _BOTH, (25.8,)),
        Row("keys", "keys only", {**_BOTH, "relative_values": False}, (25.8,)),
        Row("values", "values only", {**_BOTH, "relative_keys": False}, (25.3,)),
        Row("neither", "neither", {**_BOTH, "position": "none"}, (12.5,)),
    ),
)

TABLES = {table.number: table for table in (_TABLE_1, _TABLE_2, _TABLE_3)}


def rows_named(names: Sequence[str]) -> list[Row]:
    """Rows of any of the tables, each once; a number is a clipping distance, whichever.

    Raises:
        InputError: there is no such row, or the same twice.
    """
    named = {row.name: row for row in (*_TABLE_1.rows, *_TABLE_3.rows)}
    rows: list[Row] = []
    for name in names:
        if name.isdecimal() and len(name) < 5:
            row = _distance(int(name))
        elif name in named:
            row = named[name]
        else:
            raise InputError(
                f"rows must be of {', '.join(named)}, or a distance of at most 9999, got {name}"
            )
        if row in rows:
            raise InputError(f"rows must be different, got {name} twice")
        rows.append(row)
    return rows


# The flags of `train_wmt` that the rows and the seeds decide; all runs begin from nothing.
DECIDED = (*_BOTH, "max_relative_position", "seed", "initialize_from")


def run_name(model: TransformerConfig, seed: int) -> str:
    """The name of a run's directory, the same for the same model in whichever table."""
    kind = model.position
    if kind == "relative" and not (model.relative_keys and model.relative_values):
        kind = "keys" if model.relative_keys else "values"
    distance = f"-k{model.max_relative_position}" if model.uses_relative else ""
    return f"{kind}{distance}-seed{seed}"


def split_of(splits: Sequence[str]) -> str:
    """The text that a table is about: the test set, or else that for validation.

    Raises:
        InputError: there is neither.
    """
    for split in ("test", "valid"):
        if split in splits:
            return split
    raise InputError(
        "a table needs text to score on: --test_source and --test_target, or --test_tsv"
    )
