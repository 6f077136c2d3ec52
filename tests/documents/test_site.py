"""The site builds without a warning and has an entry for each public name."""

import os
import re
import subprocess
import sys

import pytest

import tf_relpos
from tests.support.documents import PAGES, read
from tests.support.runs import ROOT

pytestmark = pytest.mark.tensorflow_only  # nothing here depends on the backend: once is enough


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml", "-d", str(directory)]
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return directory


@pytest.mark.parametrize("public", tf_relpos.__all__)
def test_every_public_name(site, public):
    page = (site / "api" / f"{public}.html").read_text(encoding="utf-8")
    assert re.search(rf'id="tf_relpos\.\w+\.{public}"', page)
    # The first line of the docstring, in plain letters: some of it may be formatted.
    words = re.findall(r"[A-Za-z]{4,}", getattr(tf_relpos, public).__doc__.splitlines()[0])
    assert all(word in page for word in words)
    assert f"({public}.md)" in read(PAGES / "api" / "index.md")


def test_sections_of_docstrings(site):
    """What Google's style does not know is readable as well."""
    page = (site / "api" / "RelativeMultiHeadAttention.html").read_text(encoding="utf-8")
    assert "<strong>Call arguments:</strong>" in page
    assert "<strong><code>cache_update_index</code></strong>" in page
    page = (site / "api" / "greedy_search.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in page for name in ("model", "source_ids", "max_length"))


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = (
        r"""<(?:script|img)[^>]*src="https?:|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*http"""
    )
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    assert [page for page in pages if re.search(loaded, page.read_text(encoding="utf-8"))] == []


def test_the_picture_is_what_the_script_draws():
    result = subprocess.run(
        [sys.executable, "docs/draw_figure.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert result.stdout == (PAGES / "images" / "relative-positions.svg").read_bytes()
