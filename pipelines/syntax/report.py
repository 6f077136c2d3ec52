"""A comparison as a table and a picture, made of its JSON alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.files.markdown import mean_and_deviation, table_of
from pipelines.files.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"order": "positions", "both": "positions and dependencies"}
_COLOURS = {"order": "#2f6fb3", "both": "#d9772b"}


def markdown(found: Mapping[str, Any]) -> str:
    """A row for each point of the curves, mean over seeds, and one for the BLEU at the end."""
    runs = {kind: _runs(found, kind) for kind in NAMES}
    titles = [title for name in NAMES.values() for title in (f"{name}: loss", "accuracy")]
    rows = []
    for i, step in enumerate(runs["order"][0]["step"]):
        cells = []
        for kind in NAMES:
            for name in ("validation_loss", "validation_accuracy"):
                cells.append(f"{statistics.mean(run[name][i] for run in runs[kind]):.3f}")
        rows.append([f"{step:,}", *cells])
    bleu = []
    for kind in NAMES:
        bleu += [mean_and_deviation([run["bleu"] for run in runs[kind]], 1), ""]
    rows.append(["BLEU", *bleu])
    return table_of(["updates", *titles], rows)


def draw(found: Mapping[str, Any]) -> Figure:
    """Validation loss and accuracy against updates: means over seeds, in a band from the smallest
    to the largest.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = new_figure(8.0, 3.2)
    titles = {"validation_loss": "validation loss, nats a word", "validation_accuracy": "accuracy"}
    for panel, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for kind, label in NAMES.items():
            runs = _runs(found, kind)
            values = np.array([run[name] for run in runs])
            steps = runs[0]["step"]
            panel.plot(steps, values.mean(0), color=_COLOURS[kind], label=label)
            panel.fill_between(
                steps, values.min(0), values.max(0), color=_COLOURS[kind], alpha=0.2, linewidth=0
            )
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("updates")
        panel.grid(alpha=0.3)
    panel.legend(fontsize=8, loc="lower right")
    return figure


def _runs(found: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [run for run in found["runs"] if run["relations"] == kind]
