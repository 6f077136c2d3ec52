"""Tables from text to picture."""

import json
import signal

import pytest

from pipelines import reproduce
from pipelines.config import RunConfig
from pipelines.data.preparation import open_prepared
from pipelines.reproduction import job, tables
from pipelines.reproduction.runs import runs_of
from tests.support.runs import call, flags, interrupted, train_flags

pytestmark = pytest.mark.tensorflow_only

SMALL = {"warmup_steps": 2, "tokens_per_replica": 256, "log_every": 1, "jit": "off"}


@pytest.fixture
def table(corpus, tmp_path, monkeypatch, capfd):
    """Calls the command line; gives its exit status, its output and the table it wrote."""

    def make(number, *rows, **values):
        arguments = train_flags(corpus, None, **{**SMALL, "export_dir": None, **values})
        arguments += flags(table=number, rows=rows or None, output=tmp_path)
        status = call(reproduce.main, arguments, monkeypatch)
        path = tmp_path / f"table-{number}.json"
        told = capfd.readouterr()
        return status, told.out + told.err, json.loads(path.read_text()) if path.exists() else None

    return make


def test_tables_share_runs(table, tmp_path):
    status, told, found = table(1, "relative", steps=2)
    assert status == 0
    assert "run 1 of 1: relative-k16-seed1; 0 finished, 1 left, time left unknown" in told
    assert [len(row["runs"]) for row in found["rows"]] == [0, 1, 0]
    (run,) = found["rows"][1]["runs"]
    assert (run["run"], run["seed"], run["step"]) == ("relative-k16-seed1", 1, 2)
    assert run["minutes"] > 0 and run["date"] and run["device"] and run["checkpoint"] == "last"
    for ending in ("md", "png", "svg"):
        assert (tmp_path / f"table-1.{ending}").stat().st_size > 500

    status, told, found = table(3, "keys_and_values", steps=2)
    assert status == 0
    assert "run 1 of" not in told and "step 1/2" not in told
    assert [len(row["runs"]) for row in found["rows"]] == [1, 0, 0, 0]
    assert found["rows"][0]["runs"] == [run]

    status, told, _ = table(3, "keys_and_values", steps=1)
    assert status == 2
    assert "error: steps must be at least 2, up to which" in told
    run_dir = tmp_path / "runs" / "relative-k16-seed1"
    for name, content, wrong in (
        ("translations.txt", "one\n", "translations.txt must have 41 translations, "),
        ("scores.json", "[]\n", "relative-k16-seed1 must have scores of test in scores.json"),
        ("scores.json", '[{"split": "test"}]', "must tell in its JSON files of checkpoint, which"),
    ):
        kept = (run_dir / name).read_text()
        (run_dir / name).write_text(content)
        status, told, _ = table(1, "sinusoidal", "relative", steps=2)
        assert status == 2 and wrong in told.splitlines()[-1]
        assert "run 1 of" not in told  # before the other row is trained
        (run_dir / name).write_text(kept)

    # Before any other row is trained.
    for values in ({"learning_rate_scale": 0.5}, {"dropout": 0.25}):
        status, told, _ = table(1, "sinusoidal", "relative", steps=2, **values)
        assert status == 2 and "run 1 of" not in told
        ((name, value),) = values.items()
        assert f"relative-k16-seed1 was started with {name} " in told and f"not {value}" in told


def test_subwords_of_ones_own(table, trained_run, monkeypatch):
    """Replicas are made before TensorFlow reads any text: afterwards a CPU cannot be split."""
    order = []
    for name in ("make_strategy", "prepare_text"):
        known = getattr(job, name)
        monkeypatch.setattr(
            job, name, lambda *a, known=known, name=name: order.append(name) or known(*a)
        )
    own = {"tokenizer": trained_run / "tokenizer.model", "vocabulary_size": None}
    status, told, found = table(3, "values", steps=2, **own)
    assert status == 0, told
    assert order == ["make_strategy", "prepare_text"]
    (row,) = (row for row in found["rows"] if row["runs"])
    assert row["name"] == "values" and found["config"]["corpus"]["subword_model"] is None


