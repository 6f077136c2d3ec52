"""The run directory: its configuration, other flags, records, and what a killed process left."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.config import default_config
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from tests.support.refusals import refused
from tests.support.runs import open_run, provenance, small_model

pytestmark = pytest.mark.tensorflow_only


def config(**training):
    default = default_config("tiny", demo=True)
    return dataclasses.replace(default, training=dataclasses.replace(default.training, **training))


def test_what_a_killed_process_leaves_is_not_a_checkpoint(run):
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    half = run.checkpoints.path / ".step-00000002.0123abcd.incomplete"
    half.mkdir()
    (half / "model.weights.h5").write_bytes(b"half")
    assert run.checkpoints.steps() == [1]
    assert run.checkpoints.restore(*small_model()).step == 1
    with run.locked():
        assert not half.exists()


def reopened(run, **training):
    return open_run(run.path, provenance(config(**training)))


def test_configuration_is_kept(run):
    assert reopened(run, seed=7).config() == config(seed=7)
    reopened(run, seed=7)


def test_resuming_with_another_configuration_names_the_field(tmp_path):
    run = open_run(tmp_path / "run", provenance(config(seed=7, cooldown=0.0)))
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    message = "run_dir .*run was started with seed 7, not 8: choose another --run_dir or the same"
    with refused(message):
        reopened(run, seed=8, cooldown=0.0)
    assert run.config().training.seed == 7
    reopened(run, seed=7, cooldown=0.0, steps=99_999, log_every=1)
    assert run.config().training.steps == 99_999


def test_what_is_refused_changes_nothing(run):
    """Not even a field that may change otherwise."""
    run = reopened(run, seed=7)
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    with refused("whose arrays differs"):
        open_run(run.path, provenance(config(seed=7, log_every=1), arrays="other"))
    assert run.config() == config(seed=7)


def test_what_helps_after_a_loss_that_is_not_finite_may_change(run):
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    changed = {"clip_norm": 1.0, "skip_non_finite": True, "learning_rate_scale": 0.5}
    reopened(run, **changed)
    run.load_weights(small_model()[0])
    assert run.config() == config(**changed)


def test_before_the_first_checkpoint_flags_may_change(run):
    reopened(run, seed=7)
    assert reopened(run, seed=8).config().training.seed == 8


def test_the_checkpoint_that_is_used_where_none_is_asked_for(run):
    """The same one after training, in every command line, and to start another run from."""
    model, optimizer = small_model()
    assert run.choose() == "last"  # whose absence is told when it is loaded
    run.checkpoints.save(model, optimizer, RunState(1), keep=9)
    assert run.choose() == "last"
    best = {"step": 1, "bleu": 9.5}
    run.checkpoints.save(model, optimizer, RunState(2, best), keep=9)
    assert run.choose() == "best"
    run = reopened(run, average_checkpoints=2)
    assert run.choose() == "best"  # it has not come to its end
    run.checkpoints.average(model, 2)
    assert run.choose() == "average"
    assert reopened(run, average_checkpoints=1).choose() == "best"
    run = reopened(run, average_checkpoints=2)
    run.checkpoints.save(model, optimizer, RunState(3, best), keep=9)
    assert run.choose() == "best"  # training has gone on


def test_reading_makes_no_checkpoints_and_no_history(run):
    """They say what a run is trained with, which only `LockedRun.open` knows."""
    reader = RunDirectory(run.path)
    for name in ("add_history", "rewind_history", "provenance"):
        assert hasattr(run, name) and not hasattr(reader, name)
    for name in ("save", "restore", "average"):
        assert hasattr(run.checkpoints, name) and not hasattr(reader.checkpoints, name)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is not a run directory: no config.json"),
        ("{", "config.json cannot be read: "),
        ("[]", "config.json cannot be read: "),
        ('{"preset": "tiny"}', "is not a run directory: its config.json has no model"),
        ('{"preset": 1, "model": {"heads": 3}}', "config.json cannot be read: .*heads"),
    ],
)
def test_unreadable_configurations_are_told(run, content, message):
    run.config_path.unlink()
    if content is not None:
        run.config_path.write_text(content)
    with refused(message):
        run.config()


def test_impossible_places_are_told(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with refused("there is no run directory .*run"):
        run.config()
    run.path.write_text("a file")
    for path in (run.path, run.path / "below"):
        with (
            refused(f"cannot write to run_dir {path}: "),
            RunDirectory(path).locked(),
        ):
            pass
    (tmp_path / "odd" / "checkpoints").mkdir(parents=True)
    with refused("has checkpoints, but no config.json"):
        open_run(tmp_path / "odd")


def test_history_is_rewound_to_the_checkpoint(run):
    for step in (1, 2, 3):
        run.add_history({"step": step, "loss": step / 2})
    with run.history_path.open("a") as file:
        file.write('{"step": 1, "lo')  # cut short when the process was killed
    run.rewind_history(2)
    lines = run.history_path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_scores_are_appended_once(run):
    for bleu in (1.5, 2.5, 1.5):
        run.add_score({"bleu": bleu, "split": "täst"})
    scores = json.loads(run.scores_path.read_text(encoding="utf-8"))
    assert [score["bleu"] for score in scores] == [2.5, 1.5]  # the last is the last
    assert scores[0]["split"] == "täst"


def test_no_score_is_lost_when_several_are_added_at_once(run):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda bleu: run.add_score({"bleu": bleu}), range(100)))
    assert sorted(score["bleu"] for score in run.scores()) == list(range(100))


@pytest.mark.parametrize("name", ["tokenizer.model", "config.toml"])
def test_a_file_of_somebody_is_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("somebody's own")
    with refused(f"has a {name}, .*: choose another --run_dir"):
        open_run(tmp_path)
    assert (tmp_path / name).read_text() == "somebody's own"


def test_flags_that_another_run_has_written_may_be_replaced(run, tmp_path):
    run.write_flags(None)
    copy = tmp_path / "other" / "config.toml"
    copy.parent.mkdir()
    copy.write_bytes(run.flags_path.read_bytes())
    open_run(copy.parent).write_flags("prepared")
    assert 'prepared = "prepared"' in copy.read_text()
