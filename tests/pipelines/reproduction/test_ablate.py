"""Changes to a configuration, each by itself."""

import json

import pytest

from pipelines import ablate
from tests.support.runs import call, flags, train_flags

SMALL = {"warmup_steps": 2, "tokens_per_replica": 256, "log_every": 1, "jit": "off", "steps": 2}


@pytest.mark.tensorflow_only
def test_each_change_is_a_row(corpus, tmp_path, monkeypatch, capfd):
    arguments = train_flags(corpus, None, **SMALL, export_dir=None)
    arguments += flags(changes=["inner_dim=24,learning-rate-scale=2"], output=tmp_path)
    assert call(ablate.main, arguments, monkeypatch) == 0
    told = capfd.readouterr().out
    assert "run 2 of 2: inner_dim=24,learning_rate_scale=2-seed1; 1 finished, 1 left" in told
    assert "| baseline | " in told and "valid BLEU" in told and "test BLEU" not in told

    found = json.loads((tmp_path / "ablation.json").read_text())
    baseline, changed = found["rows"]
    assert (baseline["model"], baseline["training"]) == ({}, {})
    assert (changed["model"], changed["training"]) == (
        {"inner_dim": 24},
        {"learning_rate_scale": 2.0},
    )
    assert found["split"] == "valid" and len(changed["against_baseline"]) == 1
    config = json.loads(
        (tmp_path / "runs/inner_dim=24,learning_rate_scale=2-seed1/config.json").read_text()
    )
    assert config["model"]["inner_dim"] == 24
    assert config["training"]["learning_rate_scale"] == 2.0

    arguments[arguments.index("--changes") + 1] = "learning_rate_scale=2.0,inner_dim=24"
    assert call(ablate.main, arguments, monkeypatch) == 0
    assert "run 1 of" not in capfd.readouterr().out  # nothing is trained twice


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: --changes; see"),
        (["--changes"], "changes must have values, got none"),
        (["--changes", "dropout"], "changes: dropout: must be name=value"),
        (["--changes", "dropout="], "changes: dropout=: must be name=value"),
        (["--changes", "dropout=0.2,,"], "argument --dropout: invalid float value: '0.2,,'"),
        (["--changes", "dropout=x"], "changes: dropout=x: argument --dropout: invalid float"),
        (["--changes", "dropout=1.5"], "changes: dropout=1.5: `dropout` must be a number"),
        (["--changes", "r_drop=5"], "changes: r_drop=5: r_drop needs dropout, which is 0"),
        (["--changes", "dropout=0.0"], "changes: dropout=0.0: must differ from the baseline"),
        (["--changes", "attention_window=none"], "none: must differ from the baseline"),
        (
            ["--attention_window", "3", "--changes", "attention_window=none", "steps=x"],
            "changes: steps=x: argument --steps: invalid int value: 'x'",
        ),
        (["--changes", "steps=2", "steps=02"], "changes: steps=02: the row is there already"),
        (["--changes", "steps=2,steps=3"], "changes: steps=2,steps=3: steps stands there twice"),
        (["--changes", "seed=2"], "changes: seed=2: seed is no flag that a row may change"),
        (["--changes", "config=x"], "config is no flag that a row may change"),
        (["--changes", "virtual_cpus=2"], "virtual_cpus is no flag that a row may change"),
        (["--changes", "pad_id=5"], "pad_id is no flag that a row may change"),
        (["--changes", "log_every=3"], "log_every is no flag that a row may change"),
        (
            ["--position", "none", "--changes", "max_relative_position=4"],
            "max_relative_position=4: --max_relative_position must not be given with --position",
        ),
        (["--changes", "freeze=x"], "changes: freeze=x: freeze must"),
        (["--changes", "steps=2,freeze=encoder,x"], "changes: steps=2,freeze=encoder,x: freeze"),
        (["--changes", "num_heads=3"], "changes: num_heads=3: `num_heads`"),
        (["--changes", "steps=2", "--seed", "3"], "--seed must not be given"),
        (["--changes", "steps=2", "--seeds", "0"], "seeds must be at least 1, got 0"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, refusal, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(ablate.main, arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "change, message",
    [
        ("tokens_per_step=100", "tokens_per_step must be 0 or at least tokens_per_replica, 256"),
        ("tokens_per_replica=99999", "the corpus is too small for the batch"),
    ],
)
def test_what_cannot_be_trained_is_told_before_the_baseline(
    corpus, tmp_path, monkeypatch, capfd, change, message
):
    arguments = train_flags(corpus, None, **SMALL, export_dir=None)
    arguments += flags(changes=[change], output=tmp_path)
    assert call(ablate.main, arguments, monkeypatch) == 2
    output, errors = capfd.readouterr()
    assert message in errors and "run 1 of" not in output


def test_text_to_validate_on_is_needed(corpus, tmp_path, refusal):
    arguments = train_flags(corpus, None, splits=["train", "test"], export_dir=None)
    arguments += flags(changes=["steps=3"], output=tmp_path / "out")
    told = refusal(ablate.main, arguments)
    assert told.startswith("a table needs text to score on: --valid_source")
    assert not (tmp_path / "out").exists()
