"""Which code computed a score: that which ran, whatever repository its user stands in."""

import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from tests.support.runs import ROOT

CODE = "from pipelines.run.provenance import code_version; print(code_version())"
GIT = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]


def git(directory, *arguments):
    result = subprocess.run(
        [*GIT, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def version_of(code, standing_in):
    """What the copy of the code in a directory says of itself."""
    # As below a hook of the user's repository.
    environment = {**os.environ, "GIT_DIR": str(standing_in / ".git")}
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=standing_in,
        env={**environment, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=True,
    )
    return eval(result.stdout)


@pytest.fixture
def places(tmp_path):
    """A copy of the code, and the user's own repository."""
    for name in ("pipelines", "tf_relpos"):
        shutil.copytree(
            ROOT / name, tmp_path / "code" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_text("the user's")
    git(tmp_path / "project", "init", "-q")
    git(tmp_path / "project", "add", ".")
    git(tmp_path / "project", "commit", "-qm", "mine")
    return tmp_path / "code", tmp_path / "project"


def test_of_a_checkout_it_is_the_commit_and_whether_files_have_been_changed(places):
    code, project = places
    git(code, "init", "-q")
    git(code, "add", ".")
    git(code, "commit", "-qm", "code")
    commit = git(code, "rev-parse", "--short", "HEAD")
    assert version_of(code, project)["commit"] == commit
    (code / "notes.txt").write_text("no part of the code")
    assert version_of(code, project)["commit"] == commit
    with (code / "pipelines" / "errors.py").open("a") as file:
        file.write("# changed\n")
    assert version_of(code, project)["commit"] == f"{commit}-dirty"


def test_of_an_installed_package_it_is_the_version(places):
    """Also where it is installed below the user's repository, as in its .venv."""
    code, project = places
    shutil.copytree(code, project / "site-packages")
    for where in (code, project / "site-packages"):
        found = version_of(where, project)
        assert found == {"commit": None, "version": metadata.version("tf_relpos")}
