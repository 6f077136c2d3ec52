"""Damaged, full, exchanged or contested run directories: told in a line, nothing good is lost."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines import evaluate, train_wmt
from pipelines.command_line import show_log
from pipelines.config import RunConfig
from pipelines.data.dataset import TokenizedCorpus
from pipelines.exporters.versions import new_version
from pipelines.files import checksums
from pipelines.files.checksums import sha256
from pipelines.run.checkpoints import RunState
from pipelines.run.directory import RunDirectory
from pipelines.training.history import write_events
from tests.support.full_disk import largest_files
from tests.support.refusals import message_of, refused
from tests.support.runs import (
    ENVIRONMENT,
    MODEL,
    call,
    command,
    content_of,
    flags,
    history,
    open_run,
    provenance,
    run_process,
    small_model,
    train_flags,
)

pytestmark = pytest.mark.tensorflow_only

FILES = ["model.weights.h5", "optimizer.npz", "state.json", "SHA256SUMS"]


@pytest.fixture(autouse=True)
def _as_command_lines_show_it(_log_as_it_was):
    show_log()


@pytest.fixture(scope="module")
def trained():
    return small_model()


@pytest.fixture
def run(tmp_path, trained):
    """A run with the checkpoints of steps 1 and 2, each with all weights equal to its step."""
    run = open_run(tmp_path / "run")
    for step in (1, 2):
        save(run, trained, step)
    return run


def save(run, trained, step, keep=9):
    model, optimizer = trained
    model.set_weights([np.full(w.shape, step, "float32") for w in model.weights])
    run.checkpoints.save(model, optimizer, RunState(step, {"step": 1, "bleu": 3.5}), keep=keep)


def damage(path, how):
    content = path.read_bytes()
    middle = len(content) // 2
    if how == "gone":
        path.unlink()
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "empty": b"", "a bit": flipped}[how])


def one_line(text):
    assert len(text.splitlines()) == 1, text
    return text


# Damaged checkpoints


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["gone", "cut", "empty", "a bit"])
def test_the_newest_good_checkpoint_is_resumed_from(run, trained, capfd, name, how):
    damage(run.checkpoints.path / "step-00000002" / name, how)
    capfd.readouterr()
    assert run.checkpoints.restore(*trained).step == 1
    assert all(np.all(w == 1) for w in trained[0].get_weights())
    told = one_line(capfd.readouterr().err)
    assert re.search(r"step-00000002/\S+ .*: set aside as step-00000002.damaged", told)
    assert run.checkpoints.steps() == [1]
    save(run, trained, 2)
    assert run.checkpoints.restore(*trained).step == 2


@pytest.mark.parametrize("name", FILES[:3])
def test_without_a_good_checkpoint_the_run_stops_and_all_stays(run, trained, name):
    for step in (1, 2):
        damage(run.checkpoints.path / f"step-0000000{step}" / name, "cut")
    before = content_of(run.path)
    message = f"no checkpoint that is not damaged: .*step-00000002/{name} is damaged"
    with refused(message):
        run.checkpoints.restore(*trained)
    assert content_of(run.path) == before


@pytest.mark.parametrize("name", ["model.weights.h5", "state.json", "SHA256SUMS"])
@pytest.mark.parametrize("checkpoint", ["last", "best", "average"])
def test_weights_that_were_asked_for_are_not_replaced_by_others(run, trained, name, checkpoint):
    run.checkpoints.average(trained[0], 2)
    where = {"last": "step-00000002", "best": "step-00000001", "average": "average"}[checkpoint]
    damage(run.checkpoints.path / where / name, "empty")
    before = content_of(run.path)
    with refused(f"{where}/{name} is damaged"):
        run.checkpoints.load(trained[0], checkpoint)
    assert content_of(run.path) == before


def test_a_damaged_checkpoint_is_not_averaged(run, trained):
    damage(run.checkpoints.path / "step-00000001" / "model.weights.h5", "a bit")
    with refused("step-00000001/model.weights.h5 is damaged"):
        run.checkpoints.average(trained[0], 2)
    assert not run.checkpoints.average_path.exists()


class Malice:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (os.mkdir, (str(self.trace),))


def test_no_file_of_a_checkpoint_can_execute_code(run, trained, tmp_path):
    directory, trace = run.checkpoints.path / "step-00000002", tmp_path / "trace"
    malice = np.array([Malice(trace)], dtype=object)
    for name, read in (
        ("optimizer.npz", lambda: run.checkpoints.restore(*trained)),
        ("model.weights.h5", lambda: run.checkpoints.load(trained[0])),
        ("state.json", lambda: run.checkpoints.load(trained[0])),
    ):
        intact = content_of(directory)
        if name == "optimizer.npz":
            variables = {str(i): malice for i in range(len(trained[1].variables))}
            np.savez(directory / name, **variables)
        else:
            (directory / name).write_bytes(pickle.dumps(malice))
        sums = (directory / "SHA256SUMS").read_text().splitlines(keepends=True)
        sums = [s for s in sums if name not in s] + [f"{sha256(directory / name)}  {name}\n"]
        (directory / "SHA256SUMS").write_text("".join(sums))
        with refused(f"{name} cannot be read: "):
            read()
        for file, content in intact.items():
            (directory / file).write_bytes(content)
    assert not trace.exists()


def test_no_array_of_a_corpus_can_execute_code(corpus, tmp_path, monkeypatch, capfd):
    prepared, trace = tmp_path / "run" / "prepared" / "train", tmp_path / "trace"
    assert call(train_wmt.main, train_flags(corpus, tmp_path / "run", steps=1), monkeypatch) == 0
    assert len(TokenizedCorpus.open(prepared)) == 2000
    np.save(prepared / "pairs.npy", np.array([Malice(trace)] * 2000, dtype=object))
    with refused("no tokenized corpus can be read"):
        TokenizedCorpus.open(prepared)
    assert not trace.exists()


def test_what_is_damaged_is_kept_each_time(run, trained):
    for _ in range(3):
        damage(run.checkpoints.path / "step-00000002" / FILES[0], "a bit")
        assert run.checkpoints.restore(*trained).step == 1
        save(run, trained, 2)
    aside = sorted(path.name for path in run.checkpoints.path.glob("*.damaged*"))
    assert aside == [f"step-00000002.damaged{n}" for n in ("", ".2", ".3")]


def test_a_file_that_cannot_be_read_is_not_damaged(run, trained):
    """A fault that may pass: the run stops, and goes on from there when it has."""
    path = run.checkpoints.path / "step-00000002" / FILES[0]
    path.rename(run.path / "elsewhere")
    path.mkdir()
    with refused(f"{path} cannot be read: Is a directory"):
        run.checkpoints.restore(*trained)
    path.rmdir()
    (run.path / "elsewhere").rename(path)
    assert run.checkpoints.restore(*trained).step == 2


def test_a_lost_best_checkpoint_is_told(run, trained):
    shutil.rmtree(run.checkpoints.path / "step-00000001")
    told = "has lost .*step-00000001, the best checkpoint by its best.json"
    with refused(told):
        run.checkpoints.load(trained[0], "best")


@pytest.mark.parametrize("text", ["", "[1]", '{"step": true}', '{"step": -40, "bleu": 1}'])
def test_a_damaged_best_json_is_told_with_the_remedy(run, text):
    run.checkpoints.best_path.write_text(text)
    with refused("best.json cannot be read: .*: train on, which writes"):
        run.choose()


@pytest.mark.parametrize("text", ["[1,2", "{}", '[1, "x"]'])
def test_damaged_scores_are_told_with_the_remedy(run, text):
    run.scores_path.write_text(text)
    with refused("scores.json cannot be read: .*: correct it or remove it"):
        run.scores()


def test_a_run_directory_that_is_a_link_to_nothing_is_told(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    told = "run_dir .*link is a link to nowhere, which does not exist"
    with refused(told), RunDirectory(tmp_path / "link").locked():
        pass


# Damaged, edited, exchanged files beside them


def test_an_edited_configuration_is_told_and_made_again(run, trained, capfd):
    before = run.config_path.read_text()
    edited = json.loads(before)
    edited["training"]["beta_2"] = 0.5
    run.config_path.write_text(json.dumps(edited))
    message = "config.json has been changed: .* trained with beta_2 0.98, not 0.5"
    with refused(message):
        run.load_weights(trained[0])
    with refused("run_dir .* was started with beta_2 0.98, not 0.5"):
        open_run(run.path, provenance(RunConfig.from_dict(edited)))
    assert json.loads(run.config_path.read_text()) == edited
    capfd.readouterr()
    open_run(run.path)
    assert "config.json has been changed: written again" in one_line(capfd.readouterr().err)
    assert run.config_path.read_text() == before
    run.load_weights(trained[0])


@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_lost_configuration_is_told(run, how):
    damage(run.config_path, how)
    before = content_of(run.path)
    with refused("config.json"):
        open_run(run.path)
    assert content_of(run.path) == before


@pytest.mark.parametrize("content", ["", "[1", "[]", '{"step": "two"}', "\0\0\0"])
def test_a_damaged_best_json_is_told_and_made_again(run, trained, content, capfd):
    run.checkpoints.best_path.write_text(content)
    with refused("best.json cannot be read"):
        run.checkpoints.load(trained[0], "best")
    capfd.readouterr()
    run.checkpoints.restore(*trained)
    assert "best.json cannot be read" in one_line(capfd.readouterr().err)
    assert run.checkpoints.best() == {"step": 1, "bleu": 3.5}


@pytest.mark.parametrize("content", [b"[{", b"{}", b"\xff\0"])
def test_damaged_scores_are_told_before_training_and_stay(run, content):
    run.scores_path.write_bytes(content)
    for write in (
        lambda: open_run(run.path),
        lambda: run.add_score({"bleu": 1.0}),
    ):
        with refused("scores.json cannot be read"):
            write()
    assert run.scores_path.read_bytes() == content


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"step": "x"}', b"\xff\0", b""])
def test_a_damaged_history_is_told_and_stays(run, line):
    run.add_history({"step": 1})
    with run.history_path.open("ab") as file:
        file.write(line + b"\n")
    before = run.history_path.read_bytes()
    with refused("history.jsonl is damaged: line 2 "):
        run.rewind_history(5)
    assert run.history_path.read_bytes() == before


@pytest.mark.parametrize("name", ["tokenizer", "arrays"])
def test_other_data_is_refused(run, name):
    before = content_of(run.path)
    message = f"run_dir .*run was trained with another .* corpus, whose {name} differs: choose"
    with refused(message):
        open_run(run.path, provenance(**{name: "other"}))
    assert content_of(run.path) == before


def test_devices_that_compute_otherwise_are_refused(tmp_path, trained):
    run = open_run(tmp_path / "run", provenance(replicas=2))
    save(run, trained, 3)
    open_run(run.path, provenance(replicas=2))
    with refused("was trained on 2 replicas, not 3: choose another"):
        open_run(run.path, provenance(replicas=3))
    message = "was trained in precision float32, and here it would be mixed_bfloat16: .* float32"
    with refused(message):
        open_run(run.path, provenance(replicas=2, precision="mixed_bfloat16"))


@pytest.mark.parametrize("own", [True, False], ids=["the run's own", "--prepared"])
def test_an_array_with_a_flipped_bit_is_not_trained_on(own, corpus, tmp_path, monkeypatch, refusal):
    run, prepared = tmp_path / "run", tmp_path / "run" / "prepared"
    settings = {"splits": ["train"], "tokens_per_replica": 256}
    assert call(train_wmt.main, train_flags(corpus, run, **settings, steps=1), monkeypatch) == 0
    if not own:
        prepared = shutil.copytree(prepared, tmp_path / "prepared")
    damage(prepared / "train" / "source_ids.npy", "a bit")
    arguments = train_flags(corpus, run, **settings, steps=2)
    if not own:
        model = {**MODEL, "vocabulary_size": None}
        arguments = flags(**model, prepared=prepared, run_dir=tmp_path / "other", steps=2)
    told = refusal(train_wmt.main, arguments)
    assert told == f"{prepared}/train/source_ids.npy is damaged: its checksum does not match"


def test_an_exchanged_tokenizer_is_not_translated_with(run, trained):
    run.tokenizer_path.write_text("other")
    with refused("tokenizer.model is not what the checkpoints were"):
        run.load_weights(trained[0])
    run.tokenizer_path.unlink()
    with refused("tokenizer.model is not what the checkpoints were"):
        run.load_weights(trained[0])


# A full disk


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_that_does_not_fit_leaves_nothing(run, trained, name, capfd):
    """Whichever is the largest file that fits."""
    run.checkpoints.average(trained[0], 2)
    size = (run.checkpoints.path / "step-00000002" / name).stat().st_size
    largest = max(path.stat().st_size for path in run.checkpoints.path.rglob("*"))
    size = min(size, largest - 1)
    before = content_of(run.path)
    capfd.readouterr()
    with largest_files(size), refused("cannot write .*File too large"):
        save(run, trained, 3, keep=1)
    with largest_files(0), refused("cannot write .*average: "):
        run.checkpoints.average(trained[0], 2)
    assert content_of(run.path) == before
    assert capfd.readouterr().err == ""
    save(run, trained, 3, keep=1)
    assert run.checkpoints.restore(*trained).step == 3


def test_records_that_do_not_fit_stay_as_they_were(run, trained):
    run.add_score({"bleu": 1.0})
    before = content_of(run.path)
    with largest_files(0):
        for write in (
            lambda: run.add_score({"bleu": 2.0}),
            lambda: run.add_history({"step": 3}),
            lambda: open_run(run.path),
        ):
            with refused("cannot write .*run.*: File too large"):
                write()
    run.history_path.unlink()  # made, but empty
    assert content_of(run.path) == before


def test_events_that_do_not_fit_are_told(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    write_events(writer, {"step": 1, "loss": 1.0})
    with largest_files(200), refused("events for TensorBoard: .*too large"):
        for step in range(10):
            write_events(writer, {"step": step, "loss": 1.0})


def test_an_export_that_does_not_fit_leaves_nothing(tmp_path):
    module = tf.Module()
    module.variable = tf.Variable(np.zeros(1000, "float32"))
    with (
        largest_files(1000),
        refused("cannot write .*/1: .*File too large"),
        new_version(tmp_path) as (path, _),
    ):
        tf.saved_model.save(module, str(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # so does one that is interrupted
def test_a_run_goes_on_when_there_is_room_again(corpus, tmp_path):
    """The process as a user sees it."""
    run = RunDirectory(tmp_path / "run")
    settings = {"splits": ["train"], "tokens_per_replica": 256, "checkpoint_every": 2}
    arguments = train_flags(corpus, run.path, **settings, steps=2)
    assert train(arguments).returncode == 0
    before = content_of(run.checkpoints.path)
    arguments = train_flags(corpus, run.path, **settings, steps=5, log_every=1)
    result = train(arguments, kilobytes=260)  # optimizer.npz is larger, alone
    told = message_of(result.returncode, result.stderr)
    assert re.fullmatch(r"cannot write \S*step-00000004: File too large", told)
    assert content_of(run.checkpoints.path) == before
    result = train(arguments)
    assert result.returncode == 0, result.stderr
    assert "resumed at step 2" in result.stdout
    assert [record["step"] for record in history(run.path)] == [2, 3, 4, 5]


def train(arguments, kilobytes="unlimited"):
    """Runs the command line with a limit on the size of files."""
    limited = ["bash", "-c", f'ulimit -f {kilobytes} && exec "$@"', "bash"]
    return run_process([*limited, *command("train_wmt", arguments)])


# Several processes


HOLDER = """
import sys
from pipelines.run.directory import RunDirectory
with RunDirectory(sys.argv[1]).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_of_two_runs_in_one_directory_the_second_is_told(run, trained, corpus, refusal):
    arguments = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(
        arguments,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        before = content_of(run.path)
        told = refusal(train_wmt.main, train_flags(corpus, run.path))
        assert told.startswith(f"{run.path} is in use by process {holder.pid} on ")
        assert content_of(run.path) == before
        assert run.checkpoints.load(trained[0]) == 2  # reading needs no lock
        holder.send_signal(signal.SIGKILL)
    with run.locked():  # a lock dies with its process
        pass


def test_reading_is_safe_while_old_checkpoints_go(run, trained):
    reader, ended = small_model()[0], threading.Event()

    def write():
        for step in range(3, 40):
            save(run, trained, step, keep=1)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    steps = []
    while not ended.is_set():
        steps.append(run.checkpoints.load(reader))
        assert all(np.all(w == steps[-1]) for w in reader.get_weights())
    writer.join()
    assert steps == sorted(steps) and len(set(steps)) > 1


@pytest.mark.parametrize("name", ["SHA256SUMS", "state.json", "model.weights.h5"])
def test_a_checkpoint_may_go_while_it_is_read(run, trained, name, monkeypatch):
    """At the moment before one of its files is opened, because there is a newer one."""
    model, old = trained[0], run.checkpoints.path / "step-00000002"
    newer = iter([3])

    def going_before(read):
        def read_what_is_left(path):
            if path == old / name:
                for step in newer:  # once, as saving reads it as well
                    save(run, trained, step, keep=1)
            return read(path)

        return read_what_is_left

    for owner, function in (
        (Path, "read_bytes"),
        (checksums, "_checksums"),
        (model, "load_weights"),
    ):
        monkeypatch.setattr(owner, function, going_before(getattr(owner, function)))
    assert run.checkpoints.load(model) == 3
    assert not old.exists()
    assert all(np.all(w == 3) for w in model.get_weights())


# Command lines


def test_commands_name_the_damaged_file(corpus, trained_run, tmp_path, refusal):
    copy = RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))
    damage(copy.checkpoints.average_path / FILES[0], "cut")
    arguments = flags(run_dir=copy.path, source=corpus / "test.en", reference=corpus / "test.de")
    assert re.match(r"\S+/model.weights.h5 is damaged: ", refusal(evaluate.main, arguments))
