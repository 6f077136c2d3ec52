"""The tables in the documents are those of the committed results."""

import json

import pytest

from pipelines.reproduction.report import markdown
from tests.support.documents import PAGES, name, read
from tests.support.runs import ROOT

RESULTS = sorted((ROOT / "docs" / "results").rglob("table-*.json"))


def test_there_are_results():
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=name)
def test_a_table_is_made_of_its_json(path):
    assert markdown(json.loads(path.read_text(encoding="utf-8"))) in read(PAGES / "reproduction.md")
