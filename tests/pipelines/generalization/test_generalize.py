"""Scores by length from text to picture."""

import json
import signal

import pytest

from pipelines import generalize
from pipelines.run.directory import RunDirectory
from tests.support.runs import MODEL, call, flags, interrupted, train_flags, write_pairs

pytestmark = pytest.mark.tensorflow_only

SMALL = {
    "warmup_steps": 2, "tokens_per_replica": 256, "log_every": 1, "valid_every": 0, "jit": "off",
    "num_shapes": 2,
}  # fmt: skip


@pytest.fixture
def commanded(tmp_path, monkeypatch, capfd):
    """Calls the command line on commands of 1 to 7 letters; what it prints, and the JSON."""
    write_pairs(tmp_path, "tasks", 300, 5)
    files = {"commands": tmp_path / "tasks.en", "actions": tmp_path / "tasks.de"}
    output = tmp_path / "out"

    def make(**values):
        arguments = flags(**{**MODEL, **SMALL, "vocabulary_size": 20, **files, **values})
        status = call(generalize.main, [*arguments, "--output", output], monkeypatch)
        told = capfd.readouterr()
        path = output / "lengths-commands.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return status, told.out + told.err, found

    return make


def test_commands_and_what_is_added_later(commanded, tmp_path):
    status, told, found = commanded(longest=5, rows="relative", steps=2)
    assert status == 0
    assert "run 1 of 1: relative-k24-seed1; 0 finished, 1 left, time left unknown" in told
    targets = (tmp_path / "tasks.de").read_text().splitlines()
    longer = [line for line in targets if len(line.split()) > 5]
    assert (tmp_path / "out/prepared/5/test.target").read_text().splitlines() == longer
    (column,) = found["columns"]
    assert (column["trained_on"], column["tested_on"]) == (300 - len(longer), len(longer))
    assert (column["shortest"], column["longest"], column["trained_up_to"]) == (6, 7, 5)
    (row,) = found["rows"]
    (run,) = row["runs"]
    assert (run["seed"], run["step"], run["longest"]) == (1, 2, 5)
    assert run["minutes"] > 0 and run["date"] and run["device"] and run["commit"]
    assert row["scores"] == [{"mean": 0.0, "deviation": None, "least": 0.0, "most": 0.0}]
    translations = RunDirectory(tmp_path / "out/runs/5/relative-k24-seed1").translations_path
    assert len(translations.read_text(encoding="utf-8").splitlines()) == len(longer)

    # One that has learnt everything.
    translations.write_text("".join(f"{line}\n" for line in longer), encoding="utf-8")
    status, told, found = commanded(longest=[6, 5], rows=["24", "relative"], steps=2)
    assert status == 0
    assert "run 2 of 2: 6/relative-k24-seed1; 1 finished, 1 left" in told
    assert [column["label"] for column in found["columns"]] == ["5", "6"]
    assert found["rows"][0]["runs"][0] == {**run, "scores": [100.0]}
    assert [score["mean"] for score in found["rows"][0]["scores"]] == [100.0, 0.0]
    assert found["rows"][0]["runs"] == found["rows"][1]["runs"]  # k is 24 unless told otherwise
    for ending in ("md", "png", "svg"):
        assert (tmp_path / "out" / f"lengths-commands.{ending}").stat().st_size > 300

    status, told, again = commanded(longest=[6, 5], rows=["24", "relative"], steps=2)
    assert status == 0 and again == found
    assert "run 1 of" not in told and "step 1/2" not in told

    translations.write_text("".join(f"{line}\n" for line in longer[1:]), encoding="utf-8")
    status, told, _ = commanded(longest=[6, 5], rows=["24", "relative"], steps=2)
    assert status == 2
    expected = f"must have {len(longer)} translations, one of each sentence of the text that is"
    assert f"{expected} scored, got {len(longer) - 1}" in told


