"""The rows of the paper's tables, and which of them are the same run."""

from dataclasses import replace

import pytest

from pipelines.config import default_config
from pipelines.errors import InputError
from pipelines.reproduction.tables import TABLES, rows_named


def names(table, preset="base"):
    config = default_config(preset, demo=False)
    return {row.name: row.run_name(config, 1) for row in TABLES[table].rows}


def test_rows_that_tables_share_are_one_run():
    assert names(1)["relative"] == names(2)["16"] == names(3)["keys_and_values"]
    assert names(1)["relative"] == "relative-k16-seed1"


def test_other_rows_are_runs_of_their_own():
    """Twelve models in all, of which one stands in all three tables."""
    every = [name for table in TABLES for name in names(table).values()]
    assert len(every) == 14
    assert len(set(every)) == 12


def test_the_distance_is_that_of_the_preset():
    assert names(1, "big")["relative"] == names(3, "big")["keys_and_values"] == "relative-k8-seed1"
    assert names(2, "big")["16"] == "relative-k16-seed1"


def test_the_models_are_those_of_the_rows():
    base = default_config("base", demo=False)
    base = replace(base, model=replace(base.model, relative_keys=False))
    keys, values, neither = (
        row.config_of(base).model for row in TABLES[3].chosen(["keys", "values", "neither"])
    )
    assert (keys.relative_keys, keys.relative_values) == (True, False)
    assert (values.relative_keys, values.relative_values) == (False, True)
    assert not neither.uses_relative and not neither.uses_sinusoidal
    assert [row.config_of(base).model.max_relative_position for row in TABLES[2].rows] == [
        0, 1, 2, 4, 16, 64, 256,
    ]  # fmt: skip


def test_the_numbers_of_the_paper():
    assert [row.paper for row in TABLES[1].rows] == [
        (26.5, 38.2, 27.9, 41.2),
        (26.8, 38.7, 29.2, 41.5),
        (),
    ]
    assert [row.paper[0] for row in TABLES[2].rows] == [12.5, 25.5, 25.8, 25.9, 25.8, 25.9, 25.8]
    assert [row.paper[0] for row in TABLES[3].rows] == [25.8, 25.8, 25.3, 12.5]


def test_a_row_that_there_is_not():
    with pytest.raises(InputError, match="rows must be of keys_and_values, .* Table 3, got 16"):
        TABLES[3].chosen(["keys", "16"])


def test_rows_of_any_table():
    keys, distance, sinusoidal = rows_named(["keys", "3", "sinusoidal"])
    assert (keys, sinusoidal) == (TABLES[3].rows[1], TABLES[1].rows[0])
    assert distance.label == "k = 3" and distance.model["max_relative_position"] == 3
    assert rows_named(["16"])[0].model == TABLES[2].rows[4].model


@pytest.mark.parametrize(
    "names, message",
    [
        (["keys", "x"], "rows must be of sinusoidal, .*, or a distance of at most 9999, got x"),
        (["-1"], "rows must be of .*, got -1"),
        (["keys", "4", "keys"], "rows must be different, got keys twice"),
    ],
)
def test_rows_that_there_are_not(names, message):
    with pytest.raises(InputError, match=message):
        rows_named(names)


def test_the_test_set_comes_first():
    table = TABLES[1]
    assert table.split_of(("valid", "test"), "demo") == "test"
    assert table.split_of(("valid",), "demo") == "valid"
    with pytest.raises(InputError, match="needs text to score on: --test_source and --test_target"):
        table.split_of((), "demo")
    with pytest.raises(InputError, match="needs text to score on: --valid_source"):
        replace(table, splits=("valid",)).split_of(("train", "test"), "demo")


@pytest.mark.parametrize("number, split", [(1, "test"), (2, "valid"), (3, "valid")])
def test_of_wmt14_what_the_paper_scored(number, split):
    """Sections 4.2 and 4.3: newstest2014, and newstest2013."""
    table = TABLES[number]
    assert table.split_of(("valid", "test"), "wmt14_translate/de-en") == split
    own = replace(table, splits=("test",))
    assert own.split_of(("valid", "test"), "wmt14_translate/de-en") == "test"
