"""What a table makes of finished runs, and which are finished."""

import dataclasses
import hashlib
import json
import logging
from types import SimpleNamespace

import pytest

from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.reproduction import runs
from pipelines.reproduction.remaining import train_remaining
from pipelines.reproduction.report import markdown
from pipelines.reproduction.results import Text, results
from pipelines.reproduction.runs import runs_of
from pipelines.reproduction.tables import TABLES

REFERENCES = [f"the {n} old dogs and {n} cats sleep behind the house" for n in range(40)]
CONFIG = default_config("tiny", demo=True)
ARRAYS = hashlib.sha256(b"sums").hexdigest()
SCORE = {
    "split": "test", "checkpoint": "last", "step": 1600, "beam_size": 4, "alpha": 0.6,
    "commit": "abc", "version": "1",
}  # fmt: skip


@pytest.fixture
def text(tmp_path):
    """As much of a prepared text as tells it from others."""
    (tmp_path / "SHA256SUMS").write_text("sums")
    return SimpleNamespace(directory=tmp_path, checksums_path=tmp_path / "SHA256SUMS")


def finish(run, translations, minutes=3.0):
    """What a run leaves that has been trained to its end."""
    run.path.mkdir(parents=True)
    (run.path / "translations.txt").write_text("".join(f"{line}\n" for line in translations))
    by_evaluate = {**SCORE, "step": 7, "reference": ["references.de"]}
    scores = [SCORE, by_evaluate, {**by_evaluate, "split": "another.en"}]
    (run.path / "scores.json").write_text(json.dumps(scores))
    record = {
        "config": run.config.to_dict(), "arrays": ARRAYS, "split": run.split, "finished": True,
        "minutes": minutes, "date": "2026-11-22", "device": "CPU",
    }  # fmt: skip
    (run.path / "reproduction.json").write_text(json.dumps(record))


def worse(count):
    """The references, but for so many sentences, of which half is missing."""
    cut = [" ".join(line.split()[::2]) for line in REFERENCES]
    return cut[:count] + REFERENCES[count:]


def test_scores_spread_and_tests_against_the_baseline(tmp_path, text):
    table = TABLES[3]
    runs = {row.name: runs_of(row, CONFIG, 2, tmp_path, text, "test") for row in table.rows}
    for name, counts in (("keys_and_values", (0, 2)), ("keys", (0, 2)), ("neither", (30, 35))):
        for run, count in zip(runs[name], counts, strict=True):
            finish(run, worse(count))
    finished = {n: [r for r in several if r.is_finished()] for n, several in runs.items()}
    found = results(table, finished, CONFIG, Text("demo", "test", REFERENCES, "de"))

    both, keys, values, neither = found["rows"]
    assert [run["bleu"] for run in both["runs"]][0] == 100.0
    assert both["bleu"]["mean"] == pytest.approx(sum(r["bleu"] for r in both["runs"]) / 2)
    spread = abs(both["runs"][0]["bleu"] - both["runs"][1]["bleu"]) / 2**0.5
    assert both["bleu"]["deviation"] == pytest.approx(spread, abs=1e-4)
    assert [run["seed"] for run in both["runs"]] == [1, 2]
    assert both["runs"][0]["step"] == 1600  # not that of a score which `evaluate` has added
    assert both["against_baseline"] == []
    assert keys["against_baseline"] == [{"difference": 0.0, "p_value": 1.0}] * 2
    assert values["runs"] == [] and "bleu" not in values and values["against_baseline"] == []
    assert all(t["difference"] < -20 and t["p_value"] < 0.01 for t in neither["against_baseline"])
    assert neither["bleu"]["mean"] < 80
    assert set(found["signatures"]) == {"bleu", "chrf", "bootstrap"}
    assert (found["sentences"], found["corpus"]) == (40, "demo")
    assert json.loads(json.dumps(found)) == found


