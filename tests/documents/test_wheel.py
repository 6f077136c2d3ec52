"""A wheel holds the two packages and nothing else, and works without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.support.runs import ROOT

pytestmark = pytest.mark.tensorflow_only  # nothing here depends on the backend: once is enough
PACKAGES = ("tf_relpos", "pipelines")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: a `build` directory of the checkout would bring removed files back."""
    directory = tmp_path_factory.mktemp("wheel")
    for package in (*PACKAGES, "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, directory / "source" / package, ignore=ignored)
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, directory / "source")
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


def test_works_elsewhere(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import runpy, sys, tf_relpos, pipelines\n"
        f"assert all(m.__file__.startswith({str(site)!r}) for m in (tf_relpos, pipelines))\n"
        "sys.argv = ['train_wmt', '--help']\n"
        "runpy.run_module('pipelines.train_wmt', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "--max_relative_position" in result.stdout
