"""A table as people read it: Markdown and a picture, made of the JSON alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.files.atomic import write_text
from pipelines.files.markdown import table_of
from pipelines.files.pictures import FORMATS, new_figure, save_figure
from pipelines.files.records import write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOTHING = "–"  # not trained, or not measured in the paper
_SIGNED = {"bleu": "BLEU", "chrf": "chrF", "bootstrap": "p by paired bootstrap, one for each seed,"}
_HERE, _PAPER = "#2f6fb3", "#a9a9a9"


def write_table(found: Mapping[str, Any], directory: Path) -> list[Path]:
    """Writes the files of a table: JSON, Markdown and pictures.

    Args:
        found: what `results` gave.
        directory: where to.

    Returns:
        Their paths.

    Raises:
        InputError: matplotlib is not installed, or they cannot be written.
    """
    stem = f"table-{found['table']}" if found["table"] else "ablation"
    return write_files(found, directory / stem, markdown, draw)


def write_files(
    found: Mapping[str, Any],
    stem: Path,
    as_text: Callable[[Mapping[str, Any]], str],
    as_picture: Callable[[Mapping[str, Any], Path], None],
) -> list[Path]:
    """Writes what was found as JSON, as Markdown and as pictures.

    Args:
        found: the values of the JSON.
        stem: the paths without their endings.
        as_text, as_picture: what makes the others of the JSON.

    Returns:
        Their paths.

    Raises:
        InputError: matplotlib is not installed, or they cannot be written.
    """
    paths = [stem.with_name(stem.name + ending) for ending in (".json", ".md", *FORMATS)]
    json_path, text_path, *pictures = paths
    write_json(json_path, found)
    write_text(text_path, as_text(found))
    for path in pictures:
        as_picture(found, path)
    return paths


def markdown(found: Mapping[str, Any]) -> str:
    """The table, and below it what it takes to repeat it."""
    columns = [f"paper, {column}" for column in found["paper_columns"]] or ["minutes a run"]
    head = ["", "BLEU", "chrF", "BLEU against the baseline", "p", *columns]
    rows = [_cells(row, found) for row in found["rows"]]
    text = f"{found['corpus']}, {found['sentences']:,} sentences ({found['split']})"
    return f"{table_of(head, rows)}\n{conditions(found, text)}\n"


def _cells(row: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    tests = row["against_baseline"]
    if row["name"] == found["baseline"]:
        difference = "(baseline)"
    elif tests:
        difference = f"{statistics.mean(test['difference'] for test in tests):+.2f}"
    else:
        difference = _NOTHING
    columns = [f"{bleu:.1f}" for bleu in row["paper"]]
    if not found["paper_columns"] and row["runs"]:
        columns = [f"{statistics.mean(run['minutes'] for run in row['runs']):.1f}"]
    return [
        row["label"],
        with_spread(row.get("bleu")),
        with_spread(row.get("chrf")),
        difference,
        ", ".join(f"{test['p_value']:.3f}" for test in tests) or _NOTHING,
        *(columns or [_NOTHING] * max(1, len(found["paper_columns"]))),
    ]


def with_spread(summary: Mapping[str, float] | None) -> str:
    """A mean, and the standard deviation if there is one."""
    if summary is None:
        return _NOTHING
    deviation = summary["deviation"]
    return f"{summary['mean']:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def conditions(found: Mapping[str, Any], text: str) -> str:
    """Text, settings, signatures, device, dates and minutes, in a paragraph.

    Args:
        found: a table with `config`, `signatures`, and `rows` with their `runs`.
        text: what the runs were scored on.
    """
    config, runs = found["config"], _runs(found)
    signed = "; ".join(
        f"{_SIGNED[name]} `{signature}`" for name, signature in found["signatures"].items()
    )
    training = config["training"]
    tokens = training["tokens_per_replica"] * max(1, training.get("virtual_cpus", 0))
    what = (
        f"Corpus {text}; preset {config['preset']}, {training['steps']:,} updates of up "
        f"to {max(tokens, training.get('tokens_per_step', 0)):,} tokens a side"
    )
    if not runs:
        return f"{what}; no run is finished yet."
    seeds, searches, dates = (
        _different(runs, *names) for names in (("seed",), ("beam_size", "alpha"), ("date",))
    )
    code = ", ".join(
        dict.fromkeys(run["commit"] or run["version"] or "of unknown version" for run in runs)
    )
    devices = _different(runs, "device", between="; ")  # each of which has commas of its own
    minutes = sum(run["minutes"] for run in runs)
    return (
        f"{what}; seed {seeds}; beam and length penalty {searches}. "
        f"{signed + '. ' if signed else ''}{devices}; {dates}; "
        f"runs that are finished: {len(runs)}, in {minutes:.0f} minutes; code {code}."
    )


def _different(runs: Sequence[Mapping[str, Any]], *names: str, between: str = ", ") -> str:
    """The different values that the runs have, in their order."""
    values = [" and ".join(str(run[name]) for name in names) for run in runs]
    return between.join(dict.fromkeys(values))


def _runs(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Each once, even if it stands in two rows; `longest` is of tables that have several texts."""
    runs = [run for row in found["rows"] for run in row["runs"]]
    return list({(run.get("longest"), run["run"]): run for run in runs}.values())


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draws BLEU here, a dot for each seed, beside BLEU in the paper.

    Where the paper has nothing, bars would be about the same: the axis does not begin at 0, and
    there are no bars.

    Args:
        found: what `results` gave.
        path: the picture, in a format of `pipelines.files.pictures`.

    Raises:
        InputError: matplotlib is not installed, or it cannot be written.
    """
    rows = found["rows"]
    columns = found["paper_columns"]
    figure = new_figure(1.5 + 3.0 * (1 + len(columns)), 1.1 + 0.42 * len(rows))
    heading = f"Table {found['table']}: " if found["table"] else ""
    figure.suptitle(f"{heading}{found['title']}", fontsize=11)
    here, *papers = figure.subplots(1, 1 + len(columns), sharey=True, squeeze=False)[0]
    steps = found["config"]["training"]["steps"]
    means = [row.get("bleu", {}).get("mean") for row in rows]
    (_bars if columns else _dots)(here, means, _HERE)
    for place, row in enumerate(rows):
        scores = [run["bleu"] for run in row["runs"]]
        if len(scores) > 1:
            here.plot(scores, [place] * len(scores), "o", ms=4, color="black", alpha=0.7)
    here.set_title(f"{found['corpus']}, {steps:,} updates", fontsize=9)
    here.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=9)
    here.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top, and rows without a bar as well
    for number, panel in enumerate(papers):
        values = [row["paper"][number] if row["paper"] else None for row in rows]
        _bars(panel, values, _PAPER)
        panel.set_title(f"paper, {columns[number]}", fontsize=9)
    save_figure(figure, path)


def _bars(panel: Axes, values: Sequence[float | None], colour: str) -> None:
    """A bar for each value; none, and no number, for what there is no value of."""
    for place, value in enumerate(values):
        if value is not None:
            bars = panel.barh(place, value, color=colour, height=0.6)
            panel.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    _finish(panel)
    panel.set_xlim(left=0)


def _dots(panel: Axes, values: Sequence[float | None], colour: str) -> None:
    """A dot for each value, and no number, for what there is no value of."""
    for place, value in enumerate(values):
        if value is not None:
            panel.plot(value, place, "o", ms=9, color=colour)
            panel.annotate(
                f"{value:.1f}",
                (value, place),
                xytext=(8, -3),
                textcoords="offset points",
                fontsize=8,
            )
    _finish(panel)
    panel.grid(axis="x", alpha=0.3)


def _finish(panel: Axes) -> None:
    panel.set_xlabel("BLEU", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.margins(x=0.15)  # room for the numbers
    panel.spines[["top", "right"]].set_visible(False)
