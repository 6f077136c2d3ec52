"""The three tables of the paper: their rows, and the BLEU that it reports (Shaw et al. 2018).

A table of one's own, of changes to a configuration, is of the same kind (`pipelines.ablate`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config import RunConfig
from pipelines.corpora.tfds import NAMES as WMT
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
        training: the fields of `TrainingConfig` that it is about.
        run: the name of its runs; that of its positions unless given, the same in all tables.
    """

    name: str
    label: str
    model: Mapping[str, Any]
    paper: Sequence[float] = ()
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: str | None = None

    def config_of(self, config: RunConfig) -> RunConfig:
        """The configuration of the row, like `config` in everything else."""
        return dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, **self.model),
            training=dataclasses.replace(config.training, **self.training),
        )

    def run_name(self, config: RunConfig, seed: int) -> str:
        """The name of the directory of its run with a seed."""
        return f"{self.run or _positions(self.config_of(config).model)}-seed{seed}"


@dataclass(frozen=True)
class Table:
    """A table of the paper, or one of one's own.

    Attributes:
        number: as in the paper, if it is there.
        title: what it compares.
        paper_columns: what the paper measured.
        baseline: the name of the row that the others are compared with.
        rows: in the paper's order.
        splits: what may be scored: the first of them that there is.
        paper_split: what the paper scored, which comes first on its own corpora.
    """

    number: int | None
    title: str
    paper_columns: Sequence[str]
    baseline: str
    rows: Sequence[Row]
    splits: Sequence[str] = ("test", "valid")
    paper_split: str = "test"

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

    def split_of(self, splits: Sequence[str], corpus: str) -> str:
        """The text that the table is about, of those that there are in a corpus.

        Raises:
            InputError: there is none.
        """
        is_of_paper = corpus in WMT and self.paper_split in self.splits
        for split in (self.paper_split, *self.splits) if is_of_paper else self.splits:
            if split in splits:
                return split
        flags = f"--{self.splits[0]}_source and --{self.splits[0]}_target"
        raise InputError(
            f"a table needs text to score on: {flags}, or --{self.splits[0]}_tsv; with --prepared, "
            "when it is prepared"
        )


_BOTH = {"position": "relative", "relative_keys": True, "relative_values": True}


def _distance(k: int, *paper: float) -> Row:
    return Row(str(k), f"k = {k}", {**_BOTH, "max_relative_position": k}, paper)


# Section 4.2, on newstest2014. The paper says of sinusoids beside relative positions that they had
# no benefit.
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

# Section 4.3, "using the development set, newstest2013".
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
    paper_split="valid",
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
    paper_split="valid",
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


def _positions(model: TransformerConfig) -> str:
    """How a model knows positions, as part of a directory's name."""
    kind = model.position
    if kind == "relative" and not (model.relative_keys and model.relative_values):
        kind = "keys" if model.relative_keys else "values"
    return f"{kind}-k{model.max_relative_position}" if model.uses_relative else kind
