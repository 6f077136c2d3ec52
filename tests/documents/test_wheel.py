"""A wheel holds the two packages and nothing else, and works without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from pipelines.commands import COMMANDS
from tests.support.documents import copied_by
from tests.support.refusals import message_of
from tests.support.runs import ROOT, run_process

pytestmark = pytest.mark.tensorflow_only  # nothing here depends on the backend: once is enough
TRAIN = ROOT / "docs" / "docker" / "train.Dockerfile"
PACKAGES = ("tf_relpos", "pipelines")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from what the Dockerfile copies, and tests, which must not get into it.

    A `build` directory of the checkout would bring removed files back.
    """
    directory = tmp_path_factory.mktemp("wheel")
    (directory / "source").mkdir()
    for name in (*copied_by(TRAIN), "tests"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, directory / "source" / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, directory / "source")
    pip = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(directory)]
    subprocess.run([sys.executable, "-m", *pip, str(directory / "source")], check=True)
    return next(directory.glob("*.whl"))


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    info = {name for name in names if ".dist-info/" in name}
    assert any(name.endswith("/LICENSE") for name in info)
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert "pipelines/corpora/demo/grammar.py" in modules
    assert names - info == modules | {f"{package}/py.typed" for package in PACKAGES}


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """The wheel installed where no checkout is, its console commands in `bin`."""
    site = tmp_path_factory.mktemp("site")
    pip = ["pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *pip], check=True)
    return site


def run_elsewhere(command, site, directory):
    return run_process(command, cwd=directory, env={**os.environ, "PYTHONPATH": str(site)})


def test_works_elsewhere(site, tmp_path):
    code = (
        "import runpy, sys, tf_relpos, pipelines\n"
        f"assert all(m.__file__.startswith({str(site)!r}) for m in (tf_relpos, pipelines))\n"
        "sys.argv = ['train_wmt', '--help']\n"
        "runpy.run_module('pipelines.train_wmt', run_name='__main__')"
    )
    result = run_elsewhere([sys.executable, "-c", code], site, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "--max_relative_position" in result.stdout


def test_console_commands(site, tmp_path):
    """One for each command line; each speaks of itself as it was called."""
    programs = {path.name for path in (site / "bin").iterdir()}
    assert programs == {
        f"tf-relpos-{name.removesuffix('_wmt').replace('_', '-')}" for name in COMMANDS
    }
    for program in programs:
        result = run_elsewhere([site / "bin" / program, "--help"], site, tmp_path)
        assert result.stdout.startswith(f"usage: {program} "), result.stderr
    result = run_elsewhere([site / "bin" / "tf-relpos-train", "--stepz", "3"], site, tmp_path)
    told = message_of(result.returncode, result.stderr)
    assert told == "unrecognized arguments: --stepz 3; see tf-relpos-train --help"


def test_console_commands_of_the_layers_alone_say_what_is_missing(site, tmp_path):
    code = (
        "import sys\n"
        "sys.modules['simple_parsing'] = None\n"
        "from pipelines.commands import train_wmt\n"
        "train_wmt()"
    )
    result = run_elsewhere([sys.executable, "-c", code], site, tmp_path)
    hint = "which this needs: pip install 'tf_relpos[pipelines]'"
    told = message_of(result.returncode, result.stderr)
    assert told == f"simple_parsing is not installed, {hint}"


def test_a_page_needs_a_checkout(site, tmp_path):
    export = ["--run_dir", "x", "--format", "web", "--output", "y"]
    result = run_elsewhere([site / "bin" / "tf-relpos-export", *export], site, tmp_path)
    told = message_of(result.returncode, result.stderr)
    assert told.startswith("format web needs a checkout")
