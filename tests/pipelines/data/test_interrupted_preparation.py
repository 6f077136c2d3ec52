"""Preparation that is killed or lacks room: the same command makes the same arrays afterwards."""

import contextlib
import subprocess
import time
from pathlib import Path

import pytest

from pipelines import prepare
from pipelines.corpora.text_files import TextFileCorpus
from pipelines.data.preparation import open_prepared
from pipelines.data.preparation import prepare as prepare_corpus
from tests.support.full_disk import largest_files
from tests.support.refusals import refused
from tests.support.runs import ENVIRONMENT, ROOT, call, command, content_of, flags, write_pairs

pytestmark = pytest.mark.tensorflow_only

PAIRS, SETTINGS = 60_000, {"vocabulary_size": 288, "max_length": 20, "num_shapes": 3}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    place = tmp_path_factory.mktemp("text")
    write_pairs(place, "train", PAIRS, seed=0)
    write_pairs(place, "valid", 50, seed=1)
    return {
        f"{split}_{side}": place / f"{split}.{language}"
        for split in ("train", "valid")
        for side, language in (("source", "en"), ("target", "de"))
    }


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """What an undisturbed preparation makes."""
    directory = tmp_path_factory.mktemp("undisturbed")
    prepare_corpus(TextFileCorpus(**text), directory, **SETTINGS)
    return contents(directory)


def contents(directory):
    """All files but the lock, which a killed process leaves."""
    files = content_of(directory)
    return {name: files[name] for name in files if Path(name).name != "lock"}


def start(text, directory):
    return subprocess.Popen(
        command("prepare", flags(**text, **SETTINGS, output=directory)),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def check_the_same_command(text, directory, expected, monkeypatch):
    arguments = flags(**text, **SETTINGS, output=directory)
    assert call(prepare.main, arguments, monkeypatch) == 0
    assert contents(directory) == expected


@pytest.mark.parametrize(
    "reached",
    [
        "..prepared.*.incomplete/valid.target",
        "..prepared.*.incomplete/.train.*.incomplete/source_ids.npy",
    ],
    ids=["learning", "writing"],
)
def test_killed(reached, text, expected, tmp_path, monkeypatch):
    process = start(text, tmp_path)
    while not list(tmp_path.glob(reached)):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert not (tmp_path / "train").exists()
    with refused("no tokenized corpus can be read"):
        open_prepared(tmp_path)
    check_the_same_command(text, tmp_path, expected, monkeypatch)


@pytest.mark.slow
def test_killed_at_any_moment(text, expected, tmp_path, monkeypatch):
    process, began = start(text, tmp_path / "whole"), time.monotonic()
    assert process.wait() == 0
    seconds = time.monotonic() - began
    for part in range(1, 16):
        directory = tmp_path / str(part)
        process = start(text, directory)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds * part / 15)
        process.kill()
        process.wait()
        if (directory / "train").exists():
            assert contents(directory) == expected
        check_the_same_command(text, directory, expected, monkeypatch)


@pytest.mark.parametrize(
    "size", [100, 20_000, 300_000], ids=["held-out text", "subwords", "arrays"]
)
def test_a_full_disk(size, text, expected, tmp_path):
    corpus = TextFileCorpus(**text)
    told = rf"^cannot write {tmp_path}/[\w./]+: File too large$"
    with largest_files(size), refused(told):
        prepare_corpus(corpus, tmp_path, **SETTINGS)
    assert not list(tmp_path.glob("*train*")) and not list(tmp_path.glob("*incomplete*"))
    prepare_corpus(corpus, tmp_path, **SETTINGS)
    assert contents(tmp_path) == expected