@pytest.mark.slow
def test_a_signal_ends_the_work_and_the_same_command_goes_on(commanded, tmp_path, monkeypatch):
    with interrupted(monkeypatch):
        status, told, found = commanded(longest=[5, 6], rows="relative", steps=4)
    assert status == 128 + signal.SIGTERM and found is None
    assert f"stopped; the same command resumes from {tmp_path / 'out'}" in told
    status, told, found = commanded(longest=[5, 6], rows="relative", steps=4)
    assert status == 0
    assert told.count("resumed at step 2") == 1
    assert [run["step"] for run in found["rows"][0]["runs"]] == [4, 4]


def test_any_text_by_length_of_its_source(corpus, tmp_path, monkeypatch, capfd):
    arguments = train_flags(corpus, None, **{**SMALL, "export_dir": None, "steps": 2})
    arguments += flags(rows="sinusoidal", bins=2, output=tmp_path)
    assert call(generalize.main, arguments, monkeypatch) == 0
    found = json.loads((tmp_path / "lengths-text.json").read_text(encoding="utf-8"))
    longest = found["longest_trained"]
    sources = (corpus / "train.en").read_text().splitlines()
    trained = [line for line in sources if len(line.split()) <= longest]
    assert 0.75 <= len(trained) / len(sources) < 0.95
    assert {column["trained_on"] for column in found["columns"]} == {len(trained)}
    assert sum(column["tested_on"] for column in found["columns"]) == 41
    assert {column["longest"] <= longest for column in found["columns"]} == {True, False}
    (run,) = found["rows"][0]["runs"]
    assert len(run["scores"]) == len(found["columns"])
    assert "| BLEU by words of the source |" in capfd.readouterr().out
    assert not list((tmp_path / "runs").rglob("prepared"))


FILES = ["--commands", "c", "--actions", "a"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--commands", "c"], "commands and actions must be given together"),
        (FILES, "commands must name files that exist, got c: No such file or directory"),
        (["--commands", __file__, "--actions", "a"], "actions must name files that exist, got a"),
        ([*FILES, "--train_source", "x"], "--train_source must not be given with --commands"),
        ([*FILES, "--tokenizer", "x"], "--tokenizer must not be given with --commands"),
        ([*FILES, "--longest"], "longest must have values, got none"),
        (["--commands", "", "--actions", ""], "commands and actions must be given together"),
        (["--rows", "10000"], "rows must be of sinusoidal, relative"),
        ([*FILES, "--share", "0.5"], "share must not be given with commands, got 0.5"),
        ([*FILES, "--longest", "0"], "longest must be at least 1, got 0"),
        ([*FILES, "--longest", "3", "3"], "longest must be different lengths, got 3 twice"),
        (["--longest", "3"], "longest must not be given without commands, got [3]"),
        (["--share", "1"], "share must be above 0 and below 1, got 1.0"),
        (["--bins", "0"], "bins must be at least 1, got 0"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--rows", "x"], "rows must be of sinusoidal, relative"),
        (["--rows", "4", "4"], "rows must be different, got 4 twice"),
        (["--position", "both"], "--position must not be given, the command decides it"),
        (["--prepared", "x"], "--prepared must not be given, the command decides it"),
        (["--strategy", "multi_worker"], "strategy must be auto, one or mirrored here"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(generalize.main, arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "values, message",
    [
        ({"longest": 7}, "below 7, or there is nothing to test on, got 7"),
        ({"max_length": 5}, "max_length must be enough for all pairs of up to 5 words"),
        ({"vocabulary_size": 9}, "vocabulary_size must be at least"),
        ({"vocabulary_size": 21}, "vocabulary_size must be at most 20 for this text, got 21"),
    ],
)
def test_what_the_text_shows_is_told_before_training(commanded, values, message):
    status, told, found = commanded(**{"longest": 5, **values})
    assert status == 2 and found is None
    (error,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert message in error and "Traceback" not in told


def test_text_without_a_test_set_is_refused(corpus, tmp_path, refusal):
    arguments = train_flags(corpus, None, splits=["train"], export_dir=None)
    arguments += flags(output=tmp_path / "out")
    told = refusal(generalize.main, arguments)
    assert told.startswith("scores by length need text to score on")
    assert not (tmp_path / "out").exists()
