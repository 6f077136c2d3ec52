"""One page of HTML that needs nothing else, and the pictures in it as files."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelines.files.atomic import write_text
from pipelines.files.pictures import save_figure
from pipelines.inspection.attention import NEAR, Attention, Tables
from pipelines.inspection.pictures import (
    draw_head,
    draw_tables,
    draw_weights,
    quiet_about_glyphs,
)
from pipelines.progress import progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
_MUCH = 0.5  # a number from which on a cell of the overview stands out

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem;
  color: #222; background: #fff }
img { max-width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
td.much { background: #cfe3f5; font-weight: bold }
.subwords span { border: 1px solid #ccc; border-radius: 3px; padding: 0 .25rem; margin: 0 .15rem }
"""

# The browser itself sees to it that nothing is fetched and nothing runs.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Told(NamedTuple):
    """What a page is about.

    Attributes:
        title: the run.
        sentence, target: the pair, as text.
        is_translated: whether the target is the model's own translation.
        facts: what else stands above, by name.
    """

    title: str
    sentence: str
    target: str
    is_translated: bool
    facts: Mapping[str, str]


@progress("drawing")
def write_page(
    path: Path, told: Told, attentions: Sequence[Attention], tables: Sequence[Tables]
) -> list[Path]:
    """Writes a page, and its pictures into a directory of its name beside it.

    Args:
        path: of the page; one that is there is replaced, and so are the pictures.
        told: what it is about.
        attentions: of the model, from the bottom up.
        tables: likewise.

    Returns:
        The paths of the pictures.

    Raises:
        InputError: matplotlib is not installed, or they cannot be written.
    """
    directory = path.with_suffix("")
    pictures = {}
    with quiet_about_glyphs():
        for name, draw in _drawings(attentions, tables):
            pictures[name] = directory / f"{re.sub('[/ ]', '-', name)}.png"
            save_figure(draw(), pictures[name], dpi=_DPI)
    write_text(path, html(told, attentions, pictures))
    return list(pictures.values())


def _drawings(
    attentions: Sequence[Attention], tables: Sequence[Tables]
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """What is drawn, and how."""
    for attention in attentions:
        if attention.position is None:
            yield f"{attention.name} weights", partial(draw_weights, attention)
            continue
        for head in range(len(attention.weights)):
            yield f"{attention.name} head {head + 1}", partial(draw_head, attention, head)
    for layer in tables:
        yield f"{layer.name} tables", partial(draw_tables, layer)


def html(told: Told, attentions: Sequence[Attention], pictures: Mapping[str, Path]) -> str:
    """The page.

    Args:
        told: what it is about.
        attentions: for the overview.
        pictures: PNG files by what they show, which become part of it.
    """
    whose = "the model's own translation" if told.is_translated else "as given"
    facts = "".join(f"<li>{escape(name)}: {escape(text)}</li>" for name, text in told.facts.items())
    source = next(a.columns for a in attentions if a.name.startswith("encoder"))
    written = next(a.rows for a in attentions if a.name.endswith("cross_attention"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>Attention of {escape(told.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Attention of {escape(told.title)}</h1>
<p><b>{escape(told.sentence)}</b><br>→ <b>{escape(told.target)}</b> ({whose})</p>
<p class="subwords">Source: {_subwords(source)}</p>
<p class="subwords">Target: {_subwords(written)}</p>
<ul>{facts}</ul>
{_EXPLANATION}
<h2>Overview of the self-attentions</h2>
{_overview(attentions)}
{"".join(_section(name, path) for name, path in pictures.items())}</body>
</html>
"""


_EXPLANATION = """<p>A row of a heat map is a query, a column a key. The weights are the softmax,
over each row, of the sum of two terms (Shaw et al. 2018, Eq. 5), both divided by
√d<sub>z</sub>: <i>content</i>, x<sub>i</sub>W<sup>Q</sup>(x<sub>j</sub>W<sup>K</sup>)<sup>T</sup>,
and <i>position</i>, x<sub>i</sub>W<sup>Q</sup>(a<sup>K</sup><sub>ij</sub>)<sup>T</sup>. Adding a
number to a whole row changes no weight, so each term is shown less its mean over the row; the two
share a scale. In decoder self-attention rows and columns are the subwords that the decoder has been
given, with the start first; in attention to the source, rows are the subwords that are predicted
there. The tables hold w<sup>K</sup> and w<sup>V</sup>, a vector for each clipped distance.</p>"""


def _subwords(names: Sequence[str]) -> str:
    return " ".join(f"<span>{escape(name)}</span>" for name in names)


def _overview(attentions: Sequence[Attention]) -> str:
    """How much of each head is position, and where it looks."""
    heads = "".join(f"<th>{_distance(distance)}</th>" for distance in NEAR)
    rows = []
    for attention in attentions:
        if not attention.is_self:
            continue
        shares, near = attention.position_shares(), attention.near()
        for head, weights in enumerate(near):
            share = np.nan if shares is None else shares[head]
            cells = "".join(map(_cell, (share, *weights)))
            rows.append(f"<tr><td>{escape(attention.name)}, head {head + 1}</td>{cells}</tr>")
    return f"""<p>The share of position is the variance of the second term within the rows over
that of both terms. Beside it stands the mean weight of the key at a distance, of this sentence.</p>
<table><thead><tr><th>head</th><th>share of position</th>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table>
"""


def _distance(distance: int) -> str:
    if distance == 0:
        return "itself"
    return f"{abs(distance)} {'before' if distance < 0 else 'after'}"


def _cell(value: float) -> str:
    if np.isnan(value):
        return "<td>–</td>"
    return f"<td{' class=much' if value >= _MUCH else ''}>{value:.2f}</td>"


def _section(name: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    title = escape(name)
    return f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{data}">\n'
