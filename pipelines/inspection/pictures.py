"""Pictures of attentions and tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pipelines.files.pictures import new_figure
from pipelines.inspection.attention import Attention, Tables, norms, similarities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TERMS = ("weights", "content: first term of Eq. 5", "position: second term of Eq. 5")
_IN_A_ROW = 4  # heads


def draw_head(attention: Attention, head: int) -> Figure:
    """Heat maps of a head: its weights, and the two terms of its scores.

    Only differences within a row count for the softmax, so that a term is shown less its mean over
    the row. Both terms have one scale. What a query does not see is blank.

    Args:
        attention: of a layer whose scores have both terms.
        head: its number, from 0.

    Raises:
        InputError: matplotlib is not installed.
    """
    if attention.position is None:
        raise ValueError(f"the scores of {attention.name} have one term")
    terms = [_centred(term[head]) for term in (attention.content, attention.position)]
    scale = max(float(np.nanmax(np.abs(values))) for values in terms)
    width, height = _size(attention)
    figure = new_figure(len(_TERMS) * width, height + 0.3)
    figure.suptitle(f"{attention.name}, head {head + 1}", fontsize=10)
    panels = figure.subplots(1, len(_TERMS), sharey=True)
    _draw_map(panels[0], attention, _seen(attention, head), "Blues", (0.0, 1.0))
    for panel, values in zip(panels[1:], terms, strict=True):
        _draw_map(panel, attention, values, "RdBu_r", (-scale, scale))
    for panel, title in zip(panels, _TERMS, strict=True):
        panel.set_title(title, fontsize=8)
    return figure


def draw_weights(attention: Attention) -> Figure:
    """Heat maps of the weights of all heads of a layer whose scores know no positions.

    Raises:
        InputError: matplotlib is not installed.
    """
    heads = len(attention.weights)
    columns = min(_IN_A_ROW, heads)
    rows = -(-heads // columns)
    width, height = _size(attention)
    figure = new_figure(columns * width, rows * height + 0.3)
    figure.suptitle(f"{attention.name}, weights", fontsize=10)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for head, panel in enumerate(panels[:heads]):
        _draw_map(panel, attention, _seen(attention, head), "Blues", (0.0, 1.0))
        panel.set_title(f"head {head + 1}", fontsize=8)
    for panel in panels[heads:]:
        panel.remove()
    return figure


def _size(attention: Attention) -> tuple[float, float]:
    """Inches of a heat map with room for its subwords."""
    width, height = (
        float(np.clip(0.17 * len(names), 2.0, 10.0)) + 1.0
        for names in (attention.columns, attention.rows)
    )
    return width, height


def _seen(attention: Attention, head: int) -> np.ndarray:
    """The weights `[T, S]`, blank where a query does not see a key."""
    return np.where(np.isnan(attention.content[head]), np.nan, attention.weights[head])


def _draw_map(
    panel: Axes,
    attention: Attention,
    values: np.ndarray,
    colours: str,
    limits: tuple[float, float],
) -> None:
    lowest, highest = limits
    image = panel.imshow(values, cmap=colours, vmin=lowest, vmax=highest, aspect="auto")
    panel.figure.colorbar(image, ax=panel, fraction=0.04, pad=0.02).ax.tick_params(labelsize=6)
    _name_axes(panel, attention)


def _centred(term: np.ndarray) -> np.ndarray:
    return term - np.nanmean(term, axis=1, keepdims=True)


def _name_axes(panel: Axes, attention: Attention) -> None:
    """The subwords."""
    for axis, names in ((panel.xaxis, attention.columns), (panel.yaxis, attention.rows)):
        axis.set_ticks(range(len(names)), names, fontsize=6)
    panel.tick_params(axis="x", rotation=90)
    panel.tick_params(length=0)


def draw_tables(layer: Tables) -> Figure:
    """The norms of the vectors of w^K and w^V over r, and their cosine similarities.

    Args:
        layer: whose tables; of a layer with a table for each head, a row for each.

    Raises:
        InputError: matplotlib is not installed.
    """
    named = {"w^K": layer.keys, "w^V": layer.values}
    held = {name: table for name, table in named.items() if table is not None}
    several, labels, _ = next(iter(held.values())).shape
    figure = new_figure(4.0 * (1 + len(held)), 3.3 * several + 0.4)
    figure.suptitle(layer.name)
    k = labels // 2
    distances = np.arange(-k, k + 1)
    for number, panels in enumerate(figure.subplots(several, 1 + len(held), squeeze=False)):
        head = f"head {number + 1}: " if several > 1 else ""
        for (name, table), marker in zip(held.items(), "os", strict=False):
            panels[0].plot(distances, norms(table)[number], marker=marker, ms=3, lw=1, label=name)
        panels[0].set_title(f"{head}norm of the vector of distance r", fontsize=9)
        panels[0].set_xlabel("r = clip(j - i, -k, k)", fontsize=8)
        panels[0].set_ylim(bottom=0)
        panels[0].grid(alpha=0.3)
        panels[0].legend(fontsize=8)
        for panel, (name, table) in zip(panels[1:], held.items(), strict=True):
            edges = (-k - 0.5, k + 0.5, k + 0.5, -k - 0.5)
            image = panel.imshow(
                similarities(table)[number], cmap="RdBu_r", vmin=-1, vmax=1, extent=edges
            )
            panel.set_title(f"{head}cosine similarity of {name}", fontsize=9)
            panel.figure.colorbar(image, ax=panel, fraction=0.046, pad=0.03)
        for panel in panels:
            panel.tick_params(labelsize=7)
    return figure


@contextmanager
def quiet_about_glyphs() -> Iterator[None]:
    """Says nothing of characters that matplotlib's font lacks, and draws boxes for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
