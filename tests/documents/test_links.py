"""Links of the documents lead somewhere in the tree, and files that they name are there."""

import re

import pytest

from tests.support.documents import DOCUMENTS, HOW_TO, anchors, name, read
from tests.support.runs import ROOT

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links(path):
    text = re.sub(r"^```.*?^```", "", read(path), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_files_that_are_named(path):
    for file in re.findall(r"`((?:pipelines|tests|docs|tf_relpos)/[\w./-]+\.\w+)`", read(path)):
        assert (ROOT / file).exists(), file


def test_readme_leads_to_every_page():
    readme = read(ROOT / "README.md")
    pages = [name(path) for path in HOW_TO if path.name != "index.md"]
    assert len(pages) >= 7
    assert [page for page in pages if f"({page})" not in readme] == []
