"""A comparison as a table of Markdown, made of its JSON alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = {
    "text": ("right answers", "longer texts"),
    "series": ("variance explained", "longer series"),
}
_ROWS = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "learnt": "learnt absolute",
    "relative": "relative",
}


def markdown(found: Mapping[str, Any]) -> str:
    """A row for each kind that was trained: mean and standard deviation over the seeds."""
    columns = _COLUMNS[found["settings"]["task"]]
    lines = [["positions", *columns], ["---"] * (1 + len(columns))]
    for position, name in _ROWS.items():
        runs = [run for run in found["runs"] if run["position"] == position]
        if not runs:
            continue
        lines.append([name, *(_with_spread([run[c] for run in runs]) for c in ("test", "longer"))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _with_spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
