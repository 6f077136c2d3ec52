"""Tables in Markdown and as pictures."""

import struct

import pytest

from pipelines.reproduction.report import conditions, draw, markdown, write_table

RUN = {
    "beam_size": 4, "alpha": 0.6, "device": "CPU", "date": "2026-11-22", "commit": "abc",
    "minutes": 2.5,
}  # fmt: skip


def row(name, scores, paper, tests=()):
    summary = {"mean": sum(scores) / len(scores), "deviation": 1.25} if scores else None
    return {
        "name": name,
        "label": f"label of {name}",
        "paper": paper,
        "runs": [
            {**RUN, "run": f"{name}-seed{seed}", "seed": seed, "bleu": bleu}
            for seed, bleu in enumerate(scores, 1)
        ],
        "against_baseline": [{"difference": d, "p_value": p} for d, p in tests],
        **({"bleu": summary, "chrf": {"mean": 70.0, "deviation": None}} if scores else {}),
    }


def test_an_update_has_the_tokens_of_all_replicas(found):
    training = found["config"]["training"]
    assert "of up to 2,048 tokens a side" in conditions(found, "demo")
    training["virtual_cpus"] = 2
    assert "of up to 4,096 tokens a side" in conditions(found, "demo")
    training["tokens_per_step"] = 8192
    assert "of up to 8,192 tokens a side" in conditions(found, "demo")


@pytest.fixture
def found():
    return {
        "table": 3,
        "title": "A title",
        "paper_columns": ["EN-DE"],
        "baseline": "a",
        "corpus": "demo",
        "split": "test",
        "sentences": 1500,
        "signatures": {"bleu": "nrefs:1"},
        "config": {"preset": "tiny", "training": {"steps": 800, "tokens_per_replica": 2048}},
        "rows": [
            row("a", [90.0, 91.0], [25.8]),
            row("b", [30.0, 32.0], [12.5], [(-60.0, 0.001), (-59.0, 0.25)]),
            row("c", [], []),
        ],
    }


def test_the_table_in_markdown(found):
    table, conditions = markdown(found).split("\n\n")
    assert table.splitlines() == [
        "|  | BLEU | chrF | BLEU against the baseline | p | paper, EN-DE |",
        "| --- | --- | --- | --- | --- | --- |",
        "| label of a | 90.50 ± 1.25 | 70.00 | (baseline) | – | 25.8 |",
        "| label of b | 31.00 ± 1.25 | 70.00 | -59.50 | 0.001, 0.250 | 12.5 |",
        "| label of c | – | – | – | – | – |",
    ]
    for part in (
        "1,500 sentences (test)",
        "800 updates",
        "seed 1, 2;",
        "beam and length penalty 4 and 0.6",
        "BLEU `nrefs:1`",
        "CPU; 2026-11-22; runs that are finished: 4, in 10 minutes",
        "code abc.",
    ):
        assert part in conditions


def test_devices_are_told_apart(found):
    found["rows"][1]["runs"][0]["device"] = "CPU, 2 cores"
    assert "`. CPU; CPU, 2 cores; 2026" in markdown(found)


def test_a_table_of_ones_own(found, tmp_path):
    """No numbers of the paper but what the runs cost, and dots, which tell small differences."""
    found |= {"table": None, "paper_columns": []}
    for each in found["rows"]:
        each["paper"] = []
    assert markdown(found).split("\n\n")[0].splitlines() == [
        "|  | BLEU | chrF | BLEU against the baseline | p | minutes a run |",
        "| --- | --- | --- | --- | --- | --- |",
        "| label of a | 90.50 ± 1.25 | 70.00 | (baseline) | – | 2.5 |",
        "| label of b | 31.00 ± 1.25 | 70.00 | -59.50 | 0.001, 0.250 | 2.5 |",
        "| label of c | – | – | – | – | – |",
    ]
    draw(found, tmp_path / "table.svg")
    text = (tmp_path / "table.svg").read_text()
    assert all(f"<!-- {label} -->" in text for label in ("A title", "label of b", "90.5", "31.0"))
    written = write_table(found, tmp_path)
    assert [path.name for path in written] == [
        "ablation.json", "ablation.md", "ablation.png", "ablation.svg",
    ]  # fmt: skip


def test_no_run_is_finished_yet(found):
    found["rows"] = [row("a", [], [25.8])]
    assert markdown(found).endswith("tokens a side; no run is finished yet.\n")


def test_the_table_as_a_picture(found, tmp_path):
    draw(found, tmp_path / "table.svg")
    text = (tmp_path / "table.svg").read_text()
    for label in ("Table 3: A title", "label of a", "label of c", "90.5", "12.5", "paper, EN-DE"):
        assert f"<!-- {label} -->" in text
    draw(found, tmp_path / "table.png")
    width, height = struct.unpack(">II", (tmp_path / "table.png").read_bytes()[16:24])
    assert width > height > 200
    draw(found, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text
