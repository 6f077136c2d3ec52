"""What the histories of runs hold, as curves over the updates, in one picture."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError, first_line
from pipelines.files.pictures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The values of a quantity, by its name, at the updates where there is one: [(step, value), ...].
Curves = Mapping[str, Sequence[tuple[int, float]]]

_FIRST = ("loss", "validation_bleu")  # the others follow in the order of the history
_COLUMNS = 2
_PANEL = (6.0, 3.2)  # inches
_FEW = 30  # points, which are marked


def read_curves(history: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run's `history.jsonl`, whatever quantities it holds.

    A last line that is being written is left out, and so are values that are not finite.

    Raises:
        InputError: it cannot be read, a line is damaged, or there is nothing in it.
    """
    try:
        *lines, _ = history.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise InputError(f"{history.parent} is not a run directory: no {history.name}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{history} cannot be read: {first_line(error)}") from error
    curves: dict[str, list[tuple[int, float]]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = {name: float(value) for name, value in json.loads(line).items()}
            step = int(record.pop("step"))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{history} is damaged: line {number} must hold a step and numbers"
            ) from error
        for name, value in record.items():
            if math.isfinite(value):
                curves.setdefault(name, []).append((step, value))
    if not curves:
        raise InputError(f"{history} holds nothing to draw yet")
    return curves


def draw(runs: Mapping[str, Curves], path: Path) -> None:
    """Draws a panel for each quantity, in which each run that has it is a line.

    Args:
        runs: the curves of each run by its name.
        path: the picture, in a format of `pipelines.files.pictures`; one that is there is replaced.

    Raises:
        InputError: matplotlib is not installed, or the picture cannot be written.
    """
    names = list(dict.fromkeys(name for curves in runs.values() for name in curves))
    names.sort(key=lambda name: name not in _FIRST)
    rows = -(-len(names) // _COLUMNS)
    width, height = _PANEL
    figure = new_figure(_COLUMNS * width, rows * height + 0.5)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for panel, name in zip(panels, names, strict=False):
        _draw_panel(panel, name, runs)
    for panel in panels[len(names) :]:
        panel.remove()
    lines = {line.get_label(): line for panel in panels[: len(names)] for line in panel.lines}
    handles = [lines[run] for run in runs]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(runs)))
    save_figure(figure, path)


def _draw_panel(panel: "Axes", name: str, runs: Mapping[str, Curves]) -> None:
    for number, (run, curves) in enumerate(runs.items()):
        if points := curves.get(name):
            steps, values = zip(*points, strict=True)
            marker = "o" if len(points) <= _FEW else ""
            panel.plot(steps, values, marker=marker, ms=3, lw=1.3, color=f"C{number}", label=run)
    panel.set_title(name.replace("_", " "), fontsize=10)
    panel.set_xlabel("updates", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