def test_a_run_is_finished_with_its_own_configuration_and_text_alone(tmp_path, text):
    (run,) = runs_of(TABLES[2].rows[0], CONFIG, 1, tmp_path, text, "test")
    assert not run.is_finished()
    finish(run, REFERENCES)
    assert run.is_finished()
    assert not dataclasses.replace(run, arrays="another").is_finished()
    assert not dataclasses.replace(run, split="valid").is_finished()
    training = dataclasses.replace(CONFIG.training, steps=1700)
    (longer,) = runs_of(
        TABLES[2].rows[0], dataclasses.replace(CONFIG, training=training), 1, tmp_path, text, "test"
    )
    assert longer.path == run.path and not longer.is_finished()
    # A record that is kept without checkpoints is not trained over.
    for other in (longer, dataclasses.replace(run, arrays="another")):
        with pytest.raises(InputError, match="has the record of a finished run of other"):
            next(train_remaining([other]))

    # Its text is known by its arrays, wherever it lies.
    corpus = dataclasses.replace(CONFIG.corpus, train_source=["../x.en"], test_source="../y.en")
    training = dataclasses.replace(CONFIG.training, log_every=7)
    (moved,) = runs_of(
        TABLES[2].rows[0],
        dataclasses.replace(CONFIG, corpus=corpus, training=training),
        1,
        tmp_path,
        text,
        "test",
    )
    assert moved.path == run.path and moved.is_finished()

    path = run.path / "reproduction.json"
    record = json.loads(path.read_text())
    del record["config"]["corpus"]["subword_model"]  # as before there was such a field
    path.write_text(json.dumps(record))
    assert run.is_finished() and not longer.is_finished()
    path.write_text(json.dumps({**record, "config": {}}))
    with pytest.raises(InputError, match="reproduction.json cannot be read"):
        run.is_finished()
    path.write_text("[]")
    with pytest.raises(InputError, match="reproduction.json cannot be read"):
        run.is_finished()


@pytest.mark.tensorflow_only
def test_the_minutes_of_an_interrupted_scoring_are_kept(tmp_path, text, monkeypatch):
    (run,) = runs_of(TABLES[2].rows[0], CONFIG, 1, tmp_path, text, "test")
    clock = iter(range(0, 6000, 60))
    monkeypatch.setattr(runs.time, "monotonic", lambda: next(clock))
    steps = ["step-00000001"]

    def interrupted(*_, **__):
        for step in steps:
            (run.path / "checkpoints" / step).mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.training.job.run_job", interrupted)
    for minutes in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run.train()
        assert (run.record()["finished"], run.record()["minutes"]) == (False, minutes)

    # What is finished is only scored again, which leaves both as they are.
    record = {**run.record(), "finished": True, "split": "test"}
    (run.path / "reproduction.json").write_text(json.dumps(record))
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert (run.record()["finished"], run.record()["minutes"]) == (True, 2)


def test_code_that_is_not_of_a_checkout(tmp_path, text):
    """As an installed package is not."""
    table = TABLES[2]
    runs = {table.rows[0].name: runs_of(table.rows[0], CONFIG, 2, tmp_path, text, "test")}
    for run, version in zip(runs[table.rows[0].name], ("1.5", None), strict=True):
        finish(run, REFERENCES)
        score = {**SCORE, "commit": None, "version": version}
        (run.path / "scores.json").write_text(json.dumps([score]))
    found = results(table, runs, CONFIG, Text("demo", "test", REFERENCES, "de"))
    assert markdown(found).endswith("in 6 minutes; code 1.5, of unknown version.\n")


def test_nothing_is_trained_twice(tmp_path, text, caplog):
    runs = runs_of(TABLES[2].rows[1], CONFIG, 3, tmp_path, text, "test")
    for run in runs:
        finish(run, REFERENCES)
    with caplog.at_level(logging.INFO, "pipelines"):
        assert list(train_remaining(runs)) == []
    assert not caplog.records
