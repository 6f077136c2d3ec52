"""Scores by length as people read them: Markdown and a picture, made of the JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.files.markdown import table_of
from pipelines.files.pictures import new_figure, save_figure
from pipelines.reproduction.report import conditions, with_spread, write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(found: Mapping[str, Any], directory: Path) -> list[Path]:
    """Writes JSON, Markdown and pictures.

    Args:
        found: what `results` gave.
        directory: where to.

    Returns:
        Their paths.

    Raises:
        InputError: matplotlib is not installed, or they cannot be written.
    """
    return write_files(found, directory / f"lengths-{found['task']}", markdown, draw)


def markdown(found: Mapping[str, Any]) -> str:
    """A row for each model and a column for each length, and what it takes to repeat it."""
    columns = found["columns"]
    head = [f"{found['measure']} by {found['axis']}", *(column["label"] for column in columns)]
    rows = [[row["label"], *map(with_spread, row["scores"])] for row in found["rows"]]
    rows += [
        [name.replace("_", " "), *(f"{column[name]:,}" for column in columns)]
        for name in ("trained_on", "tested_on")
    ]
    return f"{table_of(head, rows)}\n{conditions(found, _text(found))}\n"


def _text(found: Mapping[str, Any]) -> str:
    if found["longest_trained"] is None:
        return found["corpus"]
    return f"{found['corpus']}, trained on sources of up to {found['longest_trained']} words"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draws a line for each model, through the means, and a band from its least to its best seed.

    Args:
        found: what `results` gave.
        path: the picture, in a format of `pipelines.files.pictures`.

    Raises:
        InputError: matplotlib is not installed, or it cannot be written.
    """
    figure = new_figure(7.0, 4.2)
    panel = figure.subplots()
    for number, row in enumerate(found["rows"]):
        _line(panel, found["columns"], row, f"C{number}")
    longest = found["longest_trained"]
    if longest is not None:
        panel.axvline(longest + 0.5, color="black", lw=1, ls="--", label="longest trained on")
    panel.set_title(found["title"], fontsize=11)
    panel.set_xlabel(found["axis"], fontsize=9)
    panel.set_ylabel(found["measure"], fontsize=9)
    panel.set_ylim(0, 102)  # a line at 100 is not lost in the frame
    panel.grid(alpha=0.3)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8)
    save_figure(figure, path)


def _line(panel: Axes, columns: Sequence[Any], row: Mapping[str, Any], colour: str) -> None:
    """The scores of a model, of the columns that there are runs of."""
    pairs = zip(columns, row["scores"], strict=True)
    points = [
        (column["place"], score["mean"], score["least"], score["most"])
        for column, score in pairs
        if score
    ]
    places, means, least, most = zip(*points, strict=True) if points else ((), (), (), ())
    panel.plot(places, means, marker="o", ms=4, lw=1.5, color=colour, label=row["label"])
    panel.fill_between(places, least, most, color=colour, alpha=0.2, lw=0)
