"""Pictures of what users have named."""

import pytest

from pipelines.files.pictures import new_figure, save_figure

NAMES = ("$_$", "a$b_{$", "$1-$2", "100 $ and x^2")


@pytest.mark.parametrize("form", ["svg", "png"])
def test_no_text_is_a_formula(tmp_path, form):
    figure = new_figure(4, 3)
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1], label=NAMES[0])
    panel.set_xticks([0, 1], NAMES[1:3])
    panel.text(0.5, 0.5, NAMES[3])
    panel.annotate(NAMES[0], (0, 0))
    panel.set_title(NAMES[1])
    figure.legend()
    path = tmp_path / f"picture.{form}"
    save_figure(figure, path)
    if form == "svg":
        drawn = path.read_text()
        assert all(f"<!-- {name} -->" in drawn for name in NAMES)
