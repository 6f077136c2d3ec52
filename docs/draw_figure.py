"""Draws the picture of the README, from the function that it explains.

python docs/draw_figure.py > docs/pages/images/relative-positions.svg
"""

import sys

import keras

from tf_relpos import relative_position_ids

WORDS = ("The", "old", "doctor", "buys", "a", "bag")
K = 2
QUERY, KEY = 2, 5  # the pair that is followed through the picture: 3 apart, clipped to 2
ROW = K + min(KEY - QUERY, K)  # of the table
COLOURS = ("#2f6fb3", "#a9cbe8", "#d9d9d9", "#f7c48f", "#d9772b")
DARK = ("#2f6fb3", "#d9772b")  # these take white text
CELL = 40
FRAME = "none", "stroke='#222' stroke-width='2.6'"
WIDTH, HEIGHT = 1040, 372
SANS, SERIF = "font-family='Helvetica, Arial, sans-serif'", "font-family='Georgia, serif'"


def text(x, y, content, size=15, anchor="middle", more=""):
    return (
        f"<text x='{x}' y='{y}' font-size='{size}' text-anchor='{anchor}' {SANS} {more}>"
        f"{content}</text>"
    )


def box(x, y, width, height, fill, more="stroke='white'"):
    return f"<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='{fill}' {more}/>"


def arrow(*points):
    path = " ".join(f"{x},{y}" for x, y in points)
    return (
        f"<polyline points='{path}' fill='none' stroke='#222' stroke-width='1.6' "
        "marker-end='url(#head)'/>"
    )


def signed(position):
    return f"+{position}" if position > 0 else f"−{-position}" if position else "0"


def label(x, y, row, width=CELL, height=CELL):
    """A clipped position in its colour; `row` is that of a table."""
    colour = COLOURS[row]
    ink = "white" if colour in DARK else "#222"
    return box(x, y, width, height, colour) + text(
        x + width / 2, y + height / 2 + 5, signed(row - K), more=f"fill='{ink}'"
    )


def matrix(x, y):
    """The labels of all pairs, T x S."""
    ids = keras.ops.convert_to_numpy(relative_position_ids(len(WORDS), len(WORDS), K))
    for i, word in enumerate(WORDS):
        yield text(x - 8, y + i * CELL + 25, word, anchor="end")
        yield text(x + i * CELL + 20, y - 8, word, size=13)
        for j in range(len(WORDS)):
            yield label(x + j * CELL, y + i * CELL, ids[i, j])
    yield box(
        x + KEY * CELL, y + QUERY * CELL, CELL, CELL, "none", "stroke='#222' stroke-width='3'"
    )


def table(x, y, name):
    """A vector for each label, R x H."""
    yield formula(x + 100, y - 10, ("w", name), size=18, anchor="middle")
    for row, colour in enumerate(COLOURS):
        top = y + row * 22
        yield label(x, top, row, 34, 20)
        for column in range(7):
            opacity = 0.45 + 0.55 * ((row * 5 + column * 3) % 7) / 6
            yield box(x + 40 + column * 20, top, 18, 20, colour, f"opacity='{opacity:.2f}'")
    yield box(x - 2, y + ROW * 22 - 2, 182, 24, *FRAME)


def formula(x, y, *parts, size=22, anchor="start"):
    """Parts are text, or (letter, superscript), or (letter, superscript, subscript)."""
    spans = []
    for part in parts:
        if isinstance(part, str):
            spans.append(f"<tspan>{part}</tspan>")
            continue
        letter, above, below = (*part, "")[:3]
        spans.append(f"<tspan font-style='italic'>{letter}</tspan>")
        drop = 0
        for script, rise in ((above, -8), (below, 5)):
            if script:
                spans.append(
                    f"<tspan font-size='{size * 0.62:.1f}' font-style='italic' "
                    f"dy='{rise - drop}'>{script}</tspan>"
                )
                drop = rise
        spans.append(f"<tspan dy='{-drop}'>​</tspan>")  # back to the line: a space of no width
    return (
        f"<text x='{x}' y='{y}' font-size='{size}' text-anchor='{anchor}' {SERIF}>"
        f"{''.join(spans)}</text>"
    )


def equations(x):
    yield from equation(x, 130, "where to look", "Eq. 4", "K")
    yield formula(x, 130, ("e", "", "ij"), " = ", ("x", "", "i"), ("W", "Q"))
    yield formula(x + 278, 130, ")", ("", "T"), " / √", ("H", ""))
    yield from equation(x, 270, "what is gathered", "Eq. 3", "V")
    yield formula(x, 270, ("z", "", "i"), " = Σ", ("", "", "j"), " ", ("α", "", "ij"))
    yield formula(x + 278, 270, ")")


def equation(x, y, title, number, side):
    """What Eq. 3 and 4 have in common: the sum of a projection and its label's vector."""
    mark = f"rx='6' fill-opacity='0.55' stroke='{COLOURS[4]}'"
    yield text(x, y - 40, title, anchor="start", more="font-weight='bold'")
    yield text(x + 272, y - 40, number, size=13, anchor="end", more="fill='#666'")
    yield formula(x + 120, y, "(")
    yield formula(x + 134, y, ("x", "", "j"), ("W", side))
    yield formula(x + 196, y, "+")
    yield box(x + 218, y - 26, 54, 38, COLOURS[4], mark)
    yield formula(x + 228, y, ("a", side))
    yield formula(x + 241, y, ("", "", "ij"))


def picture():
    heading = "font-weight='bold' fill='#222'"
    yield (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
        f"width='{WIDTH}' height='{HEIGHT}' role='img'>"
    )
    yield "<title>Relative positions label pairs of words; their vectors enter attention</title>"
    yield (
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' "
        "markerHeight='8' orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='#222'/></marker></defs>"
    )
    yield box(0, 0, WIDTH, HEIGHT, "white", "rx='8'")
    yield text(24, 30, "1. How far is key j from query i?", anchor="start", more=heading)
    yield from matrix(76, 80)
    yield text(196, 346, f"j − i, clipped to k = {K} on either side", size=13, more="fill='#666'")
    yield text(380, 30, "2. A learned vector for each label", anchor="start", more=heading)
    yield from table(400, 82, "K")
    yield from table(400, 222, "V")
    yield text(490, 358, f"2k + 1 = {2 * K + 1} rows", size=13, more="fill='#666'")
    yield text(680, 30, "3. It enters the attention twice", anchor="start", more=heading)
    yield from equations(680)
    cell = (76 + (KEY + 1) * CELL, 80 + QUERY * CELL + CELL / 2)
    for top, equation_y in ((82, 130), (222, 270)):
        y = top + ROW * 22 + 10
        yield arrow(cell, (348, cell[1]), (348, y), (394, y))
        yield arrow((582, y), (925, y), (925, equation_y + 15))
    yield "</svg>"


if __name__ == "__main__":
    sys.stdout.write("\n".join(picture()) + "\n")
