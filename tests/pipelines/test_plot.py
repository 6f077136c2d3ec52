"""Curves of runs in one picture."""

import json
import struct

import pytest

from pipelines import plot
from pipelines.run.curves import read_curves
from tests.support.layer_checks import run_python
from tests.support.runs import call

LINES = [
    {"step": 10, "loss": 5.0, "accuracy": 0.1},
    {"step": 10, "validation_bleu": 3.0},
    {"step": 20, "loss": 4.0, "accuracy": float("nan")},
    {"step": 30, "skipped": 2},
]


@pytest.fixture
def run(tmp_path):
    """Makes a run directory with a history; gives its path."""

    def make(name, lines=LINES, end=""):
        directory = tmp_path / name
        directory.mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / "history.jsonl").write_text(text + end)
        return directory

    return make


def test_all_that_a_history_holds_is_read(run):
    """But what is not finite, and the line that is being written."""
    assert read_curves(run("a", end='{"step": 40, "lo') / "history.jsonl") == {
        "loss": [(10, 5.0), (20, 4.0)],
        "accuracy": [(10, 0.1)],
        "validation_bleu": [(10, 3.0)],
        "skipped": [(30, 2.0)],
    }


def test_a_picture_of_several_runs(run, tmp_path, monkeypatch, capfd):
    picture = tmp_path / "curves.svg"
    runs = [run("first"), run("second", LINES[:1])]
    assert call(plot.main, [*runs, "--output", picture], monkeypatch) == 0
    assert capfd.readouterr().out == f"drew {picture}\n"
    text = picture.read_text()
    for label in (*map(str, runs), "loss", "validation bleu", "accuracy", "skipped", "updates"):
        assert f"<!-- {label} -->" in text
    assert text.index("<!-- validation bleu -->") < text.index("<!-- accuracy -->")


def test_a_png_takes_the_place_of_the_one_before(run, tmp_path, monkeypatch):
    picture = tmp_path / "curves.PNG"
    picture.write_text("before")
    config = tmp_path / "plot.toml"
    config.write_text(f'runs = ["{run("a")}"]\noutput = "{picture}"')
    assert call(plot.main, ["--config", config], monkeypatch) == 0
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > height > 500
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give run directories: python -m pipelines.plot runs/a runs/b"),
        (["a", "--runs", "b"], "must be given with --runs or without it, not both"),
        (["a", "--config", "plot.toml"], "must be given with --runs or without it, not both"),
        (["caf\udce9"], "run must be text in utf-8, got ['caf\\udce9']"),
        (["a", "--output", "x.pdf"], "output must end in .png or .svg, got x.pdf"),
        (["nowhere"], "nowhere is not a run directory: no history.jsonl"),
        (["empty"], "empty/history.jsonl holds nothing to draw yet"),
        (["damaged"], "damaged/history.jsonl is damaged: line 2 must hold a step and numbers"),
        (["a", "--output", "a/history.jsonl/x.png"], "cannot write a/history.jsonl/x.png: Not a"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, monkeypatch, refusal, arguments, message):
    run("a")
    run("empty", [])
    run("damaged", [LINES[0], {"loss": 3.0}])
    (tmp_path / "plot.toml").write_text('runs = ["b"]')
    monkeypatch.chdir(tmp_path)
    assert message in refusal(plot.main, arguments)


def test_what_is_missing_is_named(run):
    told = run_python(
        f"""
import sys
sys.modules["matplotlib"] = None
from pipelines.errors import InputError
from pipelines.plot import main
try:
    main([{str(run("a"))!r}])
except InputError as error:
    print(error)
print("tensorflow" in sys.modules, "keras" in sys.modules)
"""
    )
    assert "matplotlib" in told and "pip install -e '.[plot]'" in told
    assert told.endswith("False False")
