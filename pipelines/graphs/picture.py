"""A sentence's graph, and the attention of a model on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipelines.files.pictures import new_figure
from pipelines.graphs.graph import Graph, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ABOVE, _BELOW = "#2f6fb3", "#d9772b"
_THINNEST = 0.01  # weights below are not drawn


def draw(graph: Graph, task: Task, attention: np.ndarray, classes: np.ndarray) -> Figure:
    """The graph on top, and below it a row for each layer.

    Nodes stand side by side, with what the model takes them for below. The width of a line is the
    mean weight over heads; a line above goes from a node to what has an edge to it, one below from
    a node to what it has an edge to, and the dot is a node's weight on itself.

    Args:
        graph: of T nodes, see `Graph`.
        task: has the names of its labels and classes.
        attention: `[layers, N, T, T]`.
        classes: of the nodes, as the model tells them, `[T]`.

    Raises:
        InputError: matplotlib is not installed.
    """
    layers, T = len(attention), len(graph.nodes)
    width = max(4.0, 0.62 * T)
    figure = new_figure(width, 1.9 + 1.25 * layers)
    heights = [1.6] + [1.0] * layers
    panels = figure.subplots(layers + 1, 1, sharex=True, height_ratios=heights)
    edges = [edge for edge in graph.edges.tolist() if edge[0] != edge[1]]
    _draw_graph(panels[0], graph, task, classes)
    for number, (panel, weights) in enumerate(zip(panels[1:], attention, strict=True), start=1):
        mean = weights.mean(0)
        for source, node, _ in edges:
            _arc(panel, node, source, 1, mean[node, source], _ABOVE)
            _arc(panel, source, node, -1, mean[source, node], _BELOW)
        panel.scatter(range(T), [0] * T, s=90 * np.diag(mean), color="#444", zorder=3)
        panel.set_ylabel(f"layer {number}", fontsize=8)
        _bare(panel, T)
        panel.set_ylim(-1.1, 1.1)
    return figure


def _draw_graph(panel: Axes, graph: Graph, task: Task, classes: np.ndarray) -> None:
    T = len(graph.nodes)
    for source, node, label in graph.edges.tolist():
        name = task.labels[label]
        if source == node:
            panel.annotate(
                name,
                (node, 0.02),
                (node, 1.05),
                fontsize=7,
                ha="center",
                color="#666",
                arrowprops={"arrowstyle": "->", "color": "#999"},
            )
            continue
        top = _arc(panel, node, source, 1, 0.25, "#999", T)
        panel.text((source + node) / 2, top, name, fontsize=7, ha="center", va="bottom")
    for node, name in enumerate(graph.names):
        panel.text(node, -0.06, name, fontsize=9, ha="center", va="top")
        if graph.targets[node] < 0:  # nobody asks for it
            continue
        is_right = classes[node] == graph.targets[node]
        told = task.classes[classes[node]]
        if not is_right:
            told += f"\n(is {task.classes[graph.targets[node]]})"
        colour = "#2a7d2a" if is_right else "#b02020"
        panel.text(node, -0.26, told, fontsize=7, ha="center", va="top", color=colour)
    _bare(panel, T)
    panel.set_ylim(-0.5, 1.15)


def _arc(
    panel: Axes, start: int, end: int, side: int, weight: float, colour: str, T: int = 0
) -> float:
    """Half an ellipse from one node to another, as wide as the weight; returns its height."""
    angle = np.linspace(0, np.pi, 40)
    height = side * (abs(start - end) / T) ** 0.6 if T else side * min(1, 0.25 * abs(start - end))
    if weight >= _THINNEST:
        x = (start + end) / 2 + (start - end) / 2 * np.cos(angle)
        panel.plot(x, height * np.sin(angle), color=colour, linewidth=4 * weight, alpha=0.85)
    return float(height)


def _bare(panel: Axes, T: int) -> None:
    panel.set_xlim(-0.6, T - 0.4)
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set_visible(False)
