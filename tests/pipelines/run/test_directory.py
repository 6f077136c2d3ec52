"""The run directory: its configuration, other flags, records, and what a killed process left."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from tests.support.runs import small_model

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


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


def test_configuration_is_kept(run):
    run.start(config(seed=7))
    assert run.config() == config(seed=7)
    run.start(config(seed=7))


def test_resuming_with_another_configuration_names_the_field(run):
    run.start(config(seed=7))
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    message = "run_dir .*run was started with seed 7, not 8: choose another --run_dir or the same"
    with pytest.raises(InputError, match=message):
        run.start(config(seed=8))
    assert run.config().training.seed == 7
    run.start(config(seed=7, steps=99_999, log_every=1))
    assert run.config().training.steps == 99_999


def test_what_helps_after_a_loss_that_is_not_finite_may_change(run):
    run.start(config())
    run.checkpoints.save(*small_model(), RunState(1), keep=1)
    changed = config(clip_norm=1.0, skip_non_finite=True, learning_rate_scale=0.5)
    run.start(changed)
    run.check()
    assert run.config() == changed


def test_before_the_first_checkpoint_flags_may_change(run):
    run.start(config(seed=7))
    run.start(config(seed=8))
    assert run.config().training.seed == 8


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is not a run directory: no config.json"),
        ("{", "config.json cannot be read: "),
        ("[]", "config.json cannot be read: "),
        ('{"preset": "tiny"}', "config.json cannot be read: 'model'"),
        ('{"preset": 1, "model": {"heads": 3}}', "config.json cannot be read: .*heads"),
    ],
)
def test_unreadable_configurations_are_told(run, content, message):
    run.path.mkdir()
    if content is not None:
        run.config_path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        run.config()
    assert "\n" not in str(caught.value)


def test_impossible_places_are_told(run, tmp_path):
    with pytest.raises(InputError, match="there is no run directory .*run"):
        run.config()
    run.path.write_text("a file")
    for path in (run.path, run.path / "below"):
        with (
            pytest.raises(InputError, match=f"cannot write to run_dir {path}: "),
            RunDirectory(path).locked(),
        ):
            pass
    (tmp_path / "odd" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="has checkpoints, but no config.json"):
        RunDirectory(tmp_path / "odd").start(config())


def test_history_is_rewound_to_the_checkpoint(run):
    run.path.mkdir()
    for step in (1, 2, 3):
        run.add_history({"step": step, "loss": step / 2})
    with run.history_path.open("a") as file:
        file.write('{"step": 1, "lo')  # cut short when the process was killed
    run.rewind_history(2)
    lines = run.history_path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_scores_are_appended_once(run):
    run.path.mkdir()
    for bleu in (1.5, 2.5, 1.5):
        run.add_score({"bleu": bleu, "split": "täst"})
    scores = json.loads(run.scores_path.read_text(encoding="utf-8"))
    assert [score["bleu"] for score in scores] == [1.5, 2.5]
    assert scores[0]["split"] == "täst"


def test_no_score_is_lost_when_several_are_added_at_once(run):
    run.path.mkdir()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda bleu: run.add_score({"bleu": bleu}), range(100)))
    assert sorted(score["bleu"] for score in run.scores()) == list(range(100))
