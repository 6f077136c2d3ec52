"""Scores by length in Markdown and as a picture, made of JSON alone."""

import json

import pytest

from pipelines.generalization.report import draw, markdown, write_report

RUN = {
    "beam_size": 4, "alpha": 0.6, "device": "CPU", "date": "2026-11-22", "commit": "abc",
    "minutes": 2.5,
}  # fmt: skip


def column(label, place, tested_on):
    return {
        "label": label, "place": place, "trained_up_to": 7, "trained_on": 1234,
        "shortest": 1, "longest": 9, "tested_on": tested_on,
    }  # fmt: skip


def run(name, seed, longest=7):
    return {**RUN, "run": f"{name}-seed{seed}", "seed": seed, "longest": longest}


def score(mean, deviation=None):
    return {"mean": mean, "deviation": deviation, "least": mean - 2, "most": mean + 3}


@pytest.fixture
def found():
    return {
        "task": "text",
        "title": "A title",
        "axis": "words of the source",
        "measure": "BLEU",
        "longest_trained": 7,
        "corpus": "demo",
        "signatures": {"bleu": "nrefs:1"},
        "config": {"preset": "tiny", "training": {"steps": 800, "tokens_per_replica": 2048}},
        "columns": [column("1–7", 4.5, 1100), column("8–9", 8.25, 97)],
        "rows": [
            {
                "label": "relative",
                "scores": [score(90.0, 1.5), score(80.25, 2.0)],
                "runs": [run("relative-k16", seed) for seed in (1, 2)],
            },
            {
                "label": "sinusoidal",
                "scores": [score(88.0), None],
                "runs": [run("sinusoidal", seed=1)],
            },
            {"label": "neither", "scores": [None, None], "runs": []},
        ],
    }


def test_the_table_in_markdown(found):
    table, conditions = markdown(found).split("\n\n")
    assert table.splitlines() == [
        "| BLEU by words of the source | 1–7 | 8–9 |",
        "| --- | --- | --- |",
        "| relative | 90.00 ± 1.50 | 80.25 ± 2.00 |",
        "| sinusoidal | 88.00 | – |",
        "| neither | – | – |",
        "| trained on | 1,234 | 1,234 |",
        "| tested on | 1,100 | 97 |",
    ]
    for part in (
        "Corpus demo, trained on sources of up to 7 words; preset tiny, 800 updates",
        "seed 1, 2; beam and length penalty 4 and 0.6. BLEU `nrefs:1`. CPU; 2026-11-22;",
        "finished: 3, in 8 minutes; code abc.",
    ):
        assert part in conditions


def test_a_run_of_two_rows_is_counted_once(found):
    found["rows"][2]["runs"] = [run("relative-k16", 1), run("relative-k16", 1, longest=9)]
    assert "finished: 4, in 10 minutes" in markdown(found)


def test_scores_without_a_signature(found):
    found |= {"signatures": {}, "longest_trained": None, "corpus": "tasks"}
    text = markdown(found)
    assert "Corpus tasks; preset" in text and "4 and 0.6. CPU; 2026-11-22;" in text


def test_no_run_is_finished_yet(found):
    for row in found["rows"]:
        row |= {"scores": [None, None], "runs": []}
    assert markdown(found).endswith("tokens a side; no run is finished yet.\n")


def test_the_picture(found, tmp_path):
    draw(found, tmp_path / "lengths.svg")
    text = (tmp_path / "lengths.svg").read_text()
    for label in ("A title", "words of the source", "BLEU", "relative", "longest trained on"):
        assert f"<!-- {label} -->" in text
    draw({**found, "longest_trained": None}, tmp_path / "other.svg")
    assert "longest trained on" not in (tmp_path / "other.svg").read_text()


def test_what_is_written_lies_together(found, tmp_path):
    paths = write_report(found, tmp_path)
    assert [path.name for path in paths] == [
        f"lengths-text.{e}" for e in ("json", "md", "png", "svg")
    ]
    assert json.loads(paths[0].read_text(encoding="utf-8")) == found
    assert all(path.stat().st_size > 300 for path in paths)