@pytest.mark.slow
def test_on_the_papers_corpus_each_table_scores_what_the_paper_did(table, tmp_path, monkeypatch):
    """Table 1 the test set, Table 3 the development set, both of the same runs."""
    _, _, found = table(1, "relative", steps=2)
    monkeypatch.setattr(tables, "WMT", (found["corpus"],))
    assert found["split"] == "test"
    of_test, minutes = ([r[name] for r in found["rows"][1]["runs"]] for name in ("bleu", "minutes"))
    status, told, found = table(3, "keys_and_values", steps=2)
    assert status == 0 and "step 1/2" not in told
    (run,) = found["rows"][0]["runs"]
    assert found["split"] == "valid" and f"valid BLEU {run['bleu']:.2f}" in told
    assert [run["minutes"]] == minutes  # it has only been scored again
    status, told, found = table(1, "sinusoidal", steps=2)
    assert status == 0 and "run 1 of 1: sinusoidal-seed1" in told
    assert [[run["bleu"] for run in row["runs"]] for row in found["rows"]][1] == of_test

    # A process that dies while it scores another split leaves what is kept as it was.
    prepared = open_prepared(tmp_path / "prepared")
    directory = tmp_path / "runs" / "relative-k16-seed1"
    config = json.loads((directory / "reproduction.json").read_text())["config"]
    row, config = tables.TABLES[1].rows[1], RunConfig.from_dict(config)
    of_split = {
        split: runs_of(row, config, 1, tmp_path / "runs", prepared, split)[0]
        for split in ("test", "valid")
    }
    assert of_split["test"].is_finished() and of_split["valid"].is_finished()
    of_split["test"]._keep_translations()
    (directory / "translations.txt").write_text("of the test set, in part\n")
    assert of_split["test"].is_finished() and of_split["valid"].is_finished()
    of_split["valid"]._keep_translations()
    for split, run in of_split.items():
        lines = run.translations_path().read_text().splitlines()
        assert len(lines) == len(prepared.text(split)[1]) and lines[0] != "of the test set, in part"


@pytest.mark.slow
def test_a_signal_ends_the_work_and_the_same_command_goes_on(table, tmp_path, monkeypatch):
    with interrupted(monkeypatch):
        status, told, found = table(1, "relative", steps=4)
    assert status == 128 + signal.SIGTERM
    assert f"stopped; the same command resumes from {tmp_path}" in told
    assert found is None
    path = tmp_path / "runs/relative-k16-seed1/reproduction.json"
    before = json.loads(path.read_text())
    assert not before["finished"]

    status, told, _ = table(1, "relative", steps=4)
    assert status == 0
    assert "resumed at step 2" in told
    assert json.loads(path.read_text())["minutes"] > before["minutes"] > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: --table; see"),
        (["--table", "4"], "table must be 1, 2 or 3, got 4"),
        (["--table", "2", "--rows", "3"], "rows must be of 0, 1, 2, 4, 16, 64, 256 in Table 2"),
        (["--table", "1", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--table", "1", "--seed", "3"], "--seed must not be given, the command decides it"),
        (["--table", "3", "--relative-keys", "false"], "--relative_keys must not be given"),
        (["--table", "1", "--initialize_from", "x"], "--initialize_from must not be given"),
        (["--table", "1", "--run_dir", "x"], "unrecognized arguments: --run_dir x"),
        (
            ["--table", "1", "--strategy", "multi_worker", "--prepared", "x"],
            "strategy must be auto, one or mirrored here, got multi_worker",
        ),
        (
            ["--table", "1", "--prepared", "absent", "--output", "out"],
            "no tokenized corpus can be read from absent",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(reproduce.main, arguments)
    assert not list(tmp_path.iterdir())


def test_text_to_train_on_alone_is_refused(corpus, tmp_path, refusal):
    arguments = train_flags(corpus, None, splits=["train"], export_dir=None)
    arguments += flags(table=1, output=tmp_path / "out")
    assert refusal(reproduce.main, arguments).startswith("a table needs text to score on")
    assert not (tmp_path / "out").exists()
