"""Comparisons that are gone on with."""

import json

import pytest

from pipelines.errors import InputError
from pipelines.training.kept_runs import KeptRuns

SETTINGS, FIELDS = {"steps": 3}, {"seed": int, "kind": str, "score": float, "curve": list}
RUN = {"seed": 1, "kind": "a", "score": 1, "curve": [0.5], "minutes": 2}


def test_what_was_found_is_read(tmp_path):
    path = tmp_path / "found.json"
    assert KeptRuns(None, SETTINGS, FIELDS).found == {"settings": SETTINGS, "runs": []}
    assert KeptRuns(path, SETTINGS, FIELDS).found == {"settings": SETTINGS, "runs": []}
    found = {"settings": SETTINGS, "runs": [RUN]}
    path.write_text(json.dumps(found))
    kept = KeptRuns(path, SETTINGS, FIELDS)
    assert (kept.found, len(kept)) == (found, 1)
    assert kept.has(seed=1, kind="a") and not kept.has(seed=1, kind="b")
    kept.add(**{**RUN, "kind": "b"})
    assert KeptRuns(path, SETTINGS, FIELDS).has(seed=1, kind="b")


@pytest.mark.parametrize("found", [[1], {"settings": {"steps": 4}, "runs": []}, {}, [], None])
def test_another_comparison_is_told(tmp_path, found):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match="found.json is of another comparison"):
        KeptRuns(path, SETTINGS, FIELDS)


@pytest.mark.parametrize(
    "runs",
    [None, "x", [1], [RUN, {"seed": 1}], [{**RUN, "score": "x"}], [{**RUN, "curve": None}]],
    ids=str,
)
def test_damaged_runs_are_told(tmp_path, runs):
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"settings": SETTINGS, "runs": runs}))
    told = "found.json cannot be read: each of its runs must have seed, kind, score, curve: "
    with pytest.raises(InputError, match=told):
        KeptRuns(path, SETTINGS, FIELDS)
