"""Pictures, drawn by matplotlib, as files that are complete or as they were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.files.atomic import new_file
from pipelines.importing import import_optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")


def check_can_draw() -> None:
    """Raises InputError if matplotlib is not installed."""
    import_optional("matplotlib.figure", "matplotlib", extra="plot")


def check_picture(name: str, path: str) -> None:
    """Raises InputError if the file of the flag `name` does not end in one of `FORMATS`."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{name} must end in {' or '.join(FORMATS)}, got {path}")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, whose parts find their places by themselves.

    Raises:
        InputError: matplotlib is not installed.
    """
    module = import_optional("matplotlib.figure", "matplotlib", extra="plot")
    return module.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path, dpi: int = 120) -> None:
    """Writes a figure in the format of `FORMATS` that the file's ending says.

    The same figure makes the same file: neither holds the date, nor names drawn by chance. Texts
    are drawn as they are, and none as a formula.

    Raises:
        InputError: it cannot be written.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    form = path.suffix.lower()[1:]
    metadata = {"Date": None} if form == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "tf_relpos"}), new_file(path) as temporary:
        figure.savefig(temporary, format=form, dpi=dpi, metadata=metadata)
