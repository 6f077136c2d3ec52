"""A comparison as a table of Markdown, made of its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.files.markdown import mean_and_deviation, table_of

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
    rows = []
    for position, name in _ROWS.items():
        runs = [run for run in found["runs"] if run["position"] == position]
        if not runs:
            continue
        scores = ([run[score] for run in runs] for score in ("test", "longer"))
        rows.append([name, *(mean_and_deviation(values, 3) for values in scores)])
    return table_of(["positions", *columns], rows)
