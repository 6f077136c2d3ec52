"""Of many combinations of parameters, those that are run each time miss no pair of values."""

import itertools
import os

import pytest

from tests.support.combinations import beyond_the_cover


class Kept:
    """Keeps the items of a session, and runs none."""

    def pytest_collection_modifyitems(self, items):
        self.items = list(items)
        items.clear()


def collected(directory, code):
    (directory / "test_it.py").write_text(f"import pytest\n{code}", encoding="utf-8")
    kept = Kept()
    options = ["-q", "-p", "no:cacheprovider", "--import-mode", "importlib", "-c", os.devnull]
    pytest.main([*options, str(directory)], plugins=[kept])
    return kept.items


THREE = """
@pytest.mark.parametrize("c", "xy")
@pytest.mark.parametrize("a, b", [(1, "one"), (2, "two"), (1, "two")])
@pytest.mark.parametrize("d", [True, False])
def test_three(a, b, c, d): ...

@pytest.mark.parametrize("c", "xyz")
def test_one(c): ...

def test_none(): ...
"""


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_each_combination_of_so_many_is_run(strength, tmp_path):
    items = collected(tmp_path, THREE)
    assert len(items) == 2 * 3 * 2 + 3 + 1
    left_out = beyond_the_cover(items, strength)
    assert {item.nodeid.partition("::")[2].partition("[")[0] for item in left_out} <= {"test_three"}
    run = [item.callspec.params for item in items if "three" in item.name and item not in left_out]
    parameters = [("a", "b"), ("c",), ("d",)]
    values = {("a", "b"): 3, ("c",): 2, ("d",): 2}
    for chosen in itertools.combinations(parameters, strength):
        names = [name for together in chosen for name in together]
        found = {tuple(case[name] for name in names) for case in run}
        expected = 1
        for together in chosen:
            expected *= values[together]
        assert len(found) == expected, names
    assert len(run) == {1: 3, 2: 6, 3: 12}[strength]


def test_all_processes_choose_alike(tmp_path):
    found = [
        [item.nodeid for item in beyond_the_cover(collected(tmp_path, THREE), 2)] for _ in range(2)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 6
