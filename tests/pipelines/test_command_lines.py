"""The command lines as users run them: train, interrupt, resume, evaluate, translate."""

import importlib
import json
import random
import re
import shutil
import signal
import subprocess

import numpy as np
import pytest

from pipelines import evaluate, export, prepare, train_wmt, translate
from pipelines.commands import COMMANDS
from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
from tests.support.layer_checks import assert_close
from tests.support.refusals import message_of
from tests.support.runs import (
    ENVIRONMENT,
    ROOT,
    call,
    command,
    content_of,
    history,
    run_command,
    train_flags,
)
from tf_relpos.config import ALPHA, BEAM_SIZE

pytestmark = pytest.mark.tensorflow_only

# Dropout is on: its masks must come back as well.
LONG = {
    "splits": ["train"],
    "steps": 120,
    "warmup_steps": 50,
    "tokens_per_replica": 128,
    "dropout": 0.2,
    "attention_dropout": 0.1,
    "log_every": 1,
    "checkpoint_every": 25,
}


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
    result = run_command("train_wmt", train_flags(corpus, run_dir, **LONG))
    assert result.returncode == 0, result.stderr
    return run_dir


def stop_at(step, number, arguments):
    """Trains in a process of its own until it tells of the step, and then sends it a signal."""
    with subprocess.Popen(
        command("train_wmt", arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            if line.startswith(f"step {step}/"):
                process.send_signal(number)
                break
        output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.mark.parametrize("number", [pytest.param(None, marks=pytest.mark.slow), signal.SIGINT])
def test_training_outlives_the_reader_of_its_progress(corpus, tmp_path, number):
    """As where Ctrl-C ends `tee` as well."""
    arguments = train_flags(corpus, tmp_path / "run", **LONG)
    with subprocess.Popen(
        command("train_wmt", arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        while not process.stdout.readline().startswith("step "):
            assert process.poll() is None
        process.stdout.close()
        if number:
            process.send_signal(number)
        assert process.wait() == (128 + number if number else 0)
    saved = RunDirectory(tmp_path / "run").checkpoints.steps()[-1]
    assert 0 < saved < LONG["steps"] if number else saved == LONG["steps"]


def last_weights(run_dir):
    run = RunDirectory(run_dir)
    model = build_model(run.config().model)
    step = run.checkpoints.load(model)
    return step, np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(corpus, uninterrupted, tmp_path, number):
    step = random.randint(30, 60)
    print(f"interrupted at step {step}")
    arguments = train_flags(corpus, tmp_path / "run", **LONG)
    status, output, errors = stop_at(step, number, arguments)
    saved = RunDirectory(tmp_path / "run").checkpoints.steps()[-1]
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
        assert saved % 25 == 0
    else:
        assert status == 128 + number, errors
        assert output.splitlines()[-1].startswith("stopped; the same command resumes from")
        assert f"{number.name}: saving after this step" in errors
        assert step <= saved < 120
    result = run_command("train_wmt", arguments)
    assert result.returncode == 0, result.stderr
    assert f"resumed at step {saved}" in result.stdout

    expected, found = history(uninterrupted), history(tmp_path / "run")
    assert [record["step"] for record in found] == list(range(1, 121))
    for name in ("loss", "nll", "learning_rate", "padding_share", "target_tokens_per_step"):
        assert_close([r[name] for r in found], [r[name] for r in expected])
    step, weights = last_weights(tmp_path / "run")
    assert step == 120
    assert_close(weights, last_weights(uninterrupted)[1], tolerance=1e-4)


def test_more_steps_continue_a_finished_run(corpus, uninterrupted, monkeypatch, capfd, refusal):
    arguments = train_flags(corpus, uninterrupted, **LONG)
    assert call(train_wmt.main, arguments, monkeypatch) == 0
    assert "is trained to step 120 already" in capfd.readouterr().out
    config = (uninterrupted / "config.toml").read_text()
    arguments = train_flags(corpus, uninterrupted, **{**LONG, "steps": 100})
    told = refusal(train_wmt.main, arguments)
    assert told.startswith("steps must be at least 120, up to which")
    assert (uninterrupted / "config.toml").read_text() == config
    arguments = train_flags(corpus, uninterrupted, **{**LONG, "steps": 123})
    before = history(uninterrupted)
    assert call(train_wmt.main, arguments, monkeypatch) == 0
    assert "resumed at step 120" in capfd.readouterr().out
    after = history(uninterrupted)
    assert after[:120] == before
    assert [record["step"] for record in after[120:]] == [121, 122, 123]


def test_evaluate_shows_what_it_cannot_record(trained_run, corpus, tmp_path, monkeypatch, capfd):
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    (run_dir / "scores.json").unlink()
    (run_dir / "scores.json").mkdir()
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    arguments = ["--run_dir", run_dir, *files, "--beam_size", 1]
    status = call(evaluate.main, arguments, monkeypatch)
    output, errors = capfd.readouterr()
    assert re.match(r"BLEU \d+\.\d\d  \(", output)
    assert "run/scores.json cannot be read" in message_of(status, errors)


def test_evaluate_records_what_nobody_can_be_shown(trained_run, corpus, tmp_path):
    """Standard output and error are closed."""
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    (run_dir / "scores.json").unlink()
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    arguments = ["--run_dir", run_dir, *files, "--beam_size", 1, "--by_length", 2]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh"]
    words = [*closed, *command("evaluate", arguments)]
    assert subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, check=False).returncode == 0
    [record] = json.loads((run_dir / "scores.json").read_text())
    assert record["bleu"] > 60 and len(record["by_length"]) == 2


def test_what_is_exported_already_is_not_exported_again(
    trained_run, tmp_path, monkeypatch, capfd, refusal
):
    shutil.copytree(trained_run.parent, tmp_path / "mine")
    exports = tmp_path / "mine" / "export"
    before = content_of(exports)

    def arguments(run_dir, export_dir):
        places = ["--run_dir", run_dir, "--export_dir", export_dir]
        return ["--config", trained_run / "config.toml", *places]

    assert call(train_wmt.main, arguments(tmp_path / "mine" / "run", exports), monkeypatch) == 0
    assert capfd.readouterr().out.splitlines()[-1] == f"exported already: {exports}/1"
    # Another run of that name, and a place that cannot be written to: before anything is done.
    yours = tmp_path / "yours" / "run"
    told = refusal(train_wmt.main, arguments(yours, exports))
    assert "export holds versions of another run" in told
    (tmp_path / "file").touch()
    told = refusal(train_wmt.main, arguments(yours, tmp_path / "file" / "export"))
    assert "cannot write to export_dir" in told
    assert not (tmp_path / "yours").exists()
    assert content_of(exports) == before


def test_the_run_directory(trained_run):
    run = RunDirectory(trained_run)
    assert run.checkpoints.steps() == [400, 600] or run.checkpoints.steps() == [
        300,
        400,
        600,
    ]  # the best one may be older
    assert run.checkpoints.best()["step"] in run.checkpoints.steps()
    assert run.config().model.model_dim == 32
    assert (trained_run / "tokenizer.model").exists()
    assert "0 empty, 0 too long" in (trained_run / "buckets.txt").read_text()
    assert any(p.name.startswith("events.out") for p in (trained_run / "events").iterdir())
    losses = [record["loss"] for record in history(trained_run)]
    assert losses[-1] < 0.2 * losses[0]
    assert [p.name for p in (trained_run.parent / "export").iterdir()] == ["1"]
    record = json.loads((trained_run / "scores.json").read_text())[0]
    assert record["bleu"] > 60
    assert "tok:13a" in record["signature"]
    names = ("split", "checkpoint", "step", "beam_size", "alpha", "seed", "preset", "position")
    values = ("test", "average", 600, 4, 0.6, 1, "tiny", "relative")
    assert {name: record[name] for name in names} == dict(zip(names, values, strict=True))


def test_the_flags_that_a_run_leaves_train_the_same_again(trained_run, tmp_path):
    arguments = ["--config", str(trained_run / "config.toml"), "--run_dir", str(tmp_path)]
    config, corpus, _ = train_wmt.parse(arguments)
    assert config == RunDirectory(trained_run).config()
    assert set(corpus.splits) == {"train", "valid", "test"}


def test_evaluate_scores_what_training_scored(trained_run, corpus, tmp_path, monkeypatch, capfd):
    run = shutil.copytree(trained_run, tmp_path / "run")
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    assert call(evaluate.main, ["--run_dir", run, *files], monkeypatch) == 0
    assert "|checkpoint:average|step:600)" in capfd.readouterr().out
    trained, found = RunDirectory(run).scores()[:: len(RunDirectory(run).scores()) - 1]
    for name in ("bleu", "signature", "chrf", "chrf_signature", "checkpoint", "step"):
        assert found[name] == trained[name]


@pytest.mark.parametrize("checkpoint", ["last", "best", "average"])
def test_evaluate_scores_and_records(trained_run, corpus, monkeypatch, capfd, checkpoint):
    before = len(json.loads((trained_run / "scores.json").read_text()))
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    arguments = ["--run-dir", trained_run, *files, "--checkpoint", checkpoint, "--beam_size", 2]
    assert call(evaluate.main, [*arguments, "--by_length", 2], monkeypatch) == 0
    captured = capfd.readouterr()
    scores = json.loads((trained_run / "scores.json").read_text())
    assert len(scores) == before + 1
    record = scores[-1]
    assert record["bleu"] > 60
    assert (record["checkpoint"], record["beam_size"]) == (checkpoint, 2)
    assert f"BLEU {record['bleu']:.2f}  (" in captured.out
    assert record["signature"] in captured.out
    short, long = record["by_length"]
    assert short["longest"] < long["shortest"]
    assert short["sentences"] + long["sentences"] == 41
    assert captured.out.splitlines()[3].startswith(
        f"{short['shortest']} to {short['longest']} words, {short['sentences']} sentences: BLEU "
    )


def test_evaluate_compares_two_runs_and_writes_what_it_scored(
    trained_run, corpus, tmp_path, monkeypatch, capfd, refusal
):
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    source, reference = corpus / "test.en", corpus / "test.de"
    output = tmp_path / "found.de"
    arguments = ["--run_dir", run_dir, "--source", source, "--reference", reference, reference]
    arguments += ["--beam_size", 1, "--lowercase", "--tokenize", "none"]
    compared = [*arguments, "--compare_with", trained_run, "--output", output]
    assert call(evaluate.main, compared, monkeypatch) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["BLEU", "chrF2", "TER"] * 2
    assert "nrefs:2|case:lc|eff:no|tok:none" in lines[0]
    assert all(" +0.00 on " in line and "p = 1.000" in line for line in lines[3:])
    found = output.read_text(encoding="utf-8").splitlines()
    assert len(found) == 41
    # Against a file of lines, which has a word in each that no model of ours says.
    other = tmp_path / "other.de"
    other.write_text("".join(f"{line} x\n" for line in found), encoding="utf-8")
    arguments = ["--run_dir", run_dir, "--source", source, "--reference", other, "--beam_size", 1]
    assert call(evaluate.main, [*arguments, "--compare_with", other], monkeypatch) == 0
    record = RunDirectory(run_dir).scores()[-1]
    assert record["compared_with"]["bleu"]["difference"] < 0
    assert record["compared_with"]["ter"]["baseline"] == 0
    assert {"chrf", "chrf_signature", "ter", "ter_signature"} <= set(record)
    # What is there already is kept, and nothing is translated first.
    told = refusal(evaluate.main, [*arguments, "--output", output])
    assert told == f"output must not exist yet, got {output}"
    assert output.read_text(encoding="utf-8").splitlines() == found


SENTENCES = ["a b c", "", "h", "g f e d c b a"]


def test_translate_keeps_the_order(trained_run):
    """Through real pipes."""
    result = run_command(
        "translate", ["--model", trained_run], stdin="".join(f"{s}\n" for s in SENTENCES)
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(SENTENCES)
    assert lines[0] == "3 2 1" and lines[2] == "8"


def test_nbest_tells_number_score_and_text(trained_run):
    result = run_command(
        "translate",
        ["--model", trained_run, "--nbest", 3, "--beam-size", 4],
        stdin="".join(f"{s}\n" for s in SENTENCES),
    )
    assert result.returncode == 0, result.stderr
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [int(row[0]) for row in rows] == [0] * 3 + [1] + [2] * 3 + [3] * 3
    assert rows[0][2] == "3 2 1"
    assert rows[3] == ["1", "0.0000", ""]  # an empty line is one, with all the probability
    for number in (0, 2, 3):
        scores = [float(row[1]) for row in rows if int(row[0]) == number]
        assert scores == sorted(scores, reverse=True)
        # Two may differ in their subwords alone.
        assert len({row[2] for row in rows if int(row[0]) == number}) >= 2


def test_prepared_text_is_trained_on(corpus, tmp_path, monkeypatch, capfd):
    files = ["--train_source", corpus / "train.en", "--train_target", corpus / "train.de"]
    made = ["--output", tmp_path / "made", *files, "--vocabulary_size", 288]
    assert call(prepare.main, made, monkeypatch) == 0
    report = capfd.readouterr().out
    assert re.search(r"^ *total +2,000 +[\d.]+ +[\d.]+%$", report, re.MULTILINE), report
    arguments = train_flags(
        corpus,
        tmp_path / "run",
        splits=(),
        prepared=tmp_path / "made",
        vocabulary_size=None,
        steps=2,
        tokens_per_replica=256,
    )
    assert call(train_wmt.main, arguments, monkeypatch) == 0
    config = RunDirectory(tmp_path / "run").config()
    assert config.model.vocabulary_size == 288
    assert not (tmp_path / "run" / "prepared").exists()


@pytest.mark.parametrize("module", [translate, export])
def test_help_states_the_defaults_of_the_search(module, monkeypatch, capfd):
    """Which stand in the code once, but in the text of the flags as well."""
    assert call(module.main, ["--help"], monkeypatch) == 0
    text = " ".join(capfd.readouterr().out.split())
    assert f"1 is greedy search; {BEAM_SIZE} unless given" in text
    assert f"length penalty; {ALPHA} unless given" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_each_flag_is(name, monkeypatch, capfd):
    module = importlib.import_module(f"pipelines.{name}")
    assert call(module.main, ["--help"], monkeypatch) == 0
    lines = capfd.readouterr().out.splitlines()
    flags = [i for i, line in enumerate(lines) if line.startswith("  --")]
    assert flags
    for i in flags:
        told = re.split(r" {2,}", lines[i].strip())[1:] or lines[i + 1].startswith(" " * 20)
        assert told, lines[i]


@pytest.mark.parametrize("module", [train_wmt, prepare, evaluate, translate])
def test_help_names_the_flags(module, monkeypatch, capfd):
    assert call(module.main, ["--help"], monkeypatch) == 0
    text = capfd.readouterr().out
    expected = {
        train_wmt: ("--max_relative_position", "--virtual_cpus", "--run_dir", "--train_source"),
        prepare: ("--output", "--vocabulary_size", "--num_shapes"),
        evaluate: ("--reference", "--beam_size", "--checkpoint", "--comet"),
        translate: ("--model", "--nbest", "--alpha"),
    }
    for flag in (*expected[module], "-h, --help"):
        assert flag in text
    assert "--pad_id" not in text and "Literal" not in text
    assert "(default: )" not in text
    is_required = {train_wmt: 0, prepare: 1, evaluate: 3, translate: 1}
    assert text.count("(required)") == is_required[module]
